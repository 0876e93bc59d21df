"""What the pytest fixture `mulligan` is: the functions of this package, for one app."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Unpack

from mulligan.app import Mulligan
from mulligan.errors import Moment, Seconds
from mulligan.job import Job, State
from mulligan.testing import asserts, clock, draining, forcing, places, workers
from mulligan.testing.matching import Wanted
from mulligan.testing.words import Named


class Helper:
    """One app under test."""

    def __init__(self, app: Mulligan, spec: str = "") -> None:
        self.app = app
        self._spec = spec

    # -- time and work ----------------------------------------------------------------------------
    def drain(self, *, scheduled: bool = False, most: int = draining.MOST, seed: int | None = None) -> draining.Drained:
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
        self, kind: Named | None = None, *, count: int | None = None, **wanted: Unpack[Wanted]
    ) -> list[Job]:
        __tracebackhide__ = True
        return asserts.assert_enqueued(self.app, kind, count=count, **wanted)

    def refute_enqueued(self, kind: Named | None = None, **wanted: Unpack[Wanted]) -> None:
        __tracebackhide__ = True
        asserts.refute_enqueued(self.app, kind, **wanted)

    def assert_will_retry(
        self, job: Job | str, *, after: asserts.After | None = None, code: str | None = None, within: Seconds = 1
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
