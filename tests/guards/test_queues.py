"""Queues: declarations, pauses, limits and fairness."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from mulligan import Fixed, Policy
from mulligan.core.durations import SECOND
from mulligan.core.errors import ConfigError, NotFound, Refused
from mulligan.events.queries import EventQueries
from mulligan.guards.limits import owner_share
from mulligan.guards.queries import GuardQueries
from support.app_tools import advance, register_idle_worker, run_job
from support.waiting import until


@pytest.fixture
def noop(app):
    @app.job(queue="mail")
    def noop(n: int = 0) -> int:
        return n

    return noop


def events(app):
    with app.store.read() as tx:
        return [
            event
            for event in EventQueries(tx).list_events_after(0, 1000)
            if event.type.startswith("queue.")
        ]


# -- pause ---------------------------------------------------------------------------------------
def test_paused_queue_starts_nothing_and_says_why(app, noop):
    app.queues.pause("mail", reason="the relay is down")
    job = run_job(app, noop.enqueue())
    assert (job.state, job.phase) == ("queued", "held")
    assert "queue mail is paused since" in job.why
    assert "by a Python program" in job.why
    assert "the relay is down" in job.why
    app.queues.resume("mail", reason="it is back")
    assert run_job(app, job).state == "succeeded"


def test_timed_pause_expires(app, noop):
    queue = app.queues.pause("mail", until=timedelta(hours=1))
    assert queue.paused
    assert queue.paused_until is not None
    job = run_job(app, noop.enqueue())
    assert job.state == "queued"
    advance(app, 3601)
    assert run_job(app, job).state == "succeeded"
    assert not app.queues.get("mail").paused


def test_new_pause_replaces_the_old_one_even_if_shorter(app, noop):
    app.queues.pause("mail", reason="for ever")
    assert app.queues.pause("mail", until=60, reason="a minute").paused_until is not None
    assert app.queues.get("mail").reason == "a minute"
    assert noop


def test_pause_and_resume_are_events_with_actor_and_reason(app, noop):
    app.queues.pause("mail", reason="why")
    app.queues.resume("mail", reason="because")
    app.queues.resume("mail", reason="once more changes nothing")
    recorded = events(app)
    assert [(event.type, event.actor, event.data["reason"]) for event in recorded] == [
        ("queue.paused", "python", "why"),
        ("queue.resumed", "python", "because"),
    ]
    assert noop


@pytest.mark.parametrize(
    "end",
    [
        0,
        -5,
        datetime(2000, 1, 1, tzinfo=UTC),
        datetime(2030, 1, 1),  # noqa: DTZ001 - refused because it has no time zone
        "soon",
        float("nan"),
    ],
)
def test_invalid_end_of_a_pause_is_refused(app, end):
    with pytest.raises(Refused, match="until"):
        app.queues.pause("mail", until=end)
    assert events(app) == []


# -- limits --------------------------------------------------------------------------------------
def test_operator_limit_wins_over_the_declared_one_until_cleared(app, noop):
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


def test_timed_limit_expires_to_the_declared_one(app):
    app.queue("mail", concurrency=5)
    app.run_inline()
    assert app.queues.set("mail", concurrency=1, until=60).set_until is not None
    advance(app, 61)
    queue = app.queues.get("mail")
    assert (queue.concurrency, queue.set_by_hand) == (5, False)


def test_expired_limit_stays_gone_and_an_end_is_kept(app):
    app.queues.set("mail", concurrency=1, until=60)
    assert app.queues.set("mail", rate=5).set_until is not None
    assert app.queues.set("mail", until=None).set_until is None
    app.queues.clear("mail")
    app.queues.set("mail", concurrency=1, until=60)
    advance(app, 61)
    queue = app.queues.set("mail", rate=5)
    assert (queue.concurrency, queue.rate, queue.set_until) == (None, 5.0, None)


@pytest.mark.parametrize(
    ("limits", "message"),
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
def test_invalid_limit_is_refused(app, limits, message):
    with pytest.raises(Refused, match=message):
        app.queues.set("mail", **limits)
    assert events(app) == []


def test_second_declaration_is_refused(app):
    app.queue("mail", concurrency=1)
    with pytest.raises(ConfigError, match="queue 'mail' is declared twice"):
        app.queue("mail", concurrency=2)
    app.dependency("gpu", max_concurrency=1)
    with pytest.raises(ConfigError, match="dependency 'gpu' is declared twice"):
        app.dependency("gpu")


def test_why_of_a_job_that_waits_for_a_limit(app):
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
            "queue mail runs at most 1 at a time (1 running)",
        )
        assert "dependency relay starts at most 2 an hour" in slow.enqueue().refresh().why
    finally:
        leave.set()
        thread.join(20)
    assert second.refresh().state == "succeeded"


# -- list ----------------------------------------------------------------------------------------
def test_list_counts_ready_and_later_jobs(app, noop):
    register_idle_worker(app)
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


def test_async_queues(app, noop):

    paused, listed, cleared, resumed = asyncio.run(_pause(app))
    assert paused.paused
    assert [queue.name for queue in listed] == ["mail"]
    assert cleared.concurrency is None
    assert not resumed.paused
    assert noop


# -- policy and fairness -------------------------------------------------------------------------
def test_queue_policy_applies_to_kinds_without_their_own(app):
    app.queue("patient", policy=Policy(max_retries=7, backoff=Fixed(0)))

    @app.job(queue="patient")
    def fails() -> None:
        raise ConnectionError

    @app.job(queue="patient", policy=Policy(max_retries=1))
    def fails_less() -> None:
        raise ConnectionError

    assert run_job(app, fails.enqueue()).failures == 8
    assert run_job(app, fails_less.enqueue()).failures == 2


@pytest.mark.security("S49")
def test_fair_queue_has_a_lane_per_owner_and_manual_retry_keeps_it(app):
    app.queue("fair", fair=True)

    @app.job(name="fails", queue="fair", policy=Policy(max_retries=0))
    def fails() -> None:
        raise ConnectionError

    job = run_job(app, fails.options(owner="acme").enqueue())
    assert job.state == "dead"
    app.jobs.retry(job.id)
    by_name = app.enqueue("fails", {}, owner="acme")
    with app.store.read() as tx:
        assert [lane for lane, _, _ in GuardQueries(tx).read_claim_state().lanes] == [
            f"fair|fails||{owner_share('acme')}|0"
        ]
    assert by_name.queue == "fair"


def test_a_queue_may_be_declared_fair_after_its_first_job(app):
    @app.job(name="noop", queue="late")
    def noop() -> None: ...

    theirs = noop.options(owner="acme")
    theirs.enqueue()
    app.queue("late", fair=True)
    theirs.enqueue()
    with app.store.read() as tx:
        lanes = {lane for lane, _, _ in GuardQueries(tx).read_claim_state().lanes}
    assert lanes == {"late|noop||0", f"late|noop||{owner_share('acme')}|0"}


# -- real workers --------------------------------------------------------------------------------
@pytest.mark.any_store
def test_two_workers_share_one_limit(start, make_app):
    app = make_app()
    app.queues.set("default", concurrency=3)
    workers = [start(worker__concurrency="2"), start(worker__concurrency="2")]
    made = [app.enqueue("naps", {"seconds": 0.4}) for _ in range(9)]
    most = 0

    def all_done():
        nonlocal most
        with app.store.read() as tx:
            most = max(most, sum(count for _, _, count in GuardQueries(tx).count_running()))
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
