"""Run what is due, inline, until nothing is."""

from __future__ import annotations

import asyncio
import difflib
import inspect
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, Self

from mulligan.app.mulligan import Mulligan
from mulligan.batches import completion as batching
from mulligan.core.attempt import Ended, Lease, Outcome
from mulligan.core.durations import length_or_moment
from mulligan.core.errors import Moment, MulliganError, NotFound, Refused
from mulligan.core.job import SECOND, Job, Micros, State, to_datetime
from mulligan.failures.codes import timed_out, worker_lost
from mulligan.manifest.specs import DELIVERY_QUEUE, Handler
from mulligan.storage.base import Store
from mulligan.storage.url import boot_id
from mulligan.testing.asserts import Named, name_of
from mulligan.testing.workers import refuse_elsewhere
from mulligan.worker import upkeep
from mulligan.worker.inline import Inline

# The clock that rules, moved: for this process and for every worker on the same database.


def now(app: Mulligan) -> datetime:
    """What time it is for the jobs of this app."""
    return to_datetime(_now(app.store))


def advance(app: Mulligan, by: Moment, *, leases: bool = False, anywhere: bool = False) -> datetime:
    """Move time forward, by seconds or a timedelta, or up to a datetime; returns the time it is then.

    Due times, backoffs, schedules, deadlines, retention and the end of a hold follow. Workers that run on this database
    hear of it within half a second. What it does not move: a running attempt's time limit, and what `datetime.now()`
    says in your code. No worker is taken for dead because of it; `leases=True` asks for that: the leases that are
    shorter than the move have run out, and what ran under them is lost.

    It cannot be undone: time in this database stays moved. So it is refused outside of `temporary`, unless `anywhere`
    says that nobody needs the jobs of that database.
    """
    if not anywhere:
        refuse_elsewhere(app, "advance", "moves the time of a database for good")
    store = app.store
    span = _span(store, by)
    store.shift_clock(span)
    if leases:
        _lose_workers(app, span)
    return now(app)


def _span(store: Store, by: Moment) -> Micros:
    span, moment = length_or_moment("advance(by)", by)
    if span is not None:
        return span
    span = (moment or 0) - _now(store)
    if span < 0:
        message = f"advance(by): time does not go back; {by} is {-span / 1e6:g} s ago"
        raise Refused(message)
    return span


def _lose_workers(app: Mulligan, span: Micros) -> None:
    judge = upkeep.Judge("", boot_id(), lambda worker: worker.lease < span)
    upkeep.close_dead(app.store, judge)
    upkeep.settle_orphans(app.store, app.settings.retry, Random())


def _now(store: Store) -> Micros:
    with store.read() as unit:
        return unit.now()


# Run what is due, inline, until nothing is.

MOST = 1000


class StillBusy(MulliganError, AssertionError):
    """`drain` ran as many attempts as it may, and there is still something due."""

    code = "STILL_BUSY"


@dataclass(frozen=True)
class Drained:
    """What a drain did. `jobs`: each job that ran, once, in the order of its first attempt, as it is now."""

    jobs: tuple[Job, ...]
    attempts: int
    moved: timedelta  # how far the drain itself moved the clock

    @property
    def states(self) -> Counter[State]:
        return Counter(job.state for job in self.jobs)

    def of(self, kind: Named) -> list[Job]:
        """Those of one kind."""
        return [job for job in self.jobs if job.kind == name_of(kind)]

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        return f"{self.attempts} attempts of {len(self.jobs)} jobs" + (f": {ends}" if ends else "")


def drain(
    app: Mulligan,
    *,
    scheduled: bool = False,
    most: int = MOST,
    seed: int | None = None,
    anywhere: bool = False,
) -> Drained:
    """Run everything that is due, one job at a time in this process, until nothing is; what handlers enqueue too.

    With `scheduled` also what may start later (delays, backoffs, snoozes, holds, rates): the clock is moved to it, step
    by step.
    After `most` attempts it raises StillBusy: a retry without end must not hang a test. `seed` makes jitter repeatable.
    Outside of `temporary` it is refused, unless `anywhere` says that the database is only for tests.
    Which promises inline mode keeps stands at the top of `mulligan.testing`.
    """
    if not anywhere:
        refuse_elsewhere(app, "drain", "runs every job that is due")
    given: Any = most
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        message = f"drain(most): a whole number above 0, not {given!r}"
        raise Refused(message)
    ran: list[Lease] = []
    moved = 0
    inline = app.inline(seed)
    with inline.session() as step:
        _sweep(app)
        _while_full(lambda: upkeep.prune(app.store, app.settings, app.manifest().kinds))
        for _ in range(most + 2):
            _run_due(app, step, ran, most)
            leap = _leap(app, inline) if scheduled else None
            if leap is None:
                break
            advance(app, timedelta(microseconds=leap), anywhere=anywhere)
            moved += leap
            inline.tend()
            _sweep(app)  # without retention: what ran in this drain must be there to be looked at
        else:
            message = f"the clock was moved {most} times, and what waits for it did not start"
            raise StillBusy(message)
    own = [lease for lease in ran if lease.queue != DELIVERY_QUEUE]
    return Drained(tuple(_jobs(app, own)), len(own), timedelta(microseconds=moved))


async def drain_async(
    app: Mulligan,
    *,
    scheduled: bool = False,
    most: int = MOST,
    seed: int | None = None,
    anywhere: bool = False,
) -> Drained:
    """The same from async code: on a thread, because handlers get a loop of their own."""
    return await asyncio.to_thread(
        drain, app, scheduled=scheduled, most=most, seed=seed, anywhere=anywhere
    )


