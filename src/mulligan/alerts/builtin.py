"""The built-in alert rules, and the parser that applies `alerts.rules` of the settings to them.

Rules use shares, a window and a minimum volume, so that they work for ten jobs a second and for
one a minute. Error budgets have a fast rule, which pages, and slow ones. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from mulligan.alerts.measures import GROUPS, KEYED_BY, MEASURES, SHARES
from mulligan.alerts.rules import GAUGES, AlertDefinition

MINUTE = 60.0
HOUR = 3600.0
DAY = 86_400.0
KNOWN_MEASURES = frozenset({*MEASURES, *GAUGES, *GROUPS, "dead_jump"})
ACTIONS = {
    "reduce": ("queue", "dependency"),
    "open": ("dependency",),
    "pause": ("queue",),
    "hold_release": ("release",),
}
SEVERITIES = ("page", "ticket", "info")

BUILTIN = (
    AlertDefinition(
        "failures_fast",
        "dead_share",
        0.288,
        "{} of jobs fail. At this rate the month's error budget is gone in 2 days",
        window=HOUR,
        and_window=5 * MINUTE,
        least=10,
        severity="page",
    ),
    AlertDefinition(
        "failures_steady",
        "dead_share",
        0.12,
        "{} of jobs fail. At this rate the month's error budget is gone in 5 days",
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
        "{} of jobs fail, more than the goal allows",
        window=3 * DAY,
        and_window=6 * HOUR,
        least=10,
        unless="failures_fast, failures_steady",
    ),
    AlertDefinition(
        "failure_share",
        "failed_share",
        0.05,
        "{} of attempts failed",
        window=5 * MINUTE,
        least=10,
        clear=0.02,
        for_=5 * MINUTE,
    ),
    AlertDefinition(
        "dead_letters",
        "dead_letters",
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
        "Deaths are {} the usual rate",
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
        "{} of calls were rate limited; the concurrency is being reduced",
        window=5 * MINUTE,
        least=20,
        clear=0.01,
    ),
    AlertDefinition(
        "rate_limited_queue",
        "rate_limited_share_by_queue",
        0.05,
        "{} of attempts were rate limited",
        window=5 * MINUTE,
        least=20,
        clear=0.01,
        action="reduce",
    ),
    AlertDefinition(
        "queue_ageing",
        "queue_age",
        5 * MINUTE,
        "oldest due job has waited {}",
        least=100,
        for_=5 * MINUTE,
    ),
    AlertDefinition(
        "slow_jobs",
        "duration_p95",
        4 * MINUTE,
        "1 of 20 attempts takes longer than {}",
        window=15 * MINUTE,
        least=20,
        of_limit=0.8,
    ),
    AlertDefinition(
        "worker_restarts", "restarts", 3, "{} workers or runners died", window=HOUR, clear=1
    ),
    AlertDefinition(
        "breaker_open", "breaker_open", 10 * MINUTE, "jobs have been on hold for {}", clear=0
    ),
    AlertDefinition("no_heartbeat", "heartbeat_age", MINUTE, "no heartbeat for {}", clear=30),
    AlertDefinition(
        "no_worker",
        "unserved",
        MINUTE,
        "no worker runs this kind; the oldest job has waited {}",
        clear=0,
        severity="page",
    ),
    AlertDefinition(
        "retry_cost", "retry_cost", 0.10, "retries cost {} per job", window=DAY, least=20
    ),
    AlertDefinition(
        "retry_ratio",
        "retry_ratio",
        0.2,
        "retry ratio {}",
        window=5 * MINUTE,
        least=50,
        clear=0.1,
    ),
    AlertDefinition(
        "unknown_share",
        "unknown_share",
        0.1,
        "{} of failures have class unknown",
        window=HOUR,
        least=20,
        unless="unknown_error",
    ),
    AlertDefinition(
        "unknown_error",
        "new_unknown_group",
        0,
        "{} jobs died of a failure of class unknown",
        window=10 * MINUTE,
        once=True,
        unless="new_failure",
    ),
    AlertDefinition(
        "new_failure",
        "new_group",
        9,
        "{} jobs died",
        window=10 * MINUTE,
        once=True,
        severity="page",
    ),
    AlertDefinition(
        "release_worse",
        "release_worse",
        0,
        "a kind fails clearly more under one release than under the others",
        clear=0,
        severity="page",
        action="hold_release",
    ),
    AlertDefinition(
        "reduced_to_one",
        "at_floor",
        0,
        "reduced to one job at a time and still rate limited",
        for_=15 * MINUTE,
        severity="page",
    ),
)


# --- Reading rules from the settings ---


class InvalidAlertRule(ValueError):
    """A rule in the settings is invalid. The message names the rule and the field."""


_FIELDS = {("for" if one.name == "for_" else one.name): one for one in fields(AlertDefinition)}
_FLAGS = frozenset({"once", "enabled"})
_NUMBERS = frozenset({"window", "and_window", "for", "above", "least", "clear", "of_limit"})
_WINDOWS = frozenset({"window", "and_window"})
MIN_WINDOW = 60.0
MAX_NUMBER = 30 * DAY
MAX_TEXT = 200  # characters


def parse_rules(settings: Sequence[Mapping[str, Any]]) -> tuple[AlertDefinition, ...]:
    """Return the built-in rules as changed by `alerts.rules`, then the rules that it adds.

    Raises `InvalidAlertRule`.
    """
    rules = {rule.name: rule for rule in BUILTIN}
    for index, entry in enumerate(settings):
        name = entry.get("name")
        if not isinstance(name, str) or not name:
            message = f"alerts.rules[{index}]: name is missing"
            raise InvalidAlertRule(message)
        rules[name] = _apply_entry(rules.get(name), name, entry)
    return tuple(rules.values())


def _apply_entry(
    known: AlertDefinition | None, name: str, entry: Mapping[str, Any]
) -> AlertDefinition:
    where = f"alerts.rules {name!r}"
    values = {}
    for key, value in entry.items():
        if key != "name":
            field_name = _field_name(where, key)
            values[field_name] = _check_value(where, key, value)
    if known is None:
        known = _build_rule(where, name, values)
    if "above" in values:
        values.setdefault("of_limit", 0.0)  # a threshold that somebody chose holds for all kinds
    rule = replace(known, **values)
    _check_rule(where, rule)
    return rule


def _build_rule(where: str, name: str, values: Mapping[str, Any]) -> AlertDefinition:
    missing = [key for key in ("measure", "above") if key not in values]
    if missing:
        message = f"{where}: a new rule needs {' and '.join(missing)}."
        similar = difflib.get_close_matches(name, [rule.name for rule in BUILTIN], n=1)
        if similar:
            message = f"{message} Did you mean the built-in rule {similar[0]!r}?"
        raise InvalidAlertRule(message)
    return AlertDefinition(name, values["measure"], values["above"], f"{values['measure']} is {{}}")


def _field_name(where: str, key: str) -> str:
    if key not in _FIELDS:
        message = f"{where}: unknown field {key!r}. {_suggest(key, list(_FIELDS), 'Fields')}"
        raise InvalidAlertRule(message)
    return _FIELDS[key].name


def _suggest(name: str, known: Sequence[str], label: str) -> str:
    similar = difflib.get_close_matches(name, known, n=1)
    if similar:
        return f"Did you mean {similar[0]!r}?"
    return f"{label}: {', '.join(known)}."


def _check_value(where: str, key: str, value: Any) -> Any:
    if key in _FLAGS:
        if not isinstance(value, bool):
            message = f"{where}: invalid {key}={value!r:.80}. Use true or false."
            raise InvalidAlertRule(message)
        return value
    if key in _NUMBERS:
        return _check_number(where, key, value)
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        message = (
            f"{where}: invalid {key}={value!r:.80}. Use one line of at most {MAX_TEXT} characters."
        )
        raise InvalidAlertRule(message)
    return value


def _check_number(where: str, key: str, value: Any) -> float:
    least = MIN_WINDOW if key in _WINDOWS else 0.0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= MAX_NUMBER:
        unit = "seconds" if key in {*_WINDOWS, "for"} else "a number"
        message = (
            f"{where}: invalid {key}={value!r:.80}. "
            f"Use {unit} from {least:.0f} to {MAX_NUMBER:,.0f}."
        )
        raise InvalidAlertRule(message)
    return float(value)


def _check_rule(where: str, rule: AlertDefinition) -> None:
    if rule.measure not in KNOWN_MEASURES:
        hint = _suggest(rule.measure, sorted(KNOWN_MEASURES), "Measures")
        message = f"{where}: unknown measure {rule.measure!r}. {hint}"
        raise InvalidAlertRule(message)
    if rule.severity not in SEVERITIES:
        message = f"{where}: unknown severity {rule.severity!r}. Use {', '.join(SEVERITIES)}."
        raise InvalidAlertRule(message)
    if rule.clear is not None and rule.clear > rule.above:
        message = f"{where}: clear ({rule.clear:g}) must not be greater than above ({rule.above:g})"
        raise InvalidAlertRule(message)
    if rule.and_window is not None and rule.and_window > rule.window:
        message = (
            f"{where}: and_window ({rule.and_window:g} s) must not be longer "
            f"than window ({rule.window:g} s)"
        )
        raise InvalidAlertRule(message)
    _check_action(where, rule)


def _check_action(where: str, rule: AlertDefinition) -> None:
    if not rule.action:
        return
    if rule.action not in ACTIONS:
        message = (
            f"{where}: unknown action {rule.action!r}. Use {', '.join(ACTIONS)} or an empty text."
        )
        raise InvalidAlertRule(message)
    scopes = ACTIONS[rule.action]
    if KEYED_BY.get(rule.measure, "") not in scopes:
        suitable = sorted(name for name, scope in KEYED_BY.items() if scope in scopes)
        message = (
            f"{where}: action {rule.action!r} needs a measure of a {' or '.join(scopes)}. "
            f"Use {', '.join(suitable)}."
        )
        raise InvalidAlertRule(message)
    if rule.action == "reduce" and rule.measure not in SHARES:
        message = (
            f"{where}: action 'reduce' needs a share of calls or attempts, not {rule.measure!r}"
        )
        raise InvalidAlertRule(message)
