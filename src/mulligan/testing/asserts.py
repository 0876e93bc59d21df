"""Assertions about jobs. A failed one shows the jobs that were found instead."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from pydantic_core import PydanticSerializationError, to_jsonable_python

from mulligan.app.kind import Kind
from mulligan.app.mulligan import Mulligan
from mulligan.batches.service import Batch
from mulligan.core.attempt import Verb
from mulligan.core.durations import SECOND, check_duration, to_datetime, to_micros
from mulligan.core.errors import Duration, Refused, UnknownKind
from mulligan.core.job import AttemptRow, Job, State
from mulligan.jobs.service import Jobs
from mulligan.manifest.declared import load_kinds
from mulligan.storage.base import Transaction

# --- Kinds and jobs as arguments ---

Named = Kind[..., Any] | str


def kind_name(kind: Any) -> str:
    """Return the name of a kind, given the decorated function or the name."""
    if isinstance(kind, Kind):
        return kind.name
    if isinstance(kind, str) and kind:
        return kind
    message = f"kind must be a function decorated with @app.job, or its name, not {kind!r:.80}"
    raise Refused(message)


def _kind_filter(kind: Any) -> str:
    """Return the name of the kind to match; empty for any kind."""
    if kind is None:
        return ""
    return kind_name(kind)


def job_id_of(job: Any) -> str:
    """Return the id, given a Job or an id."""
    if isinstance(job, Job):
        return job.id
    if isinstance(job, str) and job:
        return job
    message = f"job must be a Job or its id, not {job!r:.80}"
    raise Refused(message)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean …?" with the most similar known name; empty if none is similar."""
    similar = difflib.get_close_matches(name, sorted(known), n=1)
    if not similar:
        return ""
    return f" Did you mean {similar[0]!r}?"


# --- Matching ---

ANY = "any"
OTHER_KIND_DISTANCE = 1000  # a job of another kind is less similar than any of the same kind


class ExpectedJob(TypedDict, total=False):
    """Expected fields of a job. Fields that are left out may have any value."""

    payload: Mapping[str, Any]  # a subset of the payload is enough
    queue: str
    owner: str
    priority: int
    unique: str
    batch: str | Batch
    delay: Duration  # from its enqueue to its due time
    run_at: datetime
    within: Duration  # tolerance of delay and run_at, default 1 s
    state: str  # "queued" unless given; "any"


@dataclass(frozen=True)
class JobMatcher:
    """A validated `ExpectedJob` with its kind. An empty kind matches all but built-in kinds."""

    kind: str
    wanted: ExpectedJob

    def __str__(self) -> str:
        state = self.wanted.get("state", State.QUEUED)
        parts = [
            f"{name} {value!r}"
            for name, value in self.wanted.items()
            if name not in {"state", "within"}
        ]
        text = "job"
        if self.kind:
            text = f"job of kind {self.kind!r}"
        if state != ANY:
            text = f"{state} {text}"
        if parts:
            text = f"{text} with {', '.join(parts)}"
        return text

    def differences(self, job: Job) -> list[str]:
        """Return what makes this job different from the expected one; empty if it matches."""
        return list(self._differences(job))

    def distance(self, job: Job) -> int:
        """Return how different the job is, to show the most similar jobs first."""
        is_other_kind = bool(self.kind) and job.kind != self.kind
        return OTHER_KIND_DISTANCE * is_other_kind + len(self.differences(job))

    def _differences(self, job: Job) -> Iterator[str]:
        wanted = self.wanted
        if self.kind and job.kind != self.kind:
            yield f"kind is {job.kind!r}"
        state = wanted.get("state", State.QUEUED.value)
        if state not in (ANY, job.state.value):
            yield f"state is {job.state}, not {state}"
        for name, value in _comparable_fields(job).items():
            if name in wanted and value != wanted[name]:  # type: ignore[literal-required]
                yield f"{name} is {value!r}, not {wanted[name]!r}"  # type: ignore[literal-required]
        yield from self._time_differences(job)
        if "payload" in wanted:
            yield from _value_differences("payload", job.payload, wanted["payload"])

    def _time_differences(self, job: Job) -> Iterator[str]:
        tolerance = check_duration("within", self.wanted.get("within", 1)) / SECOND
        if "delay" in self.wanted:
            delay = (job.run_at - job.created_at).total_seconds()
            expected = check_duration("delay", self.wanted["delay"]) / SECOND
            if abs(delay - expected) > tolerance:
                yield f"delay is {round(delay, 1):g} s, not {self.wanted['delay']}"
        if (
            "run_at" in self.wanted
            and abs((job.run_at - self.wanted["run_at"]).total_seconds()) > tolerance
        ):
            yield f"run_at is {job.run_at.isoformat()}, not {self.wanted['run_at'].isoformat()}"


