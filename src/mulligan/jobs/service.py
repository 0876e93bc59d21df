"""`app.jobs`: read jobs and repair them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mulligan.config import Settings
from mulligan.core.errors import (
    DurationOrTime,
    NotFound,
    Refused,
    StoreUnavailable,
    WaitTimeout,
    unknown_job,
)
from mulligan.core.event import EventList
from mulligan.core.ids import LENGTH
from mulligan.core.job import COUNT_CAP, AttemptRow, Job, State
from mulligan.core.lifecycle import TERMINAL
from mulligan.events.queries import EventQueries
from mulligan.jobs import repair
from mulligan.jobs.explain import Explanation, explain_job
from mulligan.jobs.filter import parse_filter
from mulligan.jobs.queries import JobQueries, SearchQueries
from mulligan.jobs.search import CappedCount, JobList, build_count, build_job_list, resolve_filter
from mulligan.jobs.view import load_job_views
from mulligan.manifest.specs import Handler, KindSpec
from mulligan.storage.base import Store

JobViews = list[Job]  # The classes below have a method named list.
AttemptList = list[AttemptRow]
Overrides = Mapping[str, Any]

POLL_INTERVAL = 0.05
MAX_POLL_INTERVAL = 0.5
MAX_JOBS_LISTED = 1000
DEFAULT_COUNT_CAP = COUNT_CAP
MAX_IDS_NAMED = 5  # ids listed when a prefix matches several
WAIT_ENDS_IN = frozenset({*TERMINAL, State.PARKED})


class Jobs:
    """Read jobs, wait for them and repair them."""

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
        self._handlers = {} if handlers is None else handlers  # empty where no app is loaded

    @property
    def _kinds(self) -> Mapping[str, KindSpec]:
        """Return the kinds of this process, whose manifest may not be stored yet."""
        return {name: handler.spec for name, handler in self._handlers.items()}

    @property
    def _store(self) -> Store:
        return self._open()

    # --- Read ---
    def get(self, job_id: str, *, owner: str | None = None) -> Job:
        """Return one job. With `owner`, another owner's job counts as missing."""
        with self._store.read() as tx:
            row = JobQueries(tx).get_job(job_id)
            if row is None or owner not in (None, row.owner):
                raise unknown_job(job_id)
            return load_job_views(tx, [row], self.get)[0]

    def resolve(self, prefix: str) -> str:
        """Return the full id that begins with `prefix`."""
        if len(prefix) == LENGTH:
            return prefix
        if not prefix:  # An unset shell variable must not select the only job.
            raise Refused("the id is empty. Pass an id or its first characters.")
        with self._store.read() as tx:
            found = JobQueries(tx).find_jobs(prefix, MAX_IDS_NAMED + 1)
        if not found:
            raise unknown_job(prefix)
        if len(found) > 1:
            raise NotFound(describe_ambiguous_id("job", prefix, found))
        return found[0]

    def list(
        self,
        filter: str = "",  # noqa: A002 - public name
        *,
        limit: int = 50,
        before: str | None = None,
        owner: str | None = None,
        private: bool = True,
    ) -> JobList:
        """Return jobs that match a filter, newest first. At most 50,000 jobs are searched.

        `before` is the `cursor` of the previous page. `owner` restricts the list to their jobs.
        With `private=False`, quoted search terms do not match the private part of failures.
        """
        if not 1 <= limit <= MAX_JOBS_LISTED:
            raise Refused(f"limit must be from 1 to {MAX_JOBS_LISTED:,}, not {limit}")
        where = parse_filter(filter)
        if owner is not None and where.setdefault("owner", owner) != owner:
            return JobList()
        with self._store.read() as tx:
            resolved = resolve_filter(tx, where, owner, self._kinds, private=private)
            found = SearchQueries(tx).list_jobs_bounded(resolved, limit, before)
            return build_job_list(load_job_views(tx, found.rows, self.get), found, limit)

    def count(
        self,
        filter: str = "",  # noqa: A002 - public name
        *,
        cap: int = DEFAULT_COUNT_CAP,
        owner: str | None = None,
        private: bool = True,
    ) -> CappedCount:
        """Count jobs that match a filter. Counting stops at `cap` or after 50,000 searched jobs.

        `owner` and `private` work as in `list`.
        """
        where = parse_filter(filter)
        if owner is not None and where.setdefault("owner", owner) != owner:
            return CappedCount(0)
        with self._store.read() as tx:
            resolved = resolve_filter(tx, where, owner, self._kinds, private=private)
            return build_count(SearchQueries(tx).count_jobs_bounded(resolved, cap), cap)

    def explain(self, job_id: str, *, private: bool = False) -> Explanation:
        """Explain a job: its story, why it is where it is, its policy, and possible actions.

        `private` adds the private part of failures: messages and stack traces.
        """
        with self._store.read() as tx:
            row = JobQueries(tx).get_job(job_id)
            if row is None:
                raise unknown_job(job_id)
            return explain_job(tx, row, self._settings.retry, self.get, private=private)

    def history(self, job_id: str) -> EventList:
        """Return every stored event of a job, oldest first."""
        with self._store.read() as tx:
            if JobQueries(tx).get_job(job_id) is None:
                raise unknown_job(job_id)
            return EventQueries(tx).list_events_of_job(job_id)

    def attempts(self, job_id: str) -> AttemptList:
        """Return every finished attempt, oldest first, with both parts of its failure."""
        with self._store.read() as tx:
            if JobQueries(tx).get_job(job_id) is None:
                raise unknown_job(job_id)
            return JobQueries(tx).list_attempts(job_id)

    def wait(self, job_id: str, timeout: float | None = None) -> Job:
        """Wait until a job has ended (succeeded, dead, cancelled) or is parked, and return it."""
        poll = _Poll(job_id, timeout)
        while True:
            state = self._state(job_id)
            if state in WAIT_ENDS_IN:
                return self.get(job_id)
            time.sleep(poll.next_pause(state))

    async def wait_async(self, job_id: str, timeout: float | None = None) -> Job:  # noqa: ASYNC109 - public name
        """Wait as `wait` does, using a thread only for each read: thousands may wait."""
        poll = _Poll(job_id, timeout)
        while True:
            state = await asyncio.to_thread(self._state, job_id)
            if state in WAIT_ENDS_IN:
                return await asyncio.to_thread(self.get, job_id)
            await asyncio.sleep(poll.next_pause(state))

    def _state(self, job_id: str) -> str:
        """Return the state of a job, or a placeholder during a database outage."""
        try:
            with self._store.read() as tx:
                row = JobQueries(tx).get_job(job_id)
        except StoreUnavailable:
            return "in an unknown state (database unavailable)"
        if row is None:
            raise unknown_job(job_id)
        return row.state

    # --- Repair ---
    def retry(
        self,
        job_id: str,
        *,
        reason: str = "",
        overrides: Overrides | None = None,
        at: DurationOrTime | None = None,
        owner: str | None = None,
    ) -> Job:
        """Start a new generation of a dead, parked or cancelled job.

        Counters restart; history and limits stay. `overrides` may set max_retries, queue,
        priority, timeout, policy and payload (a mapping of fields that the kind declares
        editable). `at` is when to run: a duration from now or a datetime. `owner` acts as
        this owner.
        """
        request = self._retry_request(overrides, at, owner)
        repair.retry(self._store, job_id, actor=self._actor, reason=reason, request=request)
        return self.get(job_id)

    def preview_retry(
        self,
        job_id: str,
        *,
        overrides: Overrides | None = None,
        at: DurationOrTime | None = None,
        owner: str | None = None,
    ) -> repair.RetryPreview:
        """Return what `retry` would change and everything that would refuse it, without writing."""
        request = self._retry_request(overrides, at, owner)
        return repair.preview_retry(self._store, job_id, request)

    def _retry_request(
        self, overrides: Overrides | None, at: DurationOrTime | None, owner: str | None
    ) -> repair.ManualRetry:
        return repair.ManualRetry(
            overrides=overrides,
            at=at,
            owner=owner,
            handlers=self._handlers,
            rate_limit=self._settings.limits.retries_by_hand,
            max_payload=self._settings.limits.payload,
        )

    def cancel(self, job_id: str, *, reason: str = "", owner: str | None = None) -> Job:
        """Cancel a queued or parked job at once; ask a running job to stop."""
        repair.cancel(self._store, job_id, actor=self._actor, reason=reason, owner=owner)
        return self.get(job_id)

    def release(
        self, job_id: str, *, choice: str | None = None, reason: str = "", owner: str | None = None
    ) -> Job:
        """Queue a parked job again, with one of the choices it offers."""
        repair.release(
            self._store, job_id, actor=self._actor, choice=choice, reason=reason, owner=owner
        )
        return self.get(job_id)

    def discard(self, job_id: str, *, reason: str, owner: str | None = None) -> Job:
        """Cancel a dead or parked job that will not be repaired. A reason is required."""
        repair.discard(self._store, job_id, actor=self._actor, reason=reason, owner=owner)
        return self.get(job_id)


class _Poll:
    """Pauses between two reads of a job that is waited for, and the timeout."""

    def __init__(self, job_id: str, timeout: float | None) -> None:
        self._job_id = job_id
        self._timeout = timeout
        self._started = time.monotonic()
        self._pause = POLL_INTERVAL

    def next_pause(self, state: str) -> float:
        """Return how long to sleep; raise WaitTimeout once the timeout has passed."""
        pause = self._pause
        self._pause = min(MAX_POLL_INTERVAL, pause * 1.2)
        if self._timeout is None:
            return pause
        remaining = self._started + self._timeout - time.monotonic()
        if remaining <= 0:
            raise WaitTimeout(f"job {self._job_id} is still {state} after {self._timeout} s")
        return min(pause, remaining)


def describe_ambiguous_id(what: str, prefix: str, found: Sequence[str]) -> str:
    """Return an error text that lists the ids a prefix could mean."""
    ids = ", ".join(found[:MAX_IDS_NAMED])
    if len(found) > MAX_IDS_NAMED:
        ids += ", …"
    return f"{prefix!r} begins more than one {what} id: {ids}. Type more characters."
