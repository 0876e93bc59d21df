from __future__ import annotations

import pytest

from mulligan.core.job import SECOND, Gate
from mulligan.guards.budget import Bucket, per_period
from mulligan.guards.describe import GuardedDependency
from mulligan.guards.ramp import begin
from mulligan.guards.state import BreakerTerms, GuardState
from mulligan.jobs.why import Traffic, phase
from support.builders import NOW, a_row

MINUTE = 60 * SECOND


def gate(scope, key, until=None, reason="deploy", actor="ann"):
    return Gate(scope, key, NOW - MINUTE, until, reason, actor)


@pytest.mark.parametrize(
    ("row", "gates", "expected"),
    [
        (a_row(), [], "ready"),
        (a_row(run_at=NOW + MINUTE), [], "scheduled"),
        (a_row(run_at=NOW + MINUTE, attempt=1), [], "backing_off"),
        (a_row(uses="gateway,s3"), [gate("dependency", "s3")], "held"),
        (a_row(uses="gateway"), [gate("dependency", "s3")], "ready"),
        (a_row(), [gate("queue", "default", NOW)], "ready"),
        (a_row(), [gate("kind", "render", NOW + 1)], "held"),
        (a_row(run_at=NOW + MINUTE), [gate("kind", "render", NOW + 1)], "scheduled"),
        (a_row(run_at=NOW + 1, attempt=1), [gate("kind", "render", NOW + MINUTE)], "held"),
        (a_row(state="running", attempt=1), [], "running"),
        (a_row(state="running", attempt=1, cancel_reason=""), [], "stopping"),
        (a_row(state="parked"), [], "parked"),
        (a_row(state="succeeded"), [], "succeeded"),
        (a_row(state="dead"), [], "dead"),
        (a_row(state="cancelled"), [], "cancelled"),
    ],
)
def test_the_phase_of_a_job(row, gates, expected):
    name, why = phase(row, gates, NOW)
    assert name == expected
    assert why


def test_a_kind_nobody_knows_waits_visibly():
    assert phase(a_row(), [], NOW, frozenset({"send"})) == (
        "no_worker",
        "no live worker knows kind render; start one that does",
    )
    assert phase(a_row(), [], NOW, frozenset({"render"}))[0] == "ready"


def test_held_says_since_when_until_when_by_whom_and_why():
    _, why = phase(a_row(), [gate("queue", "default", NOW + 5 * MINUTE)], NOW)
    assert why == (
        "queue default is paused since 2023-11-14 22:12:20 UTC by ann, "
        "until 2023-11-14 22:18:20 UTC (in 5 min): deploy; sooner: mulligan queues resume default"
    )


DOWN = Gate(
    "dependency",
    "s3",
    NOW - MINUTE,
    None,
    "14 of 14 calls failed within 2 s",
    "breaker",
    NOW + 12 * SECOND,
)


def test_down_says_since_when_why_when_it_is_looked_at_again_and_what_to_type():
    assert phase(a_row(uses="s3"), [DOWN], NOW)[1] == (
        "dependency s3 is down since 2023-11-14 22:12:20 UTC: 14 of 14 calls failed within 2 s; next probe 2023-11-14 "
        "22:13:32 UTC (in 12 s); look now: mulligan deps probe s3; let all go: mulligan deps close s3"
    )
    due = phase(a_row(uses="s3"), [DOWN._replace(probe_at=NOW - 1)], NOW)[1]
    assert "; a probe goes as soon as a worker is free; " in due


def test_a_retry_whose_time_comes_after_the_next_probe_backs_off_and_is_not_held():
    row = a_row(uses="s3", run_at=NOW + MINUTE, attempt=1)
    assert phase(row, [DOWN], NOW)[0] == "backing_off"
    assert phase(row, [DOWN._replace(probe_at=NOW + 2 * MINUTE)], NOW)[0] == "held"


