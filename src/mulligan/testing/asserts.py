"""Assertions about jobs. When one fails, its message shows what was there instead."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from pydantic_core import PydanticSerializationError, to_jsonable_python

from mulligan.app.kind import Kind
from mulligan.app.mulligan import Mulligan
from mulligan.batches.service import Batch
from mulligan.core.attempt import Verb
from mulligan.core.durations import length
from mulligan.core.errors import Refused, Seconds, UnknownKind
from mulligan.core.job import SECOND, AttemptRow, Job, State, to_datetime, to_micros
from mulligan.manifest.declared import stored_kinds

# How tests name kinds and jobs.

Named = Kind[..., Any] | str


def name_of(kind: Any) -> str:
    """A registered handler, or the name of a kind."""
    if isinstance(kind, Kind):
        return kind.name
    if isinstance(kind, str) and kind:
        return kind
    message = f"a kind is what @app.job made, or its name, not {kind!r:.80}"
    raise Refused(message)


def id_of(job: Any) -> str:
    if isinstance(job, Job):
        return job.id
    if isinstance(job, str) and job:
        return job
    message = f"a job is a Job or its id, not {job!r:.80}"
    raise Refused(message)


# Which jobs are meant, and what is different about the others.

ANY = "any"
FOREIGN = 1000  # a job of another kind is farther away than any of the same kind


class ExpectedJob(TypedDict, total=False):
    """What a job is expected to be; nothing is said of what is left out."""

    payload: Mapping[str, Any]  # a part of it is enough
    queue: str
    owner: str
    priority: int
    unique: str
    batch: str | Batch
    delay: Seconds  # from its enqueue to its due time
    run_at: datetime
    within: Seconds  # how exactly delay and run_at are meant; 1 s
    state: str  # "queued" unless given; "any"


@dataclass(frozen=True)
class JobMatcher:
    """A checked `Wanted`, with its kind; an empty kind is any but our own."""

    kind: str
    wanted: ExpectedJob

    def __str__(self) -> str:
        state = self.wanted.get("state", State.QUEUED)
        parts = [
            f"{name} {value!r}"
            for name, value in self.wanted.items()
            if name not in {"state", "within"}
        ]
        whose = f"job of kind {self.kind!r}" if self.kind else "job"
        return " ".join(
            [
                *([] if state == ANY else [f"{state}"]),
                whose,
                *(["with", ", ".join(parts)] if parts else []),
            ]
        )

    def differences(self, job: Job) -> list[str]:
        return list(self._differences(job))

    def distance(self, job: Job) -> int:
        return (FOREIGN if self.kind and job.kind != self.kind else 0) + len(self.differences(job))

    def _differences(self, job: Job) -> Iterator[str]:
        wanted = self.wanted
        if self.kind and job.kind != self.kind:
            yield f"kind is {job.kind!r}"
        state = wanted.get("state", State.QUEUED.value)
        if state not in (ANY, job.state.value):
            yield f"state is {job.state}, not {state}"
        for name, value in _plain(job).items():
            if name in wanted and value != wanted[name]:  # type: ignore[literal-required]
                yield f"{name} is {value!r}, not {wanted[name]!r}"  # type: ignore[literal-required]
        yield from self._late(job)
        if "payload" in wanted:
            yield from _unlike("payload", job.payload, wanted["payload"])

    def _late(self, job: Job) -> Iterator[str]:
        slack = length("within", self.wanted.get("within", 1)) / SECOND
        delay = (job.run_at - job.created_at).total_seconds()
        if (
            "delay" in self.wanted
            and abs(delay - length("delay", self.wanted["delay"]) / SECOND) > slack
        ):
            yield f"delay is {round(delay, 1):g} s, not {self.wanted['delay']}"
        if (
            "run_at" in self.wanted
            and abs((job.run_at - self.wanted["run_at"]).total_seconds()) > slack
        ):
            yield f"run_at is {job.run_at.isoformat()}, not {self.wanted['run_at'].isoformat()}"


def checked(kind: str, wanted: Mapping[str, Any]) -> JobMatcher:
    """Refused rather than silently never found."""
    for name in wanted:
        if name not in ExpectedJob.__annotations__:
            message = f"a job cannot be told by {name!r}; there is {', '.join(ExpectedJob.__annotations__)}"
            raise Refused(message)
    if not isinstance(wanted.get("payload", {}), Mapping):
        message = f"payload: a mapping of arguments by name, not {wanted['payload']!r:.80}"
        raise Refused(message)
    state = wanted.get("state", ANY)
    if state != ANY and state not in {s.value for s in State}:
        message = f"state: one of {', '.join(State)} or {ANY}, not {state!r}"
        raise Refused(message)
    for name in wanted.keys() & {"delay", "within"}:
        length(name, wanted[name])
    if "run_at" in wanted:
        _moment(wanted["run_at"])
    named = {"batch": getattr(wanted["batch"], "id", wanted["batch"])} if "batch" in wanted else {}
    return JobMatcher(kind, ExpectedJob(**{**wanted, **named}))  # type: ignore[typeddict-item]


def _moment(value: Any) -> None:
    if not isinstance(value, datetime):
        message = f"run_at: a datetime, not {value!r:.80}; for a length from its enqueue say delay="
        raise Refused(message)
    try:
        to_micros(value)
    except ValueError as error:
        message = f"run_at: {error}"
        raise Refused(message) from None


def _plain(job: Job) -> dict[str, Any]:
    return {
        "queue": job.queue,
        "owner": job.owner,
        "priority": job.priority,
        "unique": job.unique_key,
        "batch": job.batch_id,
    }


def _unlike(where: str, there: Any, wanted: Any) -> Iterator[str]:
    """Mappings may hold more than is asked for, at every level; all else is compared as JSON would write it."""
    if isinstance(wanted, Mapping) and isinstance(there, Mapping):
        for name, value in wanted.items():
            if name in there:
                yield from _unlike(f"{where}.{name}", there[name], value)
            else:
                yield f"{where} has no {name!r}"
    elif not _same(there, wanted):
        yield f"{where} is {there!r:.200}, not {wanted!r:.200}"


def _same(there: Any, wanted: Any) -> bool:
    if wanted == there:  # first, for things like `mock.ANY`
        return True
    try:
        return bool(to_jsonable_python(wanted) == there)
    except (PydanticSerializationError, ValueError):
        return False


# Assertions about jobs. When one fails, its message shows what was there instead.

PAGE = 1000
SHOWN = 5
OURS = "mulligan."  # kinds of our own, which no test of an app expects

After = Seconds | tuple[Seconds, Seconds]


def assert_enqueued(
    app: Mulligan,
    kind: Named | None = None,
    *,
    count: int | None = None,
    **wanted: Unpack[ExpectedJob],
) -> list[Job]:
    """There is such a job, or with `count` exactly so many; returns them, newest first.

    `kind` is what @app.job made, or a name; `payload` may be a part of the payload. Also told apart by: queue, owner,
    priority, unique, batch, delay, run_at. Jobs that wait are meant; `state="any"`, or another state, for those that
    have run.
    """
    __tracebackhide__ = True
    given: Any = count
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 0):
        message = f"count: a whole number, not {given!r}"
        raise Refused(message)
    wish = checked("" if kind is None else name_of(kind), wanted)
    jobs = list(_all(app, wish))
    found = [job for job in jobs if not wish.differences(job)]
    if found if count is None else len(found) == count:
        return found
    raise AssertionError(_not_found(app, wish, jobs, found, count))


def refute_enqueued(
    app: Mulligan, kind: Named | None = None, **wanted: Unpack[ExpectedJob]
) -> None:
    """There is no such job. A kind that nobody knows is an error: of a misspelt one there is never any."""
    __tracebackhide__ = True
    wish = checked("" if kind is None else name_of(kind), wanted)
    jobs = list(_all(app, wish))
    _refuse_unknown(app, wish.kind, jobs)
    found = [job for job in jobs if not wish.differences(job)]
    if found:
        raise AssertionError(
            "\n".join([f"expected no {wish}, but found {len(found)}:", *_shown(found)])
        )


def assert_will_retry(
    app: Mulligan,
    job: Job | str,
    *,
    after: After | None = None,
    code: str | None = None,
    within: Seconds = 1,
) -> datetime:
    """The job has failed and waits for its next attempt; returns when that is.

    `after`: how long after the end of the last attempt, or (least, most) where jitter draws it. `code`: of the failure.
    """
    __tracebackhide__ = True
    fresh = app.jobs.get(id_of(job))
    attempts = app.jobs.attempts(fresh.id)
    wrong = _why_not(fresh, attempts, after, code, length("within", within) / SECOND)
    if wrong:
        raise AssertionError(
            "\n".join(
                [f"expected {fresh.kind} {fresh.id} to be retried, but {wrong}", *_story(attempts)]
            )
        )
    return to_datetime(attempts[-1].next_run_at or 0)


def assert_state(app: Mulligan, job: Job | str, state: State | str) -> Job:
    """The job is in this state; returns it as it is now. The message tells its attempts, with the trace of the last."""
    __tracebackhide__ = True
    fresh = app.jobs.get(id_of(job))
    if state not in list(State):
        message = f"state: one of {', '.join(State)}, not {state!r}"
        raise Refused(message)
    if fresh.state == state:
        return fresh
    attempts = app.jobs.attempts(fresh.id)
    head = f"expected {fresh.kind} {fresh.id} to be {state}, but it is {fresh.state}: {fresh.why}"
    raise AssertionError("\n".join([head, *_story(attempts), *_trace(attempts)]))


# -- what is there ------------------------------------------------------------------------------------
def _all(app: Mulligan, wish: JobMatcher) -> Iterator[Job]:
    """Every job, newest first; without our own kinds, unless one of them is asked for."""
    before: str | None = None
    while page := app.jobs.list("", limit=PAGE, before=before):
        yield from (job for job in page if wish.kind == job.kind or not job.kind.startswith(OURS))
        before = page[-1].id


def _refuse_unknown(app: Mulligan, kind: str, jobs: Sequence[Job]) -> None:
    if (
        not kind
        or kind in app.registry.handlers
        or kind.startswith(OURS)
        or any(job.kind == kind for job in jobs)
    ):
        return
    with app.store.read() as unit:
        known = {*app.registry.handlers, *stored_kinds(unit)}
    if kind not in known:
        near = difflib.get_close_matches(kind, sorted(known), n=1)
        other = "if it is another app's: assert_enqueued(…, count=0)"
        message = f"no app knows a kind {kind!r}; {f'did you mean {near[0]!r}? Or, ' if near else ''}{other}"
        raise UnknownKind(message)


def _not_found(
    app: Mulligan, wish: JobMatcher, jobs: Sequence[Job], found: Sequence[Job], count: int | None
) -> str:
    expected = f"expected a {wish}" if count is None else f"expected {count} × {wish}"
    lines = [
        f"{expected}, but found {len(found) or 'none'}{_hint(app, wish, jobs)}",
        *_shown(found),
    ]
    others = sorted((job for job in jobs if job not in found), key=wish.distance)
    if others:
        lines.append(
            f"{len(others)} other job{'s are' if len(others) > 1 else ' is'} there, nearest first:"
        )
    elif not found:
        lines.append("there are no jobs at all")
    return "\n".join([*lines, *_shown(others, wish)])


def _hint(app: Mulligan, wish: JobMatcher, jobs: Sequence[Job]) -> str:
    known = app.registry.handlers
    if not wish.kind or wish.kind in known or any(job.kind == wish.kind for job in jobs):
        return ""
    near = difflib.get_close_matches(wish.kind, known, n=1)
    return f"; this app has no kind {wish.kind!r}" + (
        f", did you mean {near[0]!r}?" if near else ""
    )


def _shown(jobs: Sequence[Job], wish: JobMatcher | None = None) -> Iterator[str]:
    for job in jobs[:SHOWN]:
        yield f"  {job.kind} {job.state} {job.id} payload {job.payload!r:.200}"
        if wish is not None:
            yield from (f"      {difference}" for difference in wish.differences(job))
    if len(jobs) > SHOWN:
        yield f"  and {len(jobs) - SHOWN} more"


# -- what happened ------------------------------------------------------------------------------------
def _why_not(
    job: Job, attempts: Sequence[AttemptRow], after: After | None, code: str | None, slack: float
) -> str:
    """Why this job is not one that will be retried as expected; empty if it is."""
    least, most = _range(after)
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
        return f"after {round(wait, 1):g} s, not {_spoken(after)}"
    if code is not None and last.code != code:
        return f"with code {last.code}, not {code}"
    return ""


def _range(after: Any) -> tuple[float, float]:
    if after is None:
        return 0.0, float("inf")
    least, most = after if isinstance(after, tuple | list) and len(after) == 2 else (after, after)
    return length("after", least) / SECOND, length("after", most) / SECOND


def _spoken(after: Any) -> str:
    if isinstance(after, tuple | list):
        return f"between {_spoken(after[0])} and {_spoken(after[1])}"
    return f"{after.total_seconds() if isinstance(after, timedelta) else after:g} s"


def _story(attempts: Sequence[AttemptRow]) -> Iterator[str]:
    for row in attempts:
        code = f" {row.code}" if row.code else ""
        yield f"  attempt {row.attempt}: {row.ended}{code}, {row.reason}"


def _trace(attempts: Sequence[AttemptRow]) -> Iterator[str]:
    private = json.loads(attempts[-1].private or "{}") if attempts else {}
    for name in ("message", "trace", "stderr"):
        if private.get(name):
            yield f"{name}:"
            yield from (f"  {line}" for line in str(private[name]).splitlines())
