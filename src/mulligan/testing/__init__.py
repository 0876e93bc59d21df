"""What the pytest fixture `mulligan` is: the functions of this package, for one app."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Unpack

from mulligan.app.mulligan import Mulligan
from mulligan.core.errors import Moment, Seconds
from mulligan.core.job import Job, State
from mulligan.testing import asserts, workers
from mulligan.testing import inline as clock
from mulligan.testing import inline as draining
from mulligan.testing import inline as forcing
from mulligan.testing import workers as places
from mulligan.testing.asserts import (
    ExpectedJob,
    Named,
    assert_enqueued,
    assert_state,
    assert_will_retry,
    refute_enqueued,
)
from mulligan.testing.inline import (
    Drained,
    Force,
    Returns,
    StillBusy,
    advance,
    drain,
    drain_async,
    force,
    now,
)
from mulligan.testing.workers import RealWorker, environ, temporary, worker


class Helper:
    """One app under test."""

    def __init__(self, app: Mulligan, spec: str = "") -> None:
        self.app = app
        self._spec = spec

    # -- time and work ----------------------------------------------------------------------------
    def drain(
        self, *, scheduled: bool = False, most: int = draining.MOST, seed: int | None = None
    ) -> draining.Drained:
        __tracebackhide__ = True
        return draining.drain(self.app, scheduled=scheduled, most=most, seed=seed)

    async def drain_async(
        self, *, scheduled: bool = False, most: int = draining.MOST, seed: int | None = None
    ) -> draining.Drained:
        __tracebackhide__ = True
        return await draining.drain_async(self.app, scheduled=scheduled, most=most, seed=seed)

    def advance(self, by: Moment, *, leases: bool = False) -> datetime:
        return clock.advance(self.app, by, leases=leases)

    def now(self) -> datetime:
        return clock.now(self.app)

    def force(self, kind: Named, *endings: Any, times: int = 1) -> forcing.Force:
        return forcing.force(self.app, kind, *endings, times=times)

    # -- assertions -------------------------------------------------------------------------------
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
        within: Seconds = 1,
    ) -> datetime:
        __tracebackhide__ = True
        return asserts.assert_will_retry(self.app, job, after=after, code=code, within=within)

    def assert_state(self, job: Job | str, state: State | str) -> Job:
        __tracebackhide__ = True
        return asserts.assert_state(self.app, job, state)

    # -- other processes --------------------------------------------------------------------------
    def worker(
        self, spec: str = "", *, env: Mapping[str, str] | None = None
    ) -> AbstractContextManager[workers.RealWorker]:
        """A real worker of the app the ini option `mulligan_app` names, or of `spec`."""
        return workers.worker(self.app, spec or self._spec, env=env)

    @property
    def environ(self) -> dict[str, str]:
        return places.environ(self.app)


# For those who test their jobs: a store of its own for each test, time that can be moved, outcomes on demand.

__all__ = [
    "Drained",
    "Force",
    "Helper",
    "RealWorker",
    "Returns",
    "StillBusy",
    "advance",
    "assert_enqueued",
    "assert_state",
    "assert_will_retry",
    "drain",
    "drain_async",
    "environ",
    "force",
    "now",
    "refute_enqueued",
    "temporary",
    "worker",
]
