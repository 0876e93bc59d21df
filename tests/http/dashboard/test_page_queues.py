"""Queues, kinds, workers, dependencies: what an operator says of them from the pages."""

from __future__ import annotations

import pytest

from mulligan.manifest.declared import speak
from support.visiting import visiting

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`


@pytest.fixture
def guest(app):
    app.job(name="call", queue="out", uses="gateway")(lambda: None)
    app.store.prepare()
    with app.store.begin() as unit:
        speak(unit, app.manifest())
    with visiting(app) as guest:
        yield guest


def test_limits_are_set_and_cleared_with_a_reason(app, guest):
    page = guest.do(
        "/queues/out/set", concurrency="4", rate="40/m", until="2h", reason="they asked"
    )
    assert "Queue out: 4 at once, 40 a minute" in page
    assert (app.queues.get("out").concurrency, app.queues.get("out").reason) == (4, "they asked")
    assert "Clear the limit" in guest.page("/queues")
    assert "no limit" in guest.do("/queues/out/clear")
    assert app.queues.get("out").concurrency is None
    assert "2 at once" in guest.do("/dependencies/gateway/set", concurrency="2")
    assert "gateway is back to what its code says: no limit" in guest.do(
        "/dependencies/gateway/clear"
    )


@pytest.mark.parametrize(
    "form", [{}, {"concurrency": "four"}, {"rate": "often"}, {"concurrency": "4", "until": "soon"}]
)
def test_a_limit_nobody_understands_is_refused_in_words(app, guest, form):
    assert "Not done: " in guest.do("/queues/out/set", **form)
    assert not app.queues.get("out").set_by_hand


def test_a_kind_is_held_and_released_and_its_jobs_are_counted(app, guest):
    app.enqueue("call")
    assert "Kind call is held" in guest.do("/kinds/call/hold", reason="look first", until="1h")
    assert "look first" in guest.page("/queues")
    assert "1 job " in guest.page("/jobs", filter="kind:call state:queued")
    assert "is released" in guest.do("/kinds/call/release")


def test_every_form_says_beforehand_what_it_does(guest):
    assert "Nothing of it starts any more; what runs goes on." in guest.page("/queues")
    page = guest.page("/dependencies")
    assert "Jobs that use it wait" in page
    guest.do("/dependencies/gateway/open", reason="maintenance")
    assert "go on, slowly at first" in guest.page("/dependencies")


def test_a_worker_is_asked_to_drain(app, guest):
    assert "Not done: no worker" in guest.do("/workers/nobody/drain", reason="update")
