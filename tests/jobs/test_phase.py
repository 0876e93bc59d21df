"""The phase of a job and the sentence that explains it."""

from __future__ import annotations

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.job import Gate
from mulligan.guards.budget import RetryBucket, per_period
from mulligan.guards.describe import GuardedDependency
from mulligan.guards.ramp import start_ramp
from mulligan.guards.state import BreakerConfig, GuardState
from mulligan.jobs.why import LimitState, derive_phase
from support.builders import NOW, make_job_row

MINUTE = 60 * SECOND


def gate(scope, key, until=None, reason="deploy", actor="ann"):
    return Gate(scope, key, NOW - MINUTE, until, reason, actor)


@pytest.mark.parametrize(
    ("row", "gates", "expected"),
    [
        (make_job_row(), [], "ready"),
        (make_job_row(run_at=NOW + MINUTE), [], "scheduled"),
        (make_job_row(run_at=NOW + MINUTE, attempt=1), [], "backing_off"),
        (make_job_row(uses="gateway,s3"), [gate("dependency", "s3")], "held"),
        (make_job_row(uses="gateway"), [gate("dependency", "s3")], "ready"),
        (make_job_row(), [gate("queue", "default", NOW)], "ready"),
        (make_job_row(), [gate("kind", "render", NOW + 1)], "held"),
        (make_job_row(run_at=NOW + MINUTE), [gate("kind", "render", NOW + 1)], "scheduled"),
        (make_job_row(run_at=NOW + 1, attempt=1), [gate("kind", "render", NOW + MINUTE)], "held"),
        (make_job_row(state="running", attempt=1), [], "running"),
        (make_job_row(state="running", attempt=1, cancel_reason=""), [], "stopping"),
        (make_job_row(state="parked"), [], "parked"),
        (make_job_row(state="succeeded"), [], "succeeded"),
        (make_job_row(state="dead"), [], "dead"),
        (make_job_row(state="cancelled"), [], "cancelled"),
    ],
)
def test_the_phase_of_a_job(row, gates, expected):
    name, why = derive_phase(row, gates, NOW)
    assert name == expected
    assert why


def test_a_kind_that_no_live_worker_handles_is_in_phase_no_worker():
    assert derive_phase(make_job_row(), [], NOW, frozenset({"send"})) == (
        "no_worker",
        "no live worker handles kind render; start one that does",
    )
    assert derive_phase(make_job_row(), [], NOW, frozenset({"render"}))[0] == "ready"


def test_a_paused_queue_names_start_end_actor_reason_and_command():
    _, why = derive_phase(make_job_row(), [gate("queue", "default", NOW + 5 * MINUTE)], NOW)
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


def test_a_dependency_that_is_down_names_cause_next_probe_and_commands():
    assert derive_phase(make_job_row(uses="s3"), [DOWN], NOW)[1] == (
        "dependency s3 is down since 2023-11-14 22:12:20 UTC: 14 of 14 calls failed within 2 s; next probe 2023-11-14 "
        "22:13:32 UTC (in 12 s); probe now: mulligan deps probe s3; release all jobs: mulligan deps close s3"
    )
    due = derive_phase(make_job_row(uses="s3"), [DOWN._replace(probe_at=NOW - 1)], NOW)[1]
    assert "; a probe runs as soon as a worker is free; " in due


def test_a_retry_whose_time_comes_after_the_next_probe_backs_off_and_is_not_held():
    row = make_job_row(uses="s3", run_at=NOW + MINUTE, attempt=1)
    assert derive_phase(row, [DOWN], NOW)[0] == "backing_off"
    assert derive_phase(row, [DOWN._replace(probe_at=NOW + 2 * MINUTE)], NOW)[0] == "held"


@pytest.mark.parametrize(
    ("actor", "reason", "expected"),
    [
        (
            "cli:kim",
            "vendor window",
            "by kim (on the command line), until someone closes it: vendor window; ",
        ),
        (
            "hint",
            "it asked for 60 s without calls",
            "by its own retry hint, until someone closes it: it asked for 60 s ",
        ),
        ("handler", "", "by a job's handler, until someone closes it; "),
    ],
)
def test_a_manually_held_dependency_names_actor_and_reason_and_opens_by_closing_it(
    actor, reason, expected
):
    name, why = derive_phase(
        make_job_row(uses="s3"), [gate("dependency", "s3", None, reason, actor)], NOW
    )
    assert name == "held"
    assert expected in why
    assert why.endswith("; sooner: mulligan deps close s3")


