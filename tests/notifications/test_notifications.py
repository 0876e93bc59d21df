"""Who is to be told is told once, of what is his, and never of what tells him."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from mulligan import Fail, Park, Policy, Webhook
from mulligan.core.errors import ConfigError, NotFound, Refused
from mulligan.core.event import EventType, NewEvent
from mulligan.manifest.declared import speak
from mulligan.manifest.specs import DELIVER_KIND, DELIVERY_QUEUE
from mulligan.notifications.channels import Gone
from mulligan.notifications.dispatcher import Dispatch
from mulligan.notifications.message import Message
from support.app_tools import advance, drain_anywhere, ran
from support.receivers import WebReceiver, receiving

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`

LOCAL = {"notify__allow_private": "127.0.0.0/8"}


class Recorder:
    """A channel of the test's own: it keeps what it is given."""

    storable = False

    def __init__(
        self, kind: str = "webhook", fails: int = 0, error: Exception | None = None
    ) -> None:
        self.kind = kind
        self.endpoint = f"recorder:{id(self)}"
        self.got: list[Message] = []
        self.tries: list[Message] = []
        self.fails = fails
        self.error = error

    async def send(self, message: Message, _sending: Any) -> dict[str, Any]:
        self.tries.append(message)
        if self.error is not None and self.fails:
            self.fails -= 1
            raise self.error
        self.got.append(message)
        return {}

    def to_plain(self) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def types(self) -> list[str]:
        return [message.type for message in self.got]


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
        return Park("who?")

    return app


@pytest.fixture
def web() -> Iterator[WebReceiver]:
    with receiving() as receiver:
        yield receiver


def hear(app, on: Any = "job.died", kind: str = "webhook", **said: Any) -> Recorder:
    """A declared subscription that is known before anything happens."""
    recorder = said.pop("to", None) or Recorder(kind)
    app.notify(on=on, to=recorder, **said)
    app.run_inline()
    return recorder


def died(app, n: int = 1, **options: Any) -> None:
    for _ in range(n):
        app.enqueue("fails", **options)
    app.run_inline()


def test_each_event_is_one_message_with_an_id_of_its_own(app):
    recorder = hear(app)
    died(app, 3)
    assert recorder.types == ["job.died"] * 3
    assert len({message.id for message in recorder.got}) == 3


def test_a_message_that_failed_comes_again_with_the_same_id(app):
    recorder = hear(app, to=Recorder(fails=2, error=ConnectionResetError("gone")))
    died(app)
    for _ in range(2):
        advance(app, 100)
        app.run_inline()
    assert len({message.id for message in recorder.tries}) == 1
    assert (len(recorder.tries), len(recorder.got)) == (3, 1)


def test_a_subscription_hears_only_of_what_comes_after_it(app):
    died(app, 2)
    recorder = hear(app)
    assert recorder.got == []
    died(app)
    assert len(recorder.got) == 1


def test_nobody_is_told_of_what_tells_him(app):
    recorder = hear(app, "*", to=Recorder(fails=1, error=ConnectionResetError("gone")))
    died(app)
    delivery = app.deliveries.list()[0]
    app.queues.pause(DELIVERY_QUEUE)
    app.queues.resume(DELIVERY_QUEUE)
    advance(app, 100)
    app.run_inline()
    app.jobs.cancel(app.enqueue("works").id, reason="x")
    app.run_inline()
    assert "job.cancelled" in recorder.types
    assert not [
        message for message in recorder.got if "mulligan." in json.dumps(message.to_plain())
    ]
    assert delivery.id not in [message.job_id for message in recorder.got]
    told = len(recorder.got)
    app.run_inline()
    assert [message.type for message in recorder.got[told:]] == ["worker.started"], (
        "nothing more to tell"
    )


def test_a_job_that_began_says_its_kind(app):
    recorder = hear(app, "job.started", filter="kind:works")
    app.enqueue("works")
    app.enqueue("fails")
    app.run_inline()
    assert [message.data["kind"] for message in recorder.got] == ["works"]


