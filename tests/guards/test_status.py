"""The state of the system: what waits, what is held, what flows, and how fast."""

from __future__ import annotations

import pytest

from mulligan import Policy
from mulligan.app.status import count_attention, read_depths, read_flows, read_status
from mulligan.core.durations import SECOND
from mulligan.guards.queries import GuardQueries
from mulligan.observability.event_counts import EventCounter
from support.store import claim_new_job

MINUTE = 60 * SECOND


def count_events(app):
    while EventCounter(every=0).run_once(app.store):
        pass


@pytest.fixture
def invoice(app):
    app.store.prepare()
    count_events(app)  # what happened before the first call is not counted

    @app.job(name="invoice", queue="invoices", uses="bank", policy=Policy(max_retries=0))
    def invoice(order: int) -> str:
        if order < 0:
            raise KeyError(order)
        return "sent"

    return invoice


@pytest.mark.parametrize(
    ("close", "reopen"),
    [
        (lambda app: app.queues.pause("invoices"), lambda app: app.queues.resume("invoices")),
        (lambda app: app.kinds.hold("invoice"), lambda app: app.kinds.release("invoice")),
        (lambda app: app.dependencies.open("bank"), lambda app: app.dependencies.close("bank")),
    ],
    ids=["queue", "kind", "dependency"],
)
def test_jobs_behind_a_closed_gate_are_held_and_not_ready(app, invoice, close, reopen):
    for order in range(3):
        invoice.enqueue(order)
    invoice.options(delay=60).enqueue(9)
    close(app)
    for found in (app.queues.get("invoices"), app.kinds.get("invoice")):
        assert (found.ready, found.held_jobs, found.later, found.retrying) == (0, 3, 1, 0)
    assert app.queues.get("invoices").oldest is None
    status = read_status(app)
    assert (status.ready, status.oldest) == (0, None)
    reopen(app)
    assert (app.queues.get("invoices").ready, app.queues.get("invoices").held_jobs) == (3, 0)
    assert app.queues.get("invoices").oldest is not None


def test_a_retry_that_is_not_due_counts_as_retrying(app):
    @app.job(name="flaky")
    def flaky() -> None:
        raise ConnectionResetError

    flaky.enqueue()
    app.run_inline()
    queue = app.queues.get("default")
    assert (queue.later, queue.retrying) == (1, 1)
    status = read_status(app)
    assert status.next_retry is not None


def test_flows_say_what_came_what_ended_and_how_long_it_took(app, invoice):
    for order in (1, 2, -3):
        invoice.enqueue(order)
    app.run_inline()
    count_events(app)
    with app.store.read() as tx:
        flows = read_flows(tx)
    for key in (("queue", "invoices"), ("kind", "invoice")):
        flow = flows[key]
        assert 0.5 <= flow.enqueued <= 0.6  # 3 within five to six minutes
        assert flow.ended == flow.enqueued
        assert (flow.attempts, flow.failed) == (3, 1)
        assert flow.wait is not None
        assert flow.run is not None
        assert 0 <= flow.run.half <= flow.run.most


def test_rates_are_compared_with_the_hour_before(app, invoice):
    for _ in range(20):
        invoice.enqueue(-1)
    app.run_inline()
    count_events(app)
    assert read_status(app).deaths.usual is None
    app.store.shift_clock(20 * MINUTE)
    for _ in range(8):
        invoice.enqueue(-1)
    app.run_inline()
    count_events(app)
    deaths = read_status(app).deaths
    assert 8 / 6 <= deaths.current <= 8 / 5
    assert 20 / 16 <= deaths.usual <= 20 / 14
    assert deaths.ratio == pytest.approx(deaths.current / deaths.usual)


def test_the_depth_of_a_queue_follows_from_what_came_and_what_ended(app, invoice):
    jobs = [invoice.enqueue(order) for order in range(5)]
    count_events(app)
    app.store.shift_clock(2 * MINUTE)
    for job in jobs[:3]:
        app.jobs.cancel(job.id)
    count_events(app)
    waiting = app.queues.get("invoices").ready
    with app.store.read() as tx:
        line = read_depths(tx, {"invoices": waiting}, 5)["invoices"]
    assert line == [5, 5, waiting]


def test_running_jobs_are_grouped_by_worker_queue_and_kind(app):
    app.store.prepare()
    for worker, kind in (("w1", "slow"), ("w1", "slow"), ("w2", "slow"), ("w2", "fast")):
        claim_new_job(app.store, worker=worker, kind=kind, queue="q")
    with app.store.read() as tx:
        groups = GuardQueries(tx).list_running_groups(10)
        assert GuardQueries(tx).list_running_groups(1) == groups[:1]
    assert [group[:4] for group in groups] == [
        ("w1", "q", "slow", 2),
        ("w2", "q", "fast", 1),
        ("w2", "q", "slow", 1),
    ]


def test_the_menu_counts_what_needs_attention(app, invoice):
    invoice.enqueue(-1)
    app.run_inline()
    app.queues.pause("mail")
    app.dependencies.open("bank")
    counts = count_attention(app)
    assert counts["failures"] == 1
    assert (counts["queues"], counts["dependencies"]) == (1, 1)
    assert count_attention(app, "acme") == {"failures": 0, "operations": 0}