def guarded(**state):
    return LimitState({}, {}, {"s3": GuardedDependency(GuardState(**state), BreakerConfig())})


@pytest.mark.parametrize(
    ("row", "limit_state", "expected"),
    [
        (
            make_job_row(uses="s3", failures=1, attempt=1),
            guarded(bucket=RetryBucket(0.2, NOW)),
            "over_budget",
        ),
        (
            make_job_row(uses="s3", failures=1, attempt=1),
            guarded(bucket=RetryBucket(1.0, NOW)),
            "ready",
        ),
        (make_job_row(uses="s3", failures=1, attempt=1), guarded(), "ready"),
        (make_job_row(uses="s3"), guarded(bucket=RetryBucket(0.2, NOW)), "ready"),
        (
            make_job_row(uses="gateway", failures=1, attempt=1),
            guarded(bucket=RetryBucket(0.2, NOW)),
            "ready",
        ),
        (make_job_row(uses="gateway,s3"), guarded(ramp=start_ramp(30.0, NOW)), "limited"),
        (
            make_job_row(uses="s3", run_at=NOW + MINUTE),
            guarded(ramp=start_ramp(30.0, NOW)),
            "scheduled",
        ),
    ],
)
def test_only_retries_wait_for_the_budget_and_all_due_jobs_for_the_ramp(row, limit_state, expected):
    assert derive_phase(row, [], NOW, None, limit_state)[0] == expected


def test_over_budget_says_the_rate_of_retries_and_when_the_next_may_start():
    row = make_job_row(uses="s3", failures=1, attempt=1)
    assert derive_phase(row, [], NOW, None, guarded(bucket=RetryBucket(0.3, NOW)))[1] == (
        "the retry budget of dependency s3 is used up: 6 a minute may start, "
        "one more for every 10 first attempts that succeed; next retry in about 7 s"
    )
    hourly = LimitState(
        {},
        {},
        {
            "s3": GuardedDependency(
                GuardState(bucket=RetryBucket(0.5, NOW)), BreakerConfig(budget=per_period(2, 3600))
            )
        },
    )
    assert derive_phase(row, [], NOW, None, hourly)[1].endswith(
        "is used up: 2 an hour may start; next retry in about 15 min"
    )


def test_of_several_closed_gates_the_last_to_open_is_named():
    gates = [
        gate("queue", "default", NOW + MINUTE),
        gate("kind", "render"),
        gate("kind", "render", NOW + 9 * MINUTE),
    ]
    assert "until someone releases it" in derive_phase(make_job_row(), gates, NOW)[1]


def test_backing_off_repeats_the_decision_and_the_time_of_the_next_attempt():
    row = make_job_row(
        run_at=NOW + 41 * SECOND, attempt=2, reason="retry 2 of 3 in 41 s: transient"
    )
    assert derive_phase(row, [], NOW)[1].startswith(
        "retry 2 of 3 in 41 s: transient; next attempt 2023-11-14 22:14:01 UTC"
    )


def test_stopping_and_final_states_name_their_reason():
    assert (
        "wrong file"
        in derive_phase(
            make_job_row(state="running", attempt=1, cancel_reason="wrong file"), [], NOW
        )[1]
    )
    assert derive_phase(
        make_job_row(state="dead", finished_at=NOW, reason="3 of 3 retries used"), [], NOW
    )[1] == ("dead 2023-11-14 22:13:20 UTC: 3 of 3 retries used")


def test_commands_quote_keys_with_special_characters():
    _, why = derive_phase(make_job_row(uses="a;b$(c)"), [DOWN._replace(key="a;b$(c)")], NOW)
    assert "mulligan deps close 'a;b$(c)'" in why
    assert "mulligan deps probe 'a;b$(c)'" in why
