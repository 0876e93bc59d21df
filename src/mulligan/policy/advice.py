"""What the numbers advise, in words, ranked by what it would save. Said only where at least twenty trials carry it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mulligan.core.attempt import RETRYABLE, Cls
from mulligan.job import SECOND
from mulligan.policy.estimate import Share, share
from mulligan.policy.phrase import duration, ordinal
from mulligan.tally import CodeCount, FailureCount, HandCount, Tally, TrialCount

ENOUGH = 20  # trials below which nothing is said
HOPELESS = 0.15  # attempts whose chance is surely below this are worth leaving out
HOPEFUL = 0.20  # and those whose chance is surely above this are worth adding to
LEAST_SAVED = 0.05  # of the retries of a code
UNKNOWN = 0.10
ONE_INCIDENT = 2  # hours within which many failures may be a single event


class Advice(NamedTuple):
    """One sentence or two, and what following it would have saved in the time that was looked at."""

    text: str
    code: str = ""
    attempts: int = 0
    seconds: float = 0.0
    cost: float = 0.0


def advice(tally: Tally) -> tuple[Advice, ...]:
    found = [*_cuts(tally), *_raises(tally), *_by_hand(tally.by_hand), *_unknowns(tally.failures)]
    return tuple(sorted(found, key=lambda one: (-one.cost, -one.seconds, -one.attempts)))


def percent(value: float | None) -> str:
    """`61 %`, `3 %`, `0.4 %`, `under 0.1 %`, `–`."""
    if value is None:
        return "–"
    shown = value * 100
    if 0 < shown < 0.1:
        return "under 0.1 %"
    return f"{shown:.0f} %" if shown >= 10 or shown == round(shown) else f"{shown:.1f} %"


# -- a lower limit ----------------------------------------------------------------------------------
def _cuts(tally: Tally) -> Iterator[Advice]:
    for (cls, code), rows in _by_code(tally.trials).items():
        count = next((one for one in tally.codes if (one.cls, one.code) == (cls, code)), None)
        cut = next((k for k in range(2, max(row.k for row in rows) + 1) if _hopeless(rows, k)), None)
        if cut is not None and count is not None:
            yield _cut(rows, cut, count)


def _by_code(trials: Sequence[TrialCount]) -> dict[tuple[str, str], list[TrialCount]]:
    found: defaultdict[tuple[str, str], list[TrialCount]] = defaultdict(list)
    for row in trials:
        found[row.cls, row.code].append(row)
    return dict(sorted(found.items()))


def _from(rows: Sequence[TrialCount], k: int) -> Share:
    """Success of the k-th and all later attempts."""
    late = [row for row in rows if row.k >= k]
    return share(sum(row.successes for row in late), sum(row.trials for row in late))


def _hopeless(rows: Sequence[TrialCount], k: int) -> bool:
    late = _from(rows, k)
    return late.whole >= ENOUGH and late.high <= HOPELESS and late.whole >= LEAST_SAVED * _from(rows, 2).whole


def _cut(rows: Sequence[TrialCount], k: int, count: CodeCount) -> Advice:
    late, all_ = _from(rows, k), _from(rows, 2)
    dropped = [row for row in rows if row.k >= k]
    lost = percent(late.part / count.jobs if count.jobs else 0)
    seconds = sum(row.busy for row in dropped) / SECOND
    text = (
        f"{_which(rows, k, count.code)} succeed {percent(late.value)} ({late.part} of {late.whole}, "
        f"surely below {percent(late.high)}); {_limit(k, count)} would lose {lost} of those {count.jobs} jobs and save "
        f"{percent(late.whole / all_.whole)} of their retries, {duration(round(seconds, 1))} of work.{_incident(count)}"
    )
    return Advice(text, count.code, late.whole, seconds, sum(row.cost for row in dropped))


def _which(rows: Sequence[TrialCount], k: int, code: str) -> str:
    if k == 2:
        return f"Retries after {code}"
    later = any(row.k > k for row in rows)
    return f"{ordinal(k)}{' and later' if later else ''} attempts after {code}"


def _limit(k: int, count: CodeCount) -> str:
    if k == 2:
        return "not retrying it at all (a rule of your own with a class that is not retried, or max_retries=0)"
    return f'a limit of {k - 1} attempts (Policy(classes={{"{count.cls}": Policy(max_retries={k - 2})}}))'


def _incident(count: CodeCount) -> str:
    if count.hours > ONE_INCIDENT:
        return ""
    within = "one hour" if count.hours <= 1 else f"{count.hours} different hours"
    return f" But all of it fell into {within}: perhaps one incident, which is one observation."


# -- a higher limit ---------------------------------------------------------------------------------
def _raises(tally: Tally) -> Iterator[Advice]:
    for (cls, code), rows in _by_code(tally.trials).items():
        last = max(row.k for row in rows)
        there = share(*_at(rows, last))
        ended = sum(
            row.failures for row in tally.failures
            if (row.cls, row.code, row.verb) == (cls, code, "die") and row.k >= last and cls in RETRYABLE
        )  # fmt: skip
        if there.whole >= ENOUGH and there.low >= HOPEFUL and ended:
            low, high = round(there.low * ended), round(there.high * ended)
            yield Advice(
                f"{ordinal(last)} attempts after {code} still succeed {percent(there.value)} ({there.part} of "
                f"{there.whole}), and {ended} jobs ended there. One more retry might have saved {low} to {high} of "
                "them; nobody has tried, so this is a guess.",
                code,
            )


def _at(rows: Sequence[TrialCount], k: int) -> tuple[int, int]:
    here = [row for row in rows if row.k == k]
    return sum(row.successes for row in here), sum(row.trials for row in here)


# -- verdicts ---------------------------------------------------------------------------------------
def _by_hand(rows: Sequence[HandCount]) -> Iterator[Advice]:
    for row in rows:
        tried = share(row.successes, row.tries)
        if row.cls not in RETRYABLE and row.tries >= ENOUGH and tried.low >= HOPEFUL:
            yield Advice(
                f"{row.tries} jobs that were not retried because of {row.code} (rule {row.rule}) were begun again by "
                f"hand, and {percent(tried.value)} of them succeeded within a day. People retry what they have "
                "repaired, so this proves nothing; but look at the rule.",
                row.code,
            )


def _unknowns(failures: Sequence[FailureCount]) -> Iterator[Advice]:
    whole = sum(row.failures for row in failures)
    by_code: defaultdict[str, int] = defaultdict(int)
    for row in failures:
        if row.cls == Cls.UNKNOWN:
            by_code[row.code] += row.failures
    unknown = sum(by_code.values())
    if whole < ENOUGH or unknown < UNKNOWN * whole:
        return
    code = max(by_code, key=lambda name: (by_code[name], name))
    yield Advice(
        f"{percent(unknown / whole)} of the failures ({unknown} of {whole}) have a cause that no rule knows; most of "
        f"them are {code} ({by_code[code]}). A rule of your own would say whether trying again helps.",
        code,
    )
