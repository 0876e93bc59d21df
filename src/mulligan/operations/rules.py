"""Rules of bulk operations: step sizes, how many jobs to send, what an end means, when to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from mulligan.core.attempt import Verb
from mulligan.core.durations import Micros
from mulligan.core.errors import Refused
from mulligan.core.job import State, TokenBucket
from mulligan.guards.limits import refill_bucket

REST = "rest"
CANARY_STEPS: tuple[int | str, ...] = (1, 10, 100, REST)
SINGLE_STEP: tuple[int | str, ...] = (REST,)
MAX_STEPS = 20
MAX_STEP_SIZE = 1_000_000
RECENT_ITEMS = 100  # The newest items of a long step are also judged on their own.
MAX_IN_FLIGHT = 100  # items sent and not ended, at least
IN_FLIGHT_SECONDS = 10  # at a high rate, as many as the rate sends in this time
ROUNDING_MARGIN = 1e-9  # 29 of 100 is not more than 0.29 despite floating point

Steps = tuple[int | str, ...]


class Action(StrEnum):
    """Action of an operation on its jobs."""

    RETRY = "retry"
    CANCEL = "cancel"
    DISCARD = "discard"
    RELEASE = "release"
    MOVE = "move"


class ItemOutcome(StrEnum):
    """Result of one item."""

    RECOVERED = "recovered"  # its first attempt succeeded
    SAME = "same"  # it failed again with the same cause
    OTHER = "other"  # anything else
    DONE = "done"  # moved; the action has no attempt to wait for
    REFUSED = "refused"  # it could not be moved
    SKIPPED = "skipped"  # it changed before its turn


ITEM_FILTERS = ("waiting", "sent", "ended", *(outcome.value for outcome in ItemOutcome))


OUTCOME_LETTERS: Mapping[ItemOutcome, str] = {
    ItemOutcome.RECOVERED: "r",
    ItemOutcome.SAME: "s",
    ItemOutcome.OTHER: "o",
}


class ItemCounts(NamedTuple):
    """Number of items by state, of one step or of all."""

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
        """Items that had an attempt: only these show whether the cause is fixed."""
        return self.recovered + self.same + self.other

    @property
    def ended(self) -> int:
        return self.judged + self.done + self.refused + self.skipped

    @property
    def open(self) -> int:
        return self.waiting + self.sent

    def moved(self, start: str, end: str, count: int = 1) -> ItemCounts:
        """Return the counts after `count` items changed from state `start` to `end`."""
        changed = {start: getattr(self, start) - count, end: getattr(self, end) + count}
        return self._replace(**changed)


def sum_counts(counts: Sequence[ItemCounts]) -> ItemCounts:
    """Add up the counts of several steps."""
    if not counts:
        return ItemCounts()
    return ItemCounts(*(sum(column) for column in zip(*counts, strict=True)))


class StepVerdict(StrEnum):
    """Verdict about the current step."""

    CONTINUE = "continue"
    NEXT = "next"  # the step is finished and good
    STOP = "stop"


# --- Steps ---
def plan_steps(steps: Steps, total: int) -> list[ItemCounts]:
    """Divide `total` items into steps. There is always at least one step.

    Without "rest" at the end, some items may be left over.
    """
    plan: list[ItemCounts] = []
    remaining = total
    for step in steps:
        size = remaining if isinstance(step, str) else min(step, remaining)
        if size:
            plan.append(ItemCounts(size, size))
        remaining -= size
    return plan or [ItemCounts()]


def max_items(steps: Steps) -> int | None:
    """Return how many items the steps take in total; None for all."""
    if REST in steps:
        return None
    return sum(step for step in steps if isinstance(step, int))


def last_place(plan: Sequence[ItemCounts], step: int) -> int:
    """Return the last place of a step. Places count from 1, steps from 0."""
    return sum(counts.size for counts in plan[: step + 1])


def step_number(plan: Sequence[ItemCounts], place: int) -> int:
    """Return the step of a place, counted from 1 for people; 0 if the plan does not reach it."""
    for step in range(len(plan)):
        if place <= last_place(plan, step):
            return step + 1
    return 0


# --- Judging ---
def judge_step(counts: ItemCounts, stop_if: float, recent: str = "") -> StepVerdict:
    """Judge the current step. `recent` is one letter per newest item, the newest last."""
    if _exceeds_limit(counts, stop_if) or _recent_exceed_limit(recent, stop_if):
        return StepVerdict.STOP
    return StepVerdict.CONTINUE if counts.open else StepVerdict.NEXT


def _exceeds_limit(counts: ItemCounts, stop_if: float) -> bool:
    """Return whether the limit is exceeded even if all open items recover."""
    return _is_above(counts.same, counts.judged + counts.open, stop_if)


def _recent_exceed_limit(recent: str, stop_if: float) -> bool:
    if len(recent) < RECENT_ITEMS:
        return False
    return _is_above(_count_same(recent), len(recent), stop_if)


def _count_same(recent: str) -> int:
    return recent.count(OUTCOME_LETTERS[ItemOutcome.SAME])


def _is_above(part: int, whole: int, share: float) -> bool:
    return part > share * whole + ROUNDING_MARGIN


def append_recent(recent: str, outcomes: Sequence[ItemOutcome]) -> str:
    """Append outcomes of items that had an attempt, and keep the newest."""
    letters = "".join(OUTCOME_LETTERS.get(outcome, "") for outcome in outcomes)
    return (recent + letters)[-RECENT_ITEMS:]


def sendable_count(counts: ItemCounts, tokens: float, rate: float, limit: int) -> int:
    """Return how many items to send now: bounded by the rate and by items in flight."""
    max_in_flight = max(MAX_IN_FLIGHT, round(rate * IN_FLIGHT_SECONDS))
    return max(0, min(counts.waiting, int(tokens), max_in_flight - counts.sent, limit))


def refill_tokens(tokens: float, at: Micros, rate: float, now: Micros) -> TokenBucket:
    """Refill the token bucket of a rate: at most one second's worth, but at least one token."""
    return refill_bucket(TokenBucket(tokens, at), rate, now)


