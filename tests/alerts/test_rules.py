"""Rules of alerts: when they fire and resolve, measures, and settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mulligan.alerts.builtin import BUILTIN, KNOWN_MEASURES, InvalidAlertRule, parse_rules
from mulligan.alerts.measures import (
    MEASURES,
    Bucket,
    StatCount,
    histogram_quantile,
    measure_death_rate,
    read_counts,
)
from mulligan.alerts.rules import (
    FIRING,
    PENDING,
    RESOLVED,
    UNMEASURED_LIMIT,
    Alert,
    AlertDefinition,
    Sample,
    describe_alert,
    evaluate,
    is_covered,
    order_rules,
)
from mulligan.core.durations import SECOND

RULE = AlertDefinition("limited", "rate_limited_share", 0.05, "{} of calls", least=20, clear=0.01)
NOW = 1_000_000 * SECOND


def run_steps(
    rule: AlertDefinition, *steps: tuple[float, Sample | None], silenced: bool = False
) -> tuple[Alert | None, list[str]]:
    """Evaluate samples at given seconds. Return the last alert and all transitions."""
    stored: dict[str, Alert] = {}
    transitions: list[str] = []
    for at, sample in steps:
        samples = [] if sample is None else [sample]
        written, changes = evaluate(
            rule, samples, stored, NOW + round(at * SECOND), silenced=silenced
        )
        stored |= {alert.key: alert for alert in written}
        transitions += [change.transition for change in changes]
    return stored.get("gateway"), transitions


def share(value: float, volume: float = 100) -> Sample:
    return Sample("gateway", value, volume)


# --- Evaluation ---
def test_an_alert_fires_above_its_threshold_and_not_at_it():
    assert run_steps(RULE, (0, share(0.05))) == (None, [])
    alert, transitions = run_steps(RULE, (0, share(0.06)))
    assert transitions == ["fired"]
    assert alert is not None
    assert alert.state == FIRING


@pytest.mark.seed("004-61")
def test_an_alert_needs_a_minimum_volume():
    assert run_steps(RULE, (0, share(1.0, volume=19)))[1] == []


def test_between_the_thresholds_nothing_changes():
    assert run_steps(
        RULE, (0, share(0.06)), (5, share(0.02)), (10, share(0.06)), (15, share(0.01))
    )[1] == [
        "fired",
        "resolved",
    ]


def test_the_waiting_time_restarts_when_the_value_falls_below():
    slow = replace(RULE, for_=60)
    assert run_steps(slow, (0, share(0.1)), (59, share(0.1)))[1] == []
    assert run_steps(slow, (0, share(0.1)), (60, share(0.1)))[1] == ["fired"]
    assert run_steps(slow, (0, share(0.1)), (30, share(0.0)), (61, share(0.1)))[1] == []


def test_an_unmeasured_alert_is_resolved_after_15_minutes():
    long = UNMEASURED_LIMIT / SECOND
    alert, transitions = run_steps(RULE, (0, share(0.1)), (long - 1, None))
    assert transitions == ["fired"]
    assert alert is not None
    assert alert.state == FIRING
    assert run_steps(RULE, (0, share(0.1)), (long, None))[1] == ["fired", "resolved"]


def test_a_silenced_alert_stays_pending_and_fires_afterwards():
    alert, transitions = run_steps(RULE, (0, share(0.1)), silenced=True)
    assert transitions == []
    assert alert is not None
    assert alert.state == PENDING
    _, changes = evaluate(RULE, [share(0.1)], {"gateway": alert}, NOW + SECOND)
    assert [change.transition for change in changes] == ["fired"]


def test_a_rule_that_fires_once_does_not_fire_again():
    once = replace(RULE, once=True)
    long = UNMEASURED_LIMIT / SECOND
    alert, transitions = run_steps(once, (0, share(0.1)), (long, None), (long + 5, share(0.9)))
    assert transitions == ["fired"]
    assert alert is not None
    assert alert.state == RESOLVED


def test_an_unchanged_alert_is_not_written_each_time():
    stored = {"gateway": Alert("limited", "gateway", FIRING, NOW, NOW, 0.1)}
    assert evaluate(RULE, [share(0.1)], stored, NOW + 5 * SECOND) == ([], [])


def test_a_share_clears_when_calls_are_made_and_none_fails():
    alert, transitions = run_steps(
        replace(RULE, least=10), (0, share(0.5, 50)), (60, Sample("gateway", 0.0, 0, {"of": 50}))
    )
    assert transitions == ["fired", "resolved"]
    assert alert.state == RESOLVED


def test_an_alert_below_its_limit_says_when_it_clears():
    alert = Alert("limited", "gateway", FIRING, NOW, NOW, 0.031)
    assert describe_alert(RULE, alert) == "gateway: 3.1 % of calls (5 min, clears at 1 %)"


def test_a_new_error_is_named_by_kind_and_code():
    rule = next(rule for rule in BUILTIN if rule.name == "new_failure")
    evidence = {"kind": "send_mail", "code": "CONNECTION"}
    alert = Alert("new_failure", "v2-166c", FIRING, NOW, NOW, 412, evidence)
    assert describe_alert(rule, alert) == (
        "New error in send_mail (CONNECTION): 412 jobs died (10 min, alert above 9)"
    )


def test_alert_sentences():
    alert = Alert("limited", "gateway", FIRING, NOW, NOW, 0.123)
    assert describe_alert(RULE, alert) == "gateway: 12 % of calls (5 min, alert above 5 %)"
    spike = next(rule for rule in BUILTIN if rule.name == "failure_spike")
    alert = Alert("failure_spike", "", FIRING, NOW, NOW, 11.04)
    assert describe_alert(spike, alert) == ("Deaths are 11× the usual rate (5 min, alert above 5×)")
    ratio = next(rule for rule in BUILTIN if rule.name == "retry_ratio")
    alert = Alert("retry_ratio", "", FIRING, NOW, NOW, 20.3)
    assert describe_alert(ratio, alert) == "retry ratio 20 (5 min, alert above 0.2)"
    floor = next(rule for rule in BUILTIN if rule.name == "reduced_to_one")
    alert = Alert("reduced_to_one", "queue pages", FIRING, NOW, NOW, 1.0)
    assert describe_alert(floor, alert) == (
        "queue pages: reduced to one job at a time and still rate limited"
    )


# --- Measures ---
def count(name: str, n: int, total: float = 0.0, **labels: str) -> StatCount:
    return read_counts([(name, json.dumps(labels), n, total)])[0]


def test_shares_exclude_user_caused_failures():
    counts = [
        count("finished", 90, state="succeeded"),
        count("finished", 10, state="dead", **{"class": "transient"}),
        count("finished", 500, state="dead", **{"class": "invalid_input"}),
        count("finished", 70, state="cancelled"),
    ]
    (sample,) = MEASURES["dead_share"].samples(counts)
    assert (sample.value, sample.volume) == (0.1, 10)


def test_rate_limits_are_measured_per_dependency():
    counts = [
        count("calls", 19, dependency="a", outcome="succeeded"),
        count("calls", 1, dependency="a", outcome="retry", **{"class": "rate_limited"}),
        count("calls", 5, dependency="b", outcome="succeeded"),
        count("calls", 9, dependency="a", outcome="snoozed"),
    ]
    found = {
        sample.key: (sample.value, sample.volume)
        for sample in MEASURES["rate_limited_share"].samples(counts)
    }
    assert found == {"a": (0.05, 20), "b": (0.0, 5)}


def test_a_quantile_is_the_mean_of_its_histogram_bucket():
    assert histogram_quantile({1.0: Bucket(90, 45.0), 10.0: Bucket(10, 30.0)}) == 3.0
    assert histogram_quantile({1.0: Bucket(96, 48.0), 10.0: Bucket(4, 30.0)}) == 0.5
    assert histogram_quantile({1.0: Bucket(1, 0.5), float("inf"): Bucket(9, 81_000.0)}) == 9000.0
    assert histogram_quantile({}) == 0.0


def test_retry_ratio_and_retry_cost():
    counts = [
        count("verdicts", 100, outcome="succeeded", nth="first"),
        count("verdicts", 30, outcome="retry", nth="retry"),
        count("cost", 5, 4.0, nth="retry"),
        count("cost", 5, 9.0, nth="first"),
        count("enqueued", 20),
        count("enqueued", 500, kind="of no cost"),
    ]
    assert next(MEASURES["retry_ratio"].samples(counts)).value == 0.3
    assert next(MEASURES["retry_cost"].samples(counts)).value == 0.2


def test_a_spike_is_a_multiple_of_the_usual_rate():
    dead = {"state": "dead", "class": "unknown"}
    (sample,) = measure_death_rate(
        [count("finished", 50, **dead)], [count("finished", 61, **dead)], 300, 3600
    )
    assert sample.value == 50
    (calm,) = measure_death_rate(
        [count("finished", 50, **dead)], [count("finished", 600, **dead)], 300, 3600
    )
    assert calm.value == pytest.approx(1.0)


# --- Built-in rules and settings ---
def test_every_alert_of_the_specifications_is_built_in():
    assert {rule.name for rule in BUILTIN} >= {
        "failure_share",
        "failures_fast",
        "dead_letters",
        "failure_spike",
        "rate_limited",
        "queue_ageing",
        "slow_jobs",
        "worker_restarts",
        "breaker_open",
        "no_heartbeat",
        "retry_cost",
        "unknown_error",
    }
    assert parse_rules([rule_as_setting(rule) for rule in BUILTIN]) == BUILTIN


def test_every_built_in_rule_is_documented_with_a_runbook_entry():
    page = (Path(__file__).parents[2] / "docs" / "operate" / "alerts.md").read_text()
    table, _, entries = page.partition("## What to do?")
    for rule in BUILTIN:
        assert f"| `{rule.name}` |" in table
        assert f"### Alert {rule.name}\n" in entries or f"`{rule.name}`" in entries
    for measure in KNOWN_MEASURES:
        assert f"`{measure}`" in table


def rule_as_setting(rule: AlertDefinition) -> dict[str, object]:
    names = ("name", "above", "of_limit")
    return {"for": rule.for_, **{name: getattr(rule, name) for name in names}}


def test_settings_change_a_built_in_rule_and_add_one():
    rules = {
        rule.name: rule
        for rule in parse_rules(
            [
                {"name": "slow_jobs", "above": 30, "severity": "page"},
                {"name": "queue_ageing", "enabled": False},
                {
                    "name": "mine",
                    "measure": "failed_share_by_queue",
                    "above": 0.5,
                    "action": "pause",
                    "for": 10,
                },
            ]
        )
    }
    assert (rules["slow_jobs"].above, rules["slow_jobs"].window) == (30, 900)
    assert not rules["queue_ageing"].enabled
    assert (rules["mine"].action, rules["mine"].for_) == ("pause", 10)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"above": 1}, "name is missing"),
        (
            {"name": "slow_job", "above": 1},
            "needs measure. Did you mean the built-in rule 'slow_jobs'?",
        ),
        ({"name": "mine", "measure": "dead_shar", "above": 1}, "Did you mean 'dead_share'?"),
        ({"name": "slow_jobs", "abov": 1}, "Did you mean 'above'?"),
        ({"name": "slow_jobs", "above": "much"}, "invalid above='much'. Use a number"),
        ({"name": "slow_jobs", "above": True}, "invalid above=True. Use a number"),
        ({"name": "slow_jobs", "above": float("nan")}, "invalid above=nan. Use a number"),
        ({"name": "slow_jobs", "window": 5}, "invalid window=5. Use seconds from 60 to 2,592,000"),
        ({"name": "slow_jobs", "enabled": "no"}, "true or false"),
        ({"name": "slow_jobs", "severity": "loud"}, "page, ticket, info"),
        ({"name": "slow_jobs", "clear": 1000}, "must not be greater than above"),
        ({"name": "slow_jobs", "action": "pause"}, "needs a measure of a queue"),
        ({"name": "slow_jobs", "action": "reboot"}, "reduce, open, pause"),
        ({"name": "slow_jobs", "summary": "two\nlines"}, "one line"),
        ({"name": "failures_fast", "and_window": 7200}, "must not be longer"),
    ],
)
def test_an_invalid_rule_is_refused_with_a_hint(entry, expected):
    with pytest.raises(InvalidAlertRule, match=r"alerts\.rules") as refused:
        parse_rules([entry])
    assert expected in str(refused.value)


def test_a_firing_rule_covers_related_rules():
    rule = AlertDefinition("quiet", "dead", 1, "{} died", unless="loud, other")
    assert is_covered(rule, "", {"loud": {""}})
    assert is_covered(rule, "a", {"loud": {"a"}})
    assert is_covered(rule, "a", {"other": {""}})
    assert is_covered(rule, "", {"loud": {"a"}})
    assert not is_covered(rule, "a", {"loud": {"b"}, "third": {"a"}})
    samples = [Sample("a", 9.0, 9)]
    written, changes = evaluate(rule, samples, {}, 0, firing={"loud": {"a"}})
    assert ([alert.state for alert in written], changes) == (["pending"], [])
    _, later = evaluate(rule, samples, {"a": written[0]}, SECOND, firing={"loud": set()})
    assert [change.transition for change in later] == ["fired"]


def test_covering_rules_are_evaluated_first():
    position = {rule.name: number for number, rule in enumerate(order_rules(BUILTIN))}
    pairs = [
        (rule.name, other.strip()) for rule in BUILTIN for other in rule.unless.split(",") if other
    ]
    assert [(name, other) for name, other in pairs if other not in position] == []
    assert all(position[other] < position[name] for name, other in pairs)
