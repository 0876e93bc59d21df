"""The built-in alerts, as data, and how settings change them or add others.

Shares instead of numbers, a window, a least volume: what five specifications asked for, corrected so that ten jobs a
second and one a minute are judged alike. Budgets are burnt at two speeds: fast enough to wake somebody, or slowly.
"""

from __future__ import annotations

import difflib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from mulligan.alerts.rules import GAUGES, AlertDefinition, Sample

# What alerts look at, from numbers that were counted: shares of what ended, counts, durations, costs. Pure.

THEIRS = frozenset({"invalid_input", "cancelled"})  # classes that are no fault of the system
FAILED = frozenset({"retry", "dead", "lost"})
TRIED = frozenset({"succeeded", *FAILED})
SHARE = 0.95

Labels = Mapping[str, str]


class StatCount(NamedTuple):
    """Of one name and one set of labels, in one window."""

    name: str
    labels: Labels
    n: int
    total: float


def read_counts(rows: Iterable[tuple[str, str, int, float]]) -> list[StatCount]:
    """(name, labels as JSON, n, total)."""
    return [StatCount(name, json.loads(labels), n, total) for name, labels, n, total in rows]


class Portion(NamedTuple):
    """How many of how many."""

    bad: int
    of: int


def portions(counts: Iterable[StatCount], share: ShareMeasure) -> dict[str, Portion]:
    """By key."""
    bad: defaultdict[str, int] = defaultdict(int)
    every: defaultdict[str, int] = defaultdict(int)
    for count in counts:
        if count.name == share.name and share.of(count.labels):
            key = count.labels.get(share.by, "") if share.by else ""
            every[key] += count.n
            bad[key] += count.n if share.bad(count.labels) else 0
    return {key: Portion(bad[key], every[key]) for key in every}


class ShareMeasure(NamedTuple):
    name: str  # of the counts
    by: str  # the label that makes the key; empty: one for all
    bad: Callable[[Labels], bool]
    of: Callable[[Labels], bool]
    least_of_all: bool = False  # the least volume is of all, not of the bad ones

    def samples(self, counts: list[StatCount]) -> Iterator[Sample]:
        for key, (bad, of) in portions(counts, self).items():
            if of:
                yield Sample(
                    key, bad / of, of if self.least_of_all else bad, {"bad": bad, "of": of}
                )


class Number(NamedTuple):
    name: str
    by: str
    which: Callable[[Labels], bool]

    def samples(self, counts: list[StatCount]) -> Iterator[Sample]:
        found: defaultdict[str, int] = defaultdict(int)
        if not self.by:
            found[""] = 0  # none is a number too
        for count in counts:
            if count.name == self.name and self.which(count.labels):
                found[count.labels.get(self.by, "") if self.by else ""] += count.n
        for key, n in found.items():
            yield Sample(key, float(n), n, {"count": n})


class Duration(NamedTuple):
    """The time that 19 of 20 need, from a histogram, as Prometheus reads one."""

    name: str
    by: str

    def samples(self, counts: list[StatCount]) -> Iterator[Sample]:
        found: defaultdict[str, defaultdict[float, int]] = defaultdict(lambda: defaultdict(int))
        for count in counts:
            if count.name == self.name:
                found[count.labels.get(self.by, "")][float(count.labels.get("le", "inf"))] += (
                    count.n
                )
        for key, buckets in found.items():
            yield Sample(
                key, quantile(buckets), sum(buckets.values()), {"attempts": sum(buckets.values())}
            )


def quantile(buckets: Mapping[float, int], share: float = SHARE) -> float:
    whole = sum(buckets.values())
    rank, below, lower = whole * share, 0.0, 0.0
    for bound in sorted(buckets):
        n = buckets[bound]
        if below + n >= rank:
            return lower if bound == float("inf") else lower + (bound - lower) * (rank - below) / n
        below, lower = below + n, bound
    return lower


class RetryRatio(NamedTuple):
    """Retries for each first try."""

    def samples(self, counts: list[StatCount]) -> Iterator[Sample]:
        tries = [
            count
            for count in counts
            if count.name == "verdicts" and count.labels.get("outcome") in TRIED
        ]
        first = sum(count.n for count in tries if count.labels.get("nth") == "first")
        again = sum(count.n for count in tries) - first
        if first:
            yield Sample("", again / first, first + again, {"retries": again, "first": first})


