"""A bulk action in steps: how large each is, how many to send now, what an end means, when to stop. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from mulligan.core.attempt import Verb
from mulligan.core.errors import Refused
from mulligan.core.job import Meter, Micros, State
from mulligan.guards.limits import refilled

REST = "rest"
CAREFUL: tuple[int | str, ...] = (1, 10, 100, REST)
AT_ONCE: tuple[int | str, ...] = (REST,)
MOST_STEPS = 20
MOST_IN_STEP = 1_000_000
RECENT = 100  # of a long step the last so many are judged for themselves
IN_FLIGHT = 100  # sent and not ended, or a few seconds' worth
IN_FLIGHT_SECONDS = 10
A_HAIR = 1e-9  # 29 of 100 are not more than 0.29 of them, whatever floats say

Steps = tuple[int | str, ...]


class Action(StrEnum):
    RETRY = "retry"
    CANCEL = "cancel"
    DISCARD = "discard"
    RELEASE = "release"
    MOVE = "move"


class ItemOutcome(StrEnum):
    """What became of one item."""

    RECOVERED = "recovered"  # its first attempt succeeded
    SAME = "same"  # it failed of the same cause again
    OTHER = "other"  # anything else
    DONE = "done"  # moved, and there is no attempt to wait for
    REFUSED = "refused"  # it could not be moved
    SKIPPED = "skipped"  # it was not what it had been any more


LETTERS: Mapping[ItemOutcome, str] = {
    ItemOutcome.RECOVERED: "r",
    ItemOutcome.SAME: "s",
    ItemOutcome.OTHER: "o",
}


class ItemCounts(NamedTuple):
    """The items of one step, or of all."""

    size: int = 0
    waiting: int = 0
    sent: int = 0
    recovered: int = 0
    same: int = 0
    other: int = 0
    done: int = 0
    refused: int = 0
    skipped: int = 0

    @property
    def judged(self) -> int:
        """Those that had an attempt: only these say anything about the cause."""
        return self.recovered + self.same + self.other

    @property
    def ended(self) -> int:
        return self.judged + self.done + self.refused + self.skipped

    @property
    def open(self) -> int:
        return self.waiting + self.sent

    def moved(self, begin: str, end: str, count: int = 1) -> ItemCounts:
        return self._replace(
            **{begin: getattr(self, begin) - count, end: getattr(self, end) + count}
        )


def total_of(tallies: Sequence[ItemCounts]) -> ItemCounts:
    return (
        ItemCounts(*(sum(column) for column in zip(*tallies, strict=True)))
        if tallies
        else ItemCounts()
    )


class StepVerdict(StrEnum):
    GO_ON = "go on"
    NEXT = "next"  # the step is over, and good
    STOP = "stop"


# -- steps ------------------------------------------------------------------------------------------
def planned(steps: Steps, total: int) -> list[ItemCounts]:
    """The steps of so many items. Without a rest at the end some may be left; there is always one."""
    plan: list[ItemCounts] = []
    left = total
    for step in steps:
        size = left if isinstance(step, str) else min(step, left)
        if size:
            plan.append(ItemCounts(size, size))
        left -= size
    return plan or [ItemCounts()]


def bound(steps: Steps) -> int | None:
    """How many items the steps take in all; None: all there are."""
    sizes = [step for step in steps if isinstance(step, int)]
    return sum(sizes) if len(sizes) == len(steps) else None


def last_place(plan: Sequence[ItemCounts], step: int) -> int:
    """Places are counted from 1, steps from 0."""
    return sum(tally.size for tally in plan[: step + 1])


def step_of(plan: Sequence[ItemCounts], place: int) -> int:
    """Counted from 1, for people; 0: of a plan that is not made yet."""
    return next((n + 1 for n in range(len(plan)) if place <= last_place(plan, n)), 0)


# -- judging ----------------------------------------------------------------------------------------
def verdict(tally: ItemCounts, stop_if: float, recent: str = "") -> StepVerdict:
    """Of the step under way. `recent`: how its last items ended, a letter each, the newest last."""
    if _above(tally.same, tally.judged + tally.open, stop_if):
        return StepVerdict.STOP  # even if all that are open were to recover
    if len(recent) >= RECENT and _above(
        recent.count(LETTERS[ItemOutcome.SAME]), len(recent), stop_if
    ):
        return StepVerdict.STOP
    return StepVerdict.GO_ON if tally.open else StepVerdict.NEXT


def _above(part: int, whole: int, share: float) -> bool:
    return part > share * whole + A_HAIR


def remembered(recent: str, fates: Sequence[ItemOutcome]) -> str:
    return (recent + "".join(LETTERS.get(fate, "") for fate in fates))[-RECENT:]


def to_send(tally: ItemCounts, tokens: float, rate: float, most: int) -> int:
    """How many of the step may go now: as many as the rate has brought, and not while too many are under way."""
    flight = max(IN_FLIGHT, round(rate * IN_FLIGHT_SECONDS))
    return max(0, min(tally.waiting, int(tokens), flight - tally.sent, most))


def fuelled(tokens: float, at: Micros, rate: float, now: Micros) -> Meter:
    """What a rate has brought since; at most a second's worth, at least one."""
    return refilled(Meter(tokens, at), rate, now)


