"""A dependency's breaker: when it opens, who may try, when it closes, what comes after. Pure; every change says why.

Open means held: its jobs wait, uncharged, and one attempt at a time looks whether it answers again. Closing is a ramp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from mulligan.core.format import duration
from mulligan.core.job import SECOND, Micros
from mulligan.guards import budget as budgets
from mulligan.guards import ramp as ramps
from mulligan.guards import ramp as reduces
from mulligan.guards.budget import Bucket
from mulligan.guards.ramp import Ramp, Seat
from mulligan.guards.state import BreakerTerms, GuardState, Hand, Probe
from mulligan.guards.window import (
    EMPTY,
    DependencyTally,
    ProbeVerdict,
    Times,
    faded,
    merged,
    quantile,
    total,
    why_down,
)
from mulligan.retries.backoff import Rng

LONGEST_WAIT = 900 * SECOND
CUT, CUT_UNKNOWN = 5 * SECOND, 30 * SECOND
PATIENCE = 4  # a probe may take this part of the time since it opened: less than the shortest wait for the next one
PASSES = 3
LONG_CALL = 60_000.0  # ms: one success of such a job is proof enough
MOST_TRIED = 50
MOST_KINDS = 20
HALF_LIFE = 300 * SECOND  # of durations
SAME_OUTAGE = 2  # cool-downs after closing: who opens again within them had not recovered
MOST_EVERY = 60 * SECOND
SHORT_HOLD = 10 * SECOND
OVER = "its time is over"


class BreakerChange(NamedTuple):
    """Something happened that people want to know."""

    what: str  # opened, closed, changed
    reason: str


Changes = list[BreakerChange]


def observed(
    guard: GuardState,
    all_seen: Sequence[DependencyTally],
    terms: BreakerTerms,
    now: Micros,
    rng: Rng,
    *,
    waiting: bool = False,
    running: int = 0,
) -> tuple[GuardState, Changes]:
    """With what workers have seen since. `waiting`: due jobs of it still wait; `running`: how many run now."""
    changes: Changes = []
    seen = total(all_seen)
    guard = _on_time(_remembering(guard, seen, terms, now), terms, now, rng)
    for verdict in [one.verdict for one in all_seen if one.verdict is not None]:
        guard = _tried(guard, verdict, terms, now, rng, changes)
    if not guard.open:
        guard = _watched(guard, seen, terms, now, rng, changes, waiting=waiting)
    reduced, said = reduces.throttle(
        guard.reduced,
        seen.limited,
        round(seen.calls) + seen.limited,
        Seat(terms.most, running, _takes(guard)),
        now,
    )
    if said:
        changes.append(BreakerChange("changed", said))
    return replace(guard, reduced=reduced), changes


def _remembering(
    guard: GuardState, seen: DependencyTally, terms: BreakerTerms, now: Micros
) -> GuardState:
    """Durations and the budget: they go on whatever the state. In an outage nobody learns what is usual, so nothing
    of that is forgotten.
    """
    share = 0.5 ** (max(0, now - guard.at) / HALF_LIFE) if guard.at and not guard.open else 1.0
    times = merged(faded(guard.times, share, MOST_KINDS), seen.times)
    bucket = guard.bucket
    if terms.budget is None:
        bucket = None
    else:
        bucket = budgets.observed(bucket or Bucket(terms.budget.size, now), seen, terms.budget, now)
        bucket = None if bucket.tokens >= terms.budget.size else bucket
    hand = guard.by_hand(now)
    return replace(guard, times=times, bucket=bucket, at=now, hand=hand)


def _on_time(guard: GuardState, terms: BreakerTerms, now: Micros, rng: Rng) -> GuardState:
    """Who was to look later than anybody ever waits has an old clock: it was set back."""
    if not guard.open or guard.probe_at - now <= _longest(terms):
        return guard
    since, opened_at = min(guard.since, now), min(guard.opened_at, now)
    next_at = now + cool_down(now - opened_at, terms, rng)
    return replace(guard, since=since, opened_at=opened_at, probe_at=next_at)


def _watched(
    guard: GuardState,
    seen: DependencyTally,
    terms: BreakerTerms,
    now: Micros,
    rng: Rng,
    changes: Changes,
    *,
    waiting: bool,
) -> GuardState:
    guard = replace(guard, window=guard.window.plus(seen, now, terms.window, terms.open_at))
    why = (
        None
        if guard.hand is not None
        else why_down(
            guard.window,
            now,
            terms.window,
            terms.open_at,
            terms.min_calls,
            wary=_just_recovered(guard, terms, now),
        )
    )
    if why is not None:
        return opened(guard, why, terms, now, rng, changes)
    return (
        guard
        if guard.ramp is None
        else _ramped(guard, guard.ramp, seen, now, changes, waiting=waiting)
    )


def _just_recovered(guard: GuardState, terms: BreakerTerms, now: Micros) -> bool:
    """Then it may well be down still."""
    soon = now - guard.closed_at < SAME_OUTAGE * terms.cool_down
    return guard.closed_at > 0 and (guard.ramp is not None or soon)


def _ramped(
    guard: GuardState,
    ramp: Ramp,
    seen: DependencyTally,
    now: Micros,
    changes: Changes,
    *,
    waiting: bool,
) -> GuardState:
    ramp = ramps.observed(ramp, round(seen.ok), round(seen.failed) + seen.limited, now)
    if not ramps.over(ramp, now, waiting=waiting):
        return replace(guard, ramp=ramp)
    changes.append(BreakerChange("changed", "recovered: its limit after the outage is lifted"))
    return replace(guard, ramp=None)


# -- open -------------------------------------------------------------------------------------------
def opened(
    guard: GuardState, why: str, terms: BreakerTerms, now: Micros, rng: Rng, changes: Changes
) -> GuardState:
    since = guard.since if _just_recovered(guard, terms, now) else now
    changes.append(BreakerChange("opened", why))
    return replace(
        guard,
        open=True,
        since=since,
        opened_at=now,
        reason=why,
        probe_at=now + cool_down(0, terms, rng),
        probe=None,
        passed=0,
        tried=(),
        normal=_normal(guard, terms, now),
        ramp=None,
        window=EMPTY,
    )


def cool_down(outage: Micros, terms: BreakerTerms, rng: Rng) -> Micros:
    """Half of the time since it opened: a short one is noticed soon, a long one is not asked every half minute."""
    wait = min(max(terms.cool_down, outage // 2), _longest(terms))
    return round(wait * rng.uniform(0.5, 1.0))


def _longest(terms: BreakerTerms) -> Micros:
    return max(terms.cool_down, LONGEST_WAIT)


def cut(guard: GuardState, kind: str, now: Micros) -> Micros:
    """How long a probe may take: one that hangs must not hold everybody. The longer the outage the longer, or a job
    that takes its time could never tell that it is over.
    """
    usual, patience = quantile(guard.times.get(kind), 0.95), (now - guard.opened_at) // PATIENCE
    if usual is None:
        return max(CUT_UNKNOWN, patience)
    return max(CUT, round(3 * usual * 1000), min(patience, LONGEST_WAIT // PATIENCE))


def may_probe(guard: GuardState, now: Micros) -> bool:
    """Is it time to look? Whether the last probe is still under way is for the store to say."""
    return guard.open and guard.hand is None and now >= guard.probe_at


def probing(guard: GuardState, job_id: str, token: int, kind: str, now: Micros) -> GuardState:
    """One goes through. If there is another in the books, nobody has heard how it ended: its worker died."""
    tried = guard.tried if guard.probe is None else _with(guard.tried, guard.probe.job_id)
    return replace(
        guard,
        probe=Probe(job_id, token, kind, now, now + cut(guard, kind, now)),
        probe_at=now,
        tried=tried,
    )


def _tried(
    guard: GuardState,
    verdict: ProbeVerdict,
    terms: BreakerTerms,
    now: Micros,
    rng: Rng,
    changes: Changes,
) -> GuardState:
    probe = guard.probe
    if (
        not guard.open
        or probe is None
        or (probe.job_id, probe.token) != (verdict.job_id, verdict.token)
    ):
        return guard  # of an outage that is over
    if verdict.passed is None:
        return replace(guard, probe=None, probe_at=now, tried=_with(guard.tried, probe.job_id))
    if not verdict.passed:
        wait = cool_down(now - guard.opened_at, terms, rng)
        next_at = max(now, probe.at + wait)
        return replace(
            guard, probe=None, passed=0, probe_at=next_at, tried=_with(guard.tried, probe.job_id)
        )
    passed = guard.passed + 1
    took = guard.median(probe.kind) or (now - probe.at) / 1000
    if passed < (1 if took > LONG_CALL else PASSES):
        return replace(guard, probe=None, passed=passed, probe_at=now)
    why = f"answers again after {duration(max(1, (now - guard.since) // SECOND))}"
    return closed(guard, why, terms, now, changes)


def _with(tried: tuple[str, ...], job_id: str) -> tuple[str, ...]:
    return (*tried, job_id)[-MOST_TRIED:]


# -- closed -----------------------------------------------------------------------------------------
def closed(
    guard: GuardState, why: str, terms: BreakerTerms, now: Micros, changes: Changes
) -> GuardState:
    changes.append(BreakerChange("closed", why))
    return replace(
        guard,
        open=False,
        since=guard.since if guard.open else now,
        closed_at=now,
        reason="",
        probe_at=0,
        probe=None,
        passed=0,
        tried=(),
        normal=_normal(guard, terms, now),
        ramp=ramps.begin(
            _normal(guard, terms, now), now, min(MOST_EVERY, max(SECOND, _takes(guard)))
        ),
        window=EMPTY,
    )


def _normal(guard: GuardState, terms: BreakerTerms, now: Micros) -> float | None:
    """Dispatches a second before it was held. While it is, and while it recovers, there is no other."""
    if guard.open or guard.ramp is not None or not guard.window.buckets:
        return guard.normal
    return guard.window.rate(now, terms.window)


def _takes(guard: GuardState) -> Micros:
    """How long one takes, of the kind that takes longest."""
    medians = [found for times in guard.times.values() if (found := _median(times)) is not None]
    return round(max(medians, default=0.0) * 1000)


def _median(times: Times) -> float | None:
    return quantile(times, 0.5)


# -- by hand ----------------------------------------------------------------------------------------
def opened_by_hand(
    guard: GuardState, until: Micros | None, reason: str, terms: BreakerTerms, now: Micros
) -> GuardState:
    """Held until then, without probes: a person knows better."""
    return replace(
        guard,
        open=False,
        since=now,
        reason=reason,
        probe_at=0,
        probe=None,
        passed=0,
        normal=_normal(guard, terms, now),
        ramp=None,
        window=EMPTY,
        hand=Hand(open=True, until=until),
    )


def closed_by_hand(
    guard: GuardState,
    until: Micros | None,
    reason: str,
    terms: BreakerTerms,
    now: Micros,
    changes: Changes,
) -> GuardState:
    """Let go, on a ramp; with an end: the guard keeps still until then."""
    return kept_closed(closed(guard, reason, terms, now, changes), until)


def kept_closed(guard: GuardState, until: Micros | None) -> GuardState:
    return replace(guard, hand=None if until is None else Hand(open=False, until=until))


def let_go(
    guard: GuardState, held: Micros, terms: BreakerTerms, now: Micros, changes: Changes
) -> GuardState:
    """A hold until a certain time is over. What came together in a few seconds needs no ramp. Who said to keep it
    closed for longer is still believed.
    """
    hand = guard.by_hand(now)
    hand = None if hand is not None and hand.open else hand
    if held >= SHORT_HOLD:
        return replace(closed(guard, OVER, terms, now, changes), hand=hand)
    changes.append(BreakerChange("closed", OVER))
    return replace(guard, hand=hand)