@pytest.mark.security("S11")
def test_owners_hear_of_their_own_alone(app):
    mine, theirs, everybody = hear(app, owner="acme"), hear(app, owner="other"), hear(app)
    died(app, owner="acme")
    died(app, owner="")
    assert [(message.owner) for message in mine.got] == ["acme"]
    assert theirs.got == []
    assert [message.owner for message in everybody.got] == ["acme", ""]


@pytest.mark.seed("000-80")
def test_deaths_of_one_cause_are_one_message_that_grows_and_one_when_it_is_over(app):
    recorder = hear(app, kind="email")
    died(app, 3)
    assert recorder.got == []
    advance(app, 5)
    app.run_inline()
    died(app, 2)
    advance(app, 61)
    app.run_inline()
    died(app, 1)
    advance(app, 61)
    app.run_inline()
    advance(app, 901)
    app.run_inline()
    assert [(message.type, message.count) for message in recorder.got] == [
        ("incident.opened", 3),
        ("incident.grown", 6),
        ("incident.over", 6),
    ]
    assert len({message.id for message in recorder.got}) == 3
    assert len({message.thread for message in recorder.got}) == 1


def test_causes_are_told_apart_and_a_new_death_opens_another_incident(app):
    recorder = hear(app, kind="email")
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


def test_what_somebody_resolved_is_over_at_once(app):
    recorder = hear(app, kind="email")
    died(app)
    advance(app, 5)
    app.run_inline()
    app.failures.resolve(app.failures.groups()[0].fingerprint)
    app.run_inline()
    assert [(message.type, message.data.get("why")) for message in recorder.got] == [
        ("incident.opened", None),
        ("incident.over", "resolved"),
    ]


def test_what_somebody_muted_opens_no_incident(app):
    died(app)
    recorder = hear(app, kind="email")
    app.failures.mute(app.failures.groups()[0].fingerprint)
    died(app)
    advance(app, 5)
    app.run_inline()
    assert recorder.got == []


def test_one_who_hears_of_all_owners_is_told_once_of_what_hits_many(app):
    operator, mine = hear(app, kind="email"), hear(app, kind="email", owner="o1")
    for n in range(5):
        died(app, owner=f"o{n}")
    advance(app, 5)
    app.run_inline()
    assert [message.count for message in operator.got] == [5]
    assert [(message.owner, message.count) for message in mine.got] == [("o1", 1)]


def test_parked_jobs_fold_too_and_other_events_do_not(app):
    recorder = hear(app, "job.parked, job.released", kind="email")
    jobs = [app.enqueue("asks") for _ in range(2)]
    app.run_inline()
    app.jobs.release(jobs[0].id)
    advance(app, 5)
    app.run_inline()
    assert sorted(recorder.types) == ["incident.opened", "job.released"]


@pytest.mark.security("S43")
def test_of_too_many_messages_in_an_hour_the_rest_is_told_in_one(make_app):
    app = make_app(notify__cap="2")
    app.job(name="fails", policy=Policy(max_retries=0))(_fails)
    recorder = hear(app, kind="email")
    for n in range(5):
        app.enqueue("fails", {"code": f"C{n}"})
    app.run_inline()
    advance(app, 5)
    app.run_inline()
    advance(app, 3600)
    app.run_inline()
    assert recorder.types.count("incident.opened") == 2
    assert [message.count for message in recorder.got if message.type == "incident.capped"] == [3]
    assert recorder.types.count("incident.over") == 2, "only of what was told"


def _fails(code: str) -> Fail:
    return Fail(code, final=True)


