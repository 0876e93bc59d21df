"""Control jobs in a test: move the clock, run due jobs inline, force outcomes."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, Self, Unpack

from mulligan.app.mulligan import Mulligan
from mulligan.batches import cancel as batching
from mulligan.core.attempt import Ended, Lease, Outcome
from mulligan.core.durations import SECOND, Micros, check_duration_or_time, to_datetime
from mulligan.core.errors import Duration, DurationOrTime, MulliganError, NotFound, Refused
from mulligan.core.job import Job, State
from mulligan.failures.codes import timed_out, worker_lost
from mulligan.manifest.specs import DELIVERY_QUEUE, Handler
from mulligan.storage.base import Store
from mulligan.testing import asserts, workers
from mulligan.testing.asserts import ExpectedJob, Named, kind_name, suggest
from mulligan.testing.workers import refuse_other_database
from mulligan.worker import upkeep
from mulligan.worker.inline import InlineWorker
from mulligan.worker.queries import boot_id

# --- Clock ---


def now(app: Mulligan) -> datetime:
    """Return the current time of the app's database."""
    return to_datetime(_now(app.store))


def advance(
    app: Mulligan, by: DurationOrTime, *, leases: bool = False, anywhere: bool = False
) -> datetime:
    """Move the database's clock forward, by a duration or to a datetime. Return the new time.

    Due times, backoffs, schedules, deadlines, retention and holds follow. Workers on this database
    notice within half a second. The time limit of a running attempt and `datetime.now()` in your
    code do not move. No worker is declared lost, unless `leases=True`: then leases shorter than the
    move expire and their jobs are lost.

    The move cannot be undone, so it is refused outside of `temporary`. `anywhere=True` allows it
    for a database that holds only test jobs.
    """
    if not anywhere:
        refuse_other_database(app, "advance", "moves the clock of a database permanently")
    store = app.store
    span = _parse_span(store, by)
    store.shift_clock(span)
    if leases:
        _lose_workers(app, span)
    return now(app)


def _parse_span(store: Store, by: DurationOrTime) -> Micros:
    span, at = check_duration_or_time("advance(by)", by)
    if span is not None:
        return span
    span = (at or 0) - _now(store)
    if span < 0:
        message = (
            f"advance(by): {by} is {-span / 1e6:g} s in the past. The clock only moves forward."
        )
        raise Refused(message)
    return span


def _lose_workers(app: Mulligan, span: Micros) -> None:
    detector = upkeep.LossDetector("", boot_id(), lambda worker: worker.lease < span)
    upkeep.close_lost_workers(app.store, detector, app.settings.retry, Random())
    upkeep.settle_orphans(app.store, app.settings.retry, Random())


def _now(store: Store) -> Micros:
    with store.read() as tx:
        return tx.now()


# --- Running due jobs ---

MAX_ATTEMPTS = 1000


class StillBusy(MulliganError, AssertionError):
    """`drain` ran its maximum number of attempts and jobs are still due."""

    code = "STILL_BUSY"


@dataclass(frozen=True)
class Drained:
    """Result of a drain.

    `jobs`: each job that ran, in the order of first attempts, in its current state.
    """

    jobs: tuple[Job, ...]
    attempts: int
    moved: timedelta  # how far the drain moved the clock

    @property
    def states(self) -> Counter[State]:
        """Return the number of jobs per state."""
        return Counter(job.state for job in self.jobs)

    def of(self, kind: Named) -> list[Job]:
        """Return the jobs of one kind."""
        return [job for job in self.jobs if job.kind == kind_name(kind)]

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        text = f"{self.attempts} attempts of {len(self.jobs)} jobs"
        if not ends:
            return text
        return f"{text}: {ends}"


def drain(
    app: Mulligan,
    *,
    scheduled: bool = False,
    most: int = MAX_ATTEMPTS,
    seed: int | None = None,
    anywhere: bool = False,
) -> Drained:
    """Run due jobs in this process, one at a time, until none is left, including jobs they enqueue.

    With `scheduled` also run jobs that are due later (delays, backoffs, snoozes, holds, rates) by
    moving the clock step by step. After `most` attempts raise StillBusy, so that an endless retry
    cannot hang a test. `seed` makes jitter repeatable. A result that does not fit the annotation of
    its handler raises ResultMismatch. Refused outside of `temporary`, unless
    `anywhere=True` says that the database holds only test jobs. The docstring of `mulligan.testing`
    lists which promises inline mode keeps.
    """
    if not anywhere:
        refuse_other_database(app, "drain", "runs every due job")
    _check_positive("drain(most)", most)
    ran: list[Lease] = []
    moved = 0
    inline = app.inline(seed)
    called: dict[str, int] = {}  # token of the last attempt that called the handler, by job
    with _record_calls(app, called), inline.session() as step:
        _sweep(app)
        _repeat_while_full(lambda: upkeep.prune(app.store, app.settings, app.manifest().kinds))
        for _ in range(most + 2):
            _run_due(app, step, ran, most)
            wait = _time_to_next_job(app, inline) if scheduled else None
            if wait is None:
                break
            advance(app, timedelta(microseconds=wait), anywhere=anywhere)
            moved += wait
            inline.run_upkeep()
            _sweep(app)  # without retention: jobs of this drain must stay visible
        else:
            message = f"moved the clock {most} times, but the waiting jobs did not start"
            raise StillBusy(message)
    user_leases = [lease for lease in ran if lease.queue != DELIVERY_QUEUE]
    jobs = tuple(_load_jobs(app, user_leases))
    _check_results(app, jobs, called)
    return Drained(jobs, len(user_leases), timedelta(microseconds=moved))


