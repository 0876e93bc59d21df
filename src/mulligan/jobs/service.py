"""`app.jobs`: read jobs and repair them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mulligan.core.attempt_log import LogOfAttempt, decode_records
from mulligan.core.errors import (
    DurationOrTime,
    NoResult,
    NotFound,
    Refused,
    StoreUnavailable,
    UnknownKind,
    WaitTimeout,
    unknown_job,
)
from mulligan.core.event import EventList
from mulligan.core.ids import CUT_MARK, LENGTH, SHORT_LENGTH
from mulligan.core.job import COUNT_CAP, AttemptRow, Job, State
from mulligan.core.lifecycle import TERMINAL
from mulligan.events.queries import EventQueries
from mulligan.jobs.filter import parse_filter
from mulligan.jobs.queries import JobQueries, SearchQueries
from mulligan.jobs.search import CappedCount, JobList, build_count, build_job_list, resolve_filter
from mulligan.jobs.view import Titles, load_job_views
from mulligan.manifest.declared import load_kinds
from mulligan.manifest.specs import Handler, KindSpec
from mulligan.storage.base import Store

if TYPE_CHECKING:
    from mulligan.config import Settings
    from mulligan.jobs import repair
    from mulligan.jobs.explain import Explanation
    from mulligan.steps.view import StepList

JobViews = list[Job]  # The classes below have a method named list.
AttemptList = list[AttemptRow]
TitleList = list[str]
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
        settings: Callable[[], Settings],
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
            return load_job_views(tx, [row], self)[0]

    def titles(self, jobs: Sequence[Job]) -> TitleList:
        """Return what people call each job: its kind's title, or else its first arguments."""
        with self._store.read() as tx:
            titles = Titles({**load_kinds(tx), **self._kinds})
        return [titles.of(job.kind, job.payload) for job in jobs]

    def resolve(self, prefix: str) -> str:
        """Return the full id that begins with `prefix`, or ends with it: "…h8n2vg" or "h8n2vg"."""
        if len(prefix) == LENGTH:
            return prefix
        end = prefix.removeprefix(CUT_MARK)
        if not prefix:  # An unset shell variable must not select the only job.
            raise Refused("the id is empty. Pass an id or its first characters.")
        with self._store.read() as tx:
            found = JobQueries(tx).find_jobs(prefix, MAX_IDS_NAMED + 1)
            if not found and len(end) >= SHORT_LENGTH and end.isalnum():
                found = JobQueries(tx).find_jobs_by_end(end, MAX_IDS_NAMED + 1)
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
            return build_job_list(load_job_views(tx, found.rows, self), found, limit)

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
        from mulligan.jobs.explain import explain_job

        with self._store.read() as tx:
            row = JobQueries(tx).get_job(job_id)
            if row is None:
                raise unknown_job(job_id)
            return explain_job(tx, row, self._settings().retry, self, private=private)

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

    def steps(self, job_id: str) -> StepList:
        """Return the steps of a job in the order in which they ended. Values are private."""
        from mulligan.steps.queries import StepQueries
        from mulligan.steps.view import describe_steps

        with self._store.read() as tx:
            row = JobQueries(tx).get_job(job_id)
            if row is None:
                raise unknown_job(job_id)
            return describe_steps(StepQueries(tx).list_steps(job_id), row)

    def log(self, job_id: str, attempt: int | None = None) -> LogOfAttempt:
        """Return the last log records and the stacks of a failed attempt. For operators.

        `attempt` is its token; None: the last attempt that has a log.
        """
        with self._store.read() as tx:
            queries = JobQueries(tx)
            if queries.get_job(job_id) is None:
                raise unknown_job(job_id)
            found = queries.get_attempt_log(job_id, attempt)
        if found is None:
            which = "" if attempt is None else f" of attempt {attempt}"
            raise NotFound(
                f"job {job_id} has no log{which}. A log is kept with attempts that failed, for "
                "as long as retention.logs says."
            )
        token, records, stacks = found
        return LogOfAttempt(job_id, token, decode_records(records), stacks)

    def wait(self, job_id: str, timeout: float | None = None) -> Job:
        """Wait until a job has ended (succeeded, dead, cancelled) or is parked, and return it."""
        poll = Poll(f"job {job_id}", timeout)
        while True:
            state = self._state(job_id)
            if state in WAIT_ENDS_IN:
                return self.get(job_id)
            if poll.is_over:
                raise poll.timed_out(state, self._why(job_id))
            time.sleep(poll.next_pause())

    async def wait_async(self, job_id: str, timeout: float | None = None) -> Job:  # noqa: ASYNC109 - public name
        """Wait as `wait` does, using a thread only for each read: thousands may wait."""
        import asyncio

        poll = Poll(f"job {job_id}", timeout)
        while True:
            state = await asyncio.to_thread(self._state, job_id)
            if state in WAIT_ENDS_IN:
                return await asyncio.to_thread(self.get, job_id)
            if poll.is_over:
                raise poll.timed_out(state, await asyncio.to_thread(self._why, job_id))
            await asyncio.sleep(poll.next_pause())

    async def _on_thread(self, call: Callable[[], Job]) -> Job:
        """Call on a thread, for the coroutines of `Job`."""
        import asyncio

        return await asyncio.to_thread(call)

    def _why(self, job_id: str) -> str:
        """Return what a job waits for; empty during a database outage."""
        try:
            return self.get(job_id).why
        except StoreUnavailable:
            return ""

    def value(self, job: Job) -> Any:
        """Return the result of a job as its handler's annotation says: `job.value()`."""
        if job.state is not State.SUCCEEDED:
            raise NoResult(describe_missing_result(job), job)
        handler = self._handlers.get(job.kind)
        if handler is None:
            raise UnknownKind(
                f"job {job.id}: this process has not loaded the handler of kind {job.kind!r}, "
                "whose annotation value() needs. job.result is the JSON."
            )
        return handler.arguments.convert_result(job.result)

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
        from_step: str | None = None,
        at: DurationOrTime | None = None,
        owner: str | None = None,
    ) -> Job:
        """Start a new generation of a dead, parked or cancelled job.

        Counters restart; history and limits stay. `overrides` may set max_retries, queue,
        priority, timeout, policy, payload (a mapping of fields that the kind declares editable)
        and steps (results by name). Finished steps are not called again; with `from_step` this
        one and those that ended after it are. `at` is when to run: a duration from now or a
        datetime. `owner` acts as this owner, who may name declared queues only.
        """
        overrides = with_from_step(overrides, from_step)
        request = self._retry_request(overrides, at, owner)
        from mulligan.jobs import repair

        repair.retry(self._store, job_id, actor=self._actor, reason=reason, request=request)
        return self.get(job_id)

    def preview_retry(
        self,
        job_id: str,
        *,
        overrides: Overrides | None = None,
        from_step: str | None = None,
        at: DurationOrTime | None = None,
        owner: str | None = None,
    ) -> repair.RetryPreview:
        """Return what `retry` would change and everything that would refuse it, without writing."""
        overrides = with_from_step(overrides, from_step)
        request = self._retry_request(overrides, at, owner)
        from mulligan.jobs import repair

        return repair.preview_retry(self._store, job_id, request)

    def _retry_request(
        self, overrides: Overrides | None, at: DurationOrTime | None, owner: str | None
    ) -> repair.ManualRetry:
        from mulligan.jobs import repair

        return repair.ManualRetry(
            overrides=overrides,
            at=at,
            owner=owner,
            handlers=self._handlers,
            rate_limit=self._settings().limits.retries_by_hand,
            max_payload=self._settings().limits.payload,
        )

    def cancel(self, job_id: str, *, reason: str = "", owner: str | None = None) -> Job:
        """Cancel a queued or parked job at once; ask a running job to stop."""
        from mulligan.jobs import repair

        repair.cancel(self._store, job_id, actor=self._actor, reason=reason, owner=owner)
        return self.get(job_id)

    def tell(
        self,
        job_id: str,
        name: str,
        value: Any = None,
        *,
        actor: str = "",
        reason: str = "",
        owner: str | None = None,
    ) -> Job:
        """Answer what a job waits for (`ctx.wait`), or will wait for. The first answer counts.

        A waiting job becomes due with its answer. Raises AnswerRefused if the wait was answered
        before, or its time is over.
        """
        from mulligan.waits import service

        limit = self._settings().limits.payload
        answer = service.check_answer(name, value, actor or self._actor, reason, limit)
        service.tell(self._store, job_id, answer, owner)
        return self.get(job_id)

    def find_by_key(self, key: str, *, owner: str | None = None) -> str:
        """Return the id of the only unfinished job with this unique key."""
        from mulligan.waits import service

        return service.find_job(self._store, key, owner)

    def release(
        self,
        job_id: str,
        *,
        choice: str | None = None,
        value: Any = None,
        reason: str = "",
        owner: str | None = None,
    ) -> Job:
        """Queue a parked job again, with one of the choices it offers.

        `value` is the result of a step in doubt, with the choice "it happened".
        """
        from mulligan.jobs import repair
        from mulligan.manifest.arguments import to_json

        text = None if value is None else to_json(value, "the value")
        repair.release(
            self._store,
            job_id,
            actor=self._actor,
            choice=choice,
            value=text,
            reason=reason,
            owner=owner,
        )
        return self.get(job_id)

    def undo(self, job_id: str, *, reason: str = "", owner: str | None = None) -> Job:
        """Undo the finished steps of a dead, cancelled or parked job, which then ends again."""
        from mulligan.jobs import repair

        repair.undo(self._store, job_id, actor=self._actor, reason=reason, owner=owner)
        return self.get(job_id)

    def discard(self, job_id: str, *, reason: str, owner: str | None = None) -> Job:
        """Cancel a dead or parked job that will not be repaired. A reason is required."""
        from mulligan.jobs import repair

        repair.discard(self._store, job_id, actor=self._actor, reason=reason, owner=owner)
        return self.get(job_id)

    def undiscard(self, job_id: str, *, reason: str = "", owner: str | None = None) -> Job:
        """Undo a discard: the job is dead or parked again, as it was. It does not run."""
        from mulligan.jobs import repair

        repair.undiscard(self._store, job_id, actor=self._actor, reason=reason, owner=owner)
        return self.get(job_id)

    def rerun(self, job_id: str, *, reason: str = "", owner: str | None = None) -> Job:
        """Enqueue a copy of a succeeded job and return it. The job and its result stay."""
        from mulligan.jobs import rerun

        with self._store.begin() as tx:
            return rerun.enqueue_copy(
                tx, job_id, self, actor=self._actor, reason=reason, owner=owner
            )