# -- stored ones --------------------------------------------------------------------------------------
def test_a_stored_subscription_is_signed_delivered_and_listed(app, web):
    made = app.subscriptions.add("job.died", Webhook(web.url()), owner="acme", name="theirs")
    assert made.secret is not None
    assert made.secret.startswith("whsec_")
    died(app, owner="acme")
    (received,) = web.received
    assert received.id.startswith("msg_")
    assert received.headers["webhook-signature"].startswith("v1,")
    assert [(one.id, one.secret, one.to) for one in app.subscriptions.list(owner="acme")] == [
        (made.id, None, f"http://127.0.0.1:{web.port}"),
    ]
    assert app.subscriptions.list(owner="other") == []
    (delivery,) = app.deliveries.list(subscription=made.id)
    assert (delivery.state, delivery.message, delivery.owner) == ("succeeded", received.id, "acme")


def test_a_subscription_of_a_batch_hears_of_that_batch(app, web):
    batch = app.batch("spring", owner="acme")
    made = app.notify(on=["batch.*", "job.died"], to=Webhook(web.url()), batch=batch)
    assert (made.batch, made.owner) == (batch.id, "acme")
    app.enqueue("fails", batch=batch)
    app.enqueue("fails", owner="acme")
    batch.seal()
    app.run_inline()
    assert [body["type"] for body in web.bodies()] == ["batch.sealed", "job.died", "batch.failed"]


def test_a_receiver_that_is_gone_ends_its_subscription_and_others_hear_of_it(app, web):
    web.plans["hook"].then = "410"
    others = hear(app, "subscription.*")
    made = app.subscriptions.add("job.died, subscription.*", Webhook(web.url()))
    app.run_inline()
    died(app, 2)
    found = app.subscriptions.get(made.id)
    assert not found.enabled
    assert "gone for good" in found.reason
    assert len(web.received) == 1, "of one death; of its own beginning and end it hears nothing"
    assert "subscription.disabled" in others.types


@pytest.mark.security("S40")
def test_days_of_nothing_but_failures_end_a_subscription(app):
    recorder = hear(app, to=Recorder(fails=1000, error=ConnectionResetError("x")), name="broken")
    for _ in range(13):
        died(app)
        advance(app, 43_200)
    app.run_inline()
    assert not app.subscriptions.get("broken").enabled
    tries = len(recorder.tries)
    died(app)
    advance(app, 86_400)
    app.run_inline()
    assert len(recorder.tries) == tries
    app.subscriptions.enable("broken", reason="mended")
    recorder.fails = 0
    died(app)
    advance(app, 100)
    app.run_inline()
    assert recorder.got


def test_a_receiver_that_refuses_is_asked_a_few_times(app, web):
    web.plans["hook"].then = "404"
    app.subscriptions.add("job.died", Webhook(web.url()))
    died(app)
    for _ in range(12):
        advance(app, 86_500)
        app.run_inline()
    (delivery,) = app.deliveries.list()
    assert (delivery.state, len(web.received)) == ("dead", 6)
    assert "404" in delivery.error


def test_what_is_switched_off_is_not_sent_even_if_it_waits(app, web):
    web.plans["hook"].next = ["503"]
    made = app.subscriptions.add("job.died", Webhook(web.url()))
    died(app)
    app.subscriptions.disable(made.id, reason="too loud")
    advance(app, 100)
    app.run_inline()
    (delivery,) = app.deliveries.list()
    assert delivery.state == "cancelled"
    app.subscriptions.enable(made.id)
    assert app.deliveries.retry(delivery.id).state == "queued"
    app.run_inline()
    assert [one.confirmed for one in web.received] == [False, True]
    assert len({one.id for one in web.received}) == 1


def test_who_is_switched_on_again_hears_of_what_comes_then(app):
    recorder = hear(app, name="mine")
    app.subscriptions.disable("mine")
    died(app, 3)
    app.subscriptions.enable("mine")
    died(app)
    assert len(recorder.got) == 1


def test_an_incident_that_cannot_be_read_stops_nobody(app):
    recorder = hear(app, kind="email")
    died(app)
    with app.store.begin() as unit:
        (row,) = unit.incidents(None, 5)
        unit.write_incident(row._replace(body='{"not": "ours"}'))
    died(app)
    advance(app, 5)
    app.run_inline()
    assert [message.count for message in recorder.got] == [1]