@pytest.mark.parametrize(
    ("actor", "reason", "words"),
    [
        (
            "cli:kim",
            "vendor window",
            "by kim (on the command line), until somebody closes it: vendor window; ",
        ),
        (
            "hint",
            "it asked for 60 s without calls",
            "by its own answer, until somebody closes it: it asked for 60 s ",
        ),
        ("handler", "", "by a job's own code, until somebody closes it; "),
    ],
)
def test_a_dependency_held_by_somebody_names_who_and_why_and_is_let_go_by_closing_it(
    actor, reason, words
):
    name, why = phase(a_row(uses="s3"), [gate("dependency", "s3", None, reason, actor)], NOW)
    assert name == "held"
    assert words in why
    assert why.endswith("; sooner: mulligan deps close s3")


def kept(**said):
    return Traffic({}, {}, {"s3": GuardedDependency(GuardState(**said), BreakerTerms())})


@pytest.mark.parametrize(
    ("row", "traffic", "expected"),
    [
        (a_row(uses="s3", failures=1, attempt=1), kept(bucket=Bucket(0.2, NOW)), "over_budget"),
        (a_row(uses="s3", failures=1, attempt=1), kept(bucket=Bucket(1.0, NOW)), "ready"),
        (a_row(uses="s3", failures=1, attempt=1), kept(), "ready"),
        (a_row(uses="s3"), kept(bucket=Bucket(0.2, NOW)), "ready"),
        (a_row(uses="gateway", failures=1, attempt=1), kept(bucket=Bucket(0.2, NOW)), "ready"),
        (a_row(uses="gateway,s3"), kept(ramp=begin(30.0, NOW)), "limited"),
        (a_row(uses="s3", run_at=NOW + MINUTE), kept(ramp=begin(30.0, NOW)), "scheduled"),
    ],
)
def test_only_retries_wait_for_the_budget_and_all_that_are_due_for_the_ramp(row, traffic, expected):
    assert phase(row, [], NOW, None, traffic)[0] == expected


def test_over_budget_says_how_many_come_back_and_when_roughly():
    row = a_row(uses="s3", failures=1, attempt=1)
    assert phase(row, [], NOW, None, kept(bucket=Bucket(0.3, NOW)))[1] == (
        "dependency s3 bears no more retries now: 6 a minute may start, one more for every 10 first tries that "
        "succeed, the next in about 7 s"
    )
    hourly = Traffic(
        {},
        {},
        {
            "s3": GuardedDependency(
                GuardState(bucket=Bucket(0.5, NOW)), BreakerTerms(budget=per_period(2, 3600))
            )
        },
    )
    assert phase(row, [], NOW, None, hourly)[1].endswith(
        "now: 2 an hour may start, the next in about 15 min"
    )


def test_of_several_gates_the_last_to_open_is_told():
    gates = [
        gate("queue", "default", NOW + MINUTE),
        gate("kind", "render"),
        gate("kind", "render", NOW + 9 * MINUTE),
    ]
    assert "until somebody releases it" in phase(a_row(), gates, NOW)[1]


def test_backing_off_repeats_the_decision_and_says_when():
    row = a_row(run_at=NOW + 41 * SECOND, attempt=2, reason="retry 2 of 3 in 41 s: transient")
    assert phase(row, [], NOW)[1].startswith(
        "retry 2 of 3 in 41 s: transient; next attempt 2023-11-14 22:14:01 UTC"
    )


def test_stopping_and_final_states_give_their_reason():
    assert (
        "wrong file"
        in phase(a_row(state="running", attempt=1, cancel_reason="wrong file"), [], NOW)[1]
    )
    assert phase(a_row(state="dead", finished_at=NOW, reason="3 of 3 retries used"), [], NOW)[
        1
    ] == ("dead 2023-11-14 22:13:20 UTC: 3 of 3 retries used")


def test_what_to_type_can_be_typed_whatever_a_key_is_made_of():
    _, why = phase(a_row(uses="a;b$(c)"), [DOWN._replace(key="a;b$(c)")], NOW)
    assert "mulligan deps close 'a;b$(c)'" in why
    assert "mulligan deps probe 'a;b$(c)'" in why
