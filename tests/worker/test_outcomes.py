"""Outcomes that a handler returns or raises: transition, event, counters and time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mulligan import Cancel, Context, Fail, Fixed, Hold, Job, Park, Policy, Retry, Snooze, State
from mulligan.events.queries import EventQueries
from mulligan.guards.queries import GuardQueries
from support.app_tools import (
    advance,
    assert_other_jobs_run,
    error_code,
    event_types,
    load_attempts,
    load_private,
    load_row,
    register_idle_worker,
    run_job,
    run_until_final,
)

POLICY = Policy(max_retries=1, backoff=Fixed(100))


@pytest.fixture
def answering(app):
    """Return a function that enqueues four jobs with one outcome: returned or raised, sync or async."""

    def make(answer: Any, **options: Any) -> list[Job]:
        def returns() -> Any:
            return answer

        def raises() -> Any:
            raise answer

        async def returns_async() -> Any:
            return answer

        async def raises_async() -> Any:
            raise answer

        register = app.job(**({"policy": POLICY} | options))
        return [
            register(function).enqueue()
            for function in (returns, raises, returns_async, raises_async)
        ]

    return make


def all_ran(app, jobs: list[Job]) -> list[Job]:
    app.run_inline(seed=7)
    return [job.refresh() for job in jobs]


def wait_of(app, job) -> float:
    """Return the seconds from the end of the last attempt to the next."""
    return (load_row(app, job).run_at - load_attempts(app, job)[-1].ended_at) / 1e6


@pytest.mark.parametrize(
    ("answer", "state", "event", "counts", "code", "wait"),
    [
        (Retry(), State.QUEUED, "retry_scheduled", (1, 0), "RETRY_REQUESTED", 100),
        (Retry(after=7), State.QUEUED, "retry_scheduled", (1, 0), "RETRY_REQUESTED", 7),
        (
            Retry(after=timedelta(minutes=2), reason="slow"),
            State.QUEUED,
            "retry_scheduled",
            (1, 0),
            "RETRY_REQUESTED",
            120,
        ),
        (Snooze(30), State.QUEUED, "snoozed", (0, 1), "", 30),
        (Snooze(timedelta(hours=1), "later"), State.QUEUED, "snoozed", (0, 1), "", 3600),
        (Cancel("not wanted"), State.CANCELLED, "cancelled", (0, 0), "", None),
        (Fail("GW_5XX"), State.QUEUED, "retry_scheduled", (1, 0), "GW_5XX", 100),
        (
            Fail("GW_5XX", retry_after=500),
            State.QUEUED,
            "retry_scheduled",
            (1, 0),
            "GW_5XX",
            (500, 550),
        ),
        (Fail("BROKEN", final=True), State.DEAD, "died", (1, 0), "BROKEN", None),
        (
            Fail("AUTH"),
            State.DEAD,
            "died",
            (1, 0),
            "AUTH",
            None,
        ),  # a code the table knows brings its class
        (Park("who pays?", choices=["us", "them"]), State.PARKED, "parked", (0, 0), "", None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_outcome_has_its_transition_event_and_counter(
    app, answering, answer, state, event, counts, code, wait
):
    for done in all_ran(app, answering(answer)):
        assert (done.state, (done.failures, load_row(app, done).snoozes), done.losses) == (
            state,
            counts,
            0,
        )
        assert event_types(app, done) == ["queued", "started", event]
        assert error_code(done) == code
        if wait is not None:
            low, high = wait if isinstance(wait, tuple) else (wait, wait)
            assert low - 1 <= wait_of(app, done) <= high + 1
            assert done.next_retry_at == done.run_at


def test_a_time_may_be_a_datetime_with_a_zone(app, answering):
    at = datetime.now(UTC) + timedelta(hours=3)
    assert [done.run_at for done in all_ran(app, answering(Snooze(at)))] == [at] * 4


def test_a_snooze_may_move_the_job_to_another_queue(app, answering):
    for done in all_ran(app, answering(Snooze(0, "it is long", queue="large"))):
        assert (done.state, done.queue, done.failures) == (State.QUEUED, "large", 0)
        assert done.why.startswith("snoozed") or "it is long" in done.why


def test_the_reason_of_an_outcome_reaches_the_job_and_its_event(app, answering):
    for done in all_ran(app, answering(Cancel("superseded by order 7"))):
        assert "superseded by order 7" in done.why


def test_a_parked_job_stores_its_choices(app, answering):
    for done in all_ran(app, answering(Park("who pays?", choices=("us", "them")))):
        assert "who pays?" in done.why
        assert load_row(app, done).choices == '["us", "them"]'


def test_facts_of_fail_are_stored_in_the_public_or_private_part(app, answering):
    public = "This clip cannot be read."
    fail = Fail(
        "BAD_CLIP", message="moov atom not found", detail="stream 3", public=public, final=True
    )
    for done in all_ran(app, answering(fail)):
        assert done.error["message"] == public
        assert done.error["rule"] == "handler.declared"
        assert load_private(app, done)["message"] == "moov atom not found"
        assert load_private(app, done)["detail"] == "stream 3"
        died = app.jobs.history(done.id)[-1].data
        assert (died["code"], died["message"]) == ("BAD_CLIP", public)
        assert "moov" not in str(died)


IMPOSSIBLE = [
    Retry(after=-1),
    Retry(after=float("nan")),
    Retry(after="soon"),
    Retry(reason=7),
    Snooze(float("inf")),
    Snooze(None),
    Snooze(datetime(2031, 1, 1)),  # noqa: DTZ001 - the point
    Snooze(True),
    Snooze(1, queue=7),
    Snooze(1, queue="no name"),
    Cancel(None),
    Fail(""),
    Fail(None),
    Fail("X", retry_after=-5),
    Fail("X", public=7),
    Park(7),
    Park("x", choices=[1, 2]),
    Hold(None),
    Hold("gateway", until="soon"),
]


def test_an_invalid_outcome_is_a_failure_that_names_the_mistake(app):
    @app.job(uses="gateway")
    def asks(n: int) -> object:
        return IMPOSSIBLE[n]

    jobs = asks.enqueue_many({"n": n} for n in range(len(IMPOSSIBLE)))
    for done in all_ran(app, jobs):
        assert (done.state, error_code(done)) == (State.DEAD, "BAD_OUTCOME"), IMPOSSIBLE[
            done.payload["n"]
        ]
        assert load_private(app, done)["message"]
    assert_other_jobs_run(app)


def test_returning_an_outcome_class_instead_of_an_instance_is_a_failure(app):
    @app.job
    def forgets_the_call() -> object:
        return Retry

    assert error_code(run_job(app, forgets_the_call.enqueue())) == "RESULT_NOT_JSON"


def test_an_exception_returned_is_a_failure_not_a_result(app, answering):
    returned, raised, *_ = all_ran(app, answering(ValueError("lost"), policy=Policy(max_retries=0)))
    assert (returned.state, error_code(returned)) == (State.DEAD, "BAD_OUTCOME")
    assert (raised.state, error_code(raised)) == (State.DEAD, "UNKNOWN_ERROR")


# -- snoozes -------------------------------------------------------------------------------------
@pytest.mark.parametrize("by", ["kind", "job", "system"])
def test_max_snoozes_ends_a_job_that_snoozes_forever(make_app, by):
    app = make_app(**({"retry__max_snoozes": "2"} if by == "system" else {}))

    @app.job(policy=Policy(max_snoozes=2) if by == "kind" else None)
    def lazy() -> object:
        return Snooze(0)

    job = lazy.options(policy=Policy(max_snoozes=2) if by == "job" else None).enqueue()
    done = run_until_final(app, job)
    assert (done.state, error_code(done), done.attempt) == (State.DEAD, "SNOOZE_LIMIT", 3)
    assert event_types(app, job).count("snoozed") == 2


def test_without_a_limit_a_job_may_snooze_as_often_as_it_likes(app):
    @app.job
    def lazy(ctx: Context) -> object:
        return Snooze(0) if ctx.attempt < 30 else "awake"

    assert run_until_final(app, lazy.enqueue()).result == "awake"


# -- holds ---------------------------------------------------------------------------------------
def test_hold_closes_its_dependency_for_all_jobs_and_is_not_charged(app, answering):
    @app.job(uses="gateway")
    def neighbour() -> str:
        return "went through"

    @app.job(uses="bucket")
    def stranger() -> str:
        return "went through"

    first, *others = answering(
        Hold("gateway", until=600, reason="503 from it"), uses=["gateway", "bucket"]
    )
    register_idle_worker(app)
    for other in others:
        app.jobs.cancel(other.id)
    app.run_inline(until_idle=False)
    waits, passes = neighbour.enqueue(), stranger.enqueue()
    held, waits, passes = all_ran(app, [first, waits, passes])
    assert (held.state, held.phase, held.failures, held.losses) == (State.QUEUED, "held", 0, 0)
    assert (waits.state, waits.phase, waits.attempt) == (State.QUEUED, "held", 0)
    assert "503 from it" in waits.why
    assert passes.result == "went through"
    assert event_types(app, first)[:3] == ["queued", "started", "snoozed"]
    app.jobs.cancel(first.id)
    advance(app, 601)
    assert run_job(app, waits).result == "went through"


def test_a_hold_lasts_one_minute_by_default_and_one_hour_at_most(app):
    @app.job(uses="a")
    def short() -> object:
        return Hold("a")

    @app.job(uses="b")
    def long() -> object:
        return Hold("b", until=timedelta(days=30))

    short.enqueue(), long.enqueue()
    app.run_inline()
    with app.store.read() as tx:
        spans = {
            gate.key: (gate.until - gate.since) / 1e6 for gate in GuardQueries(tx).list_gates()
        }
    assert spans == {"a": pytest.approx(60, abs=2), "b": pytest.approx(3600, abs=2)}


def test_opening_a_dependency_writes_one_event(app):
    @app.job(uses="gateway")
    def down() -> object:
        return Hold("gateway", reason="down")

    down.enqueue()
    app.run_inline()
    with app.store.read() as tx:
        [opened] = [
            event
            for event in EventQueries(tx).list_events_after(0, 100)
            if event.type == "dependency.opened"
        ]
    assert (opened.data["dependency"], opened.actor) == ("gateway", "handler")


@pytest.mark.parametrize("uses", [None, "bucket"])
def test_a_hold_of_an_undeclared_dependency_is_a_failure_and_closes_nothing(app, answering, uses):
    for done in all_ran(app, answering(Hold("gateway"), uses=uses)):
        assert (done.state, error_code(done)) == (State.DEAD, "HOLD_UNKNOWN_DEPENDENCY")
    with app.store.read() as tx:
        assert GuardQueries(tx).list_gates() == []


# -- an outcome raised from something ------------------------------------------------------------
def test_a_failure_raised_from_its_cause_keeps_both(app):
    @app.job(policy=Policy(max_retries=0))
    def wraps() -> None:
        try:
            raise ConnectionResetError("peer went away")
        except ConnectionResetError as error:
            raise Fail("UPLOAD", message="upload failed") from error

    job = wraps.enqueue()
    assert error_code(run_job(app, job)) == "UPLOAD"
    assert "peer went away" in load_private(app, job)["trace"]