class RetryCost(NamedTuple):
    """What retries cost, for each job that was enqueued."""

    def samples(self, counts: list[StatCount]) -> Iterator[Sample]:
        cost = sum(c.total for c in counts if c.name == "cost" and c.labels.get("nth") == "retry")
        jobs = sum(c.n for c in counts if c.name == "enqueued")
        if jobs:
            yield Sample("", cost / jobs, jobs, {"cost": round(cost, 6), "jobs": jobs})


def _dead(labels: Labels) -> bool:
    return labels.get("state") == "dead" and labels.get("class") not in THEIRS


def _ended(labels: Labels) -> bool:
    """What was refused for its input says nothing about the system, so it is in neither number."""
    return labels.get("state") != "cancelled" and labels.get("class") not in THEIRS


def _failed(labels: Labels) -> bool:
    return labels.get("outcome") in FAILED and labels.get("class") not in THEIRS


def _tried(labels: Labels) -> bool:
    return labels.get("outcome") in TRIED and labels.get("class") not in THEIRS


def _limited(labels: Labels) -> bool:
    return labels.get("class") == "rate_limited"


MEASURES: dict[str, Any] = {
    "dead_share": ShareMeasure("finished", "", _dead, _ended),
    "dead_share_by_kind": ShareMeasure("ends", "kind", _dead, _ended),
    "dead_share_by_queue": ShareMeasure("ends", "queue", _dead, _ended),
    "failed_share": ShareMeasure("attempts", "kind", _failed, _tried),
    "failed_share_by_queue": ShareMeasure("attempts", "queue", _failed, _tried),
    "failed_share_by_dependency": ShareMeasure("calls", "dependency", _failed, _tried),
    "rate_limited_share": ShareMeasure("calls", "dependency", _limited, _tried, least_of_all=True),
    "rate_limited_share_by_queue": ShareMeasure(
        "attempts", "queue", _limited, _tried, least_of_all=True
    ),
    "unknown_share": ShareMeasure(
        "verdicts", "", lambda labels: labels.get("class") == "unknown", _failed
    ),
    "dead": Number("finished", "", _dead),
    "dead_by_kind": Number("ends", "kind", _dead),
    "duration_p95": Duration("run", "kind"),
    "restarts": Number("workers", "", lambda labels: labels.get("what") in {"lost", "runner_died"}),
    "retry_ratio": RetryRatio(),
    "retry_cost": RetryCost(),
}
_SEVERAL = {
    "retry_ratio": ("verdicts",),
    "retry_cost": ("cost", "enqueued"),
    "dead_jump": ("finished",),
}
KEYED_BY = {
    "dead_share_by_queue": "queue",
    "failed_share_by_queue": "queue",
    "rate_limited_share_by_queue": "queue",
    "queue_age": "queue",
    "failed_share_by_dependency": "dependency",
    "rate_limited_share": "dependency",
    "breaker_open": "dependency",
}


def names_of(measure: str) -> tuple[str, ...]:
    """Which counts a measure needs; of what stands now none."""
    if measure in _SEVERAL:
        return _SEVERAL[measure]
    return (MEASURES[measure].name,) if measure in MEASURES else ()


def jump(now: list[StatCount], before: list[StatCount], window: float, span: float) -> list[Sample]:
    """How many times more died in the last `window` than in as long a time of the `span` before it."""
    dead = sum(c.n for c in now if c.name == "finished" and _dead(c.labels))
    past = sum(c.n for c in before if c.name == "finished" and _dead(c.labels)) - dead
    usual = max(1.0, past * window / max(1.0, span - window))
    return [Sample("", dead / usual, dead, {"dead": dead, "usual": round(usual, 2)})]


# The built-in alerts, as data, and how settings change them or add others.

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
GROUPS = frozenset({"new_group", "new_unknown_group"})
KNOWN = frozenset({*MEASURES, *GAUGES, *GROUPS, "dead_jump"})
ACTIONS = {"reduce": ("queue", "dependency"), "open": ("dependency",), "pause": ("queue",)}
SEVERITIES = ("page", "ticket", "info")

