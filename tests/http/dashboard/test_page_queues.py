"""Actions on queues, kinds, workers and dependencies from the dashboard."""

from __future__ import annotations

import pytest

from mulligan import Policy
from mulligan.manifest.declared import publish_manifest
from support.dashboard_client import sign_in_with_key, text_of
from support.store import open_worker

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`


@pytest.fixture
def client(app):
    app.job(name="call", queue="out", uses="gateway")(lambda: None)
    app.store.prepare()
    with app.store.begin() as tx:
        publish_manifest(tx, app.manifest())
    with sign_in_with_key(app) as client:
        yield client


def test_limits_are_set_and_cleared_with_a_reason(app, client):
    page = client.submit(
        "/queues/out/set", concurrency="4", rate="40/m", until="2h", reason="they asked"
    )
    assert "Queue out: 4 at once, 40 a minute" in page
    assert (app.queues.get("out").concurrency, app.queues.get("out").reason) == (4, "they asked")
    assert "Clear the limit" in client.page("/queues")
    assert "no limit" in client.submit("/queues/out/clear")
    assert app.queues.get("out").concurrency is None
    assert "2 at once" in client.submit("/dependencies/gateway/set", concurrency="2")
    assert "gateway uses the limits in code: no limit" in client.submit(
        "/dependencies/gateway/clear"
    )


@pytest.mark.parametrize(
    "form", [{}, {"concurrency": "four"}, {"rate": "often"}, {"concurrency": "4", "until": "soon"}]
)
def test_an_invalid_limit_is_refused(app, client, form):
    assert "Not done: " in client.submit("/queues/out/set", **form)
    assert not app.queues.get("out").set_by_hand


def test_a_kind_is_held_and_released(app, client):
    app.enqueue("call")
    assert "Kind call is held" in client.submit("/kinds/call/hold", reason="look first", until="1h")
    assert "look first" in client.page("/queues")
    assert "1 job " in client.page("/jobs", filter="kind:call state:queued")
    assert "is released" in client.submit("/kinds/call/release")


def test_every_action_describes_its_effect(client):
    assert "No more jobs start. Running jobs continue." in client.page("/queues")
    page = client.page("/dependencies")
    assert "New jobs that use it wait" in page
    client.submit("/dependencies/gateway/open", reason="maintenance")
    assert "waiting jobs start, slowly at first" in client.page("/dependencies")


def test_draining_an_unknown_worker_is_refused(app, client):
    assert "Not done: unknown or stopped worker" in client.submit(
        "/workers/nobody/drain", reason="update"
    )


def test_a_queue_shows_what_waits_and_why(app, client):
    for _ in range(3):
        app.enqueue("call")
    app.enqueue("call", delay=60)
    page = text_of(client.page("/queues"))
    assert "out running 3 ready 1 scheduled" in page
    client.submit("/queues/out/pause", reason="lunch")
    page = text_of(client.page("/queues"))
    assert "out by key:" in page
    assert "paused 3 held 1 scheduled" in page
    assert "3 ready" not in page


def test_a_page_says_what_a_dependency_answered_and_what_waits_for_it(app, client):
    @app.job(name="pay", uses="gateway", policy=Policy(max_retries=0))
    def pay() -> None:
        raise ConnectionRefusedError("gateway:443 refused")

    with app.store.begin() as tx:
        publish_manifest(tx, app.manifest())
    pay.enqueue()
    app.run_inline()
    client.submit("/dependencies/gateway/open", reason="they told us")
    app.enqueue("call")
    page = text_of(client.page("/dependencies/gateway"))
    for words in (
        "gateway down",
        "1 held",
        "It counts as down when 50 % of at least 20 calls within 2 min fail.",
        "gateway:443 refused",
        "they told us",
        "Used by call",
        "waiting jobs start, slowly at first",
    ):
        assert words in page
    assert 'href="/dependencies/gateway"' in client.page("/dependencies")
    assert client.client.get("/dependencies/unknown").status_code == 404


def test_a_worker_shows_its_memory(app, client):
    open_worker(app.store, "w_big", memory=512_000_000)
    open_worker(app.store, "w_new")
    page = client.page("/queues").partition('id="workers"')[2]
    assert ">512 MB<" in page
    assert page.count('data-name="memory">–<') == 1