class End(NamedTuple):
    """What is known of an item that was sent and has ended."""

    cause: str | None  # what it had died of before
    verb: str | None = None  # of the first attempt that counts; None: there was none
    again: str | None = None  # what that one failed of
    code: str | None = None
    said: str = ""  # its public sentence, or why it was decided so
    state: str | None = None  # of the job now; None: it is gone
    died_of: str | None = None
    later: bool = False  # somebody has retried it again


def fate(end: End) -> tuple[ItemOutcome, str]:
    """And why, in words, where it did not recover."""
    if end.verb == Verb.SUCCEED:
        return ItemOutcome.RECOVERED, ""
    if end.verb is not None:
        cause = end.again or (f"code-{end.code}" if end.code else None)
        words = f"{end.code}: {end.said}" if end.code else end.said or str(end.verb)
        return (
            ItemOutcome.SAME if cause is not None and cause == end.cause else ItemOutcome.OTHER
        ), words
    if end.state == State.DEAD:
        same = end.cause is not None and end.died_of == end.cause
        return (ItemOutcome.SAME if same else ItemOutcome.OTHER), "it died while it waited"
    if end.state is None:
        return ItemOutcome.OTHER, "the job is gone"
    if end.later:
        return ItemOutcome.OTHER, "somebody retried it again before its first attempt"
    return ItemOutcome.OTHER, f"it is {end.state}, without an attempt"


# -- what may be said -------------------------------------------------------------------------------
def checked_steps(steps: Any) -> Steps:
    given = (
        list(steps) if isinstance(steps, Sequence) and not isinstance(steps, str | bytes) else None
    )
    if not given:
        raise Refused(f'steps: a list such as [1, 10, 100, "rest"], not {steps!r:.80}')
    if len(given) > MOST_STEPS:
        raise Refused(f"steps: {len(given)} of them; {MOST_STEPS} at most")
    for step in given:
        _check_step(step)
    if REST in given[:-1]:
        raise Refused('steps: "rest" is all that is left, so it can only be the last one')
    return tuple(given)


def _check_step(step: Any) -> None:
    if step == REST:
        return
    if isinstance(step, bool) or not isinstance(step, int) or not 1 <= step <= MOST_IN_STEP:
        raise Refused(
            f'steps: each is a whole number from 1 to {MOST_IN_STEP:,} or "rest", not {step!r:.80}'
        )


def checked_share(stop_if: Any) -> float:
    """A share from 0 (the first that fails of the same cause stops it) to 1 (nothing does)."""
    good = (
        isinstance(stop_if, int | float)
        and not isinstance(stop_if, bool)
        and math.isfinite(stop_if)
    )
    if not good or not 0 <= stop_if <= 1:
        raise Refused(f"stop_if: a share from 0 to 1, such as 0.1, not {stop_if!r:.80}")
    return float(stop_if)


# -- words ------------------------------------------------------------------------------------------
def percent(share: float) -> str:
    return f"{share * 100:g} %"


def stop_words(
    plan: Sequence[ItemCounts],
    step: int,
    stop_if: float,
    recent: str,
    codes: Sequence[tuple[str, int]],
) -> str:
    tally, whole = plan[step], total_of(plan)
    same, judged = tally.same, tally.judged
    which = f"of step {step + 1} of {len(plan)}"
    if not _above(same, judged + tally.open, stop_if):
        same, judged, which = (
            recent.count(LETTERS[ItemOutcome.SAME]),
            len(recent),
            f"that ended last in step {step + 1}",
        )
    named = ", ".join(code for code, _ in codes[:3])
    cause = f" ({named})" if named else ""
    return (
        f"{same} of the {judged:,} {which} failed again of the same cause{cause}, more than {percent(stop_if)}; "
        f"{whole.waiting:,} of {whole.size:,} are untouched"
    )


def end_words(action: Action, plan: Sequence[ItemCounts]) -> str:
    whole = total_of(plan)
    if not whole.size:
        return "no job matched"
    counted = [f"{getattr(whole, fate):,} {fate}" for fate in ItemOutcome if getattr(whole, fate)]
    return f"{action} of {whole.size:,}: {', '.join(counted)}"
