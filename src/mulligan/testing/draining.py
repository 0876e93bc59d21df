"""Run what is due, inline, until nothing is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from mulligan.app import Mulligan
from mulligan.core.attempt import Lease
from mulligan.engine import batching, upkeep
from mulligan.engine.inline import Inline
from mulligan.engine.kinds import DELIVERY_QUEUE
from mulligan.errors import MulliganError, NotFound, Refused
from mulligan.job import Job, Micros, State
from mulligan.testing.clock import advance
from mulligan.testing.places import refuse_elsewhere
from mulligan.testing.words import Named, name_of

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
    app: Mulligan, *, scheduled: bool = False, most: int = MOST, seed: int | None = None, anywhere: bool = False
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
    app: Mulligan, *, scheduled: bool = False, most: int = MOST, seed: int | None = None, anywhere: bool = False
) -> Drained:
    """The same from async code: on a thread, because handlers get a loop of their own."""
    return await asyncio.to_thread(drain, app, scheduled=scheduled, most=most, seed=seed, anywhere=anywhere)


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
