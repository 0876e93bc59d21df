"""`mulligan.testing`: drain, clock, forced outcomes and assertions, on both stores."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest

from mulligan import (
    Cancel,
    Context,
    Fail,
    Fixed,
    Hold,
    Mulligan,
    Park,
    Policy,
    Retry,
    Snooze,
    State,
)
from mulligan.core.errors import NotFound, Refused, UnknownKind
from mulligan.testing import (
    Returns,
    StillBusy,
    assert_enqueued,
    assert_state,
    assert_will_retry,
    force,
    now,
    refute_enqueued,
)
from support.app_tools import advance_anywhere as advance
from support.app_tools import drain_anywhere as drain
from support.app_tools import drain_anywhere_async as drain_async
from support.app_tools import event_types, load_attempts
from support.waiting import until

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


# -- drain ---------------------------------------------------------------------------------------
def test_drain_runs_due_jobs_and_jobs_they_enqueue_and_reports_each_job_once(app):
    @app.job
    def child(n: int) -> None: ...

    @app.job(policy=Policy(max_retries=1, backoff=Fixed(0)))
    def parent(ctx: Context) -> Retry | None:
        child.options(unique=ctx.key("one")).enqueue(n=1)
        return Retry() if ctx.attempt == 1 else None

    first = parent.enqueue()
    later = child.options(delay=60).enqueue(n=2)
    report = drain(app)
    assert [job.kind for job in report.jobs] == [parent.name, child.name]
    assert (report.attempts, report.states, report.moved) == (3, {State.SUCCEEDED: 2}, timedelta(0))
    assert [job.id for job in report.of(parent)] == [first.id]
    assert str(report) == "3 attempts of 2 jobs: 2 succeeded"
    assert later.refresh().state is State.QUEUED
    assert drain(app).jobs == ()


def test_a_scheduled_drain_moves_the_clock_to_due_times_and_no_further(app, render):
    late = render.options(delay=HOUR).enqueue(clip=1)
    force(app, render, Fail("GW_5XX"), Snooze(600), Hold("gateway", until=900))
    began = now(app)
    report = drain(app, scheduled=True, seed=1)
    assert report.states == {State.SUCCEEDED: 1}
    assert report.attempts == 4
    assert late.refresh().result == "clip 1"
    assert HOUR + timedelta(seconds=60 + 600 + 900) <= report.moved + timedelta(seconds=5)
    assert timedelta(0) <= now(app) - began - report.moved < timedelta(seconds=10)
    assert drain(app, scheduled=True).moved == timedelta(0)


def test_rates_and_pauses_hold_inline_and_a_scheduled_drain_waits_them_out(app):
    app.queue("slow", rate="2/m")

    @app.job(queue="slow")
    def one() -> None: ...

    one.enqueue_many({} for _ in range(4))
    assert drain(app).attempts < 4
    app.queues.pause("slow", until=HOUR)
    assert drain(app).attempts == 0
    report = drain(app, scheduled=True)
    assert report.moved > timedelta(minutes=59)
    refute_enqueued(app)


def test_a_scheduled_drain_ignores_jobs_that_time_alone_will_not_start(app, render):
    force(app, render, Park("which one?", choices=("a", "b")))
    parked = render.enqueue(clip=1)
    app.enqueue("another.app")
    assert drain(app, scheduled=True).moved == timedelta(0)
    assert parked.refresh().state is State.PARKED


@pytest.mark.parametrize("scheduled", [False, True])
def test_an_endless_retry_ends_with_a_clear_error(app, scheduled):
    @app.job(policy=Policy(max_retries=1000))
    def restless() -> Retry:
        return Retry(60 if scheduled else 0, reason="not yet")

    job = restless.enqueue()
    with pytest.raises(
        StillBusy,
        match=rf"still busy after 20 attempts: ran .*restless 21 times.*{job.id}.*not yet",
    ):
        drain(app, scheduled=scheduled, most=20)


def test_exactly_the_maximum_number_of_attempts_is_no_error(app, render):
    render.enqueue_many({"clip": n} for n in range(3))
    assert drain(app, most=3).attempts == 3
    for invalid in (0, -1, True, 2.5):
        with pytest.raises(Refused, match="most"):
            drain(app, most=invalid)


def test_drain_inside_an_event_loop_is_refused_and_drain_async_works(app):
    @app.job
    async def add(a: int, b: int) -> int:
        return a + b

    async def a_test() -> None:
        job = await add.enqueue_async(a=2, b=3)
        with pytest.raises(Refused, match=r"asyncio\.to_thread"):
            drain(app)
        report = await drain_async(app)
        assert report.jobs[0].result == 5
        assert job.refresh().state is State.SUCCEEDED

    asyncio.run(a_test())


# -- time ----------------------------------------------------------------------------------------
def test_advance_takes_seconds_a_timedelta_or_a_datetime_and_refuses_the_past(app):
    began = now(app)
    assert HOUR <= advance(app, 3600) - began < HOUR + timedelta(seconds=10)
    assert advance(app, HOUR) - began >= 2 * HOUR
    target = began + 10 * HOUR
    assert timedelta(0) <= advance(app, target) - target < timedelta(seconds=10)
    for wrong in (began, -1, float("nan"), "1h", datetime(2030, 1, 1), True):  # noqa: DTZ001 - a naive datetime is one of the errors
        with pytest.raises(Refused):
            advance(app, wrong)


def test_deadlines_and_retention_follow_the_clock_inline(app, render):
    done = render.enqueue(clip=1)
    drain(app)
    dies = render.options(delay=DAY, deadline=HOUR).enqueue(clip=2)
    advance(app, 2 * HOUR)
    drain(app)
    assert dies.refresh().error["code"] == "DEADLINE_PASSED"
    advance(app, 8 * DAY)
    drain(app)
    with pytest.raises(NotFound):
        done.refresh()


def test_schedules_follow_the_clock_inline(app, render):
    app.schedule("daily", f"0 {(now(app).hour + 12) % 24} * * *", render, payload={"clip": 3})
    drain(app)
    assert app.calls == []
    advance(app, DAY)
    drain(app)
    assert app.calls == [3]
    render.options(delay=DAY).enqueue(clip=4)
    assert drain(app, scheduled=True).moved < DAY + HOUR, (
        "the clock moves to jobs only: a schedule never ends"
    )
    assert app.calls == [3, 3, 4]


def test_a_scheduled_drain_does_not_prune_the_jobs_it_ran(app, render):
    soon = render.enqueue(clip=1)
    render.options(delay=30 * DAY).enqueue(clip=2)
    report = drain(app, scheduled=True)
    assert report.moved > 29 * DAY
    assert [job.state for job in report.jobs] == [State.SUCCEEDED] * 2
    assert soon.refresh().result == "clip 1"


@pytest.mark.any_store
def test_a_running_worker_notices_that_the_clock_moved(app, start):
    app.schedule("hourly", "0 * * * *", "fine")
    drain(app)  # registers the schedule
    worker = start(
        worker__poll="30", worker__sweep="30", worker__heartbeat="3", worker__concurrency="2"
    )
    delayed = app.enqueue("fine", delay=3600)
    advance(app, 3600)
    until(
        lambda: delayed.refresh().state is State.SUCCEEDED,
        what="a delay of an hour, in a worker that polls twice a minute",
    )
    until(lambda: len(app.jobs.list("kind:fine state:succeeded")) > 1, what="a schedule")
    longer = app.enqueue("naps", {"seconds": 0.1})  # after short jobs the worker would prefetch
    until(lambda: longer.refresh().state is State.SUCCEEDED)
    expires = app.enqueue("fine", delay=7 * DAY, deadline=HOUR)
    runs = app.enqueue("naps", {"seconds": 600}, deadline=2 * HOUR)
    stays = app.enqueue("naps", {"seconds": 600})
    old = app.enqueue("fine")
    until(lambda: runs.refresh().state == stays.refresh().state == "running")
    assert old.refresh().state is State.QUEUED, "both slots are taken"
    advance(app, 3601)
    until(lambda: expires.refresh().state is State.DEAD, what="the deadline of a waiting job")
    advance(app, 3600)
    until(
        lambda: runs.refresh().state is State.DEAD,
        what="the deadline of a running job, in a full worker",
    )
    until(lambda: old.refresh().state is State.SUCCEEDED)
    advance(app, 8 * DAY)
    until(lambda: is_pruned(app, old.id), what="retention")
    assert (stays.refresh().state, stays.refresh().losses) == (State.RUNNING, 0)
    assert "lost" not in worker.text()


def is_pruned(app: Mulligan, job_id: str) -> bool:
    try:
        app.jobs.get(job_id)
    except NotFound:
        return True
    return False


# -- force ---------------------------------------------------------------------------------------
ENDINGS = [
    (Fail("GW_5XX"), "queued", "failed", "GW_5XX"),
    (Fail("GW_5XX", final=True), "dead", "failed", "GW_5XX"),
    (Retry(after=10), "queued", "retry", "RETRY_REQUESTED"),
    (Snooze(10), "queued", "snoozed", None),
    (Park("which?"), "parked", "parked", None),
    (Cancel("no more"), "cancelled", "cancelled", None),
    (ConnectionResetError("peer"), "queued", "failed", "CONNECTION"),
    (KeyError, "dead", "failed", "PROGRAMMING_ERROR"),
    (Returns({"a": 1}), "succeeded", "returned", None),
    ("timeout", "queued", "failed", "TIMEOUT"),
    ("lost", "queued", "lost", "WORKER_LOST"),
    (Hold("gateway"), "queued", "held", None),  # last: it closes the lane
]


def test_every_ending_can_be_forced_and_is_settled_as_usual(app, render):
    jobs = [render.options(priority=n - 9).enqueue(clip=n) for n in range(len(ENDINGS))]
    forced = force(app, render, [ending for ending, *_ in ENDINGS])
    for job, (ending, state, ended, code) in zip(jobs, ENDINGS, strict=True):
        app.run_inline(until_idle=False)
        [attempt] = load_attempts(app, job)
        assert (job.refresh().state, attempt.ended, attempt.code) == (state, ended, code), ending
        assert attempt.reason
        assert event_types(app, job)[:2] == ["queued", "started"]
        if state == "queued":
            app.jobs.cancel(job.id)  # so that the next job is claimed
    assert (forced.used, forced.left) == (len(ENDINGS), 0)
    assert app.calls == []


def test_a_forced_timeout_names_the_limit_and_forced_losses_end_a_job(app, render):
    job = render.options(timeout=77).enqueue(clip=1)
    force(app, "render", "timeout", "lost", "lost", "lost")
    report = drain(app, scheduled=True, seed=1)
    assert [(row.code, row.verb) for row in load_attempts(app, job)] == [
        ("TIMEOUT", "retry"),
        ("WORKER_LOST", "lose"),
        ("WORKER_LOST", "lose"),
        ("WORKER_LOST", "die"),
    ]
    assert "77 s" in (load_attempts(app, job)[0].public or "")
    assert report.states == {State.DEAD: 1}
    assert (job.refresh().failures, job.refresh().losses) == (1, 3)


def test_forced_endings_are_repeated_then_the_handler_is_called_again(app, render):
    forced = force(app, render, [Fail("ONE"), Fail("TWO")], times=1)
    job = render.enqueue(clip=1)
    drain(app, scheduled=True)
    assert [row.code for row in load_attempts(app, job)] == ["ONE", "TWO", None]
    assert (app.calls, forced.left) == ([1], 0)
    twice = force(app, render, Snooze(0), times=2)
    render.enqueue(clip=2)
    assert drain(app, scheduled=True).attempts == 3
    assert twice.used == 2


def test_the_latest_force_wins_and_other_kinds_are_unaffected(app, render):
    @app.job
    def other() -> str:
        return "called"

    outer = force(app, render, Returns("outer"), Returns("outer"))
    with force(app, render, Returns("inner")):
        jobs = [render.enqueue(clip=1), render.enqueue(clip=2), other.enqueue()]
        drain(app)
    assert sorted(job.refresh().result for job in jobs) == ["called", "inner", "outer"]
    outer.undo()
    outer.undo()
    third = render.enqueue(clip=3)
    drain(app)
    assert third.refresh().result == "clip 3"


def test_a_forced_result_is_validated(app, render):
    force(app, render, Returns(object()))
    job = render.enqueue(clip=1)
    drain(app)
    assert job.refresh().error["code"] == "RESULT_NOT_JSON"


def test_an_invalid_ending_is_refused_with_the_valid_ones(app, render):
    for endings, times, error in (
        (["tiemout"], 1, "Did you mean 'timeout'"),
        ([42], 1, "invalid ending 42"),
        ([], 1, "pass at least one ending"),
        (["lost"], 0, "times"),
        (["lost"], True, "times"),
    ):
        with pytest.raises(Refused, match=error):
            force(app, render, *endings, times=times)
    assert app.registry.overrides == []


def test_an_unknown_kind_cannot_be_forced(app, render):
    with pytest.raises(UnknownKind, match="known kinds: render"):
        force(app, "rendr", "lost")
    with pytest.raises(
        Refused, match=r"kind must be a function decorated with @app.job, or its name, not 7"
    ):
        force(app, 7, "lost")


# -- assertions ----------------------------------------------------------------------------------
def failure_of(call, *args, **kwargs) -> str:
    with pytest.raises(AssertionError) as failed:
        call(*args, **kwargs)
    return str(failed.value)


def test_a_job_matches_by_any_of_its_fields(app):
    @app.job
    def mail(to: dict[str, str], at: datetime, tags: list[str]) -> None: ...

    at = datetime(2031, 2, 3, tzinfo=UTC)
    batch = app.batch("spring")
    configured = mail.options(
        delay=60, owner="acme", queue="slow", priority=-3, unique="k", batch=batch
    )
    job = configured.enqueue(to={"name": "Ada", "city": "London"}, at=at, tags=["a"])
    for wanted in (
        {},
        {"payload": {"to": {"name": "Ada"}}},
        {"payload": {"at": at, "tags": mock.ANY}},
        {"queue": "slow", "owner": "acme", "priority": -3, "unique": "k", "batch": batch.id},
        {"batch": batch},
        {"delay": 60},
        {"delay": timedelta(seconds=70), "within": 10},
        {"run_at": job.run_at},
        {"count": 1, "state": "any"},
        {"count": 0, "owner": "other"},
    ):
        assert [found.id for found in assert_enqueued(app, mail, **wanted)] == [job.id][
            : wanted.get("count", 1)
        ]
    assert assert_enqueued(app)[0].id == job.id
    refute_enqueued(app, mail, delay=90)
    refute_enqueued(app, "mulligan.other")


def test_the_message_shows_the_most_similar_jobs_first(app, render):
    @app.job(name="mail")
    def mail(clip: int) -> None: ...

    mail.enqueue(clip=8)
    near = render.options(owner="acme").enqueue(clip=7)
    far = render.options(owner="orbit", queue="slow").enqueue(clip=6)
    text = failure_of(assert_enqueued, app, render, payload={"clip": 8, "page": 1}, owner="acme")
    lines = text.splitlines()
    assert lines[0] == (
        "expected a queued job of kind 'render' with payload {'clip': 8, 'page': 1}, owner 'acme', but found none"
    )
    assert lines[1] == "3 other jobs, most similar first:"
    assert lines[2:5] == [
        f"  render queued {near.id} payload {{'clip': 7}}",
        "      payload.clip is 7, not 8",
        "      payload has no 'page'",
    ]
    assert lines[5].startswith(f"  render queued {far.id}")
    assert "      owner is 'orbit', not 'acme'" in lines
    assert lines[-2].endswith("payload {'clip': 8}") or "kind is 'mail'" in text
    assert text.index(near.id) < text.index(far.id) < text.index("  mail queued")


def test_refute_enqueued_refuses_a_kind_that_no_app_knows(app, render, make_app):
    with pytest.raises(UnknownKind, match=r"unknown kind 'rendre'\. Did you mean 'render'"):
        refute_enqueued(app, "rendre")
    with pytest.raises(UnknownKind, match=r"unknown kind 'mail'\. .*count=0"):
        refute_enqueued(app, "mail")
    assert assert_enqueued(app, "mail", count=0) == []
    other = make_app()
    other.job(name="mail")(lambda: None)
    other.run_inline()
    refute_enqueued(app, "mail")
    with pytest.raises(UnknownKind, match="Did you mean 'mail'"):
        refute_enqueued(app, "mial")
    app.enqueue("strange")
    refute_enqueued(app, "strange", payload={"n": 1})
    with pytest.raises(AssertionError, match="expected no"):
        refute_enqueued(app, "strange")


def test_messages_show_states_counts_times_and_misspelt_kinds(app, render):
    assert "there are no jobs" in failure_of(assert_enqueued, app, render)
    assert "This app has no kind 'rendr'. Did you mean 'render'?" in failure_of(
        assert_enqueued, app, "rendr"
    )
    render.enqueue(clip=1)
    drain(app)
    assert "state is succeeded, not queued" in failure_of(assert_enqueued, app, render)
    render.options(delay=60).enqueue_many({"clip": n} for n in range(7))
    text = failure_of(assert_enqueued, app, render, count=3)
    assert text.startswith("expected 3 × queued job of kind 'render', but found 7")
    assert "and 2 more" in text
    assert "delay is 60 s, not 90" in failure_of(assert_enqueued, app, render, delay=90)
    assert "run_at is " in failure_of(assert_enqueued, app, render, run_at=now(app))
    text = failure_of(refute_enqueued, app, render, payload={"clip": 3})
    assert text.startswith(
        "expected no queued job of kind 'render' with payload {'clip': 3}, but found 1:\n  render queued"
    )


def test_an_invalid_expectation_is_refused(app, render):
    for wanted, error in (
        ({"qeue": "slow"}, "unknown field 'qeue'"),
        ({"payload": 7}, "payload must be a mapping"),
        ({"state": "done"}, "state must be one of queued"),
        ({"count": -1}, "count"),
        ({"count": True}, "count"),
        ({"delay": "soon"}, "delay must be"),
        ({"run_at": 60}, "run_at must be a datetime"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at: datetime .* has no time zone"),  # noqa: DTZ001 - a naive datetime is the error
    ):
        with pytest.raises(Refused, match=error):
            assert_enqueued(app, render, **wanted)


def test_assert_will_retry_checks_delay_and_code(app, render):
    job = render.enqueue(clip=1)
    assert "it has not run yet" in failure_of(assert_will_retry, app, job)
    force(app, render, Fail("GW_5XX"), "timeout", Fail("GW_5XX"))
    app.run_inline(seed=1)
    at = assert_will_retry(app, job, after=60, code="GW_5XX")
    assert at == job.refresh().next_retry_at
    assert_will_retry(app, job.id, after=(30, timedelta(minutes=2)))
    assert "after 60 s, not 30 s" in failure_of(assert_will_retry, app, job, after=30)
    assert "not between 1 s and 20 s" in failure_of(
        assert_will_retry, app, job, after=(1, timedelta(seconds=20))
    )
    assert "with code GW_5XX, not TIMEOUT" in failure_of(
        assert_will_retry, app, job, code="TIMEOUT"
    )
    advance(app, 61)
    app.run_inline(seed=1)
    assert_will_retry(app, job, after=300, code="TIMEOUT")
    advance(app, 301)
    app.run_inline(seed=1)
    text = failure_of(assert_will_retry, app, job)
    assert "but it is dead (dead): 2 of 2 retries used" in text
    assert "attempt 2: failed TIMEOUT, retry 2 of 2" in text
    with pytest.raises(Refused, match="after"):
        assert_will_retry(app, job, after="soon")


def test_a_snooze_is_not_a_retry(app, render):
    job = render.enqueue(clip=1)
    force(app, render, Snooze(60, reason="not yet"))
    drain(app)
    assert "snoozed for 1 min: not yet" in failure_of(assert_will_retry, app, job)


def test_assert_state_shows_attempts_and_trace(app):
    @app.job
    def broken() -> None:
        {}["missing"]

    job = broken.enqueue()
    drain(app)
    assert assert_state(app, job, "dead").id == job.id
    text = failure_of(assert_state, app, job.id, "succeeded")
    assert "to be succeeded, but it is dead: " in text
    assert "attempt 1: failed PROGRAMMING_ERROR" in text
    assert "KeyError" in text
    assert "test_testing_tools.py" in text
    with pytest.raises(Refused, match="state"):
        assert_state(app, job, "done")
