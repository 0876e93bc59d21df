"""Notifications end to end: matching, incidents, deliveries, the dispatcher."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from mulligan import Fail, Park, Policy, Rule, Webhook
from mulligan.core.errors import ConfigError, NotFound, Refused
from mulligan.core.event import EventType, NewEvent
from mulligan.events.queries import EventQueries
from mulligan.manifest.declared import publish_manifest
from mulligan.manifest.specs import DELIVER_KIND, DELIVERY_QUEUE
from mulligan.notifications.channels import ReceiverGone
from mulligan.notifications.dispatcher import Dispatcher
from mulligan.notifications.message import Message
from mulligan.notifications.queries import NotificationQueries
from support.app_tools import advance, drain_anywhere, run_job
from support.receivers import WebReceiver, open_receiver

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`

LOCAL = {"notify__allow_private": "127.0.0.0/8"}


class Recorder:
    """A channel that records its messages."""

    storable = False

    def __init__(
        self, kind: str = "webhook", fails: int = 0, error: Exception | None = None
    ) -> None:
        self.kind = kind
        self.endpoint = f"recorder:{id(self)}"
        self.received: list[Message] = []
        self.tries: list[Message] = []
        self.fails = fails
        self.error = error

    async def send(self, message: Message, _context: Any) -> dict[str, Any]:
        self.tries.append(message)
        if self.error is not None and self.fails:
            self.fails -= 1
            raise self.error
        self.received.append(message)
        return {}

    def to_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def types(self) -> list[str]:
        return [message.type for message in self.received]


@pytest.fixture
def app(make_app):
    app = make_app(**LOCAL)

    @app.job(name="fails", policy=Policy(max_retries=0))
    def fails(code: str = "X") -> Fail:
        return Fail(code, final=True)

    @app.job(name="works")
    def works() -> None: ...

    @app.job(name="asks")
    def asks() -> Park:
        return Park("which one?")

    return app


@pytest.fixture
def web() -> Iterator[WebReceiver]:
    with open_receiver() as receiver:
        yield receiver


def subscribe(app, on: Any = "job.died", kind: str = "webhook", **options: Any) -> Recorder:
    """Declare a subscription and register it before any event."""
    recorder = options.pop("to", None) or Recorder(kind)
    app.notify(on=on, to=recorder, **options)
    app.run_inline()
    return recorder


def kill_jobs(app, n: int = 1, **options: Any) -> None:
    for _ in range(n):
        app.enqueue("fails", **options)
    app.run_inline()


def test_each_event_is_one_message_with_a_unique_id(app):
    recorder = subscribe(app)
    kill_jobs(app, 3)
    assert recorder.types == ["job.died"] * 3
    assert len({message.id for message in recorder.received}) == 3


def test_a_retried_message_keeps_its_id(app):
    recorder = subscribe(app, to=Recorder(fails=2, error=ConnectionResetError("gone")))
    kill_jobs(app)
    for _ in range(2):
        advance(app, 100)
        app.run_inline()
    assert len({message.id for message in recorder.tries}) == 1
    assert (len(recorder.tries), len(recorder.received)) == (3, 1)


def test_a_message_that_is_retried_holds_back_later_ones_of_the_same_job_only(app):
    recorder = Recorder(fails=1, error=Fail("HTTP_5XX"))
    subscribe(app, "job.*", to=recorder)
    first = run_job(app, app.enqueue("works"))
    assert [message.type for message in recorder.tries] == ["job.queued"]
    second = run_job(app, app.enqueue("works"))
    assert [message.job_id for message in recorder.received] == [second.id] * 3
    for _ in range(3):
        advance(app, 10)
        app.run_inline()
    mine = [message for message in recorder.received if message.job_id == first.id]
    assert [message.type for message in mine] == ["job.queued", "job.started", "job.succeeded"]
    assert [message.seq for message in mine] == sorted(message.seq for message in mine)


def test_a_message_that_was_given_up_holds_back_nothing(app):
    recorder = Recorder(fails=1, error=Fail("BROKEN", final=True))
    subscribe(app, "job.*", to=recorder)
    run_job(app, app.enqueue("works"))
    assert recorder.types == ["job.started", "job.succeeded"]


def test_a_message_of_one_subscription_holds_back_nothing_of_another(app):
    failing = Recorder(fails=100, error=Fail("HTTP_5XX"))
    subscribe(app, "job.*", to=failing)
    recorder = subscribe(app, "job.*")
    run_job(app, app.enqueue("works"))
    assert recorder.types == ["job.queued", "job.started", "job.succeeded"]
    assert failing.received == []


def test_a_subscription_gets_only_events_after_its_creation(app):
    kill_jobs(app, 2)
    recorder = subscribe(app)
    assert recorder.received == []
    kill_jobs(app)
    assert len(recorder.received) == 1


def test_failed_deliveries_cause_no_notifications(app):
    recorder = subscribe(app, "*", to=Recorder(fails=1, error=ConnectionResetError("gone")))
    kill_jobs(app)
    delivery = app.deliveries.list()[0]
    app.queues.pause(DELIVERY_QUEUE)
    app.queues.resume(DELIVERY_QUEUE)
    advance(app, 100)
    app.run_inline()
    app.jobs.cancel(app.enqueue("works").id, reason="x")
    app.run_inline()
    assert "job.cancelled" in recorder.types
    assert not [
        message for message in recorder.received if "mulligan." in json.dumps(message.to_dict())
    ]
    assert delivery.id not in [message.job_id for message in recorder.received]
    sent = len(recorder.received)
    app.run_inline()
    assert [message.type for message in recorder.received[sent:]] == ["worker.started"], (
        "no further messages"
    )


def test_a_started_event_includes_the_kind(app):
    recorder = subscribe(app, "job.started", filter="kind:works")
    app.enqueue("works")
    app.enqueue("fails")
    app.run_inline()
    assert [message.data["kind"] for message in recorder.received] == ["works"]


@pytest.mark.security("S11")
def test_an_owner_gets_only_events_of_that_owner(app):
    mine = subscribe(app, owner="acme")
    theirs = subscribe(app, owner="other")
    all_owners = subscribe(app)
    kill_jobs(app, owner="acme")
    kill_jobs(app, owner="")
    assert [(message.owner) for message in mine.received] == ["acme"]
    assert theirs.received == []
    assert [message.owner for message in all_owners.received] == ["acme", ""]


@pytest.mark.seed("000-80")
def test_deaths_of_one_cause_are_one_incident_that_grows_and_ends(app):
    recorder = subscribe(app, kind="email")
    kill_jobs(app, 3)
    assert recorder.received == []
    advance(app, 5)
    app.run_inline()
    kill_jobs(app, 2)
    advance(app, 61)
    app.run_inline()
    kill_jobs(app, 1)
    advance(app, 61)
    app.run_inline()
    advance(app, 901)
    app.run_inline()
    assert [(message.type, message.count) for message in recorder.received] == [
        ("incident.opened", 3),
        ("incident.grown", 6),
        ("incident.over", 6),
    ]
    assert len({message.id for message in recorder.received}) == 3
    assert len({message.thread for message in recorder.received}) == 1


def test_each_cause_is_an_incident_and_a_later_death_opens_another(app):
    recorder = subscribe(app, kind="email")
    app.enqueue("fails", {"code": "A"})
    app.enqueue("fails", {"code": "B"})
    app.run_inline()
    advance(app, 5)
    app.run_inline()
    advance(app, 901)
    app.run_inline()
    app.enqueue("fails", {"code": "A"})
    app.run_inline()
    advance(app, 5)
    app.run_inline()
    assert sorted(recorder.types) == ["incident.opened"] * 3 + ["incident.over"] * 2


def test_resolving_a_failure_ends_its_incident(app):
    recorder = subscribe(app, kind="email")
    kill_jobs(app)
    advance(app, 5)
    app.run_inline()
    app.failures.resolve(app.failures.groups()[0].fingerprint)
    app.run_inline()
    assert [(message.type, message.data.get("why")) for message in recorder.received] == [
        ("incident.opened", None),
        ("incident.over", "resolved"),
    ]


def test_a_muted_failure_opens_no_incident(app):
    kill_jobs(app)
    recorder = subscribe(app, kind="email")
    app.failures.mute(app.failures.groups()[0].fingerprint)
    kill_jobs(app)
    advance(app, 5)
    app.run_inline()
    assert recorder.received == []


def test_a_subscription_to_all_owners_gets_one_incident_for_many_owners(app):
    operator = subscribe(app, kind="email")
    mine = subscribe(app, kind="email", owner="o1")
    for n in range(5):
        kill_jobs(app, owner=f"o{n}")
    advance(app, 5)
    app.run_inline()
    assert [message.count for message in operator.received] == [5]
    assert [(message.owner, message.count) for message in mine.received] == [("o1", 1)]


def kill_batch(app, name: str, size: int, dead: int, **options: Any) -> Any:
    """Run a batch of which the first jobs die."""
    batch = app.batch(name, **options)
    for n in range(size):
        app.enqueue("copy", {"recipient": f"{name} {n}", "fails": n < dead}, batch=batch)
    batch.seal()
    app.run_inline()
    return batch


@pytest.fixture
def copies(app):
    @app.job(name="copy", title="copy for {recipient}", policy=Policy(max_retries=0))
    def copy(recipient: str, fails: bool = True) -> Fail | None:
        return Fail("X", public="The film is damaged.", final=True) if fails else None

    return app


@pytest.mark.parametrize("owner", ["", "acme"])
def test_each_batch_of_an_owner_is_an_incident_with_its_own_numbers_and_names(copies, owner):
    recorder = Recorder("email")
    recorder.to = lambda message: message.owner  # each owner has an address
    subscribe(copies, to=recorder)
    one = kill_batch(copies, "one", 2, 2, owner=owner)
    two = kill_batch(copies, "two", 3, 1, owner=owner)
    run_job(copies, copies.enqueue("copy", {"recipient": "Zoe"}, owner=owner))
    advance(copies, 6)
    copies.run_inline()
    by_batch = {message.batch_id: message for message in recorder.received}
    assert set(by_batch) == {one.id, two.id, ""}
    first = by_batch[one.id]
    assert first.summary.startswith("2 of 2 copy jobs in batch one died of the same cause since ")
    assert (first.count, first.data["batch"], first.data["batch_size"]) == (2, "one", 2)
    titles = [job["title"] for job in first.data["jobs"]]
    assert titles == ["copy for one 0", "copy for one 1"]
    assert ("Names", "copy for one 0, copy for one 1") in first.details
    second = by_batch[two.id]
    assert (second.count, second.data["batch_size"]) == (1, 3)
    assert second.summary.startswith("1 of 3 copy jobs in batch two died since ")
    assert by_batch[""].summary.startswith("1 copy job died since ")


def test_later_deaths_of_a_batch_are_an_update_with_the_new_number(copies):
    recorder = subscribe(copies, kind="email")
    batch = copies.batch("spring")
    for n in range(6):
        options = {"delay": 0 if n < 2 else 90}
        copies.enqueue("copy", {"recipient": str(n), "fails": n < 4}, batch=batch, **options)
    batch.seal()
    copies.run_inline()
    advance(copies, 6)
    copies.run_inline()
    advance(copies, 90)
    copies.run_inline()
    opened, grown = recorder.received
    assert opened.summary.startswith("2 of 6 copy jobs in batch spring died of the same cause")
    assert grown.summary.startswith(
        "Update: 4 of 6 copy jobs in batch spring died of the same cause"
    )
    assert opened.thread == grown.thread


def test_a_recovered_batch_ends_its_incident_and_no_other(app):
    repaired: list[bool] = []

    @app.job(name="copy", policy=Policy(max_retries=0))
    def copy(recipient: str, fails: bool) -> Fail | None:
        return Fail("X", final=True) if fails and not repaired else None

    recorder = subscribe(app, kind="email")
    batch = kill_batch(app, "one", 2, 1)
    kill_batch(app, "two", 2, 1)
    advance(app, 6)
    app.run_inline()
    repaired.append(True)
    (job,) = app.jobs.list(f"batch:{batch.id} state:dead")
    app.jobs.retry(job.id)
    app.run_inline()
    (over,) = [message for message in recorder.received if message.type == "incident.over"]
    assert (over.batch_id, over.data["why"]) == (batch.id, "recovered")


def test_resolving_a_failure_ends_its_incidents_of_all_batches(copies):
    recorder = subscribe(copies, kind="email")
    batches = [kill_batch(copies, name, 1, 1) for name in ("one", "two")]
    advance(copies, 6)
    copies.run_inline()
    (group,) = copies.failures.groups()
    copies.failures.resolve(group.fingerprint)
    copies.run_inline()
    over = [message for message in recorder.received if message.type == "incident.over"]
    assert {message.batch_id for message in over} == {batch.id for batch in batches}


def test_an_operator_of_all_owners_gets_one_incident_for_many_batches(copies):
    recorder = subscribe(copies, kind="email")
    for owner in ("acme", "globex"):
        kill_batch(copies, owner, 2, 1, owner=owner)
    advance(copies, 6)
    copies.run_inline()
    (message,) = recorder.received
    assert (message.count, message.batch_id) == (2, "")


def test_parked_jobs_form_incidents_and_other_events_do_not(app):
    recorder = subscribe(app, "job.parked, job.released", kind="email")
    jobs = [app.enqueue("asks") for _ in range(2)]
    app.run_inline()
    app.jobs.release(jobs[0].id)
    advance(app, 5)
    app.run_inline()
    assert sorted(recorder.types) == ["incident.opened", "job.released"]


@pytest.mark.security("S43")
def test_messages_above_the_hourly_limit_are_reported_in_one(make_app):
    app = make_app(notify__cap="2")
    app.job(name="fails", policy=Policy(max_retries=0))(_fails)
    recorder = subscribe(app, kind="email")
    for n in range(5):
        app.enqueue("fails", {"code": f"C{n}"})
    app.run_inline()
    advance(app, 5)
    app.run_inline()
    advance(app, 3600)
    app.run_inline()
    assert recorder.types.count("incident.opened") == 2
    assert [
        message.count for message in recorder.received if message.type == "incident.capped"
    ] == [3]
    assert recorder.types.count("incident.over") == 2, "only for incidents that were reported"


def _fails(code: str) -> Fail:
    return Fail(code, final=True)


# --- Stored subscriptions ---
def test_a_stored_subscription_is_signed_delivered_and_listed(app, web):
    subscription = app.subscriptions.add(
        "job.died", Webhook(web.url()), owner="acme", name="theirs"
    )
    assert subscription.secret is not None
    assert subscription.secret.startswith("whsec_")
    kill_jobs(app, owner="acme")
    (received,) = web.received
    assert received.id.startswith("msg_")
    assert received.headers["webhook-signature"].startswith("v1,")
    assert [(one.id, one.secret, one.to) for one in app.subscriptions.list(owner="acme")] == [
        (subscription.id, None, f"http://127.0.0.1:{web.port}"),
    ]
    assert app.subscriptions.list(owner="other") == []
    (delivery,) = app.deliveries.list(subscription=subscription.id)
    assert (delivery.state, delivery.message, delivery.owner) == ("succeeded", received.id, "acme")


def test_a_subscription_to_a_batch_gets_only_its_events(app, web):
    batch = app.batch("spring", owner="acme")
    subscription = app.notify(on=["batch.*", "job.died"], to=Webhook(web.url()), batch=batch)
    assert (subscription.batch, subscription.owner) == (batch.id, "acme")
    app.enqueue("fails", batch=batch)
    app.enqueue("fails", owner="acme")
    batch.seal()
    app.run_inline()
    assert [body["type"] for body in web.bodies()] == ["batch.sealed", "job.died", "batch.failed"]


def test_a_receiver_that_is_gone_disables_its_subscription_and_others_are_notified(app, web):
    web.plans["hook"].then = "410"
    others = subscribe(app, "subscription.*")
    subscription = app.subscriptions.add("job.died, subscription.*", Webhook(web.url()))
    app.run_inline()
    kill_jobs(app, 2)
    found = app.subscriptions.get(subscription.id)
    assert not found.enabled
    assert "gone (410)" in found.reason
    assert len(web.received) == 1, "one death; no events about itself"
    assert "subscription.disabled" in others.types


@pytest.mark.security("S40")
def test_a_subscription_that_fails_for_days_is_disabled(app):
    recorder = subscribe(
        app, to=Recorder(fails=1000, error=ConnectionResetError("x")), name="broken"
    )
    for _ in range(13):
        kill_jobs(app)
        advance(app, 43_200)
    app.run_inline()
    assert not app.subscriptions.get("broken").enabled
    tries = len(recorder.tries)
    kill_jobs(app)
    advance(app, 86_400)
    app.run_inline()
    assert len(recorder.tries) == tries
    app.subscriptions.enable("broken", reason="fixed")
    recorder.fails = 0
    kill_jobs(app)
    advance(app, 100)
    app.run_inline()
    assert recorder.received


def test_a_refused_message_is_retried_a_few_times(app, web):
    web.plans["hook"].then = "404"
    app.subscriptions.add("job.died", Webhook(web.url()))
    kill_jobs(app)
    for _ in range(12):
        advance(app, 86_500)
        app.run_inline()
    (delivery,) = app.deliveries.list()
    assert (delivery.state, len(web.received)) == ("dead", 9)
    assert "404" in delivery.error


def test_a_disabled_subscription_cancels_its_waiting_deliveries(app, web):
    web.plans["hook"].next = ["503"]
    subscription = app.subscriptions.add("job.died", Webhook(web.url()))
    kill_jobs(app)
    app.subscriptions.disable(subscription.id, reason="too loud")
    advance(app, 100)
    app.run_inline()
    (delivery,) = app.deliveries.list()
    assert delivery.state == "cancelled"
    app.subscriptions.enable(subscription.id)
    assert app.deliveries.retry(delivery.id).state == "queued"
    app.run_inline()
    assert [one.confirmed for one in web.received] == [False, True]
    assert len({one.id for one in web.received}) == 1


def test_an_enabled_subscription_gets_only_later_events(app):
    recorder = subscribe(app, name="mine")
    app.subscriptions.disable("mine")
    kill_jobs(app, 3)
    app.subscriptions.enable("mine")
    kill_jobs(app)
    assert len(recorder.received) == 1


def test_a_damaged_incident_is_closed_and_others_continue(app):
    recorder = subscribe(app, kind="email")
    kill_jobs(app)
    with app.store.begin() as tx:
        (row,) = NotificationQueries(tx).list_incidents(None, 5)
        NotificationQueries(tx).update_incident(row._replace(body='{"not": "ours"}'))
    kill_jobs(app)
    advance(app, 5)
    app.run_inline()
    assert [message.count for message in recorder.received] == [1]


def test_both_secrets_sign_during_a_rotation(app, web):
    subscription = app.subscriptions.add("job.died", Webhook(web.url()))
    changed = app.subscriptions.rotate(subscription.id, reason="leaked")
    assert changed.secret not in (None, subscription.secret)
    kill_jobs(app)
    assert len(web.received[0].headers["webhook-signature"].split()) == 2
    assert subscription.secret not in json.dumps([event.data for event in app.events.list()])


def test_a_test_message_is_delivered_like_any_other(app, web):
    subscription = app.subscriptions.add("job.died", Webhook(web.url()))
    first = app.subscriptions.test(subscription.id)
    second = app.subscriptions.test(subscription.id)
    app.run_inline()
    assert [body["type"] for body in web.bodies()] == ["subscription.test"] * 2
    assert first.message != second.message


@pytest.mark.security("S09")
def test_another_owners_subscription_is_not_found(app, web):
    subscription = app.subscriptions.add("job.died", Webhook(web.url()), owner="acme")
    api = app.subscriptions
    for call in (api.get, api.remove, api.enable, api.disable, api.rotate, api.test):
        with pytest.raises(NotFound):
            call(subscription.id, owner="other")
    kill_jobs(app, owner="acme")
    (delivery,) = app.deliveries.list(owner="acme")
    assert app.deliveries.list(owner="other") == []
    with pytest.raises(NotFound):
        app.deliveries.get(delivery.id, owner="other")
    with pytest.raises(NotFound):
        app.deliveries.get(app.jobs.list("state:dead")[0].id)


def test_a_channel_with_functions_is_not_stored(app, web):
    with pytest.raises(Refused, match="functions"):
        app.subscriptions.add("job.died", Webhook(web.url(), render=lambda message: {}))
    with pytest.raises(Refused, match="declared in code"):
        app.subscriptions.remove(_declared(app))
    with pytest.raises(NotFound, match="batch"):
        app.notify(on="batch.*", to=Webhook(web.url()), batch="unknown")
    with pytest.raises(ConfigError, match="channel"):
        app.notify(on="job.died", to="https://example.com")
    with pytest.raises(ConfigError, match="twice"):
        app.notify(on="job.died", to=Recorder(), name="mine")


def _declared(app) -> str:
    subscribe(app, name="mine")
    return "mine"


def test_subscriptions_and_deliveries_have_an_async_api(app, web):
    async def calls() -> None:
        subscription = await app.aio.subscriptions.add("job.died", Webhook(web.url()))
        assert (await app.aio.subscriptions.list())[0].id == subscription.id
        assert (await app.aio.subscriptions.get(subscription.id)).enabled
        assert not (await app.aio.subscriptions.disable(subscription.id)).enabled
        await app.aio.subscriptions.enable(subscription.id)
        await app.aio.subscriptions.rotate(subscription.id)
        delivery = await app.aio.subscriptions.test(subscription.id)
        assert (await app.aio.deliveries.get(delivery.id)).state == "queued"
        assert len(await app.aio.deliveries.list()) == 1
        await app.aio.subscriptions.remove(subscription.id)

    asyncio.run(calls())
    app.run_inline()
    (delivery,) = app.deliveries.list()
    assert delivery.state == "cancelled"


# --- The dispatcher ---
def test_without_subscriptions_the_dispatcher_writes_nothing(app):
    kill_jobs(app, 2)
    with app.store.read() as tx:
        assert EventQueries(tx).get_reader("dispatch") is None


def test_a_new_subscription_does_not_read_the_old_log(app):
    kill_jobs(app, 3)
    app.subscriptions.add("job.died", Webhook("https://example.com"))
    with app.store.read() as tx:
        newest = EventQueries(tx).newest_event()
    dispatcher = Dispatcher(app.settings)
    assert not dispatcher.run_once(app.store)
    with app.store.read() as tx:
        assert EventQueries(tx).get_reader("dispatch").cursor >= newest - 1
    assert app.deliveries.list() == []


def test_an_event_whose_message_fails_does_not_stop_the_others(app):
    recorder = subscribe(app)
    with app.store.begin() as tx:
        EventQueries(tx).write_events(
            [
                NewEvent(
                    EventType.JOB_DIED,
                    data={"kind": ["not", {"a": "text"}], "code": None, "next": 1},
                )
            ]
        )
        EventQueries(tx).write_events(
            [NewEvent(EventType.JOB_DIED, data={"max_retries": "many", "failures": {}, "group": 7})]
        )
    kill_jobs(app)
    assert recorder.types[-1] == "job.died"
    assert recorder.received[-1].data["kind"] == "fails"


def test_a_long_log_is_read_page_by_page(app):
    recorder = subscribe(app, "queue.paused")
    with app.store.begin() as tx:
        EventQueries(tx).write_events(
            NewEvent(
                EventType.QUEUE_PAUSED if n % 400 == 0 else EventType.QUEUE_RESUMED,
                data={"queue": "q"},
            )
            for n in range(1201)
        )
    app.run_inline()
    assert len(recorder.received) == 4


def test_many_messages_are_enqueued_in_small_transactions(app):
    recorder = subscribe(app, "queue.paused")
    other = subscribe(app, "queue.*", filter="queue:q7")
    with app.store.begin() as tx:
        EventQueries(tx).write_events(
            NewEvent(EventType.QUEUE_PAUSED, data={"queue": f"q{n}"}) for n in range(120)
        )
    dispatcher = Dispatcher(app.settings)
    runs = 0
    while dispatcher.run_once(app.store):
        runs += 1
    assert runs == 2
    app.run_inline()
    assert (
        len({message.data["queue"] for message in recorder.received})
        == len(recorder.received)
        == 120
    )
    assert len(other.received) == 1


def test_events_after_a_clock_jump_are_sent_once_workers_renewed_their_manifests(app):
    """All manifests look expired after the jump; the declared subscription still exists."""
    subscribe(app)
    # A stored subscription does not depend on manifests.
    app.subscriptions.add("job.died", Webhook("https://example.com"))
    manifest = app.manifest("shop")
    with app.store.begin() as tx:
        publish_manifest(tx, manifest)
    dispatcher = Dispatcher(app.settings)
    dispatcher.run_once(app.store)
    advance(app, 2 * 86_400)
    with app.store.begin() as tx:
        EventQueries(tx).write_events(
            [NewEvent(EventType.JOB_DIED, data={"kind": "fails", "queue": "default"})]
        )
    dispatcher.run_once(app.store)
    with app.store.begin() as tx:
        publish_manifest(tx, manifest)
    advance(app, 10)
    dispatcher.run_once(app.store)
    assert len(app.deliveries.list()) == 2


def test_events_are_sent_soon_if_the_clock_was_set_back_after_a_jump(app):
    """A wrong time is corrected: nothing waits until the clock shows that time again."""
    subscribe(app)
    manifest = app.manifest("shop")
    with app.store.begin() as tx:
        publish_manifest(tx, manifest)
    dispatcher = Dispatcher(app.settings)
    dispatcher.run_once(app.store)
    advance(app, 86_400)
    dispatcher.run_once(app.store)
    advance(app, -86_400)
    with app.store.begin() as tx:
        publish_manifest(tx, manifest)
        EventQueries(tx).write_events(
            [NewEvent(EventType.JOB_DIED, data={"kind": "fails", "queue": "default"})]
        )
    dispatcher.run_once(app.store)
    advance(app, 10)
    dispatcher.run_once(app.store)
    assert len(app.deliveries.list()) == 1


def test_drain_returns_only_user_jobs(app):
    recorder = subscribe(app)
    app.enqueue("fails")
    drained = drain_anywhere(app)
    assert [job.kind for job in drained.jobs] == ["fails"]
    assert drained.attempts == 1
    assert len(recorder.received) == 1


def test_deliveries_are_excluded_from_job_lists_and_counts(app):
    subscribe(app, to=Recorder(fails=1000, error=ReceiverGone("x")))
    kill_jobs(app)
    assert [job.kind for job in app.jobs.list()] == ["fails"]
    assert app.jobs.count("state:dead") == 1
    assert len(app.failures.groups()) == 1
    assert [queue.name for queue in app.queues.list() if queue.name.startswith("mulligan")] == []
    assert len(app.jobs.list(f"kind:{DELIVER_KIND}.{app.subscriptions.list()[0].id}")) == 1


def test_the_index_of_internal_kinds_is_not_searchable(app):
    with pytest.raises(Refused, match="indexed by no kind"):
        app.jobs.list("arg.subscription:x")


def test_a_death_includes_its_group_and_failure_count(app):
    job = run_job(app, app.enqueue("fails"))
    (died_event,) = [event for event in app.jobs.history(job.id) if event.type == "job.died"]
    assert died_event.data["group"] == app.failures.groups()[0].fingerprint
    assert (died_event.data["failures"], died_event.data["max_retries"]) == (1, 0)


RUNBOOK = "https://wiki.example/broken-gateway"


@pytest.mark.parametrize("form", ["each", "incident"])
def test_operators_get_the_runbook_that_a_failure_rule_declares_and_owners_do_not(app, form):
    app.rules.add(Rule("broken", verdict="BROKEN", code="BROKEN", cls="permanent", runbook=RUNBOOK))
    staff = subscribe(app, form=form)
    owner = subscribe(app, form=form, owner="acme")
    app.enqueue("fails", {"code": "BROKEN"}, owner="acme")
    app.run_inline()
    advance(app, 6)
    app.run_inline()
    (for_staff,) = staff.received
    (for_owner,) = owner.received
    assert (for_staff.runbook, for_owner.runbook) == (RUNBOOK, "")
    assert RUNBOOK not in for_owner.to_json()


def _rule(alarm: str) -> Rule:
    return Rule("broken", verdict="BROKEN", code="BROKEN", cls="permanent", alarm=alarm)


def test_a_death_that_operators_expect_opens_no_incident_for_them_but_owners_hear_of_it(app):
    app.rules.add(_rule("none"))
    staff = subscribe(app, form="incident")
    owner = subscribe(app, form="incident", owner="acme")
    app.enqueue("fails", {"code": "BROKEN"}, owner="acme")
    app.run_inline()
    advance(app, 6)
    app.run_inline()
    assert staff.received == []
    assert len(owner.received) == 1


def test_an_urgent_death_is_reported_without_waiting_for_more_deaths(app):
    app.rules.add(_rule("page"))
    staff = subscribe(app, form="incident")
    owner = subscribe(app, form="each", owner="acme")
    app.enqueue("fails", {"code": "BROKEN"}, owner="acme")
    app.run_inline()
    app.run_inline()
    (urgent,) = staff.received
    assert urgent.alarm == "page"
    (for_owner,) = owner.received
    assert "page" not in for_owner.to_json()