def build_matcher(kind: str, wanted: Mapping[str, Any]) -> JobMatcher:
    """Validate the expected fields: a wrong name would never match and hide a mistake."""
    for name in wanted:
        if name not in ExpectedJob.__annotations__:
            known = ", ".join(ExpectedJob.__annotations__)
            message = f"unknown field {name!r}. Known fields: {known}."
            raise Refused(message)
    if not isinstance(wanted.get("payload", {}), Mapping):
        message = f"payload must be a mapping of arguments by name, not {wanted['payload']!r:.80}"
        raise Refused(message)
    state = wanted.get("state", ANY)
    if state != ANY and state not in {s.value for s in State}:
        message = f"state must be one of {', '.join(State)} or {ANY}, not {state!r}"
        raise Refused(message)
    for name in wanted.keys() & {"delay", "within"}:
        check_duration(name, wanted[name])
    if "run_at" in wanted:
        _check_run_at(wanted["run_at"])
    fields = dict(wanted)
    if "batch" in fields:
        fields["batch"] = getattr(fields["batch"], "id", fields["batch"])
    return JobMatcher(kind, ExpectedJob(**fields))  # type: ignore[typeddict-item]


def _check_run_at(value: Any) -> None:
    if not isinstance(value, datetime):
        message = (
            f"run_at must be a datetime, not {value!r:.80}. Use delay= for a time after enqueue."
        )
        raise Refused(message)
    try:
        to_micros(value)
    except ValueError as error:
        message = f"run_at: {error}"
        raise Refused(message) from None


def _comparable_fields(job: Job) -> dict[str, Any]:
    return {
        "queue": job.queue,
        "owner": job.owner,
        "priority": job.priority,
        "unique": job.unique_key,
        "batch": job.batch_id,
    }


def _value_differences(where: str, there: Any, wanted: Any) -> Iterator[str]:
    """Compare values as JSON. Mappings may have more keys than expected, at every level."""
    if isinstance(wanted, Mapping) and isinstance(there, Mapping):
        for name, value in wanted.items():
            if name in there:
                yield from _value_differences(f"{where}.{name}", there[name], value)
            else:
                yield f"{where} has no {name!r}"
    elif not _is_equal(there, wanted):
        yield f"{where} is {there!r:.200}, not {wanted!r:.200}"


def _is_equal(there: Any, wanted: Any) -> bool:
    if wanted == there:  # first, for things like `mock.ANY`
        return True
    try:
        return bool(to_jsonable_python(wanted) == there)
    except (PydanticSerializationError, ValueError):
        return False


# --- Assertions ---

PAGE_SIZE = 1000
MAX_SHOWN = 5
SYSTEM_PREFIX = "mulligan."  # built-in kinds, which no test of an app expects

After = Duration | tuple[Duration, Duration]


def assert_enqueued(
    app: Mulligan,
    kind: Named | None = None,
    *,
    count: int | None = None,
    connection: Any = None,
    **wanted: Unpack[ExpectedJob],
) -> list[Job]:
    """Assert that such a job exists, or exactly `count`. Return the jobs, newest first.

    `kind` is the decorated function or its name; `payload` may be a subset. Other fields: queue,
    owner, priority, unique, batch, delay, run_at. Only queued jobs match, unless you pass
    `state="any"` or another state. With `connection`, jobs of its open transaction are found too.
    """
    __tracebackhide__ = True
    _check_count(count)
    matcher = build_matcher(_kind_filter(kind), wanted)
    jobs = list(_list_jobs(_jobs_of_transaction(app, connection), matcher))
    found = [job for job in jobs if not matcher.differences(job)]
    is_expected = bool(found) if count is None else len(found) == count
    if is_expected:
        return found
    raise AssertionError(_describe_mismatch(app, matcher, jobs, found, count))


