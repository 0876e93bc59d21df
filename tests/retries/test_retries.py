"""How often, how long apart, until when: as stored, after real attempts."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from mulligan import Context, Exponential, Fixed, Hold, Park, Policy, Retry, Snooze, State, Table
from mulligan.worker import upkeep
from support.app_tools import advance, attempts_of, code_of, ran, ran_out, row_of, stand_by, told


class Busy(ConnectionError):
    """Class transient."""


@pytest.fixture
def failing(make_app):
    """(app, kind) of a kind that always fails with this error."""

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
def test_the_most_special_number_of_retries_wins(failing, system, kind, job, attempts):
    app, fails = failing(Busy("busy"), kind, **system)
    done = ran_out(app, fails.options(**job).enqueue())
    assert (done.state, done.attempt, done.failures, code_of(done)) == (
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
def test_what_nobody_knows_is_tried_two_times_more_where_no_team_names_a_number(
    failing, system, kind, attempts
):
    app, fails = failing(ValueError("who knows"), kind, **system)
    done = ran_out(app, fails.enqueue())
    assert (done.attempt, code_of(done)) == (attempts, "UNKNOWN_ERROR")


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
def test_whether_comes_from_the_class_and_no_count_widens_it(failing, error, policy, attempts):
    app, fails = failing(error, policy)
    done = ran_out(app, fails.enqueue())
    assert (done.state, done.attempt) == (State.DEAD, attempts)


def test_a_newcomer_is_told_how_to_have_a_programming_error_retried(failing):
    app, fails = failing(KeyError("x"), Policy(max_retries=3))
    assert "retry_unknown=True" in ran(app, fails.enqueue()).why


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
def test_the_wait_before_each_retry_is_stored_as_its_moment(failing, backoff, settings, waits):
    app, fails = failing(Busy("busy"), Policy(max_retries=len(waits), backoff=backoff), **settings)
    stand_by(app)
    job = fails.enqueue()
    for wait in waits:
        low, high = wait if isinstance(wait, tuple) else (wait, wait)
        done = ran(app, job)
        waited = (row_of(app, job).run_at - attempts_of(app, job)[-1].ended_at) / 1e6
        assert low - 0.5 <= waited <= high + 0.5
        assert attempts_of(app, job)[-1].next_run_at == row_of(app, job).run_at
        assert done.phase in ({"backing_off"} if low > 1 else {"backing_off", "ready"})
        advance(app, high + 1)
    assert ran(app, job).state is State.DEAD


def test_a_class_may_have_a_backoff_of_its_own(failing):
    policy = Policy(
        max_retries=2, backoff=Fixed(5), classes={"transient": Policy(backoff=Fixed(500))}
    )
    app, fails = failing(Busy("busy"), policy)
    job = fails.enqueue()
    ran(app, job)
    assert row_of(app, job).run_at - attempts_of(app, job)[-1].ended_at == pytest.approx(
        500e6, abs=1e6
    )


@pytest.mark.seed("004-26")
def test_retries_wait_in_a_lane_of_their_own_so_that_fresh_work_goes_on(app):
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


# -- deadlines --------------------------------------------------------------------------------------
@pytest.mark.parametrize("deadline", [60, timedelta(minutes=1), "datetime"])
def test_a_job_still_queued_at_its_deadline_dies_without_having_run(app, deadline):
    @app.job
    def late() -> None:
        raise AssertionError("must not run")

    at = datetime.now(UTC) + timedelta(minutes=1) if deadline == "datetime" else deadline
    job = late.options(deadline=at).enqueue()
    assert job.deadline_at == job.refresh().deadline_at
    advance(app, 61)
    done = ran(app, job)
    assert (done.state, code_of(done), done.attempt) == (State.DEAD, "DEADLINE_PASSED", 0)
    assert told(app, job) == ["queued", "died"]


def test_one_scheduled_beyond_its_deadline_dies_at_the_deadline(app):
    @app.job
    def late() -> None: ...

    job = late.options(delay=3600, deadline=60).enqueue()
    advance(app, 61)
    assert code_of(ran(app, job)) == "DEADLINE_PASSED"


def test_one_parked_past_its_deadline_dies_too(app):
    @app.job
    def asks() -> object:
        return Park("who pays?")

    job = asks.options(deadline=60).enqueue()
    assert ran(app, job).state is State.PARKED
    advance(app, 61)
    upkeep.expire_deadlines(app.store)
    assert code_of(job.refresh()) == "DEADLINE_PASSED"


@pytest.mark.parametrize(
    ("answer", "after"),
    [(Busy("busy"), "CONNECTION"), (Retry(after=100), "RETRY_REQUESTED"), (Snooze(100), "snoozed")],
)
def test_a_next_try_that_would_come_after_the_deadline_is_not_waited_for(app, answer, after):
    @app.job(policy=Policy(max_retries=3, backoff=Fixed(100)))
    def again() -> None:
        raise answer

    job = again.options(deadline=60).enqueue()
    done = ran(app, job)
    assert (done.state, code_of(done), done.error["after"]) == (
        State.DEAD,
        "DEADLINE_PASSED",
        after,
    )
    assert "deadline" in done.why


def test_a_hold_longer_than_the_deadline_ends_at_the_deadline_not_before(app):
    @app.job(uses="gateway")
    def down() -> object:
        return Hold("gateway", until=600)

    stand_by(app)
    job = down.options(deadline=60).enqueue()
    assert ran(app, job).phase == "held"
    advance(app, 61)
    assert code_of(ran(app, job)) == "DEADLINE_PASSED"


def test_a_retry_before_the_deadline_runs(app):
    @app.job(policy=Policy(max_retries=3, backoff=Fixed(20)))
    def second(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise Busy("busy")
        return "made it"

    job = second.options(deadline=60).enqueue()
    ran(app, job)
    advance(app, 21)
    assert ran(app, job).result == "made it"


# -- max_age ----------------------------------------------------------------------------------------
def test_max_age_counts_from_the_first_start_and_ends_retries_that_would_come_later(app):
    @app.job(policy=Policy(max_retries=9, max_age=100, backoff=Fixed(40)))
    def fails() -> None:
        raise Busy("busy")

    job = fails.enqueue()
    advance(app, 1000)  # waiting in the queue is not age
    for _ in range(2):
        assert ran(app, job).state is State.QUEUED
        advance(app, 41)
    done = ran(app, job)
    assert (done.state, done.attempt, code_of(done)) == (State.DEAD, 3, "CONNECTION")
    assert "max_age" in done.why
    app.jobs.retry(job.id)
    assert ran(app, job).state is State.QUEUED  # a generation made by hand starts anew


FIFTY = Policy(max_retries=50, backoff=Fixed(0))


def test_fifty_retries_leave_a_complete_history(failing):
    app, fails = failing(Busy("busy"), FIFTY)
    job = fails.enqueue()
    done = ran(app, job)
    assert (done.attempt, len(attempts_of(app, job))) == (51, 51)


@pytest.mark.timing
def test_fifty_retries_take_less_than_twenty_seconds(failing):
    app, fails = failing(Busy("busy"), FIFTY)
    job = fails.enqueue()
    began = time.monotonic()
    ran(app, job)
    assert time.monotonic() - began < 20
