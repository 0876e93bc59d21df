"""Real receivers that fail in every way, a worker that is killed: every message arrives, with one id, and no more."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from mulligan import Mulligan, Webhook
from mulligan.core.durations import SECOND
from mulligan.events.queries import EventQueries
from mulligan.jobs.queries import SearchQueries
from mulligan.notifications.queries import NotificationQueries
from support.receivers import DROP, HANG, RATE_LIMITED, MailReceiver, ResponsePlan, WebReceiver
from support.waiting import until
from support.worker import Worker

pytestmark = pytest.mark.processes

log = logging.getLogger("proof")

APP = "support.notified:app"
ALLOWED = {
    "notify__allow_private": "127.0.0.0/8",
    "guards__same_cause": "0",
    "guards__same_cause_alone": "0",
}


@pytest.fixture
def web() -> Iterator[Callable[..., WebReceiver]]:
    """Receivers, each with an address of its own: what hangs is one of them."""
    made: list[WebReceiver] = []

    def make(*plan: str, then: str = "ok") -> WebReceiver:
        made.append(WebReceiver())
        made[-1].plans["hook"] = ResponsePlan(list(plan), then)
        return made[-1]

    yield make
    for receiver in made:
        receiver.close()


@pytest.fixture
def mail() -> Iterator[MailReceiver]:
    receiver = MailReceiver()
    yield receiver
    receiver.close()


@pytest.fixture
def hire(start: Callable[..., Worker]) -> Callable[..., Worker]:
    def make(mail: MailReceiver | None = None, **settings: Any) -> Worker:
        server = (
            {}
            if mail is None
            else {"mail__host": "127.0.0.1", "mail__port": str(mail.port), "mail__tls": "none"}
        )
        return start(app=APP, worker__concurrency="12", **ALLOWED, **server, **settings)

    return make


def subscribe(
    app: Mulligan, *receivers: WebReceiver, timeout: float = 2.0, on: str = "job.died"
) -> None:
    for receiver in receivers:
        app.subscriptions.add(on, Webhook(receiver.url(), timeout=timeout))


def die(app: Mulligan, n: int) -> None:
    app.enqueue("dies", {"n": n})


def deaths(app: Mulligan, kind: str = "dies") -> int:
    return int(app.jobs.count(f"state:dead kind:{kind}"))


def advance(app: Mulligan, seconds: float) -> None:
    app.store.shift_clock(round(seconds * SECOND))


def left(app: Mulligan) -> int:
    with app.store.read() as tx:
        found = SearchQueries(tx).list_jobs_bounded(
            {"queue": "mulligan.deliveries", "state": ("queued", "running"), "kind": KINDS},
            1000,
            None,
        )
    return len(found.rows)


KINDS = ("mulligan.deliver", "mulligan.deliver.each", "mulligan.deliver.cause")


@pytest.mark.security("S40")
@pytest.mark.any_store
def test_a_healthy_receiver_does_not_wait_for_one_that_hangs(app, hire, web):
    hanging, healthy = web(then=HANG), web()
    subscribe(app, hanging, healthy, timeout=15)
    hire()
    for n in range(10):
        die(app, n)
        until(
            lambda n=n: len(healthy.received) > n,
            10,
            "a message, before the hanging receiver times out",
        )
    assert len(set(healthy.ids())) == 10
    assert 1 <= len(hanging.received) <= 5, "soon nobody goes there any more"


@pytest.mark.any_store
@pytest.mark.timeout(200)
def test_messages_about_a_job_arrive_in_the_order_of_its_events(app, hire, web):
    """The receiver refuses some: later messages of the same job wait for the retry."""
    receiver = web("503", "ok", "503")
    subscribe(app, receiver, on="job.*")
    hire()
    for _ in range(3):
        app.enqueue("flaky")
    until(lambda: deaths(app, "flaky") == 3, 60, "all deaths")
    until(lambda: len(set(receiver.ids(confirmed=True))) == 27, 100, "all messages")
    by_job: dict[str, list[dict[str, Any]]] = {}
    for message in receiver.received:
        if message.confirmed:
            data = {**message.body["data"], "type": message.body["type"]}
            by_job.setdefault(data["job_id"], []).append(data)
    assert len(by_job) == 3
    attempt = ["job.started", "job.retry_scheduled"]
    for messages in by_job.values():
        numbers = [message["seq"] for message in messages]
        assert numbers == sorted(set(numbers))
        types = [message["type"] for message in messages]
        assert types == ["job.queued", *attempt * 3, "job.started", "job.died"]
        started = [one for one in messages if one["type"] == "job.started"]
        assert [one["retries"] for one in started] == [0, 1, 2, 3]
        scheduled = [one for one in messages if one["type"] == "job.retry_scheduled"]
        assert [one["retries"] for one in scheduled] == [1, 2, 3]
        assert messages[-1]["retries"] == app.jobs.get(messages[-1]["job_id"]).retries == 3
        assert [one["attempt"] for one in started] == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_each_reaction_runs_in_order_while_workers_are_killed(app, hire, tmp_path):
    """A killed reaction runs again before the next one of its job."""
    witness = tmp_path / "reactions"
    environ = {"REACTIONS": str(witness)}
    worker = hire(environ=environ)
    jobs = [app.enqueue("flaky") for _ in range(4)]

    def lines() -> list[list[str]]:
        return [line.split() for line in witness.read_text().splitlines()]

    for n in range(1, 4):
        until(lambda n=n: witness.exists() and len(lines()) > 4 * n, 60, "some reactions")
        worker.kill()
        worker = hire(environ=environ)

    def handled(job_id: str) -> list[str]:
        return [type_ for job, _, type_ in lines() if job == job_id]

    until(lambda: all("job.died" in handled(job.id) for job in jobs), 90, "all reactions")
    attempt = ["job.started", "job.retry_scheduled"]
    for job in jobs:
        mine = [(int(seq), type_) for job_id, seq, type_ in lines() if job_id == job.id]
        assert mine == sorted(mine, key=lambda one: one[0]), "in order, some twice"
        types = [type_ for _, type_ in sorted(set(mine))]
        assert types == ["job.queued", *attempt * 3, "job.started", "job.died"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_event_arrives_once_while_receivers_fail_and_workers_are_killed(app, hire, web, mail):
    """Refused, hanging, crowded, dropped after it was taken, failing; and the worker is killed every few seconds."""
    refused = web()
    receivers = [
        refused,
        web(*[HANG] * 3),
        web(*[RATE_LIMITED] * 5),
        web(*[DROP] * 5),
        web(*["503"] * 6, "404", "500"),
        web(),
    ]
    refused.stop_listening()
    mail.plan = ResponsePlan(["451", "ok", DROP, "421", "ok", "451"])
    subscribe(app, *receivers)
    environ = {"MAIL_TO": "ann@example.com"}
    worker = hire(mail, environ=environ)
    kills = 6
    for n in range(kills * 5):
        die(app, n)
        if n % 5 == 4:
            time.sleep(2)  # the pace of the killer, not a wait for anything
            worker.kill()
            advance(app, 90)
            worker = hire(mail, environ=environ)
        if n == 12:
            refused.listen()
    total = kills * 5

    def arrived() -> bool:
        advance(app, 60)
        time.sleep(0.5)  # a minute of the store's clock for each half second
        return deaths(app) == total and left(app) == 0

    until(arrived, 240, "all told")
    for receiver in receivers:
        counts = Counter(receiver.ids(confirmed=True))
        assert len(counts) == total, receiver.plans
        assert set(receiver.ids()) == set(counts), "one id however often"
        assert sum(counts.values()) <= total + kills * 4, (
            "again only what was under way when the worker was killed"
        )
    assert len(set(mail.ids(confirmed=True))) == total
    assert Counter(delivery.state for delivery in app.deliveries.list(limit=500)) == {
        "succeeded": total * 7
    }
    before = [len(receiver.received) for receiver in (*receivers, mail)]
    worker.kill()
    advance(app, 7200)
    hire(mail, environ=environ)
    die(app, total)
    until(lambda: len(receivers[-1].received) > before[-2], 20, "the next one")
    until(lambda: left(app) == 0, 20, "and it alone")
    assert [len(receiver.received) for receiver in (*receivers, mail)] == [
        count + 1 for count in before
    ]


@pytest.mark.seed("000-79")
@pytest.mark.any_store
def test_a_killed_worker_loses_no_notification(app, hire, web):
    receiver = web(HANG)
    subscribe(app, receiver, timeout=30)
    worker = hire()
    die(app, 1)
    until(lambda: receiver.received, 15, "on its way")
    worker.kill()
    hire()
    until(lambda: receiver.ids(confirmed=True), 20, "again")
    assert len(set(receiver.ids())) == 1
    (delivery,) = app.deliveries.list()
    until(lambda: app.deliveries.get(delivery.id).state == "succeeded", 10, "written down")


@pytest.mark.security("S43")
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ten_thousand_deaths_of_one_cause_send_a_handful_of_notifications(
    app, hire, mail, store_url
):
    worker = hire(mail, environ={"MAIL_CAUSE": "ann@example.com"}, notify__update_every="5")
    began = time.monotonic()
    for chunk in range(10):
        for n in range(1000):
            app.enqueue("dies", {"n": chunk * 1000 + n})
    until(lambda: deaths(app) >= 10_000, 240, "all dead")
    took = time.monotonic() - began
    with app.store.read() as tx:
        incidents = NotificationQueries(tx).list_incidents(None, 10)
    assert len(incidents) == 1
    until(lambda: _read_up(app), 60, "the log is read")
    advance(app, 1000)
    until(lambda: any("Over" in str(one.headers) for one in mail.received), 30, "closed")
    assert 2 <= len(mail.received) <= 12
    assert worker.process.poll() is None
    log.info(
        "%s: 10,000 deaths in %.0f s, %d messages",
        store_url.partition(":")[0],
        took,
        len(mail.received),
    )


def _read_up(app: Mulligan) -> bool:
    with app.store.read() as tx:
        reader = EventQueries(tx).get_reader("dispatch")
        return reader is not None and reader.cursor >= EventQueries(tx).newest_event()


def test_a_long_transaction_of_another_program_delays_no_notification(app, hire, web, store_url):
    if not store_url.startswith("postgres"):
        pytest.skip("SQLite has one writer, and no strangers")
    receiver = web()
    subscribe(app, receiver)
    hire()
    with psycopg.connect(store_url) as stranger:
        stranger.execute("CREATE TABLE theirs (n int)")
        stranger.execute("SELECT pg_current_xact_id()")
        die(app, 1)
        until(lambda: receiver.ids(confirmed=True), 10, "told while the stranger is still at it")
        stranger.rollback()


@pytest.mark.any_store
def test_deliveries_do_not_wait_for_a_long_job_or_a_hanging_receiver_with_concurrency_one(
    app, start, web
):
    hanging, healthy = web(then=HANG), web()
    for receiver in (hanging, healthy):
        app.subscriptions.add("job.started", Webhook(receiver.url(), timeout=15))
    start(app=APP, worker__concurrency="1", **ALLOWED)
    for n in range(4):
        die(app, n)
    until(lambda: len(healthy.received) == 4, 10, "told")
    app.enqueue("lasts", {"seconds": 20})
    until(lambda: len(healthy.received) == 5, 10, "told that it has begun, while it runs")
