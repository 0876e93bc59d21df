"""One job: its life to scale, what it is connected with, and a retry that is looked at before it is done."""

from __future__ import annotations

import re

import pytest

from mulligan import Context, Fail, Hold, Park, Snooze
from mulligan.core.job import SECOND
from mulligan.manifest.declared import speak
from support.visiting import visiting

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`


@pytest.fixture
def shop(app):
    @app.job(name="convert", editable=("page", "api_key"), uses="gateway")
    def convert(page: int, api_key: str = ""):
        return (
            Fail("BAD_PAGE", f"no page {page}", public="This page does not exist.", final=True)
            if page < 1
            else page
        )

    @app.job(name="wander", uses="gateway")
    def wander(ctx: Context):
        steps = (
            Snooze(5),
            Hold("gateway", until=10),
            Park("which way?", choices=("left", "right")),
        )
        return steps[ctx.job.token - 1] if ctx.job.token <= len(steps) else ctx.choice

    @app.job(name="parent")
    def parent(ctx: Context):
        app.enqueue("convert", {"page": 1}, unique=ctx.key("child"))

    app.store.prepare()
    with app.store.begin() as unit:
        speak(unit, app.manifest())
    return app


@pytest.fixture
def guest(shop):
    with visiting(shop) as guest:
        yield guest


@pytest.fixture
def dead(shop):
    job = shop.enqueue("convert", {"page": 0, "api_key": "sk_live_0123456789abcdef"}, owner="acme")
    shop.run_inline()
    return job


def test_a_life_is_drawn_with_every_kind_of_wait_and_told_as_a_list(shop, guest):
    job = shop.enqueue("wander")
    for seconds in (0, 6, 11):
        shop.store.shift_clock(seconds * SECOND)
        shop.run_inline()
    page = guest.page(f"/jobs/{job.id}")
    for words in (
        "put off by its own code",
        "held: what it uses is down",
        "parked: a person must decide",
    ):
        assert words in page
    assert "<option>left</option>" in page
    for pattern in ("h-put-off", "h-held", "h-parked"):
        assert f"url(#{pattern})" in page


def test_a_dead_job_says_what_a_retry_would_do_and_where_it_would_wait(shop, guest, dead):
    page = guest.page(f"/jobs/{dead.id}")
    assert "Retry begins generation 2: attempt 1 of at most 4 (default)" in page
    assert "It has run once: whatever it did outside may be done again." in page
    shop.dependencies.open("gateway", reason="they told us")
    assert re.search(r"As things are it would wait: .*gateway", guest.page(f"/jobs/{dead.id}"))
    assert f"mulligan jobs retry {dead.id}" in page
    assert f"http://localhost/api/v1/jobs/{dead.id}/retry" in page


def test_changes_are_shown_before_they_are_made(shop, guest, dead):
    path = f"/jobs/{dead.id}/edit"
    form = guest.page(path)
    assert 'name="payload.page" value="0"' in form
    assert "0123456789abcdef" not in form
    looked = guest.do(path, **{"payload.page": "7", "queue": "slow", "at": "2h"})
    for words in ("payload.page", "<del>0</del>", "<ins>7</ins>", "<ins>slow</ins>", "in 2 h"):
        assert words in looked
    assert shop.jobs.get(dead.id).generation == 1
    done = guest.do(
        path, do="1", reason="another page", **{"payload.page": "7", "queue": "slow", "at": "2h"}
    )
    assert "Retried: generation 2 begins." in done
    job = shop.jobs.get(dead.id)
    assert (job.payload["page"], job.queue, job.payload["api_key"]) == (
        7,
        "slow",
        "sk_live_0123456789abcdef",
    )
    assert (job.run_at - job.created_at).total_seconds() > 7000


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"payload.page": '"many"'}, "page"),
        ({"max_retries": "some"}, "max_retries: 'some' is no whole number"),
        ({"timeout": "soon"}, "timeout: 'soon' is no length"),
        ({"at": "tomorrow"}, "at: 'tomorrow' is no moment"),
        ({"priority": "99"}, "priority"),
    ],
)
def test_nonsense_is_told_beside_the_form_and_nothing_is_done(shop, guest, dead, form, words):
    page = guest.do(f"/jobs/{dead.id}/edit", **form)
    assert 'role="alert"' in page or "would be refused" in page
    assert words in page
    guest.do(f"/jobs/{dead.id}/edit", do="1", **form)
    assert shop.jobs.get(dead.id).generation == 1


def test_what_cannot_be_retried_or_is_not_yours_has_no_such_form(shop, guest, dead):
    waiting = shop.enqueue("convert", {"page": 1}, delay=60)
    assert "only what is dead, parked or cancelled" in guest.page(f"/jobs/{waiting.id}/edit")
    guest.enter("globex")
    assert guest.client.get(f"/jobs/{dead.id}/edit").status_code == 404
    guest.enter("acme", "viewer")
    assert "needs a key of role operator" in guest.page(f"/jobs/{dead.id}/edit")


def test_who_made_it_and_what_it_made_are_one_click_away(shop, guest):
    parent = shop.enqueue("parent")
    shop.run_inline()
    child = next(job for job in shop.jobs.list() if job.kind == "convert")
    assert f'href="/jobs/{child.id}"' in guest.page(f"/jobs/{parent.id}")
    assert f'href="/jobs/{parent.id}"' in guest.page(f"/jobs/{child.id}")


def test_an_operator_makes_a_link_for_the_owner_and_it_ends(shop, guest, dead):
    page = guest.do(f"/jobs/{dead.id}/share", until="1h", again="1")
    link = re.search(r"/status/\S+", page)[0].split("<")[0]
    guest.client.cookies.clear()
    assert "This page does not exist." in guest.page(link)
    shop.store.shift_clock(3601 * SECOND)
    assert guest.client.get(link).status_code == 404
