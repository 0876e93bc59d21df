"""`mulligan.testing`: what a user's tests lean on must itself be true, on both stores."""

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
from support.app_tools import load_attempts, event_types
from support.app_tools import drain_anywhere as drain
from support.app_tools import drain_anywhere_async as drain_async
from support.waiting import until

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


# -- drain ---------------------------------------------------------------------------------------
def test_drain_runs_what_is_due_and_what_that_enqueues_and_reports_each_job_once(app):
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


def test_drain_moves_time_to_what_is_scheduled_and_no_further(app, render):
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


def test_a_rate_and_a_pause_hold_inline_too_and_a_scheduled_drain_goes_past_them(app):
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


def test_drain_does_not_wait_for_what_time_alone_will_not_start(app, render):
    force(app, render, Park("which one?", choices=("a", "b")))
    parked = render.enqueue(clip=1)
    app.enqueue("somebody.elses")
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


def test_as_many_attempts_as_allowed_are_no_error(app, render):
    render.enqueue_many({"clip": n} for n in range(3))
    assert drain(app, most=3).attempts == 3
    for nonsense in (0, -1, True, 2.5):
        with pytest.raises(Refused, match="most"):
            drain(app, most=nonsense)


def test_async_code_drains_on_a_thread_and_is_told_so(app):
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
def test_advance_takes_seconds_a_length_or_a_moment_and_never_goes_back(app):
    began = now(app)
    assert HOUR <= advance(app, 3600) - began < HOUR + timedelta(seconds=10)
    assert advance(app, HOUR) - began >= 2 * HOUR
    moment = began + 10 * HOUR
    assert timedelta(0) <= advance(app, moment) - moment < timedelta(seconds=10)
    for wrong in (began, -1, float("nan"), "1h", datetime(2030, 1, 1), True):  # noqa: DTZ001 - that is what is wrong
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
        "a schedule has no end: only jobs are gone for"
    )
    assert app.calls == [3, 3, 4]


def test_what_a_scheduled_drain_ran_stays_to_be_looked_at(app, render):
    soon = render.enqueue(clip=1)
    render.options(delay=30 * DAY).enqueue(clip=2)
    report = drain(app, scheduled=True)
    assert report.moved > 29 * DAY
    assert [job.state for job in report.jobs] == [State.SUCCEEDED] * 2
    assert soon.refresh().result == "clip 1"


@pytest.mark.any_store
def test_a_running_worker_hears_that_time_moved(app, start):
    app.schedule("hourly", "0 * * * *", "fine")
    drain(app)  # its schedule is known from now on
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
    longer = app.enqueue("naps", {"seconds": 0.1})  # after short jobs some would be claimed ahead
    until(lambda: longer.refresh().state is State.SUCCEEDED)
    expires = app.enqueue("fine", delay=7 * DAY, deadline=HOUR)
    runs = app.enqueue("naps", {"seconds": 600}, deadline=2 * HOUR)
    stays = app.enqueue("naps", {"seconds": 600})
    old = app.enqueue("fine")
    until(lambda: runs.refresh().state == stays.refresh().state == "running")
    assert old.refresh().state is State.QUEUED, "both slots are taken"
    advance(app, 3601)
    until(lambda: expires.refresh().state is State.DEAD, what="a deadline of one that waits")
    advance(app, 3600)
    until(
        lambda: runs.refresh().state is State.DEAD,
        what="a deadline of one that runs, in a worker that is full",
    )
    until(lambda: old.refresh().state is State.SUCCEEDED)
    advance(app, 8 * DAY)
    until(lambda: gone(app, old.id), what="retention")
    assert (stays.refresh().state, stays.refresh().losses) == (State.RUNNING, 0)
    assert "lost" not in worker.text()


def gone(app: Mulligan, job_id: str) -> bool:
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


def test_every_ending_can_be_forced_and_goes_through_the_one_door(app, render):
    jobs = [render.options(priority=n - 9).enqueue(clip=n) for n in range(len(ENDINGS))]
    forced = force(app, render, [ending for ending, *_ in ENDINGS])
    for job, (ending, state, ended, code) in zip(jobs, ENDINGS, strict=True):
        app.run_inline(until_idle=False)
        [attempt] = load_attempts(app, job)
        assert (job.refresh().state, attempt.ended, attempt.code) == (state, ended, code), ending
        assert attempt.reason
        assert event_types(app, job)[:2] == ["queued", "started"]
        if state == "queued":
            app.jobs.cancel(job.id)  # out of the way of the next
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


def test_the_row_is_repeated_then_the_handler_is_called_again(app, render):
    forced = force(app, render, [Fail("ONE"), Fail("TWO")], times=1)
    job = render.enqueue(clip=1)
    drain(app, scheduled=True)
    assert [row.code for row in load_attempts(app, job)] == ["ONE", "TWO", None]
    assert (app.calls, forced.left) == ([1], 0)
    twice = force(app, render, Snooze(0), times=2)
    render.enqueue(clip=2)
    assert drain(app, scheduled=True).attempts == 3
    assert twice.used == 2


def test_the_last_one_said_comes_first_and_other_kinds_are_left_alone(app, render):
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