async def drain_async(
    app: Mulligan,
    *,
    scheduled: bool = False,
    most: int = MAX_ATTEMPTS,
    seed: int | None = None,
    anywhere: bool = False,
) -> Drained:
    """Drain from async code. Runs on a thread: inline handlers need their own event loop."""
    return await asyncio.to_thread(
        drain, app, scheduled=scheduled, most=most, seed=seed, anywhere=anywhere
    )


@contextmanager
def _record_calls(app: Mulligan, called: dict[str, int]) -> Iterator[None]:
    """Record which attempts call their handler, because no outcome is forced."""

    def record(_: Handler, lease: Lease) -> None:
        called[lease.id] = lease.token

    # Overrides are tried from the end, so this one is reached if no other applies.
    app.registry.overrides.insert(0, record)
    try:
        yield
    finally:
        app.registry.overrides.remove(record)


def _check_results(app: Mulligan, jobs: Iterable[Job], called: Mapping[str, int]) -> None:
    """Raise ResultMismatch if a handler returned what its annotation does not say."""
    for job in jobs:
        if job.state is State.SUCCEEDED and called.get(job.id) == job.token:
            app.jobs.value(job)


def _run_due(app: Mulligan, step: Callable[[], Lease | None], ran: list[Lease], most: int) -> None:
    while (lease := step()) is not None:
        ran.append(lease)
        if len(ran) > most:
            raise StillBusy(_busy_message(app, ran, most))


def _busy_message(app: Mulligan, ran: list[Lease], most: int) -> str:
    counts = Counter(lease.kind for lease in ran)
    most_common = ", ".join(f"{kind} {count} times" for kind, count in counts.most_common(5))
    last = ran[-1]
    reason = app.jobs.attempts(last.id)[-1].reason
    return (
        f"still busy after {most} attempts: ran {most_common}. The last was attempt {last.attempt} "
        f"of {last.kind} {last.id}: {reason}. Check for an endless retry, snooze or enqueue. "
        "drain(most=…) allows more."
    )


def _time_to_next_job(app: Mulligan, inline: InlineWorker) -> Micros | None:
    """Return the time until the next job is due, None if no job waits for time."""
    due = inline.next_due()
    if due is None:
        return None
    with app.store.read() as tx:
        return max(0, due - tx.now())


def _sweep(app: Mulligan) -> None:
    _repeat_while_full(lambda: upkeep.expire_deadlines(app.store))
    upkeep.expire_unknown_kinds(app.store, app.settings.worker.unknown_kind_after)
    batching.run_upkeep(app.store)


def _repeat_while_full(step: Callable[[], int]) -> None:
    while step() >= upkeep.BATCH_SIZE:
        pass


def _load_jobs(app: Mulligan, ran: Iterable[Lease]) -> Iterable[Job]:
    for job_id in dict.fromkeys(lease.id for lease in ran):
        try:
            yield app.jobs.get(job_id)
        except NotFound:  # pruned by a worker on the same database
            continue


# --- Forced outcomes ---


@dataclass(frozen=True)
class Returns:
    """For `force`: the attempt succeeds with this result."""

    value: Any = None


Ending = Handler | Outcome
Script = Callable[[Handler, Lease], Ending]


