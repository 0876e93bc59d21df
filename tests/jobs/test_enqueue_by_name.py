"""Enqueue by name in a process without the app: the manifest's declarations apply as in the app."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from mulligan import Unique
from mulligan.core.errors import ConfigError, PayloadRefused, UniqueMismatch
from mulligan.manifest.declared import publish_manifest


@pytest.fixture
def app(make_app):
    """The app with its handlers; its manifest is what other processes know."""
    app = make_app()

    @app.job(name="charge", unique=Unique(by=("owner", "payload.order")), queue="money")
    def charge(order: int, note: str = "") -> None: ...

    @app.job(name="call", uses=("gateway", "account-{account}"))
    def call(account: int, region: str = "eu") -> None: ...

    @app.job(name="route", uses="region-{region}")
    def route(region: str = "eu") -> None: ...

    @app.job(name="compute", uses=lambda payload: f"host-{payload['host']}")
    def compute(host: str) -> None: ...

    @app.job(name="remind")
    def remind(at: datetime, people: list[str] = []) -> None: ...  # noqa: B006 - never called

    publish(app)
    return app


@pytest.fixture
def client(app, make_app):
    """A process that enqueues by name and has no handlers."""
    return make_app()


def publish(app, release="r1"):
    with app.store.begin() as tx:
        publish_manifest(tx, replace(app.manifest("site:app"), release=release))


def test_a_unique_kind_is_unique_by_name(app, client):
    first = client.enqueue("charge", {"order": 7}, owner="acme")
    again = client.enqueue("charge", {"order": 7, "note": "again"}, owner="acme")
    in_app = app.enqueue("charge", {"order": 7}, owner="acme")
    assert (first.deduplicated, first.unique_key) == (False, '["acme",7]')
    assert [again.id, in_app.id] == [first.id, first.id]
    assert again.deduplicated
    assert not client.enqueue("charge", {"order": 7}, owner="other").deduplicated


def test_an_explicit_key_by_name_is_reserved_as_the_kind_declares(make_app):
    app, client = make_app(), make_app()

    @app.job(name="send", unique=Unique(while_="queued", for_=60))
    def send(n: int) -> None: ...

    publish(app)
    job = client.enqueue("send", {"n": 1}, unique="mine")
    assert client.enqueue("send", {"n": 1}, unique="mine").id == job.id
    with pytest.raises(UniqueMismatch):
        client.enqueue("send", {"n": 2}, unique="mine")
    app.run_inline()
    assert not client.enqueue("send", {"n": 1}, unique="mine").deduplicated


REFUSED = [
    ("charge", {"order": "seven"}, 'order: expected an integer, got "seven"'),
    ("charge", {}, "order: is missing"),
    ("charge", {"order": 7, "ordr": 8}, "ordr: unknown; known: note, order"),
    ("remind", {"at": "soon"}, 'at: "soon" is not a valid date-time'),
    ("remind", {"at": "2027-01-01T06:00:00Z", "people": [7]}, "people.0: expected a string, got 7"),
]


@pytest.mark.parametrize(("kind", "payload", "message"), REFUSED)
def test_a_payload_that_the_schema_refuses_is_refused_by_name(app, client, kind, payload, message):
    with pytest.raises(PayloadRefused, match=message):
        client.enqueue(kind, payload)
    assert app.jobs.count("") == 0


def test_python_values_are_accepted_by_name(client):
    job = client.enqueue("remind", {"at": datetime(2027, 1, 1), "people": ("ada",)})  # noqa: DTZ001
    assert job.refresh().payload == {"at": "2027-01-01T00:00:00", "people": ["ada"]}


def test_dependencies_with_an_argument_in_their_name_apply_by_name(app, client):
    by_name = client.enqueue("call", {"account": 7})
    assert by_name.uses == app.enqueue("call", {"account": 7}).uses == ("account-7", "gateway")
    assert client.enqueue("route", {}).uses == app.enqueue("route").uses == ("region-eu",)
    assert client.enqueue("route", {"region": "us"}).uses == ("region-us",)
    for name in ("a,gateway", "a b", ""):
        key = f"region-{name}"
        if not name:
            assert client.enqueue("route", {"region": name}).uses == (key,)
            continue
        with pytest.raises(ConfigError, match="dependency"):
            client.enqueue("route", {"region": name})


def test_a_kind_whose_dependencies_a_function_computes_is_refused_by_name(app, client):
    with pytest.raises(PayloadRefused, match="function of the app computes its dependencies"):
        client.enqueue("compute", {"host": "a"})
    assert app.jobs.count("") == 0
    assert app.enqueue("compute", {"host": "a"}).uses == ("host-a",)


def test_braces_of_a_dependency_must_name_an_argument(make_app):
    app = make_app()
    for uses in ("x-{nosuch}", "x-{", "x-{}", "x-{a b}"):
        with pytest.raises(ConfigError):
            app.job(uses=uses)(lambda account: None)


def test_during_a_deploy_a_payload_of_either_release_is_accepted(app, client, make_app):
    newer = make_app()

    @newer.job(name="charge", unique=Unique(by="payload.invoice"))
    def charge(invoice: str) -> None: ...

    publish(newer, "r2")
    assert client.enqueue("charge", {"order": 7}).unique_key == '["",7]'
    assert client.enqueue("charge", {"invoice": "x"}).unique_key == '["x"]'
    with pytest.raises(PayloadRefused, match="invoice: is missing"):
        client.enqueue("charge", {"total": 1})


def test_a_kind_that_no_manifest_has_is_accepted_as_it_is(client):
    assert client.enqueue("elsewhere", {"any": ["thing"]}).queue == "default"


def test_a_schedule_by_name_uses_the_dependencies_of_its_kind(app, client):
    client.schedule("every", "* * * * *", "call", {"account": 9})
    assert client.schedules.run("every").uses == ("account-9", "gateway")