def test_a_forced_result_is_checked_like_any_other(app, render):
    force(app, render, Returns(object()))
    job = render.enqueue(clip=1)
    drain(app)
    assert job.refresh().error["code"] == "RESULT_NOT_JSON"


def test_what_cannot_be_forced_is_refused_with_what_can(app, render):
    for endings, times, words in (
        (["tiemout"], 1, "did you mean 'timeout'"),
        ([42], 1, "42 is no ending"),
        ([], 1, "say how"),
        (["lost"], 0, "times"),
        (["lost"], True, "times"),
    ):
        with pytest.raises(Refused, match=words):
            force(app, render, *endings, times=times)
    assert app.registry.overrides == []


def test_a_kind_nobody_knows_cannot_be_forced(app, render):
    with pytest.raises(UnknownKind, match="known kinds: render"):
        force(app, "rendr", "lost")
    with pytest.raises(Refused, match="a kind is"):
        force(app, 7, "lost")


# -- assertions ----------------------------------------------------------------------------------
def failure_of(call, *args, **kwargs) -> str:
    with pytest.raises(AssertionError) as failed:
        call(*args, **kwargs)
    return str(failed.value)


def test_a_job_is_found_by_any_part_of_it(app):
    @app.job
    def mail(to: dict[str, str], at: datetime, tags: list[str]) -> None: ...

    at = datetime(2031, 2, 3, tzinfo=UTC)
    batch = app.batch("spring")
    said = mail.options(delay=60, owner="acme", queue="slow", priority=-3, unique="k", batch=batch)
    job = said.enqueue(to={"name": "Ada", "city": "London"}, at=at, tags=["a"])
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


def test_when_none_is_found_the_message_shows_the_nearest_first(app, render):
    @app.job(name="mail")
    def mail(clip: int) -> None: ...

    mail.enqueue(clip=8)
    near = render.options(owner="acme").enqueue(clip=7)
    far = render.options(owner="bell", queue="slow").enqueue(clip=6)
    text = failure_of(assert_enqueued, app, render, payload={"clip": 8, "page": 1}, owner="acme")
    lines = text.splitlines()
    assert lines[0] == (
        "expected a queued job of kind 'render' with payload {'clip': 8, 'page': 1}, owner 'acme', but found none"
    )
    assert lines[1] == "3 other jobs are there, nearest first:"
    assert lines[2:5] == [
        f"  render queued {near.id} payload {{'clip': 7}}",
        "      payload.clip is 7, not 8",
        "      payload has no 'page'",
    ]
    assert lines[5].startswith(f"  render queued {far.id}")
    assert "      owner is 'bell', not 'acme'" in lines
    assert lines[-2].endswith("payload {'clip': 8}") or "kind is 'mail'" in text
    assert text.index(near.id) < text.index(far.id) < text.index("  mail queued")


def test_that_nothing_of_a_kind_is_there_can_be_said_of_a_kind_that_somebody_knows(
    app, render, make_app
):
    with pytest.raises(UnknownKind, match="no app knows a kind 'rendre'; did you mean 'render'"):
        refute_enqueued(app, "rendre")
    with pytest.raises(UnknownKind, match=r"no app knows a kind 'mail'; .*count=0"):
        refute_enqueued(app, "mail")
    assert assert_enqueued(app, "mail", count=0) == []
    other = make_app()
    other.job(name="mail")(lambda: None)
    other.run_inline()
    refute_enqueued(app, "mail")
    with pytest.raises(UnknownKind, match="did you mean 'mail'"):
        refute_enqueued(app, "mial")
    app.enqueue("strange")
    refute_enqueued(app, "strange", payload={"n": 1})
    with pytest.raises(AssertionError, match="expected no"):
        refute_enqueued(app, "strange")


def test_messages_name_states_counts_times_and_misspelled_kinds(app, render):
    assert "there are no jobs at all" in failure_of(assert_enqueued, app, render)
    assert "has no kind 'rendr', did you mean 'render'?" in failure_of(
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


def test_an_expectation_that_can_never_hold_is_refused(app, render):
    for wanted, words in (
        ({"qeue": "slow"}, "cannot be told by 'qeue'"),
        ({"payload": 7}, "payload: a mapping"),
        ({"state": "done"}, "state: one of queued"),
        ({"count": -1}, "count"),
        ({"count": True}, "count"),
        ({"delay": "soon"}, "delay must be"),
        ({"run_at": 60}, "run_at: a datetime"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at: datetime .* has no time zone"),  # noqa: DTZ001 - the point
    ):
        with pytest.raises(Refused, match=words):
            assert_enqueued(app, render, **wanted)


def test_when_it_would_retry_can_be_asked(app, render):
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


def test_a_snooze_is_no_retry(app, render):
    job = render.enqueue(clip=1)
    force(app, render, Snooze(60, reason="not yet"))
    drain(app)
    assert "snoozed for 1 min: not yet" in failure_of(assert_will_retry, app, job)


def test_the_state_of_a_job_is_asserted_with_its_trace(app):
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
    assert "test_testing.py" in text
    with pytest.raises(Refused, match="state"):
        assert_state(app, job, "done")
