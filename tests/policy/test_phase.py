from __future__ import annotations

import pytest

from mulligan.job import SECOND, Gate
from mulligan.policy.phase import phase
from policy.builders import NOW, a_row

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
        "until 2023-11-14 22:18:20 UTC (in 5 min): deploy; resume it to go on sooner"
    )


def test_of_several_gates_the_last_to_open_is_told():
    gates = [gate("queue", "default", NOW + MINUTE), gate("kind", "render"), gate("kind", "render", NOW + 9 * MINUTE)]
    assert "until somebody releases it" in phase(a_row(), gates, NOW)[1]


def test_backing_off_repeats_the_decision_and_says_when():
    row = a_row(run_at=NOW + 41 * SECOND, attempt=2, reason="retry 2 of 3 in 41 s: transient")
    assert phase(row, [], NOW)[1].startswith("retry 2 of 3 in 41 s: transient; next attempt 2023-11-14 22:14:01 UTC")


def test_stopping_and_final_states_give_their_reason():
    assert "wrong file" in phase(a_row(state="running", attempt=1, cancel_reason="wrong file"), [], NOW)[1]
    assert phase(a_row(state="dead", finished_at=NOW, reason="3 of 3 retries used"), [], NOW)[1] == (
        "dead 2023-11-14 22:13:20 UTC: 3 of 3 retries used"
    )