BUILTIN = (
    AlertDefinition(
        "failures_fast",
        "dead_share",
        0.288,
        "{} of the jobs died: in two days a month's budget",
        window=HOUR,
        and_window=5 * MINUTE,
        least=10,
        severity="page",
    ),
    AlertDefinition(
        "failures_steady",
        "dead_share",
        0.12,
        "{} of the jobs died: in five days a month's budget",
        window=6 * HOUR,
        and_window=30 * MINUTE,
        least=10,
        severity="page",
        unless="failures_fast",
    ),
    AlertDefinition(
        "failures_slow",
        "dead_share",
        0.02,
        "{} of the jobs died, more than the goal allows",
        window=3 * DAY,
        and_window=6 * HOUR,
        least=10,
        unless="failures_fast, failures_steady",
    ),
    AlertDefinition(
        "failure_share",
        "failed_share",
        0.05,
        "{} of its attempts failed",
        window=5 * MINUTE,
        least=10,
        clear=0.02,
        for_=5 * MINUTE,
    ),
    AlertDefinition(
        "dead_letters",
        "dead",
        10,
        "{} jobs died",
        window=10 * MINUTE,
        clear=2,
        unless="failures_fast, failure_spike",
    ),
    AlertDefinition(
        "failure_spike",
        "dead_jump",
        5,
        "{} times as many jobs died as usual",
        window=5 * MINUTE,
        least=10,
        clear=2,
        severity="page",
        unless="failures_fast",
    ),
    AlertDefinition(
        "rate_limited",
        "rate_limited_share",
        0.05,
        "{} of its calls were told to slow down; its guard lets fewer go",
        window=5 * MINUTE,
        least=20,
        clear=0.01,
    ),
    AlertDefinition(
        "rate_limited_queue",
        "rate_limited_share_by_queue",
        0.05,
        "{} of its attempts were told to slow down",
        window=5 * MINUTE,
        least=20,
        clear=0.01,
        action="reduce",
    ),
    AlertDefinition(
        "queue_ageing",
        "queue_age",
        5 * MINUTE,
        "its oldest due job has waited {}",
        least=100,
        for_=5 * MINUTE,
    ),
    AlertDefinition(
        "slow_jobs",
        "duration_p95",
        4 * MINUTE,
        "one attempt of 20 takes over {}",
        window=15 * MINUTE,
        least=20,
    ),
    AlertDefinition(
        "worker_restarts", "restarts", 3, "{} workers or runners died", window=HOUR, clear=1
    ),
    AlertDefinition(
        "breaker_open", "breaker_open", 10 * MINUTE, "its jobs have been held for {}", clear=0
    ),
    AlertDefinition(
        "no_heartbeat", "heartbeat_age", MINUTE, "it has not renewed its lease for {}", clear=30
    ),
    AlertDefinition(
        "no_worker",
        "unserved",
        MINUTE,
        "no worker runs it, and a job has waited {}",
        clear=0,
        severity="page",
    ),
    AlertDefinition(
        "retry_cost", "retry_cost", 0.10, "retries cost {} for each job", window=DAY, least=20
    ),
    AlertDefinition(
        "retry_ratio",
        "retry_ratio",
        0.2,
        "retries are {} of first tries",
        window=5 * MINUTE,
        least=50,
        clear=0.1,
    ),
    AlertDefinition(
        "unknown_share",
        "unknown_share",
        0.1,
        "{} of the failures no rule knows",
        window=HOUR,
        least=20,
        unless="unknown_error",
    ),
    AlertDefinition(
        "unknown_error",
        "new_unknown_group",
        0,
        "{} jobs died of a cause that was never seen and that no rule knows",
        window=10 * MINUTE,
        once=True,
        unless="new_failure",
    ),
    AlertDefinition(
        "new_failure",
        "new_group",
        9,
        "{} jobs died of a cause that was never seen",
        window=10 * MINUTE,
        once=True,
        severity="page",
    ),
    AlertDefinition(
        "reduced_to_one",
        "at_floor",
        0,
        "one at a time, and that is not enough",
        for_=15 * MINUTE,
        severity="page",
    ),
)


class BadRule(ValueError):
    """Said to whoever wrote the settings."""


_FIELDS = {("for" if one.name == "for_" else one.name): one for one in fields(AlertDefinition)}
_SECONDS = frozenset({"window", "and_window", "for", "above", "least", "clear"})


