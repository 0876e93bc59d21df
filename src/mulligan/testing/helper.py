"""The testing functions bound to one app, as the pytest fixture `mulligan` provides them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Unpack

from mulligan.app.mulligan import Mulligan
from mulligan.core.errors import Duration, DurationOrTime
from mulligan.core.job import Job, State
from mulligan.testing import asserts, inline, workers
from mulligan.testing.asserts import ExpectedJob, Named


class Helper:
    """Functions of `mulligan.testing` bound to one app."""

    def __init__(self, app: Mulligan, spec: str = "") -> None:
        self.app = app
        self._spec = spec

    # --- Clock and execution ---
    def drain(
        self, *, scheduled: bool = False, most: int = inline.MAX_ATTEMPTS, seed: int | None = None
    ) -> inline.Drained:
        __tracebackhide__ = True
        return inline.drain(self.app, scheduled=scheduled, most=most, seed=seed)

    async def drain_async(
        self, *, scheduled: bool = False, most: int = inline.MAX_ATTEMPTS, seed: int | None = None
    ) -> inline.Drained:
        __tracebackhide__ = True
        return await inline.drain_async(self.app, scheduled=scheduled, most=most, seed=seed)

    def advance(self, by: DurationOrTime, *, leases: bool = False) -> datetime:
        return inline.advance(self.app, by, leases=leases)

    def now(self) -> datetime:
        return inline.now(self.app)

    def force(self, kind: Named, *endings: Any, times: int = 1) -> inline.Force:
        return inline.force(self.app, kind, *endings, times=times)

    # --- Assertions ---
    def assert_enqueued(
        self, kind: Named | None = None, *, count: int | None = None, **wanted: Unpack[ExpectedJob]
    ) -> list[Job]:
        __tracebackhide__ = True
        return asserts.assert_enqueued(self.app, kind, count=count, **wanted)

    def refute_enqueued(self, kind: Named | None = None, **wanted: Unpack[ExpectedJob]) -> None:
        __tracebackhide__ = True
        asserts.refute_enqueued(self.app, kind, **wanted)

    def assert_will_retry(
        self,
        job: Job | str,
        *,
        after: asserts.After | None = None,
        code: str | None = None,
        within: Duration = 1,
    ) -> datetime:
        __tracebackhide__ = True
        return asserts.assert_will_retry(self.app, job, after=after, code=code, within=within)

    def assert_state(self, job: Job | str, state: State | str) -> Job:
        __tracebackhide__ = True
        return asserts.assert_state(self.app, job, state)

    # --- Other processes ---
    def worker(
        self, spec: str = "", *, env: Mapping[str, str] | None = None
    ) -> AbstractContextManager[workers.RealWorker]:
        """Run a real worker of `spec`, or of the app named by the ini option `mulligan_app`."""
        return workers.worker(self.app, spec or self._spec, env=env)

    @property
    def environ(self) -> dict[str, str]:
        return workers.environ(self.app)