class Force:
    """Forced outcomes of a kind, until they are used up, undone, or the `with` block ends."""

    def __init__(self, app: Mulligan, kind: str, scripts: list[Script]) -> None:
        self.kind = kind
        self.used = 0  # attempts ended so far
        self._scripts = deque(scripts)
        self._overrides = app.registry.overrides
        self._overrides.append(self._next_ending)

    @property
    def left(self) -> int:
        """Return how many forced outcomes are left."""
        return len(self._scripts)

    def undo(self) -> None:
        """Stop forcing outcomes."""
        if self._next_ending in self._overrides:
            self._overrides.remove(self._next_ending)

    def _next_ending(self, handler: Handler, lease: Lease) -> Ending | None:
        if lease.kind != self.kind or not self._scripts:
            return None
        self.used += 1
        return self._scripts.popleft()(handler, lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def force(app: Mulligan, kind: Named, *endings: Any, times: int = 1) -> Force:
    """Force how the next attempts of this kind end, in order. Then the handler is called again.

    An ending is an outcome (`Fail("GW_5XX")`, `Retry()`, `Snooze(60)`, `Park("…")`,
    `Hold("gateway")`, `Cancel("…")`), an exception (instance or class), `Returns(value)`, "timeout"
    (the attempt hit its time limit) or "lost" (its worker died). `times` repeats the whole list.
    Classification, decision and settlement are the real ones.

    Applies to jobs that this process runs inline (`drain`, `app.run_inline`), not to workers.
    """
    name = app.registry.get(kind_name(kind)).spec.name
    _check_positive("force(times)", times)
    scripts: list[Script] = []
    for ending in endings:
        if isinstance(ending, list | tuple):
            scripts.extend(_build_script(one) for one in ending)
        else:
            scripts.append(_build_script(ending))
    if not scripts:
        message = f"force({name!r}): pass at least one ending"
        raise Refused(message)
    return Force(app, name, scripts * times)


def _check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        message = f"{name} must be a whole number above 0, not {value!r}"
        raise Refused(message)


def _build_script(ending: Any) -> Script:
    if isinstance(ending, str) and ending in _NAMED_ENDINGS:
        return _NAMED_ENDINGS[ending]
    if isinstance(ending, Returns):
        return lambda handler, _: _replace_call(handler, lambda: ending.value)
    if isinstance(ending, BaseException) or (
        inspect.isclass(ending) and issubclass(ending, BaseException)
    ):
        return lambda handler, _: _replace_call(handler, lambda: _raise(ending))
    raise Refused(_unknown_ending(ending))


def _replace_call(handler: Handler, body: Callable[[], Any]) -> Handler:
    """Return the handler with another body. Arguments, cost and result are treated as usual."""
    return replace(handler, call=lambda **_: body(), is_async=False, done=None, can_retry=None)


def _raise(error: Any) -> None:
    raise error


def _timeout(handler: Handler, lease: Lease) -> Outcome:
    limit = (lease.timeout or handler.spec.timeout) / SECOND
    return Outcome(Ended.FAILED, failure=timed_out(limit, lease.kind))


def _lost(_: Handler, lease: Lease) -> Outcome:
    return Outcome(Ended.LOST, failure=worker_lost(lease.worker))


_NAMED_ENDINGS: dict[str, Script] = {"timeout": _timeout, "lost": _lost}


def _unknown_ending(ending: Any) -> str:
    question = ""
    if isinstance(ending, str):
        question = suggest(ending, _NAMED_ENDINGS)
    return (
        f"force: invalid ending {ending!r:.80}. Pass an outcome (Fail, Retry, Snooze, Park, Hold, "
        f"Cancel), an exception, Returns(value), 'timeout' or 'lost'.{question}"
    )


# --- Fixture ---


class Helper:
    """Functions of `mulligan.testing` bound to one app."""

    def __init__(self, app: Mulligan, spec: str = "") -> None:
        self.app = app
        self._spec = spec

    # --- Clock and execution ---
    def drain(
        self, *, scheduled: bool = False, most: int = MAX_ATTEMPTS, seed: int | None = None
    ) -> Drained:
        __tracebackhide__ = True
        return drain(self.app, scheduled=scheduled, most=most, seed=seed)

    async def drain_async(
        self, *, scheduled: bool = False, most: int = MAX_ATTEMPTS, seed: int | None = None
    ) -> Drained:
        __tracebackhide__ = True
        return await drain_async(self.app, scheduled=scheduled, most=most, seed=seed)

    def advance(self, by: DurationOrTime, *, leases: bool = False) -> datetime:
        return advance(self.app, by, leases=leases)

    def now(self) -> datetime:
        return now(self.app)

    def force(self, kind: Named, *endings: Any, times: int = 1) -> Force:
        return force(self.app, kind, *endings, times=times)

    # --- Assertions ---
    def assert_enqueued(
        self,
        kind: Named | None = None,
        *,
        count: int | None = None,
        connection: Any = None,
        **wanted: Unpack[ExpectedJob],
    ) -> list[Job]:
        __tracebackhide__ = True
        return asserts.assert_enqueued(self.app, kind, count=count, connection=connection, **wanted)

    def refute_enqueued(
        self, kind: Named | None = None, *, connection: Any = None, **wanted: Unpack[ExpectedJob]
    ) -> None:
        __tracebackhide__ = True
        asserts.refute_enqueued(self.app, kind, connection=connection, **wanted)

    def assert_will_retry(
        self,
        job: Job | str,
        *,
        after: asserts.After | None = None,
        code: str | None = None,
        within: Duration = 1,
        connection: Any = None,
    ) -> datetime:
        __tracebackhide__ = True
        return asserts.assert_will_retry(
            self.app, job, after=after, code=code, within=within, connection=connection
        )

    def assert_state(self, job: Job | str, state: State | str, *, connection: Any = None) -> Job:
        __tracebackhide__ = True
        return asserts.assert_state(self.app, job, state, connection=connection)

    # --- Other processes ---
    def worker(
        self, spec: str = "", *, env: Mapping[str, str] | None = None
    ) -> AbstractContextManager[workers.RealWorker]:
        """Run a real worker of `spec`, or of the app named by the ini option `mulligan_app`."""
        return workers.worker(self.app, spec or self._spec, env=env)

    @property
    def environ(self) -> dict[str, str]:
        return workers.environ(self.app)
