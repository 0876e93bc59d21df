"""The page of one job: its timeline, its relations, and the retry form with its preview."""

from __future__ import annotations

import logging
import re

import pytest

from mulligan import Context, Fail, Fixed, Hold, Park, Policy, Snooze
from mulligan.core.attempt import Ended, Outcome
from mulligan.core.durations import SECOND
from mulligan.manifest.declared import publish_manifest
from support.dashboard_client import sign_in_with_key
from support.store import RELEASED, claim_new_job, settle_leases

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
    with app.store.begin() as tx:
        publish_manifest(tx, app.manifest())
    return app


@pytest.fixture
def client(shop):
    with sign_in_with_key(shop) as client:
        yield client


@pytest.fixture
def dead(shop):
    job = shop.enqueue("convert", {"page": 0, "api_key": "sk_live_0123456789abcdef"}, owner="acme")
    shop.run_inline()
    return job


def test_the_timeline_shows_every_kind_of_wait_and_has_a_list(shop, client):
    job = shop.enqueue("wander")
    for seconds in (0, 6, 11):
        shop.store.shift_clock(seconds * SECOND)
        shop.run_inline()
    page = client.page(f"/jobs/{job.id}")
    for text in (
        "snoozed by its handler",
        "held: a dependency is down",
        "parked: a person must decide",
    ):
        assert text in page
    assert "<option>left</option>" in page
    for pattern in ("h-snoozed", "h-held", "h-parked"):
        assert f"url(#{pattern})" in page


def test_a_dead_job_shows_what_a_retry_would_do(shop, client, dead):
    page = client.page(f"/jobs/{dead.id}")
    assert "A retry runs it as soon as a worker is free, with 3 fresh retries" in page
    assert "It ran once before, so its side effects may happen again." in page
    shop.dependencies.open("gateway", reason="they told us")
    assert re.search(r"It would wait now: .*gateway", client.page(f"/jobs/{dead.id}"))
    assert f"mulligan jobs retry {dead.id}" in page
    assert f"http://localhost/api/v1/jobs/{dead.id}/retry" in page


def test_changes_are_previewed_before_the_retry(shop, client, dead):
    path = f"/jobs/{dead.id}/edit"
    form = client.page(path)
    assert 'name="payload.page" value="0"' in form
    assert "0123456789abcdef" not in form
    preview = client.submit(path, **{"payload.page": "7", "queue": "slow", "at": "2h"})
    for text in ("payload.page", "<del>0</del>", "<ins>7</ins>", "<ins>slow</ins>", "in 2 h"):
        assert text in preview
    assert shop.jobs.get(dead.id).generation == 1
    done = client.submit(
        path, do="1", reason="another page", **{"payload.page": "7", "queue": "slow", "at": "2h"}
    )
    assert "Retried: generation 2 starts." in done
    job = shop.jobs.get(dead.id)
    assert (job.payload["page"], job.queue, job.payload["api_key"]) == (
        7,
        "slow",
        "sk_live_0123456789abcdef",
    )
    assert (job.run_at - job.created_at).total_seconds() > 7000


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"payload.page": '"many"'}, "page"),
        ({"max_retries": "some"}, "max_retries: 'some' is not a whole number"),
        ({"timeout": "soon"}, "timeout: invalid duration 'soon'"),
        ({"at": "tomorrow"}, "at: invalid time 'tomorrow'"),
        ({"priority": "99"}, "priority"),
    ],
)
def test_invalid_input_shows_an_error_and_changes_nothing(shop, client, dead, form, text):
    page = client.submit(f"/jobs/{dead.id}/edit", **form)
    assert 'role="alert"' in page or "would be refused" in page
    assert text in page
    client.submit(f"/jobs/{dead.id}/edit", do="1", **form)
    assert shop.jobs.get(dead.id).generation == 1


def test_a_refused_change_is_shown_without_a_button_that_contradicts_it(shop, client, dead):
    page = client.submit(f"/jobs/{dead.id}/edit", **{"payload.page": '"many"'})
    assert "A retry with these changes would be refused" in page
    assert "<del>0</del></td><td><ins>many</ins>" in page
    assert "No changes to the job" not in page
    assert "Retry with these changes" not in page


def test_a_job_that_was_only_claimed_shows_that_its_code_did_not_run(shop, client):
    lease = claim_new_job(shop.store, kind="convert", payload='{"page": 1}')
    settle_leases(shop.store, lease, RELEASED)
    page = client.page(f"/jobs/{lease.id}")
    assert "not started" in page
    assert "its code did not run" in page
    assert "#1" not in page
    assert "released, ran" not in page
    assert "was only claimed" in shop.jobs.explain(lease.id).text
    lease = claim_new_job(shop.store, kind="convert", payload='{"page": 1}')
    settle_leases(shop.store, lease, Outcome(Ended.RELEASED, interrupted=True))
    assert "#1" in client.page(f"/jobs/{lease.id}")