def test_a_secret_is_changed_while_both_hold(app, web):
    made = app.subscriptions.add("job.died", Webhook(web.url()))
    changed = app.subscriptions.rotate(made.id, reason="leaked")
    assert changed.secret not in (None, made.secret)
    died(app)
    assert len(web.received[0].headers["webhook-signature"].split()) == 2
    assert made.secret not in json.dumps([event.data for event in app.events.list()])


def test_a_test_message_takes_the_way_of_all_others(app, web):
    made = app.subscriptions.add("job.died", Webhook(web.url()))
    first, second = app.subscriptions.test(made.id), app.subscriptions.test(made.id)
    app.run_inline()
    assert [body["type"] for body in web.bodies()] == ["subscription.test"] * 2
    assert first.message != second.message


@pytest.mark.security("S09")
def test_another_owners_subscription_is_like_none(app, web):
    made = app.subscriptions.add("job.died", Webhook(web.url()), owner="acme")
    api = app.subscriptions
    for call in (api.get, api.remove, api.enable, api.disable, api.rotate, api.test):
        with pytest.raises(NotFound):
            call(made.id, owner="other")
    died(app, owner="acme")
    (delivery,) = app.deliveries.list(owner="acme")
    assert app.deliveries.list(owner="other") == []
    with pytest.raises(NotFound):
        app.deliveries.get(delivery.id, owner="other")
    with pytest.raises(NotFound):
        app.deliveries.get(app.jobs.list("state:dead")[0].id)


def test_what_can_only_live_in_code_is_not_stored(app, web):
    with pytest.raises(Refused, match="functions"):
        app.subscriptions.add("job.died", Webhook(web.url(), render=lambda message: {}))
    with pytest.raises(Refused, match="declared in code"):
        app.subscriptions.remove(_declared(app))
    with pytest.raises(NotFound, match="batch"):
        app.notify(on="batch.*", to=Webhook(web.url()), batch="nobody")
    with pytest.raises(ConfigError, match="channel"):
        app.notify(on="job.died", to="https://example.com")
    with pytest.raises(ConfigError, match="twice"):
        app.notify(on="job.died", to=Recorder(), name="mine")


def _declared(app) -> str:
    hear(app, name="mine")
    return "mine"


def test_all_of_it_is_awaitable(app, web):
    async def calls() -> None:
        made = await app.aio.subscriptions.add("job.died", Webhook(web.url()))
        assert (await app.aio.subscriptions.list())[0].id == made.id
        assert (await app.aio.subscriptions.get(made.id)).enabled
        assert not (await app.aio.subscriptions.disable(made.id)).enabled
        await app.aio.subscriptions.enable(made.id)
        await app.aio.subscriptions.rotate(made.id)
        delivery = await app.aio.subscriptions.test(made.id)
        assert (await app.aio.deliveries.get(delivery.id)).state == "queued"
        assert len(await app.aio.deliveries.list()) == 1
        await app.aio.subscriptions.remove(made.id)

    asyncio.run(calls())
    app.run_inline()
    (delivery,) = app.deliveries.list()
    assert delivery.state == "cancelled"


# -- the dispatcher -----------------------------------------------------------------------------------
def test_without_subscriptions_the_dispatcher_writes_nothing(app):
    died(app, 2)
    with app.store.read() as unit:
        assert unit.reader_at("dispatch") is None


def test_a_subscription_made_late_does_not_read_what_was_before(app):
    died(app, 3)
    app.subscriptions.add("job.died", Webhook("https://example.com"))
    with app.store.read() as unit:
        newest = unit.newest_event()
    dispatch = Dispatch(app.settings)
    assert not dispatch.turn(app.store)
    with app.store.read() as unit:
        assert unit.reader_at("dispatch").cursor >= newest - 1
    assert app.deliveries.list() == []


