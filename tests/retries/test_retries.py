"""Retries of real jobs: number, delays, deadlines and max_age as stored."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from mulligan import Context, Exponential, Fixed, Hold, Park, Policy, Retry, Snooze, State, Table
from mulligan.worker import upkeep
from support.app_tools import (
    advance,
    error_code,
    event_types,
    load_attempts,
    load_row,
    register_idle_worker,
    run_job,
    run_until_final,
)


class Busy(ConnectionError):
    """Raise a failure of class transient."""


@pytest.fixture
def failing(make_app):
    """Return an app and a kind that always fails with this error."""

    def make(error: BaseException, policy: Policy | None = None, **settings: str):
        app = make_app(**({"retry__base_delay": "0"} | settings))

        @app.job(policy=policy)
        def fails() -> None:
            raise error

        return app, fails

    return make


@pytest.mark.parametrize(
    ("system", "kind", "job", "attempts"),
    [
        ({}, None, {}, 4),
        ({"retry__max_retries": "1"}, None, {}, 2),
        ({"retry__max_retries": "1"}, Policy(max_retries=2), {}, 3),
        ({"retry__max_retries": "1"}, Policy(max_retries=2), {"max_retries": 4}, 5),
        ({"retry__max_retries": "1"}, Policy(max_retries=2), {"policy": Policy(max_retries=0)}, 1),
        ({}, Policy(max_retries=2), {"max_retries": 0}, 1),
        ({}, Policy(max_retries=6, classes={"transient": Policy(max_retries=1)}), {}, 2),
        ({"retry__max_retries": "0"}, None, {}, 1),
        ({"retry__enabled": "false"}, Policy(max_retries=5), {"max_retries": 5}, 1),
    ],
)
def test_most_specific_max_retries_wins(failing, system, kind, job, attempts):
    app, fails = failing(Busy("busy"), kind, **system)
    done = run_until_final(app, fails.options(**job).enqueue())
    assert (done.state, done.attempt, done.failures, error_code(done)) == (
        State.DEAD,
        attempts,
        attempts,
        "CONNECTION",
    )


@pytest.mark.parametrize(
    ("system", "kind", "attempts"),
    [
        ({}, None, 3),
        ({"retry__max_retries": "9"}, None, 3),
        ({"retry__max_retries": "1"}, None, 2),
        ({"retry__unknown_retries": "0"}, None, 1),
        ({}, Policy(max_retries=4), 5),
        ({}, Policy(retry_unknown=True), 4),
        ({}, Policy(retry_unknown=False, max_retries=4), 1),
    ],
)
def test_unknown_failure_is_retried_twice_by_default(failing, system, kind, attempts):
    app, fails = failing(ValueError("who knows"), kind, **system)
    done = run_until_final(app, fails.enqueue())
    assert (done.attempt, error_code(done)) == (attempts, "UNKNOWN_ERROR")


@pytest.mark.parametrize(
    ("error", "policy", "attempts"),
    [
        (KeyError("x"), Policy(max_retries=3), 1),
        (KeyError("x"), Policy(max_retries=3, retry_unknown=True), 4),
        (PermissionError("no"), Policy(max_retries=3), 1),
        (PermissionError("no"), Policy(max_retries=3, retry_unknown=True), 1),
        (MemoryError(), Policy(max_retries=1), 2),
    ],
)
def test_class_decides_whether_to_retry(failing, error, policy, attempts):
    app, fails = failing(error, policy)
    done = run_until_final(app, fails.enqueue())
    assert (done.state, done.attempt) == (State.DEAD, attempts)


def test_dead_job_says_how_to_retry_programming_errors(failing):
    app, fails = failing(KeyError("x"), Policy(max_retries=3))
    assert "retry_unknown=True" in run_job(app, fails.enqueue()).why


@pytest.mark.parametrize(
    ("backoff", "settings", "waits"),
    [
        (Table([60, 300, 900]), {}, [60, 300, 900, 900]),
        (Fixed(7), {}, [7, 7, 7, 7]),
        (Exponential(base=10, factor=3, cap=100, jitter="none"), {}, [10, 30, 90, 100]),
        (
            Exponential(base=10, factor=3, cap=100, jitter=0.1),
            {},
            [(9, 11), (27, 33), (81, 99), (90, 110)],
        ),
        (
            Exponential(base=10, factor=3, cap=100, jitter="equal"),
            {},
            [(5, 10), (15, 30), (45, 90), (50, 100)],
        ),
        (Exponential(base=10, factor=3, cap=100), {}, [(0, 10), (0, 30), (0, 90), (0, 100)]),
        (
            None,
            {"retry__base_delay": "20", "retry__max_delay": "60", "retry__jitter": "none"},
            [20, 40, 60, 60],
        ),
        (
            None,
            {"retry__base_delay": "20", "retry__factor": "1", "retry__jitter": "none"},
            [20, 20, 20, 20],
        ),
        (Fixed(timedelta(minutes=2).total_seconds()), {}, [120, 120]),
    ],
    ids=repr,
)
@pytest.mark.seed("004-26")
def test_time_of_each_retry_is_stored(failing, backoff, settings, waits):
    app, fails = failing(Busy("busy"), Policy(max_retries=len(waits), backoff=backoff), **settings)
    register_idle_worker(app)
    job = fails.enqueue()
    for wait in waits:
        low, high = wait if isinstance(wait, tuple) else (wait, wait)
        done = run_job(app, job)
        waited = (load_row(app, job).run_at - load_attempts(app, job)[-1].ended_at) / 1e6
        assert low - 0.5 <= waited <= high + 0.5
        assert load_attempts(app, job)[-1].next_run_at == load_row(app, job).run_at
        assert done.phase in ({"backing_off"} if low > 1 else {"backing_off", "ready"})
        advance(app, high + 1)
    assert run_job(app, job).state is State.DEAD


def test_class_may_have_its_own_backoff(failing):
    policy = Policy(
        max_retries=2, backoff=Fixed(5), classes={"transient": Policy(backoff=Fixed(500))}
    )
    app, fails = failing(Busy("busy"), policy)
    job = fails.enqueue()
    run_job(app, job)
    assert load_row(app, job).run_at - load_attempts(app, job)[-1].ended_at == pytest.approx(
        500e6, abs=1e6
    )


@pytest.mark.seed("004-26")
def test_retries_wait_in_a_separate_lane(app):
    order = []

    @app.job(policy=Policy(max_retries=1, backoff=Fixed(0)))
    def fails(n: int) -> None:
        order.append("retry" if n in order else n)
        if order.count(n) == 1 and "retry" not in order[-1:]:
            raise Busy("busy")

    fails.enqueue_many({"n": n} for n in range(20))
    app.run_inline()
    first = order[: order.index(19) + 1]
    assert 0 < first.count("retry") <= 7
    assert order.count("retry") == 20


# -- deadlines -----------------------------------------------------------------------------------
@pytest.mark.parametrize("deadline", [60, timedelta(minutes=1), "datetime"])
def test_job_queued_at_its_deadline_dies_without_running(app, deadline):
    @app.job
    def late() -> None:
        raise AssertionError("must not run")

    at = datetime.now(UTC) + timedelta(minutes=1) if deadline == "datetime" else deadline
    job = late.options(deadline=at).enqueue()
    assert job.deadline_at == job.refresh().deadline_at
    advance(app, 61)
    done = run_job(app, job)
    assert (done.state, error_code(done), done.attempt) == (State.DEAD, "DEADLINE_PASSED", 0)
    assert event_types(app, job) == ["queued", "died"]


def test_job_scheduled_after_its_deadline_dies_at_the_deadline(app):
    @app.job
    def late() -> None: ...

    job = late.options(delay=3600, deadline=60).enqueue()
    advance(app, 61)
    assert error_code(run_job(app, job)) == "DEADLINE_PASSED"


def test_parked_job_dies_at_its_deadline(app):
    @app.job
    def asks() -> object:
        return Park("who pays?")

    job = asks.options(deadline=60).enqueue()
    assert run_job(app, job).state is State.PARKED
    advance(app, 61)
    upkeep.expire_deadlines(app.store)
    assert error_code(job.refresh()) == "DEADLINE_PASSED"


@pytest.mark.parametrize(
    ("answer", "after"),
    [(Busy("busy"), "CONNECTION"), (Retry(after=100), "RETRY_REQUESTED"), (Snooze(100), "snoozed")],
)
def test_job_dies_at_once_if_the_retry_is_after_the_deadline(app, answer, after):
    @app.job(policy=Policy(max_retries=3, backoff=Fixed(100)))
    def again() -> None:
        raise answer

    job = again.options(deadline=60).enqueue()
    done = run_job(app, job)
    assert (done.state, error_code(done), done.error["after"]) == (
        State.DEAD,
        "DEADLINE_PASSED",
        after,
    )
    assert "deadline" in done.why


def test_held_job_dies_at_its_deadline(app):
    @app.job(uses="gateway")
    def down() -> object:
        return Hold("gateway", until=600)

    register_idle_worker(app)
    job = down.options(deadline=60).enqueue()
    assert run_job(app, job).phase == "held"
    advance(app, 61)
    assert error_code(run_job(app, job)) == "DEADLINE_PASSED"


def test_retry_before_the_deadline_runs(app):
    @app.job(policy=Policy(max_retries=3, backoff=Fixed(20)))
    def second(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise Busy("busy")
        return "made it"

    job = second.options(deadline=60).enqueue()
    run_job(app, job)
    advance(app, 21)
    assert run_job(app, job).result == "made it"


# -- max_age -------------------------------------------------------------------------------------
def test_max_age_counts_from_the_first_start(app):
    @app.job(policy=Policy(max_retries=9, max_age=100, backoff=Fixed(40)))
    def fails() -> None:
        raise Busy("busy")

    job = fails.enqueue()
    advance(app, 1000)  # waiting in the queue is not age
    for _ in range(2):
        assert run_job(app, job).state is State.QUEUED
        advance(app, 41)
    done = run_job(app, job)
    assert (done.state, done.attempt, error_code(done)) == (State.DEAD, 3, "CONNECTION")
    assert "max_age" in done.why
    app.jobs.retry(job.id)
    assert run_job(app, job).state is State.QUEUED  # a generation made by hand starts anew


FIFTY = Policy(max_retries=50, backoff=Fixed(0))


def test_fifty_retries_leave_a_complete_history(failing):
    app, fails = failing(Busy("busy"), FIFTY)
    job = fails.enqueue()
    done = run_job(app, job)
    assert (done.attempt, len(load_attempts(app, job))) == (51, 51)


@pytest.mark.timing
def test_fifty_retries_take_less_than_twenty_seconds(failing):
    app, fails = failing(Busy("busy"), FIFTY)
    job = fails.enqueue()
    began = time.monotonic()
    run_job(app, job)
    assert time.monotonic() - began < 20