def test_an_operator_reads_message_and_trace_without_a_click_and_events_as_sentences(
    shop, client, dead
):
    page = client.page(f"/jobs/{dead.id}")
    assert re.search(r'<details id="private-1" open>', page)
    assert "Attempt 1 started." in page
    assert "Failed after 1 attempt" in page
    assert "same cause" in page


def test_an_owner_retries_and_moves_on_the_dashboard_only_into_declared_queues(shop, client, dead):
    client.sign_in("acme")
    refusal = "queue 'hidden': an owner may use only queues that the app or an operator"
    assert refusal in client.submit(f"/jobs/{dead.id}/edit", queue="hidden")
    assert refusal in client.submit(f"/jobs/{dead.id}/edit", do="1", queue="hidden")
    move = {"action": "move", "filter": "state:queued", "queue": "hidden"}
    assert refusal in client.submit("/operations", **move)
    assert shop.jobs.get(dead.id).generation == 1
    assert "generation 2" in client.submit(f"/jobs/{dead.id}/edit", do="1", queue="default")


def test_the_retry_form_needs_a_retryable_job_and_an_operator_of_its_owner(shop, client, dead):
    waiting = shop.enqueue("convert", {"page": 1}, delay=60)
    assert "Only dead, parked or cancelled jobs" in client.page(f"/jobs/{waiting.id}/edit")
    client.sign_in("globex")
    assert client.client.get(f"/jobs/{dead.id}/edit").status_code == 404
    client.sign_in("acme", "viewer")
    assert "needs a key of role operator" in client.page(f"/jobs/{dead.id}/edit")


def test_a_job_links_to_its_parent_and_its_children(shop, client):
    parent = shop.enqueue("parent")
    shop.run_inline()
    child = next(job for job in shop.jobs.list() if job.kind == "convert")
    assert f'href="/jobs/{child.id}"' in client.page(f"/jobs/{parent.id}")
    assert f'href="/jobs/{parent.id}"' in client.page(f"/jobs/{child.id}")


def test_an_operator_creates_a_status_link_that_expires(shop, client, dead):
    page = client.submit(f"/jobs/{dead.id}/share", until="1h", may_retry="1")
    link = re.search(r'href="([^"]+/status/[^"]+)"', page)[1]
    client.client.cookies.clear()
    assert "This page does not exist." in client.page(link)
    shop.store.shift_clock(3601 * SECOND)
    assert client.client.get(link).status_code == 404


@pytest.fixture
def logged(shop):
    @shop.job(name="logs", policy=Policy(max_retries=1, backoff=Fixed(0)))
    def logs(ctx: Context):
        logging.getLogger("shop").warning("attempt %d <b> password=hunter2", ctx.attempt)
        raise ValueError("end")

    job = shop.enqueue("logs", owner="acme")
    shop.run_inline()
    return job


def test_the_page_shows_operators_the_log_of_each_failed_attempt(client, logged):
    page = client.page(f"/jobs/{logged.id}")
    assert "WARNING shop  attempt 2 <b> password=[redacted]" in page
    assert "attempt 1 <b>" not in page
    assert "attempt 1 <b>" in client.page(f"/jobs/{logged.id}?log=1")
    assert "attempt 2 <b>" in client.page(f"/jobs/{logged.id}?log=99")


def test_viewers_and_owners_see_no_log(shop, logged):
    for scope in ("*", "acme"):
        with sign_in_with_key(shop, scope, "viewer") as client:
            assert "password=[redacted]" not in client.page(f"/jobs/{logged.id}?log=1")
    with sign_in_with_key(shop) as client:
        page = client.submit(f"/jobs/{logged.id}/share", until="1h")
        link = re.search(r'href="([^"]+/status/[^"]+)"', page)[1]
        client.client.cookies.clear()
        assert "password=[redacted]" not in client.page(link)


def test_a_succeeded_job_is_run_again_as_a_copy(shop, client):
    job = shop.enqueue("convert", {"page": 1}, owner="acme")
    shop.run_inline()
    assert "Run again" in client.page(f"/jobs/{job.id}")
    page = client.submit(f"/jobs/{job.id}/rerun")
    copy = shop.jobs.list("kind:convert state:queued")[0]
    assert "Enqueued a copy of this job:" in page
    assert f"/jobs/{copy.id}" in page
    shop.run_inline()
    assert shop.jobs.get(copy.id).state == "succeeded"


def test_a_job_that_is_not_done_is_not_run_again(shop, client, dead):
    assert "Run again" not in client.page(f"/jobs/{dead.id}")
    assert "Not done: job" in client.submit(f"/jobs/{dead.id}/rerun")


def test_the_first_action_of_a_parked_job_is_its_release(shop, client):
    @shop.job(name="asks_for_money")
    def asks_for_money():
        return Park("pay?", choices=("yes", "no"))

    job = asks_for_money.enqueue()
    shop.run_inline()
    page = client.page(f"/jobs/{job.id}")
    actions = page.partition('aria-label="Actions"')[2]
    assert actions.index("Release …") < actions.index(">Retry<")
    assert '<details class="menu main" id="do-release">' in actions
    assert 'class="primary" data-key="r"' not in actions