def refute_enqueued(
    app: Mulligan,
    kind: Named | None = None,
    *,
    connection: Any = None,
    **wanted: Unpack[ExpectedJob],
) -> None:
    """Assert that no such job exists. An unknown kind is an error: it may be misspelt."""
    __tracebackhide__ = True
    matcher = build_matcher(_kind_filter(kind), wanted)
    jobs = list(_list_jobs(_jobs_of_transaction(app, connection), matcher))
    _refuse_unknown(app, matcher.kind, jobs)
    found = [job for job in jobs if not matcher.differences(job)]
    if found:
        raise AssertionError(
            "\n".join([f"expected no {matcher}, but found {len(found)}:", *_describe_jobs(found)])
        )


def assert_will_retry(
    app: Mulligan,
    job: Job | str,
    *,
    after: After | None = None,
    code: str | None = None,
    within: Duration = 1,
    connection: Any = None,
) -> datetime:
    """Assert that the job failed and waits for its next attempt. Return when that is due.

    `after`: delay after the end of the last attempt, or (least, most) if it has jitter. `code`: the
    failure's code.
    """
    __tracebackhide__ = True
    service = _jobs_of_transaction(app, connection)
    fresh = service.get(job_id_of(job))
    attempts = service.attempts(fresh.id)
    wrong = _why_no_retry(fresh, attempts, after, code, check_duration("within", within) / SECOND)
    if wrong:
        raise AssertionError(
            "\n".join(
                [
                    f"expected {fresh.kind} {fresh.id} to be retried, but {wrong}",
                    *_describe_attempts(attempts),
                ]
            )
        )
    return to_datetime(attempts[-1].next_run_at or 0)


def assert_state(
    app: Mulligan, job: Job | str, state: State | str, *, connection: Any = None
) -> Job:
    """Assert the job's state and return the job. The message shows its attempts and last trace."""
    __tracebackhide__ = True
    service = _jobs_of_transaction(app, connection)
    fresh = service.get(job_id_of(job))
    if state not in list(State):
        message = f"state must be one of {', '.join(State)}, not {state!r}"
        raise Refused(message)
    if fresh.state == state:
        return fresh
    attempts = service.attempts(fresh.id)
    head = f"expected {fresh.kind} {fresh.id} to be {state}, but it is {fresh.state}: {fresh.why}"
    raise AssertionError("\n".join([head, *_describe_attempts(attempts), *_trace(attempts)]))


# --- Messages about jobs ---
def _check_count(count: Any) -> None:
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        message = f"count must be a whole number, not {count!r}"
        raise Refused(message)