def _run_due(app: Mulligan, step: Callable[[], Lease | None], ran: list[Lease], most: int) -> None:
    while (lease := step()) is not None:
        ran.append(lease)
        if len(ran) > most:
            raise StillBusy(_busy(app, ran, most))


def _busy(app: Mulligan, ran: list[Lease], most: int) -> str:
    counts = Counter(lease.kind for lease in ran)
    told = ", ".join(f"{kind} {count} times" for kind, count in counts.most_common(5))
    last = ran[-1]
    reason = app.jobs.attempts(last.id)[-1].reason
    return (
        f"still busy after {most} attempts: ran {told}. The last was attempt {last.attempt} of {last.kind} "
        f"{last.id}: {reason}. Does something retry, snooze or enqueue without end? drain(most=…) allows more"
    )


def _leap(app: Mulligan, inline: Inline) -> Micros | None:
    """How far to the next job; None: nothing waits that time alone would start."""
    due = inline.next_due()
    if due is None:
        return None
    with app.store.read() as unit:
        return max(0, due - unit.now())


def _sweep(app: Mulligan) -> None:
    _while_full(lambda: upkeep.expire_deadlines(app.store))
    upkeep.bury_unknown(app.store, app.settings.worker.unknown_kind_after)
    batching.sweep(app.store)


def _while_full(step: Callable[[], int]) -> None:
    while step() >= upkeep.STEP:
        pass


def _jobs(app: Mulligan, ran: Iterable[Lease]) -> Iterable[Job]:
    for job_id in dict.fromkeys(lease.id for lease in ran):
        try:
            yield app.jobs.get(job_id)
        except NotFound:  # a worker on the same database has other ideas of retention
            continue


# Outcomes on demand: how the next attempts of a kind end, without a call of its handler.


@dataclass(frozen=True)
class Returns:
    """For `force`: the attempt succeeds with this result."""

    value: Any = None


Ending = Handler | Outcome
Script = Callable[[Handler, Lease], Ending]


class Force:
    """In force from the moment it is made until it is used up, undone, or its `with` block ends."""

    def __init__(self, app: Mulligan, kind: str, scripts: list[Script]) -> None:
        self.kind = kind
        self.used = 0  # how many attempts it has ended
        self._scripts = deque(scripts)
        self._stand_ins = app.registry.stand_ins
        self._stand_ins.append(self._stand_in)

    @property
    def left(self) -> int:
        """How many attempts are still to end this way."""
        return len(self._scripts)

    def undo(self) -> None:
        if self._stand_in in self._stand_ins:
            self._stand_ins.remove(self._stand_in)

    def _stand_in(self, handler: Handler, lease: Lease) -> Ending | None:
        if lease.kind != self.kind or not self._scripts:
            return None
        self.used += 1
        return self._scripts.popleft()(handler, lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def force(app: Mulligan, kind: Named, *endings: Any, times: int = 1) -> Force:
    """Make the next attempts of this kind end so, one after the other, then call the handler again.

    An ending is an outcome (`Fail("GW_5XX")`, `Retry()`, `Snooze(60)`, `Park("…")`, `Hold("gateway")`, `Cancel("…")`),
    an exception (an instance or a class), `Returns(value)`, "timeout" (the attempt ran into its time limit) or "lost"
    (its worker died). `times` repeats the whole row. The rest is as always: the same table judges, the same policy
    decides, the same door settles.

    It acts on what this process runs inline (`drain`, `app.run_inline`), not on workers.
    """
    name = app.registry.get(name_of(kind)).spec.name
    given: Any = times
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        message = f"force(times): a whole number above 0, not {given!r}"
        raise Refused(message)
    flat = [
        one
        for ending in endings
        for one in (ending if isinstance(ending, list | tuple) else [ending])
    ]
    if not flat:
        message = f"force({name!r}): say how its next attempts shall end"
        raise Refused(message)
    return Force(app, name, [_script(ending) for ending in flat] * times)


def _script(ending: Any) -> Script:
    if isinstance(ending, str) and ending in _WITHOUT_CODE:
        return _WITHOUT_CODE[ending]
    if isinstance(ending, Returns):
        return lambda handler, _: _calls(handler, lambda: ending.value)
    if isinstance(ending, BaseException) or (
        inspect.isclass(ending) and issubclass(ending, BaseException)
    ):
        return lambda handler, _: _calls(handler, lambda: _raise(ending))
    raise Refused(_unknown(ending))


def _calls(handler: Handler, instead: Callable[[], Any]) -> Handler:
    """The same kind with another body: arguments, cost and result are treated as ever."""
    return replace(handler, call=lambda **_: instead(), is_async=False, done=None, can_retry=None)


def _raise(error: Any) -> None:
    raise error


def _timeout(handler: Handler, lease: Lease) -> Outcome:
    limit = (lease.timeout or handler.spec.timeout) / SECOND
    return Outcome(Ended.FAILED, failure=timed_out(limit))


def _lost(_: Handler, lease: Lease) -> Outcome:
    return Outcome(Ended.LOST, failure=worker_lost(lease.worker))


_WITHOUT_CODE: dict[str, Script] = {"timeout": _timeout, "lost": _lost}


def _unknown(ending: Any) -> str:
    near = difflib.get_close_matches(ending, _WITHOUT_CODE, n=1) if isinstance(ending, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"force: {ending!r:.80} is no ending; give an outcome (Fail, Retry, Snooze, Park, Hold, Cancel), an exception, "
        f"Returns(value), 'timeout' or 'lost'{hint}"
    )
