"""When is a dependency down? What its last calls say, over a window of time and by how fast it got worse.

Three tests, any of them opens. Over the window: the share of failures, once there were enough calls; with fewer, how
sure one may be (Beta) that more than that share fails. And a running sum (CUSUM) that rises with each failure and falls
with each success, for a busy dependency that goes down all at once: to fill half of a window with failures would take
half of the window. At the tenth of failures that a sick but useful dependency may have it trips once in ages.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mulligan.job import SECOND, Micros
from mulligan.policy.phrase import duration
from mulligan.policy.seen import MOST_JOBS, Seen

BUCKETS = 12  # of one window
SURE = 0.95
FALSE_ALARM = 1e6  # calls between two, at the share of failures that is still well
WARY = 150.0  # the same after an outage: it may well be down still
DISTINCT = 3  # jobs that must have failed: one that alone provokes errors is no outage


class Heat(NamedTuple):
    """The running sum, and what it is made of since it last stood at zero."""

    sum: float = 0.0
    failed: float = 0.0
    ok: float = 0.0
    since: Micros = 0


COLD = Heat()


class Window(NamedTuple):
    buckets: tuple[tuple[Micros, float, float], ...] = ()  # start, ok, failed; oldest first
    heat: Heat = COLD
    jobs: tuple[str, ...] = ()  # some of those that failed in it

    def plus(self, seen: Seen, now: Micros, length: Micros, open_at: float) -> Window:
        width = max(SECOND, length // BUCKETS)
        start = now - now % width
        kept = [bucket for bucket in self.buckets if now - length < bucket[0] + width and bucket[0] <= start]
        ok, failed = seen.ok, seen.failed
        if kept and kept[-1][0] == start:
            _, before, broken = kept.pop()
            ok, failed = ok + before, failed + broken
        if ok or failed:
            kept.append((start, ok, failed))
        jobs = tuple(dict.fromkeys((*self.jobs, *seen.jobs)))[:MOST_JOBS] if any(b[2] for b in kept) else ()
        return Window(tuple(kept), _heated(self.heat, seen, now, open_at), jobs)

    @property
    def ok(self) -> float:
        return sum(bucket[1] for bucket in self.buckets)

    @property
    def failed(self) -> float:
        return sum(bucket[2] for bucket in self.buckets)

    def rate(self, now: Micros, length: Micros) -> float | None:
        """Successes a second where it was busiest; None: there were none."""
        width = max(SECOND, length // BUCKETS)
        rates = [ok * SECOND / max(SECOND, min(width, now - start)) for start, ok, _ in self.buckets if ok]
        return max(rates, default=None)


EMPTY = Window()


def _heated(heat: Heat, seen: Seen, now: Micros, open_at: float) -> Heat:
    well, ill = 0.6 * open_at, open_at + 0.6 * (1 - open_at)
    rise = math.log(ill / well)
    fall = math.log((1 - well) / max(1e-9, 1 - ill))
    height = max(0.0, heat.sum + seen.failed * rise - seen.ok * fall)
    if height <= 0:
        return COLD
    since = heat.since if heat.sum > 0 else now
    return Heat(height, heat.failed + seen.failed, heat.ok + seen.ok, since)


def why_down(
    window: Window, now: Micros, length: Micros, open_at: float, min_calls: int, *, wary: bool = False
) -> str | None:
    """What it is that speaks for an outage; None: nothing does."""
    if len(window.jobs) < DISTINCT:
        return None
    heat = window.heat
    if heat.sum >= math.log(WARY if wary else FALSE_ALARM):
        since = duration(max(1, round((now - heat.since) / SECOND)))
        return f"{_of(heat.failed, heat.ok)} failed within {since}"
    ok, failed = window.ok, window.failed
    calls = ok + failed
    if (calls >= min_calls and failed >= open_at * calls) or surely(failed, ok, open_at) > SURE:
        return f"{_of(failed, ok)} failed in the last {duration(length / SECOND)}"
    return None


def _of(failed: float, ok: float) -> str:
    return f"{max(1, round(failed))} of {max(1, round(failed + ok))} calls"


def surely(failed: float, ok: float, share: float) -> float:
    """How sure one may be that more than this share of all calls fails: the upper tail of Beta(1 + failed, 1 + ok).

    Whole numbers make it a binomial sum. Halves (a failure of unknown class) are counted down.
    """
    failures, successes = int(failed), math.ceil(ok)
    calls = failures + successes
    if failures * 2 < calls * share or calls > 1000:  # hopeless, or a case for the share alone
        return 0.0
    chances = (math.comb(calls + 1, k) * share**k * (1 - share) ** (calls + 1 - k) for k in range(failures + 1))
    return min(1.0, sum(chances))
