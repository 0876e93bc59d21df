"""`app.jobs`: read jobs and repair them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mulligan.config import Settings
from mulligan.core.errors import Moment, NotFound, Refused, StoreUnavailable, WaitTimeout
from mulligan.core.event import Event
from mulligan.core.ids import LENGTH
from mulligan.core.job import AttemptRow, Job, Micros, NewJob, State, in_columns
from mulligan.core.lifecycle import TERMINAL
from mulligan.jobs import repair as recover
from mulligan.jobs.explain import Explanation, explanation
from mulligan.jobs.filter import parse_filter
from mulligan.jobs.search import CappedCount, JobList, counted, job_list, resolved
from mulligan.jobs.view import fresh_job, fresh_jobs, jobs_of
from mulligan.manifest.specs import Handler, KindSpec
from mulligan.storage.base import Inserted, Store, Transaction

Some = list[Job]  # the classes below have a method called list
Story = list[Event]
Attempts = list[AttemptRow]
Overrides = Mapping[str, Any]

WAIT_EVERY = 0.05
WAIT_MOST = 0.5
LIST_MOST = 1000
COUNT_MOST = 10_000
NAMED = 5  # ids that are named when a beginning fits several
WAITED_FOR = frozenset({*TERMINAL, State.PARKED})


class Jobs:
    def __init__(
        self,
        store: Callable[[], Store],
        settings: Settings,
        actor: str = "python",
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        self._open = store
        self._settings = settings
        self._actor = actor
        self._handlers = {} if handlers is None else handlers  # where the app is at hand

    @property
    def _kinds(self) -> Mapping[str, KindSpec]:
        """Of this process, whose manifest may not be stored yet."""
        return {name: handler.spec for name, handler in self._handlers.items()}

    @property
    def _store(self) -> Store:
        return self._open()

    # -- read -------------------------------------------------------------------------------------
    def get(self, job_id: str, *, owner: str | None = None) -> Job:
        """With `owner`, somebody else's job answers like one that does not exist."""
        with self._store.read() as unit:
            row = unit.get(job_id)
            if row is None or owner not in (None, row.owner):
                raise NotFound(_no_such(job_id))
            return jobs_of(unit, [row], self.get)[0]

    def resolve(self, prefix: str) -> str:
        """A whole id, from as many of its first characters as make it unique."""
        if len(prefix) == LENGTH:
            return prefix
        if not prefix:  # an unset variable in a shell: it must not mean the only job there is
            message = "the id is empty; give at least its first characters"
            raise Refused(message)
        with self._store.read() as unit:
            found = unit.find(prefix, NAMED + 1)
        if len(found) == 1:
            return found[0]
        raise NotFound(ambiguous("job", prefix, found) if found else _no_such(prefix))

    def list(
        self,
        filter: str = "",  # noqa: A002 - CONTRACT's name
        *,
        limit: int = 50,
        before: str | None = None,
        owner: str | None = None,
        private: bool = True,
    ) -> JobList:
        """Newest first; `before` is the `cursor` of the page above. At most 50,000 jobs are looked at.

        `owner`: of their jobs only. `private`: may words in quotes find what only the private half says?
        """
        if not 1 <= limit <= LIST_MOST:
            message = f"limit must be from 1 to {LIST_MOST}, not {limit}"
            raise Refused(message)
        where = parse_filter(filter)
        if owner is not None and where.setdefault("owner", owner) != owner:
            return JobList()
        with self._store.read() as unit:
            found = unit.skim(
                resolved(unit, where, owner, self._kinds, private=private), limit, before
            )
            return job_list(jobs_of(unit, found.rows, self.get), found, limit)

    def count(
        self,
        filter: str = "",  # noqa: A002 - as above
        *,
        cap: int = COUNT_MOST,
        owner: str | None = None,
        private: bool = True,
    ) -> CappedCount:
        """How many jobs match. It stops at `cap`, and with 50,000 jobs looked at, and says so.

        `owner`, `private`: as for `list`.
        """
        where = parse_filter(filter)
        if owner is not None and where.setdefault("owner", owner) != owner:
            return CappedCount(0)
        with self._store.read() as unit:
            return counted(
                unit.skim_count(resolved(unit, where, owner, self._kinds, private=private), cap),
                cap,
            )

    def explain(self, job_id: str, *, private: bool = False) -> Explanation:
        """Its story, why it is where it is, what holds for it, what could be done; `private`: with messages, traces."""
        with self._store.read() as unit:
            row = unit.get(job_id)
            if row is None:
                raise NotFound(_no_such(job_id))
            return explanation(unit, row, self._settings.retry, self.get, private=private)

    def history(self, job_id: str) -> Story:
        """Everything that happened to a job, in order."""
        with self._store.read() as unit:
            if unit.get(job_id) is None:
                raise NotFound(_no_such(job_id))
            return unit.story(job_id)

    def attempts(self, job_id: str) -> Attempts:
        """Every finished attempt, oldest first, with both halves of its failure."""
        with self._store.read() as unit:
            if unit.get(job_id) is None:
                raise NotFound(_no_such(job_id))
            return unit.attempts(job_id)

    def wait(self, job_id: str, timeout: float | None = None) -> Job:
        """The job once it has ended (succeeded, dead, cancelled) or needs a person (parked)."""
        patience = _Patience(job_id, timeout)
        while (state := self._state(job_id)) not in WAITED_FOR:
            time.sleep(patience.pause(state))
        return self.get(job_id)

    def _state(self, job_id: str) -> str:
        """For who waits; that may be through an outage too."""
        try:
            with self._store.read() as unit:
                row = unit.get(job_id)
        except StoreUnavailable:
            return "out of sight"
        if row is None:
            raise NotFound(_no_such(job_id))
        return row.state

    # -- repair -----------------------------------------------------------------------------------
    def retry(
        self,
        job_id: str,
        *,
        reason: str = "",
        overrides: Overrides | None = None,
        at: Moment | None = None,
        owner: str | None = None,
    ) -> Job:
        """A new generation of a dead, parked or cancelled job: counters at zero, history and limits kept.

        `overrides`: max_retries, queue, priority, timeout, policy, and payload, a mapping of fields its kind calls
        editable. `at`: when; a length from now or a datetime. `owner`: act as this owner.
        """
        wish = self._wish(overrides, at, owner)
        recover.retry(self._store, job_id, actor=self._actor, reason=reason, **wish)
        return self.get(job_id)

    def preview_retry(
        self,
        job_id: str,
        *,
        overrides: Overrides | None = None,
        at: Moment | None = None,
        owner: str | None = None,
    ) -> recover.RetryPreview:
        """What `retry` would change, and everything that would refuse it. Nothing is written."""
        return recover.preview(self._store, job_id, **self._wish(overrides, at, owner))

    def _wish(
        self, overrides: Overrides | None, at: Moment | None, owner: str | None
    ) -> dict[str, Any]:
        limits = self._settings.limits
        said: dict[str, Any] = {
            "overrides": overrides,
            "at": at,
            "owner": owner,
            "handlers": self._handlers,
        }
        return said | {"allowed": limits.retries_by_hand, "most": limits.payload}

    def cancel(self, job_id: str, *, reason: str = "", owner: str | None = None) -> Job:
        recover.cancel(self._store, job_id, actor=self._actor, reason=reason, owner=owner)
        return self.get(job_id)

    def release(
        self, job_id: str, *, choice: str | None = None, reason: str = "", owner: str | None = None
    ) -> Job:
        recover.release(
            self._store, job_id, actor=self._actor, choice=choice, reason=reason, owner=owner
        )
        return self.get(job_id)

    def discard(self, job_id: str, *, reason: str, owner: str | None = None) -> Job:
        recover.discard(self._store, job_id, actor=self._actor, reason=reason, owner=owner)
        return self.get(job_id)

    # -- for enqueue ------------------------------------------------------------------------------
    def fresh(self, new: NewJob, now: Micros) -> Job:
        """One that was inserted at this moment."""
        return fresh_job(new, now, self.get)

    def all_fresh(self, new: Sequence[NewJob], now: Micros) -> Some:
        """Several of them."""
        alike = in_columns(new) if len(new) > 1 else None
        return (
            [self.fresh(job, now) for job in new]
            if alike is None
            else fresh_jobs(alike, now, self.get)
        )

    def inserted(
        self, unit: Transaction, new: Sequence[NewJob], answers: Sequence[Inserted]
    ) -> Some:
        """The jobs as they stand now: a new one is known already, only a twin must be read."""
        now = answers[0].created_at if answers else 0
        if all(answer.fresh and answer.created_at == now for answer in answers):
            return self.all_fresh(new, now)
        return [
            self.fresh(job, answer.created_at) if answer.fresh else self._twin(unit, answer.id)
            for job, answer in zip(new, answers, strict=True)
        ]

    def _twin(self, unit: Transaction, job_id: str) -> Job:
        row = unit.get(job_id)
        if row is None:
            raise NotFound(_no_such(job_id))
        return replace(jobs_of(unit, [row], self.get)[0], deduplicated=True)