class ItemEnd(NamedTuple):
    """End of an item that was sent."""

    group: str | None  # failure group it had died of before
    verb: str | None = None  # of its first counted attempt; None if it had none
    failed_group: str | None = None  # failure group of that attempt
    code: str | None = None
    message: str = ""  # public message, or the reason of the decision
    state: str | None = None  # of the job now; None if it was deleted
    died_of: str | None = None  # failure group of a death without an attempt
    retried_again: bool = False  # a person has retried it again


def judge_item(end: ItemEnd) -> tuple[ItemOutcome, str]:
    """Return the outcome of an item, and why it did not recover."""
    if end.verb == Verb.SUCCEED:
        return ItemOutcome.RECOVERED, ""
    if end.verb is not None:
        group = end.failed_group or None
        if group is None and end.code:
            group = f"code-{end.code}"
        why = end.message or str(end.verb)
        if end.code:
            why = f"{end.code}: {end.message}"
        return _compare_cause(end, group), why
    if end.state == State.DEAD:
        return _compare_cause(end, end.died_of), "it died while waiting"
    if end.state is None:
        return ItemOutcome.OTHER, "the job was deleted"
    if end.retried_again:
        return ItemOutcome.OTHER, "it was retried again before its first attempt"
    return ItemOutcome.OTHER, f"it is {end.state} without an attempt"


def _compare_cause(end: ItemEnd, group: str | None) -> ItemOutcome:
    is_same = group is not None and group == end.group
    return ItemOutcome.SAME if is_same else ItemOutcome.OTHER


# --- Checks of options ---
def check_steps(steps: Any) -> Steps:
    """Return checked step sizes, such as (1, 10, 100, "rest")."""
    is_list = isinstance(steps, Sequence) and not isinstance(steps, str | bytes)
    if not is_list or not steps:
        raise Refused(f'steps must be a list such as [1, 10, 100, "rest"], not {steps!r:.80}')
    if len(steps) > MAX_STEPS:
        raise Refused(f"steps: {len(steps)} steps; at most {MAX_STEPS} are allowed")
    for step in steps:
        _check_step(step)
    if REST in steps[:-1]:
        raise Refused('steps: "rest" takes all remaining jobs, so it must be the last step')
    return tuple(steps)


def _check_step(step: Any) -> None:
    if step == REST:
        return
    if isinstance(step, bool) or not isinstance(step, int) or not 1 <= step <= MAX_STEP_SIZE:
        raise Refused(
            f'steps: each must be a whole number from 1 to {MAX_STEP_SIZE:,} or "rest", '
            f"not {step!r:.80}"
        )


def check_stop_if(stop_if: Any) -> float:
    """Return a share from 0 (stop at the first job that fails again) to 1 (never stop)."""
    is_number = isinstance(stop_if, int | float) and not isinstance(stop_if, bool)
    if not is_number or not math.isfinite(stop_if) or not 0 <= stop_if <= 1:
        raise Refused(f"stop_if must be a share from 0 to 1, such as 0.1, not {stop_if!r:.80}")
    return float(stop_if)


# --- Sentences ---
def format_percent(share: float) -> str:
    """Return a share as `10 %`."""
    return f"{share * 100:g} %"


def describe_stop(
    plan: Sequence[ItemCounts],
    step: int,
    stop_if: float,
    recent: str,
    codes: Sequence[tuple[str, int]],
) -> str:
    """Return why an operation stopped by itself, and how many jobs it left untouched."""
    counts = plan[step]
    if _exceeds_limit(counts, stop_if):
        failed = f"{counts.same:,} of {counts.judged:,} retried jobs"
    else:
        failed = f"{_count_same(recent):,} of the last {len(recent):,} retried jobs"
    cause = " with the same cause"
    if codes:
        cause = f" with {', '.join(code for code, _ in codes[:3])}"
    untouched = sum_counts(plan).waiting
    rest = "No further jobs were retried."
    if untouched:
        rest = f"{untouched:,} of {sum_counts(plan).size:,} jobs were not retried."
    return (
        f"Stopped at step {step + 1} of {len(plan)}: {failed} failed again{cause} "
        f"(limit {format_percent(stop_if)}). {rest}"
    )


def describe_end(action: Action, plan: Sequence[ItemCounts]) -> str:
    """Return what became of all jobs of a finished operation."""
    total = sum_counts(plan)
    if not total.size:
        return "No job matched."
    jobs = "1 job" if total.size == 1 else f"{total.size:,} jobs"
    results = []
    for outcome, label in _OUTCOME_LABELS.items():
        count = getattr(total, outcome)
        if count:
            results.append(f"{count:,} {label}")
    return f"{str(action).capitalize()} of {jobs}: {', '.join(results)}."


_OUTCOME_LABELS: Mapping[ItemOutcome, str] = {
    ItemOutcome.RECOVERED: "recovered",
    ItemOutcome.SAME: "failed again",
    ItemOutcome.OTHER: "other",
    ItemOutcome.DONE: "done",
    ItemOutcome.REFUSED: "refused",
    ItemOutcome.SKIPPED: "skipped",
}
