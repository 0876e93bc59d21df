"""The built-in alerts, as data, and how settings change them or add others.

Shares instead of numbers, a window, a least volume: what five specifications asked for, corrected so that ten jobs a
second and one a minute are judged alike. Budgets are burnt at two speeds: fast enough to wake somebody, or slowly.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from mulligan.policy.alert import GAUGES, Rule
from mulligan.policy.measures import KEYED_BY, MEASURES

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
GROUPS = frozenset({"new_group", "new_unknown_group"})
KNOWN = frozenset({*MEASURES, *GAUGES, *GROUPS, "dead_jump"})
ACTIONS = {"reduce": ("queue", "dependency"), "open": ("dependency",), "pause": ("queue",)}
SEVERITIES = ("page", "ticket", "info")

BUILTIN = (
    Rule(
        "failures_fast", "dead_share", 0.288, "{} of the jobs died: in two days a month's budget",
        window=HOUR, and_window=5 * MINUTE, least=10, severity="page",
    ),
    Rule(
        "failures_steady", "dead_share", 0.12, "{} of the jobs died: in five days a month's budget",
        window=6 * HOUR, and_window=30 * MINUTE, least=10, severity="page", unless="failures_fast",
    ),
    Rule(
        "failures_slow", "dead_share", 0.02, "{} of the jobs died, more than the goal allows",
        window=3 * DAY, and_window=6 * HOUR, least=10, unless="failures_fast, failures_steady",
    ),
    Rule(
        "failure_share", "failed_share", 0.05, "{} of its attempts failed", window=5 * MINUTE, least=10, clear=0.02,
        for_=5 * MINUTE,
    ),
    Rule(
        "dead_letters", "dead", 10, "{} jobs died", window=10 * MINUTE, clear=2, unless="failures_fast, failure_spike",
    ),
    Rule(
        "failure_spike", "dead_jump", 5, "{} times as many jobs died as usual", window=5 * MINUTE, least=10, clear=2,
        severity="page", unless="failures_fast",
    ),
    Rule(
        "rate_limited", "rate_limited_share", 0.05, "{} of its calls were told to slow down; its guard lets fewer go",
        window=5 * MINUTE, least=20, clear=0.01,
    ),
    Rule(
        "rate_limited_queue", "rate_limited_share_by_queue", 0.05, "{} of its attempts were told to slow down",
        window=5 * MINUTE, least=20, clear=0.01, action="reduce",
    ),
    Rule("queue_ageing", "queue_age", 5 * MINUTE, "its oldest due job has waited {}", least=100, for_=5 * MINUTE),
    Rule("slow_jobs", "duration_p95", 4 * MINUTE, "one attempt of 20 takes over {}", window=15 * MINUTE, least=20),
    Rule("worker_restarts", "restarts", 3, "{} workers or runners died", window=HOUR, clear=1),
    Rule("breaker_open", "breaker_open", 10 * MINUTE, "its jobs have been held for {}", clear=0),
    Rule("no_heartbeat", "heartbeat_age", MINUTE, "it has not renewed its lease for {}", clear=30),
    Rule("no_worker", "unserved", MINUTE, "no worker runs it, and a job has waited {}", clear=0, severity="page"),
    Rule("retry_cost", "retry_cost", 0.10, "retries cost {} for each job", window=DAY, least=20),
    Rule("retry_ratio", "retry_ratio", 0.2, "retries are {} of first tries", window=5 * MINUTE, least=50, clear=0.1),
    Rule(
        "unknown_share", "unknown_share", 0.1, "{} of the failures no rule knows", window=HOUR, least=20,
        unless="unknown_error",
    ),
    Rule(
        "unknown_error", "new_unknown_group", 0, "{} jobs died of a cause that was never seen and that no rule knows",
        window=10 * MINUTE, once=True, unless="new_failure",
    ),
    Rule(
        "new_failure", "new_group", 9, "{} jobs died of a cause that was never seen", window=10 * MINUTE, once=True,
        severity="page",
    ),
    Rule(
        "reduced_to_one", "at_floor", 0, "one at a time, and that is not enough", for_=15 * MINUTE, severity="page",
    ),
)  # fmt: skip


class BadRule(ValueError):
    """Said to whoever wrote the settings."""


_FIELDS = {("for" if one.name == "for_" else one.name): one for one in fields(Rule)}
_SECONDS = frozenset({"window", "and_window", "for", "above", "least", "clear"})


def rules_of(said: Sequence[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """The built-in rules as settings have changed them, then those they add. BadRule: what is wrong, and where."""
    rules = {rule.name: rule for rule in BUILTIN}
    for place, one in enumerate(said):
        name = one.get("name")
        if not isinstance(name, str) or not name:
            message = f"alerts.rules[{place}]: say its name"
            raise BadRule(message)
        rules[name] = _changed(rules.get(name), name, one)
    return tuple(rules.values())


def _changed(known: Rule | None, name: str, said: Mapping[str, Any]) -> Rule:
    where = f"alerts.rules {name!r}"
    values = {_field(where, key): _value(where, key, value) for key, value in said.items() if key != "name"}
    if known is None:
        known = _new(where, name, values)
    rule = replace(known, **values)
    _check(where, rule)
    return rule


def _new(where: str, name: str, values: Mapping[str, Any]) -> Rule:
    missing = [key for key in ("measure", "above") if key not in values]
    if missing:
        near = difflib.get_close_matches(name, [rule.name for rule in BUILTIN], n=1)
        hint = f"; did you mean the built-in {near[0]!r}?" if near else ""
        message = f"{where}: a rule of your own needs {' and '.join(missing)}{hint}"
        raise BadRule(message)
    return Rule(name, values["measure"], values["above"], f"{values['measure']} is {{}}")


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
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 30 * DAY:
        of = "seconds" if key in {"window", "and_window", "for"} else "a number"
        message = f"{where}: {key} must be {of} from {least:g} to {30 * DAY:g}, not {value!r:.80}"
        raise BadRule(message)
    return float(value)


def _check(where: str, rule: Rule) -> None:
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


def _check_action(where: str, rule: Rule) -> None:
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
        message = f"{where}: action 'reduce' follows a share of what was called; {rule.measure!r} is none"
        raise BadRule(message)