def test_one_event_that_cannot_be_told_stops_nobody(app):
    recorder = hear(app)
    with app.store.begin() as unit:
        unit.write_events(
            [
                NewEvent(
                    EventType.JOB_DIED,
                    data={"kind": ["not", {"a": "text"}], "code": None, "next": 1},
                )
            ]
        )
        unit.write_events(
            [NewEvent(EventType.JOB_DIED, data={"max_retries": "many", "failures": {}, "group": 7})]
        )
    died(app)
    assert recorder.types[-1] == "job.died"
    assert recorder.got[-1].data["kind"] == "fails"


def test_a_long_log_is_read_page_by_page(app):
    recorder = hear(app, "queue.paused")
    with app.store.begin() as unit:
        unit.write_events(
            NewEvent(
                EventType.QUEUE_PAUSED if n % 400 == 0 else EventType.QUEUE_RESUMED,
                data={"queue": "q"},
            )
            for n in range(1201)
        )
    app.run_inline()
    assert len(recorder.got) == 4


def test_many_messages_are_made_in_small_steps_and_none_is_left_out(app):
    recorder, other = hear(app, "queue.paused"), hear(app, "queue.*", filter="queue:q7")
    with app.store.begin() as unit:
        unit.write_events(
            NewEvent(EventType.QUEUE_PAUSED, data={"queue": f"q{n}"}) for n in range(120)
        )
    turns, dispatch = 0, Dispatch(app.settings)
    while dispatch.turn(app.store):
        turns += 1
    assert turns == 2
    app.run_inline()
    assert len({message.data["queue"] for message in recorder.got}) == len(recorder.got) == 120
    assert len(other.got) == 1


def test_what_happens_after_a_long_sleep_is_told_once_the_workers_are_awake(app):
    """For a moment nobody has named the subscription for more than a day: that does not mean that it has ended."""
    hear(app)
    app.subscriptions.add(
        "job.died", Webhook("https://example.com")
    )  # this one is stored: it is always there
    manifest = app.manifest("shop")
    with app.store.begin() as unit:
        speak(unit, manifest)
    dispatch = Dispatch(app.settings)
    dispatch.turn(app.store)
    advance(app, 2 * 86_400)
    with app.store.begin() as unit:
        unit.write_events(
            [NewEvent(EventType.JOB_DIED, data={"kind": "fails", "queue": "default"})]
        )
    dispatch.turn(app.store)
    with app.store.begin() as unit:
        speak(unit, manifest)
    advance(app, 10)
    dispatch.turn(app.store)
    assert len(app.deliveries.list()) == 2


def test_a_drain_returns_the_users_jobs_alone(app):
    recorder = hear(app)
    app.enqueue("fails")
    drained = drain_anywhere(app)
    assert [job.kind for job in drained.jobs] == ["fails"]
    assert drained.attempts == 1
    assert len(recorder.got) == 1


def test_deliveries_are_in_no_list_and_no_count_of_jobs(app):
    hear(app, to=Recorder(fails=1000, error=Gone("x")))
    died(app)
    assert [job.kind for job in app.jobs.list()] == ["fails"]
    assert app.jobs.count("state:dead") == 1
    assert len(app.failures.groups()) == 1
    assert [queue.name for queue in app.queues.list() if queue.name.startswith("mulligan")] == []
    assert len(app.jobs.list(f"kind:{DELIVER_KIND}.{app.subscriptions.list()[0].id}")) == 1


def test_an_argument_of_our_own_kinds_is_no_index_of_the_users(app):
    with pytest.raises(Refused, match="indexed by no kind"):
        app.jobs.list("arg.subscription:x")


def test_a_death_says_its_group_and_how_often_it_failed(app):
    job = ran(app, app.enqueue("fails"))
    (died_event,) = [event for event in app.jobs.history(job.id) if event.type == "job.died"]
    assert died_event.data["group"] == app.failures.groups()[0].fingerprint
    assert (died_event.data["failures"], died_event.data["max_retries"]) == (1, 0)