class JoinedStore:
    """The caller's open transaction in place of a store, for reads."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        yield self._tx


def _jobs_of_transaction(app: Mulligan, connection: Any) -> Jobs:
    """Return `app.jobs`, or what the transaction of a connection sees of it."""
    if connection is None:
        return app.jobs
    store: Any = JoinedStore(app.join_transaction(connection))
    return Jobs(lambda: store, lambda: app.settings, handlers=app.registry.handlers)


def _list_jobs(service: Jobs, matcher: JobMatcher) -> Iterator[Job]:
    """Yield all jobs, newest first, without built-in kinds unless one of them is expected."""
    before: str | None = None
    while page := service.list("", limit=PAGE_SIZE, before=before):
        yield from (
            job
            for job in page
            if matcher.kind == job.kind or not job.kind.startswith(SYSTEM_PREFIX)
        )
        before = page[-1].id


def _refuse_unknown(app: Mulligan, kind: str, jobs: Sequence[Job]) -> None:
    if (
        not kind
        or kind in app.registry.handlers
        or kind.startswith(SYSTEM_PREFIX)
        or any(job.kind == kind for job in jobs)
    ):
        return
    with app.store.read() as tx:
        known = {*app.registry.handlers, *load_kinds(tx)}
    if kind not in known:
        message = (
            f"unknown kind {kind!r}.{suggest(kind, known)} If it belongs to another app, use "
            "assert_enqueued(…, count=0)."
        )
        raise UnknownKind(message)


def _describe_mismatch(
    app: Mulligan, matcher: JobMatcher, jobs: Sequence[Job], found: Sequence[Job], count: int | None
) -> str:
    expected = f"expected a {matcher}"
    if count is not None:
        expected = f"expected {count} × {matcher}"
    lines = [
        f"{expected}, but found {len(found) or 'none'}{_hint(app, matcher, jobs)}",
        *_describe_jobs(found),
    ]
    others = sorted((job for job in jobs if job not in found), key=matcher.distance)
    if others:
        noun = "job" if len(others) == 1 else "jobs"
        lines.append(f"{len(others)} other {noun}, most similar first:")
    elif not found:
        lines.append("there are no jobs")
    return "\n".join([*lines, *_describe_jobs(others, matcher)])


def _hint(app: Mulligan, matcher: JobMatcher, jobs: Sequence[Job]) -> str:
    known = app.registry.handlers
    if not matcher.kind or matcher.kind in known or any(job.kind == matcher.kind for job in jobs):
        return ""
    return f". This app has no kind {matcher.kind!r}.{suggest(matcher.kind, known)}"


def _describe_jobs(jobs: Sequence[Job], matcher: JobMatcher | None = None) -> Iterator[str]:
    for job in jobs[:MAX_SHOWN]:
        yield f"  {job.kind} {job.state} {job.id} payload {job.payload!r:.200}"
        if matcher is not None:
            yield from (f"      {difference}" for difference in matcher.differences(job))
    if len(jobs) > MAX_SHOWN:
        yield f"  and {len(jobs) - MAX_SHOWN} more"


# --- Messages about attempts ---
def _why_no_retry(
    job: Job, attempts: Sequence[AttemptRow], after: After | None, code: str | None, slack: float
) -> str:
    """Return why the job will not be retried as expected; empty if it will."""
    least, most = _parse_after(after)
    if not attempts:
        return f"it has not run yet: {job.why}"
    last = attempts[-1]
    if (
        job.state is not State.QUEUED
        or last.next_run_at is None
        or last.verb not in (Verb.RETRY, Verb.LOSE)
    ):
        return f"it is {job.state} ({job.phase}): {last.reason}"
    wait = (last.next_run_at - last.ended_at) / SECOND
    if not least - slack <= wait <= most + slack:
        return f"after {round(wait, 1):g} s, not {_format_after(after)}"
    if code is not None and last.code != code:
        return f"with code {last.code}, not {code}"
    return ""


def _parse_after(after: Any) -> tuple[float, float]:
    if after is None:
        return 0.0, float("inf")
    least = most = after
    if isinstance(after, tuple | list) and len(after) == 2:
        least, most = after
    return check_duration("after", least) / SECOND, check_duration("after", most) / SECOND


def _format_after(after: Any) -> str:
    if isinstance(after, tuple | list):
        return f"between {_format_after(after[0])} and {_format_after(after[1])}"
    if isinstance(after, timedelta):
        return f"{after.total_seconds():g} s"
    return f"{after:g} s"


def _describe_attempts(attempts: Sequence[AttemptRow]) -> Iterator[str]:
    for row in attempts:
        code = f" {row.code}" if row.code else ""
        yield f"  attempt {row.attempt}: {row.ended}{code}, {row.reason}"


def _trace(attempts: Sequence[AttemptRow]) -> Iterator[str]:
    if not attempts:
        return
    private = json.loads(attempts[-1].private or "{}")
    for name in ("message", "trace", "stderr"):
        if private.get(name):
            yield f"{name}:"
            yield from (f"  {line}" for line in str(private[name]).splitlines())