def with_from_step(overrides: Overrides | None, from_step: str | None) -> Overrides | None:
    """Add the step to continue from to the overrides of a retry."""
    return overrides if from_step is None else {**(overrides or {}), "from_step": from_step}


class Poll:
    """Pauses between two reads of a job or batch that is waited for, and the timeout."""

    def __init__(self, what: str, timeout: float | None) -> None:
        self._what = what
        self._timeout = timeout
        self._started = time.monotonic()
        self._pause = POLL_INTERVAL

    @property
    def is_over(self) -> bool:
        """True once the timeout has passed."""
        return self._timeout is not None and self._remaining(self._timeout) <= 0

    def _remaining(self, timeout: float) -> float:
        return self._started + timeout - time.monotonic()

    def next_pause(self) -> float:
        """Return how long to sleep."""
        pause = self._pause
        self._pause = min(MAX_POLL_INTERVAL, pause * 1.2)
        if self._timeout is None:
            return pause
        return max(0.0, min(pause, self._remaining(self._timeout)))

    def timed_out(self, state: str, why: str) -> WaitTimeout:
        """Return the error to raise once it is over."""
        reason = f": {why}" if why else ""
        return WaitTimeout(f"{self._what} is still {state} after {self._timeout} s{reason}")


def describe_missing_result(job: Job) -> str:
    """Return why a job has no result, and how to get one."""
    if job.state in TERMINAL and job.error is not None:
        error = job.error
        return f"job {job.id} is {job.state}: {error['code']}: {error['message']}"
    if job.state in TERMINAL:
        return f"job {job.id} is {job.state}: {job.why}"
    return f"job {job.id} is {job.state}: {job.why}. Wait for it: job = job.wait()"


def describe_ambiguous_id(what: str, prefix: str, found: Sequence[str]) -> str:
    """Return an error text that lists the ids a prefix could mean."""
    ids = ", ".join(found[:MAX_IDS_NAMED])
    if len(found) > MAX_IDS_NAMED:
        ids += ", …"
    return f"{prefix!r} begins more than one {what} id: {ids}. Type more characters."
