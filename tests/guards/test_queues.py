"""Queues as developers declare them and operators see and steer them."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from mulligan import Fixed, Policy
from mulligan.core.errors import ConfigError, NotFound, Refused
from mulligan.core.job import SECOND
from mulligan.guards.limits import share_of
from support.app_tools import advance, ran, stand_by
from support.waiting import until


@pytest.fixture
def noop(app):
    @app.job(queue="mail")
    def noop(n: int = 0) -> int:
        return n

    return noop


def events(app):
    with app.store.read() as unit:
        return [event for event in unit.events_after(0, 1000) if event.type.startswith("queue.")]


# -- pause --------------------------------------------------------------------------------------------
def test_a_paused_queue_starts_nothing_and_says_since_when_by_whom_and_why(app, noop):
    app.queues.pause("mail", reason="the relay is down")
    job = ran(app, noop.enqueue())
    assert (job.state, job.phase) == ("queued", "held")
    assert "queue mail is paused since" in job.why
    assert "by a program (through Python)" in job.why
    assert "the relay is down" in job.why
    app.queues.resume("mail", reason="it is back")
    assert ran(app, job).state == "succeeded"


def test_a_pause_with_an_end_ends_by_itself(app, noop):
    queue = app.queues.pause("mail", until=timedelta(hours=1))
    assert queue.paused
    assert queue.paused_until is not None
    job = ran(app, noop.enqueue())
    assert job.state == "queued"
    advance(app, 3601)
    assert ran(app, job).state == "succeeded"
    assert not app.queues.get("mail").paused


def test_the_last_word_about_a_pause_counts_also_when_it_is_shorter(app, noop):
    app.queues.pause("mail", reason="for ever")
    assert app.queues.pause("mail", until=60, reason="a minute").paused_until is not None
    assert app.queues.get("mail").reason == "a minute"
    assert noop


def test_pause_and_resume_are_events_with_actor_and_reason(app, noop):
    app.queues.pause("mail", reason="why")
    app.queues.resume("mail", reason="because")
    app.queues.resume("mail", reason="once more changes nothing")
    told = events(app)
    assert [(event.type, event.actor, event.data["reason"]) for event in told] == [
        ("queue.paused", "python", "why"),
        ("queue.resumed", "python", "because"),
    ]
    assert noop


@pytest.mark.parametrize(
    "end", [0, -5, datetime(2000, 1, 1, tzinfo=UTC), datetime(2030, 1, 1), "soon", float("nan")]
)  # noqa: DTZ001
def test_a_pause_that_ends_before_it_begins_or_never_says_when_is_refused(app, end):
    with pytest.raises(Refused, match="until"):
        app.queues.pause("mail", until=end)
    assert events(app) == []


# -- limits -------------------------------------------------------------------------------------------
def test_a_declared_limit_shows_and_an_operators_wins_until_cleared(app, noop):
    app.queue("mail", concurrency=5, rate="120/m")
    app.run_inline()
    queue = app.queues.get("mail")
    assert (queue.concurrency, queue.rate, queue.set_by_hand) == (5, 2.0, False)
    queue = app.queues.set("mail", concurrency=1, reason="gently")
    assert (queue.concurrency, queue.rate, queue.set_by_hand, queue.reason) == (
        1,
        2.0,
        True,
        "gently",
    )
    queue = app.queues.set("mail", rate=None)
    assert (queue.concurrency, queue.rate) == (1, None)
    queue = app.queues.clear("mail", reason="all is well")
    assert (queue.concurrency, queue.rate, queue.set_by_hand) == (5, 2.0, False)
    assert [event.data.get("rate") for event in events(app)] == [None, "none", None]
    assert noop


def test_a_limit_with_an_end_gives_way_to_the_declared_one(app):
    app.queue("mail", concurrency=5)
    app.run_inline()
    assert app.queues.set("mail", concurrency=1, until=60).set_until is not None
    advance(app, 61)
    queue = app.queues.get("mail")
    assert (queue.concurrency, queue.set_by_hand) == (5, False)


def test_a_limit_that_has_ended_does_not_come_back_with_another_and_an_end_is_not_lost(app):
    app.queues.set("mail", concurrency=1, until=60)
    assert app.queues.set("mail", rate=5).set_until is not None
    assert app.queues.set("mail", until=None).set_until is None
    app.queues.clear("mail")
    app.queues.set("mail", concurrency=1, until=60)
    advance(app, 61)
    queue = app.queues.set("mail", rate=5)
    assert (queue.concurrency, queue.rate, queue.set_until) == (None, 5.0, None)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"concurrency": 0}, "pause"),
        ({"concurrency": True}, "whole number"),
        ({"concurrency": 2.5}, "whole number"),
        ({"rate": 0}, "5/s"),
        ({"rate": float("inf")}, "above 0"),
        ({"rate": "often"}, "often"),
        ({}, "concurrency=, rate= or both"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_with_what_would(app, said, words):
    with pytest.raises(Refused, match=words):
        app.queues.set("mail", **said)
    assert events(app) == []


def test_a_queue_is_declared_once(app):
    app.queue("mail", concurrency=1)
    with pytest.raises(ConfigError, match="queue 'mail' is declared twice"):
        app.queue("mail", concurrency=2)
    app.dependency("gpu", max_concurrency=1)
    with pytest.raises(ConfigError, match="dependency 'gpu' is declared twice"):
        app.dependency("gpu")


def test_a_job_that_waits_for_a_limit_says_so(app):
    app.queue("mail", concurrency=1)
    app.dependency("relay", rate="2/h")
    inside, leave = threading.Event(), threading.Event()

    @app.job(queue="mail")
    def waits() -> None:
        inside.set()
        leave.wait(10)

    @app.job(uses="relay")
    def slow() -> None: ...

    waits.enqueue()
    thread = threading.Thread(target=app.run_inline)
    thread.start()
    try:
        assert inside.wait(10)
        second = waits.enqueue().refresh()
        assert (second.phase, second.why) == (
            "limited",
            "queue mail runs at most 1 at a time, 1 now; waits for one to end",
        )
        assert "dependency relay starts at most 2 an hour" in slow.enqueue().refresh().why
    finally:
        leave.set()
        thread.join(20)
    assert second.refresh().state == "succeeded"


# -- the picture --------------------------------------------------------------------------------------
def test_the_list_counts_what_is_due_what_waits_for_later_and_since_when(app, noop):
    stand_by(app)
    noop.enqueue_many([{"n": n} for n in range(3)])
    noop.options(delay=60).enqueue_many([{"n": n} for n in range(2)])
    app.queues.pause("night", reason="day")
    mail, night = app.queues.list()
    assert (mail.name, mail.ready, mail.later, mail.running) == ("mail", 3, 2, 0)
    assert mail.oldest is not None
    assert (night.name, night.paused, night.ready, night.oldest) == ("night", True, 0, None)
    with pytest.raises(NotFound, match="no queue 'nowhere'"):
        app.queues.get("nowhere")


async def _pause(app):
    paused = await app.aio.queues.pause("mail", reason="later")
    listed = await app.aio.queues.list()
    await app.aio.queues.set("mail", concurrency=2)
    cleared = await app.aio.queues.clear("mail")
    return paused, listed, cleared, await app.aio.queues.resume("mail")


def test_all_of_it_is_awaitable(app, noop):

    paused, listed, cleared, resumed = asyncio.run(_pause(app))
    assert paused.paused
    assert [queue.name for queue in listed] == ["mail"]
    assert cleared.concurrency is None
    assert not resumed.paused
    assert noop


# -- policy and fairness ------------------------------------------------------------------------------
def test_a_queues_policy_holds_for_kinds_that_say_nothing_themselves(app):
    app.queue("patient", policy=Policy(max_retries=7, backoff=Fixed(0)))

    @app.job(queue="patient")
    def fails() -> None:
        raise ConnectionError

    @app.job(queue="patient", policy=Policy(max_retries=1))
    def fails_less() -> None:
        raise ConnectionError

    assert ran(app, fails.enqueue()).failures == 8
    assert ran(app, fails_less.enqueue()).failures == 2


@pytest.mark.security("S49")
def test_a_fair_queue_gives_each_owner_a_lane_and_a_hand_retry_keeps_it(app):
    app.queue("fair", fair=True)

    @app.job(name="fails", queue="fair", policy=Policy(max_retries=0))
    def fails() -> None:
        raise ConnectionError

    job = ran(app, fails.options(owner="acme").enqueue())
    assert job.state == "dead"
    app.jobs.retry(job.id)
    by_name = app.enqueue("fails", {}, owner="acme")
    with app.store.read() as unit:
        assert [lane for lane, _, _ in unit.look().lanes] == [f"fair|fails||{share_of('acme')}|0"]
    assert by_name.queue == "fair"


def test_a_queue_may_be_declared_fair_after_its_first_job(app):
    @app.job(name="noop", queue="late")
    def noop() -> None: ...

    theirs = noop.options(owner="acme")
    theirs.enqueue()
    app.queue("late", fair=True)
    theirs.enqueue()
    with app.store.read() as unit:
        lanes = {lane for lane, _, _ in unit.look().lanes}
    assert lanes == {"late|noop||0", f"late|noop||{share_of('acme')}|0"}


# -- real workers -------------------------------------------------------------------------------------
@pytest.mark.any_store
def test_two_workers_together_keep_the_limit(start, make_app):
    app = make_app()
    app.queues.set("default", concurrency=3)
    workers = [start(worker__concurrency="2"), start(worker__concurrency="2")]
    made = [app.enqueue("naps", {"seconds": 0.4}) for _ in range(9)]
    most = 0

    def all_done():
        nonlocal most
        with app.store.read() as unit:
            most = max(most, sum(count for _, _, count in unit.running()))
        return all(job.refresh().state == "succeeded" for job in made)

    until(all_done, 20, "nine naps, three at a time")
    assert most == 3
    assert len({attempt.worker for job in made for attempt in app.jobs.attempts(job.id)}) == len(
        workers
    )


@pytest.mark.any_store
def test_a_worker_wakes_when_the_rate_allows_more(start, make_app):
    app = make_app()
    app.queues.set("default", rate=5)
    start(worker__poll="5")
    made = [app.enqueue("fine", {}) for _ in range(8)]
    done = [app.jobs.wait(job.id, 20) for job in made]
    starts = sorted(job.started_at for job in done)
    assert all(job.state == "succeeded" for job in done)
    last = (starts[-1] - starts[0]) / timedelta(microseconds=1)
    assert 0.4 * SECOND <= last <= 4 * SECOND, (
        "the last three waited for their fifths of a second, not for the poll"
    )