class _Patience:
    """How long to pause between two looks at a job, and when to give up."""

    def __init__(self, job_id: str, timeout: float | None) -> None:
        self._job_id = job_id
        self._timeout = timeout
        self._began = time.monotonic()
        self._pause = WAIT_EVERY

    def pause(self, state: str) -> float:
        pause, self._pause = self._pause, min(WAIT_MOST, self._pause * 1.2)
        if self._timeout is None:
            return pause
        left = self._began + self._timeout - time.monotonic()
        if left <= 0:
            message = f"job {self._job_id} is still {state} after {self._timeout} s"
            raise WaitTimeout(message)
        return min(pause, left)


class AsyncJobs:
    """The same, awaitable: each call on a thread."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def get(self, job_id: str, *, owner: str | None = None) -> Job:
        return await asyncio.to_thread(self._jobs.get, job_id, owner=owner)

    async def list(
        self,
        filter: str = "",  # noqa: A002
        *,
        limit: int = 50,
        before: str | None = None,
        owner: str | None = None,
        private: bool = True,
    ) -> JobList:
        said: dict[str, Any] = {
            "limit": limit,
            "before": before,
            "owner": owner,
            "private": private,
        }
        return await asyncio.to_thread(partial(self._jobs.list, filter, **said))

    async def count(
        self,
        filter: str = "",  # noqa: A002
        *,
        cap: int = COUNT_MOST,
        owner: str | None = None,
        private: bool = True,
    ) -> CappedCount:
        return await asyncio.to_thread(
            self._jobs.count, filter, cap=cap, owner=owner, private=private
        )

    async def explain(self, job_id: str, *, private: bool = False) -> Explanation:
        return await asyncio.to_thread(self._jobs.explain, job_id, private=private)

    async def history(self, job_id: str) -> Story:
        return await asyncio.to_thread(self._jobs.history, job_id)

    async def attempts(self, job_id: str) -> Attempts:
        return await asyncio.to_thread(self._jobs.attempts, job_id)

    async def wait(self, job_id: str, timeout: float | None = None) -> Job:  # noqa: ASYNC109 - the contract's name
        """On a thread only for each look: a thousand may wait."""
        patience = _Patience(job_id, timeout)
        look = self._jobs._state  # noqa: SLF001 - its other half
        while (state := await asyncio.to_thread(look, job_id)) not in WAITED_FOR:  # noqa: ASYNC110 - the end comes from elsewhere
            await asyncio.sleep(patience.pause(state))
        return await self.get(job_id)

    async def retry(
        self,
        job_id: str,
        *,
        reason: str = "",
        overrides: Overrides | None = None,
        at: Moment | None = None,
        owner: str | None = None,
    ) -> Job:
        said: dict[str, Any] = {"reason": reason, "overrides": overrides, "at": at, "owner": owner}
        return await asyncio.to_thread(partial(self._jobs.retry, job_id, **said))

    async def preview_retry(
        self,
        job_id: str,
        *,
        overrides: Overrides | None = None,
        at: Moment | None = None,
        owner: str | None = None,
    ) -> recover.RetryPreview:
        return await asyncio.to_thread(
            self._jobs.preview_retry, job_id, overrides=overrides, at=at, owner=owner
        )

    async def cancel(self, job_id: str, *, reason: str = "", owner: str | None = None) -> Job:
        return await asyncio.to_thread(self._jobs.cancel, job_id, reason=reason, owner=owner)

    async def release(
        self, job_id: str, *, choice: str | None = None, reason: str = "", owner: str | None = None
    ) -> Job:
        return await asyncio.to_thread(
            self._jobs.release, job_id, choice=choice, reason=reason, owner=owner
        )

    async def discard(self, job_id: str, *, reason: str, owner: str | None = None) -> Job:
        return await asyncio.to_thread(self._jobs.discard, job_id, reason=reason, owner=owner)


def ambiguous(what: str, prefix: str, found: Sequence[str]) -> str:
    """Which ones it could be, so that the next try can be the right one."""
    more = ", …" if len(found) > NAMED else ""
    return f"{prefix!r} begins more than one {what} id: {', '.join(found[:NAMED])}{more}; give more of it"


def _no_such(job_id: str) -> str:
    return f"no job {job_id!r}"
