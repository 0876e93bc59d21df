"""Alerts: when they fire, when they are over, and which rules there are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mulligan.alerts.measures import (
    BUILTIN,
    KNOWN,
    MEASURES,
    BadRule,
    StatCount,
    jump,
    quantile,
    read_counts,
    rules_of,
)
from mulligan.alerts.rules import (
    FIRING,
    PENDING,
    RESOLVED,
    SILENT,
    Alert,
    AlertDefinition,
    Sample,
    covered,
    in_order,
    judged,
    sentence,
)
from mulligan.core.job import SECOND

RULE = AlertDefinition(
    "limited", "rate_limited_share", 0.05, "{} of its calls", least=20, clear=0.01
)
NOW = 1_000_000 * SECOND


def stand(
    rule: AlertDefinition, *steps: tuple[float, Sample | None], silenced: bool = False
) -> tuple[Alert | None, list[str]]:
    """(seconds, what was measured) one after the other: how it stands in the end, and what was told."""
    stood: dict[str, Alert] = {}
    told: list[str] = []
    for at, sample in steps:
        samples = [] if sample is None else [sample]
        written, changes = judged(rule, samples, stood, NOW + round(at * SECOND), silenced=silenced)
        stood |= {alert.key: alert for alert in written}
        told += [change.what for change in changes]
    return stood.get("gateway"), told


def share(value: float, volume: float = 100) -> Sample:
    return Sample("gateway", value, volume)


# -- judging ------------------------------------------------------------------------------------------
def test_it_fires_above_its_threshold_and_not_at_it():
    assert stand(RULE, (0, share(0.05))) == (None, [])
    alert, told = stand(RULE, (0, share(0.06)))
    assert told == ["fired"]
    assert alert is not None
    assert alert.state == FIRING


@pytest.mark.seed("003-49")
@pytest.mark.seed("004-61")
def test_a_few_calls_are_no_share():
    assert stand(RULE, (0, share(1.0, volume=19)))[1] == []


def test_between_both_thresholds_nothing_changes():
    assert stand(RULE, (0, share(0.06)), (5, share(0.02)), (10, share(0.06)), (15, share(0.01)))[
        1
    ] == [
        "fired",
        "resolved",
    ]


def test_it_must_hold_for_a_while_and_begins_anew_after_a_calm_moment():
    slow = replace(RULE, for_=60)
    assert stand(slow, (0, share(0.1)), (59, share(0.1)))[1] == []
    assert stand(slow, (0, share(0.1)), (60, share(0.1)))[1] == ["fired"]
    assert stand(slow, (0, share(0.1)), (30, share(0.0)), (61, share(0.1)))[1] == []


def test_what_nobody_measured_changes_nothing_until_it_has_been_silent_for_long():
    long = SILENT / SECOND
    alert, told = stand(RULE, (0, share(0.1)), (long - 1, None))
    assert told == ["fired"]
    assert alert is not None
    assert alert.state == FIRING
    assert stand(RULE, (0, share(0.1)), (long, None))[1] == ["fired", "resolved"]


def test_silenced_it_waits_and_fires_when_the_silence_is_over_if_it_still_holds():
    alert, told = stand(RULE, (0, share(0.1)), silenced=True)
    assert told == []
    assert alert is not None
    assert alert.state == PENDING
    _, changes = judged(RULE, [share(0.1)], {"gateway": alert}, NOW + SECOND)
    assert [change.what for change in changes] == ["fired"]


def test_one_that_is_told_a_single_time_does_not_come_back():
    once = replace(RULE, once=True)
    long = SILENT / SECOND
    alert, told = stand(once, (0, share(0.1)), (long, None), (long + 5, share(0.9)))
    assert told == ["fired"]
    assert alert is not None
    assert alert.state == RESOLVED


def test_an_alert_that_goes_on_is_not_written_each_time():
    stood = {"gateway": Alert("limited", "gateway", FIRING, NOW, NOW, 0.1)}
    assert judged(RULE, [share(0.1)], stood, NOW + 5 * SECOND) == ([], [])


def test_it_says_what_is_how_high_in_one_sentence():
    alert = Alert("limited", "gateway", FIRING, NOW, NOW, 0.123)
    assert sentence(RULE, alert) == "gateway: 12.3 % of its calls (above 5 %, in 5 min)"


# -- measures -----------------------------------------------------------------------------------------
def count(name: str, n: int, total: float = 0.0, **labels: str) -> StatCount:
    return read_counts([(name, json.dumps(labels), n, total)])[0]


def test_shares_leave_out_what_is_the_users_own_fault():
    counts = [
        count("finished", 90, state="succeeded"),
        count("finished", 10, state="dead", **{"class": "transient"}),
        count("finished", 500, state="dead", **{"class": "invalid_input"}),
        count("finished", 70, state="cancelled"),
    ]
    (sample,) = MEASURES["dead_share"].samples(counts)
    assert (sample.value, sample.volume) == (0.1, 10)


def test_rate_limits_are_a_share_of_the_calls_of_each_dependency():
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


def test_durations_are_read_from_buckets():
    assert quantile({1.0: 90, 10.0: 10}) == pytest.approx(5.5)
    assert quantile({1.0: 1, float("inf"): 9}) == 1.0


@pytest.mark.seed("004-78")
def test_retries_are_counted_against_first_tries_and_their_cost_against_all_jobs():
    counts = [
        count("verdicts", 100, outcome="succeeded", nth="first"),
        count("verdicts", 30, outcome="retry", nth="retry"),
        count("cost", 5, 4.0, nth="retry"),
        count("cost", 5, 9.0, nth="first"),
        count("enqueued", 20),
    ]
    assert next(MEASURES["retry_ratio"].samples(counts)).value == 0.3
    assert next(MEASURES["retry_cost"].samples(counts)).value == 0.2


@pytest.mark.seed("001-78")
def test_a_spike_is_many_times_what_is_usual():
    dead = {"state": "dead", "class": "unknown"}
    (sample,) = jump([count("finished", 50, **dead)], [count("finished", 61, **dead)], 300, 3600)
    assert sample.value == 50
    (calm,) = jump([count("finished", 50, **dead)], [count("finished", 600, **dead)], 300, 3600)
    assert calm.value == pytest.approx(1.0)


# -- rules --------------------------------------------------------------------------------------------
@pytest.mark.seed("003-49", "003-50", "003-51", "003-52")
def test_every_alert_that_the_specifications_name_is_built_in():
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
    assert rules_of([rule_as_said(rule) for rule in BUILTIN]) == BUILTIN


def test_every_built_in_rule_has_its_row_and_an_entry_that_says_what_to_do():
    page = (Path(__file__).parents[2] / "docs" / "operate" / "alerts.md").read_text()
    table, _, entries = page.partition("## What to do?")
    for rule in BUILTIN:
        assert f"| `{rule.name}` |" in table
        assert f"### Alert {rule.name}\n" in entries or f"`{rule.name}`" in entries
    for measure in KNOWN:
        assert f"`{measure}`" in table


def rule_as_said(rule: AlertDefinition) -> dict[str, object]:
    return {"name": rule.name, "above": rule.above, "for": rule.for_}


def test_settings_change_a_built_in_rule_and_add_one():
    rules = {
        rule.name: rule
        for rule in rules_of(
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
    ("said", "words"),
    [
        ({"above": 1}, "say its name"),
        ({"name": "slow_job", "above": 1}, "needs measure; did you mean the built-in 'slow_jobs'?"),
        ({"name": "mine", "measure": "dead_shar", "above": 1}, "did you mean 'dead_share'?"),
        ({"name": "slow_jobs", "abov": 1}, "did you mean 'above'?"),
        ({"name": "slow_jobs", "above": "much"}, "above must be a number"),
        ({"name": "slow_jobs", "above": True}, "above must be a number"),
        ({"name": "slow_jobs", "above": float("nan")}, "above must be a number"),
        ({"name": "slow_jobs", "window": 5}, "window must be seconds from 60"),
        ({"name": "slow_jobs", "enabled": "no"}, "true or false"),
        ({"name": "slow_jobs", "severity": "loud"}, "page, ticket, info"),
        ({"name": "slow_jobs", "clear": 1000}, "must not be above"),
        ({"name": "slow_jobs", "action": "pause"}, "needs a measure of a queue"),
        ({"name": "slow_jobs", "action": "reboot"}, "reduce, open, pause"),
        ({"name": "slow_jobs", "summary": "two\nlines"}, "one line"),
        ({"name": "failures_fast", "and_window": 7200}, "must not be longer"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_its_name_and_what_would(said, words):
    with pytest.raises(BadRule, match=r"alerts\.rules") as refused:
        rules_of([said])
    assert words in str(refused.value)


def test_of_one_trouble_the_loudest_rule_tells_and_the_others_have_nothing_to_add():
    rule = AlertDefinition("quiet", "dead", 1, "{} died", unless="loud, other")
    assert covered(rule, "", {"loud": {""}})
    assert covered(rule, "a", {"loud": {"a"}})
    assert covered(rule, "a", {"other": {""}})
    assert covered(rule, "", {"loud": {"a"}})
    assert not covered(rule, "a", {"loud": {"b"}, "third": {"a"}})
    samples = [Sample("a", 9.0, 9)]
    written, changes = judged(rule, samples, {}, 0, firing={"loud": {"a"}})
    assert ([alert.state for alert in written], changes) == (["pending"], [])
    _, later = judged(rule, samples, {"a": written[0]}, SECOND, firing={"loud": set()})
    assert [change.what for change in later] == ["fired"]


def test_who_covers_others_is_judged_before_them():
    place = {rule.name: number for number, rule in enumerate(in_order(BUILTIN))}
    named = [
        (rule.name, other.strip()) for rule in BUILTIN for other in rule.unless.split(",") if other
    ]
    assert [(name, other) for name, other in named if other not in place] == []
    assert all(place[other] < place[name] for name, other in named)