def rules_of(said: Sequence[Mapping[str, Any]]) -> tuple[AlertDefinition, ...]:
    """The built-in rules as settings have changed them, then those they add. BadRule: what is wrong, and where."""
    rules = {rule.name: rule for rule in BUILTIN}
    for place, one in enumerate(said):
        name = one.get("name")
        if not isinstance(name, str) or not name:
            message = f"alerts.rules[{place}]: say its name"
            raise BadRule(message)
        rules[name] = _changed(rules.get(name), name, one)
    return tuple(rules.values())


def _changed(known: AlertDefinition | None, name: str, said: Mapping[str, Any]) -> AlertDefinition:
    where = f"alerts.rules {name!r}"
    values = {
        _field(where, key): _value(where, key, value)
        for key, value in said.items()
        if key != "name"
    }
    if known is None:
        known = _new(where, name, values)
    rule = replace(known, **values)
    _check(where, rule)
    return rule


def _new(where: str, name: str, values: Mapping[str, Any]) -> AlertDefinition:
    missing = [key for key in ("measure", "above") if key not in values]
    if missing:
        near = difflib.get_close_matches(name, [rule.name for rule in BUILTIN], n=1)
        hint = f"; did you mean the built-in {near[0]!r}?" if near else ""
        message = f"{where}: a rule of your own needs {' and '.join(missing)}{hint}"
        raise BadRule(message)
    return AlertDefinition(name, values["measure"], values["above"], f"{values['measure']} is {{}}")


def _field(where: str, key: str) -> str:
    if key not in _FIELDS:
        near = difflib.get_close_matches(key, list(_FIELDS), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_FIELDS)}"
        message = f"{where}: no such field {key!r}; {hint}"
        raise BadRule(message)
    return _FIELDS[key].name


def _value(where: str, key: str, value: Any) -> Any:
    if key in {"once", "enabled"}:
        if not isinstance(value, bool):
            message = f"{where}: {key} must be true or false, not {value!r:.80}"
            raise BadRule(message)
        return value
    if key in _SECONDS:
        return _number(where, key, value)
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        message = f"{where}: {key} must be a text of one line, not {value!r:.80}"
        raise BadRule(message)
    return value


def _number(where: str, key: str, value: Any) -> float:
    least = 0.0 if key not in {"window", "and_window"} else 60.0
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not least <= value <= 30 * DAY
    ):
        of = "seconds" if key in {"window", "and_window", "for"} else "a number"
        message = f"{where}: {key} must be {of} from {least:g} to {30 * DAY:g}, not {value!r:.80}"
        raise BadRule(message)
    return float(value)


def _check(where: str, rule: AlertDefinition) -> None:
    if rule.measure not in KNOWN:
        near = difflib.get_close_matches(rule.measure, sorted(KNOWN), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(KNOWN))}"
        message = f"{where}: no such measure {rule.measure!r}; {hint}"
        raise BadRule(message)
    if rule.severity not in SEVERITIES:
        message = f"{where}: severity must be {', '.join(SEVERITIES)}, not {rule.severity!r}"
        raise BadRule(message)
    if rule.clear is not None and rule.clear > rule.above:
        message = f"{where}: clear ({rule.clear:g}) must not be above `above` ({rule.above:g})"
        raise BadRule(message)
    if rule.and_window is not None and rule.and_window > rule.window:
        message = f"{where}: and_window ({rule.and_window:g}) must not be longer than window ({rule.window:g})"
        raise BadRule(message)
    _check_action(where, rule)


def _check_action(where: str, rule: AlertDefinition) -> None:
    if not rule.action:
        return
    if rule.action not in ACTIONS:
        message = f"{where}: action must be {', '.join(ACTIONS)} or empty, not {rule.action!r}"
        raise BadRule(message)
    scope = KEYED_BY.get(rule.measure, "")
    if scope not in ACTIONS[rule.action]:
        fit = sorted(name for name, by in KEYED_BY.items() if by in ACTIONS[rule.action])
        of = " or ".join(ACTIONS[rule.action])
        message = f"{where}: action {rule.action!r} needs a measure of a {of}: {', '.join(fit)}"
        raise BadRule(message)
    if rule.action == "reduce" and rule.measure not in MEASURES:
        message = (
            f"{where}: action 'reduce' follows a share of what was called; {rule.measure!r} is none"
        )
        raise BadRule(message)
