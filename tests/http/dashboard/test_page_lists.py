"""Lists: counts, filters in the address, pages, and what empty screens suggest."""

from __future__ import annotations

import re

import pytest

from support.dashboard_client import sign_in_with_key, sign_in_with_link

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`


@pytest.fixture
def client(app):
    with sign_in_with_key(app) as client:
        yield client


def test_a_count_links_to_a_list_with_the_same_count(app, client):
    app.enqueue("ask")
    app.run_inline()
    for number in range(60):
        app.enqueue("add", {"a": number, "b": 0})
    app.queues.pause("default")
    page = client.page("/")
    link = re.search(r'href="([^"]*)"><span class="word">Held</span> <span class="many">60<', page)[
        1
    ]
    assert "60 jobs" in client.page(link)
    link = re.search(r'href="([^"]*state:parked)">all 1<', page)[1]
    assert "1 job " in client.page(link)
    assert "60 jobs" in client.page(
        "/jobs", filter="kind:add", before=app.jobs.list("kind:add")[9].id
    )


def test_an_owner_sees_only_its_own_counts(app, client):
    for owner in ("acme", "acme", "globex"):
        app.enqueue("add", {"a": 1, "b": 1}, owner=owner, delay=60)
    client.sign_in("acme")
    assert "2 jobs" in client.page("/jobs")
    assert "0 jobs" in client.page("/jobs", filter="owner:globex")


def test_each_part_of_a_filter_can_be_removed_and_the_state_changed(client):
    page = client.page("/jobs", filter='state:dead kind:add "moov atom"')
    for link in (
        "/jobs?filter=kind%3Aadd+%22moov+atom%22",
        "/jobs?filter=state%3Adead+%22moov+atom%22",
        "/jobs?filter=state%3Aparked+kind%3Aadd+%22moov+atom%22",
    ):
        assert f'href="{link}"' in page
        client.page(link)


def test_states_have_counts_and_only_fitting_actions_are_offered(app, client):
    for _ in range(2):
        app.enqueue("refuse", owner="acme")
    app.run_inline()
    app.enqueue("add", {"a": 1, "b": 0}, delay=60)
    app.enqueue("nobody_knows")
    page = re.sub(r"<[^>]+>", " ", client.page("/jobs"))
    text = " ".join(page.split())
    assert "all dead 2 scheduled 1 queued 2 no worker" in text
    page = client.page("/jobs", filter="state:dead")
    assert 'value="retry"' in page
    assert 'value="cancel"' not in page
    assert "Retry all 2 that match" in page
    client.submit("/jobs", back="/jobs", verb="retry")
    assert app.jobs.count("state:dead") == 2


def test_lists_are_exported_as_files(app, client):
    app.enqueue("refuse", owner="=cmd")
    app.run_inline()
    answer = client.client.get("/jobs", params={"filter": "state:dead", "format": "csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    head, row = answer.text.splitlines()
    assert head.startswith("id,kind,queue,owner,state")
    assert "'=cmd" in row
    (job,) = client.client.get("/jobs", params={"format": "json"}).json()
    assert (job["state"], job["owner"]) == ("dead", "=cmd")
    (cause,) = client.client.get("/failures", params={"format": "json"}).json()
    assert (cause["jobs"], cause["code"]) == (1, job["code"])


def test_the_search_box_is_completed_by_the_server(app, client):
    app.enqueue("add", {"a": 1, "b": 0})
    (first, *_) = client.client.get("/search", params={"text": "state:queued kind:ad"}).json()
    assert first == {"text": "state:queued kind:add ", "label": "add", "what": "kind"}


def test_events_are_filtered_by_the_address_and_paged(app, client):
    for _ in range(60):
        app.enqueue("add", {"a": 1, "b": 1})
    app.enqueue("refuse", owner="acme")
    app.run_inline()
    page = client.page("/events", filter="type:job.died")
    assert (page.count("job.died</td>"), page.count("job.succeeded</td>")) == (1, 0)
    assert "job.succeeded" in client.page("/events", filter="type:job.* kind:add")
    assert "No matching events" in client.page("/events", filter="kind:nobody")
    first = client.page("/events", filter="type:job.succeeded")
    older = re.search(r'href="(/events\?before=[^"]*)"', first)[1]
    assert first.count("job.succeeded</td>") == 50
    assert client.page(older).count("job.succeeded</td>") == 10
    assert client.client.get("/events", params={"filter": "colour:red"}).status_code == 400
    assert client.client.get("/events", params={"before": str(10**30)}).status_code == 422


SUGGESTED_COMMANDS = {
    "/": "mulligan enqueue",
    "/jobs": "mulligan enqueue",
    "/failures": "mulligan demo",
    "/batches": "app.batch(",
    "/queues": "mulligan worker APP",
    "/dependencies": '@app.job(uses="gateway")',
    "/operations": "mulligan failures retry",
    "/schedules": "app.schedule(",
    "/alerts": "app.notify(",
    "/notifications": "mulligan notify add",
    "/insight": "mulligan demo",
    "/policies": "app.rules.add(",
    "/events": "mulligan events tail",
    "/audit": "mulligan jobs retry",
}


def test_an_empty_screen_suggests_a_command(app):
    with sign_in_with_link(app) as client:
        assert [
            path for path, command in SUGGESTED_COMMANDS.items() if command not in client.page(path)
        ] == []


def test_an_operation_shows_its_rate_limit_and_progress(app, client):
    for _ in range(4):
        app.enqueue("refuse")
    app.run_inline()
    page = client.page("/operations/new", action="retry", filter="state:dead")
    assert "4 jobs" in page
    page = client.submit(
        "/operations", action="retry", filter="state:dead", careful="1", rate="2/s", stop_if="50 %"
    )
    assert "at most 2 a second" in page
    assert "more than 50 % fail" in page
    assert 'role="progressbar"' in page
    for wrong in ({"stop_if": "all"}, {"rate": "often"}, {"filter": ""}):
        assert "Not done" in client.submit(
            "/operations", **{"action": "discard", "filter": "state:dead", **wrong}
        )


def test_a_bulk_move_requires_a_target_queue(app, client):
    app.enqueue("add", {"a": 1, "b": 1}, delay=60)
    assert "Enter the target queue" in client.page(
        "/operations/new", action="move", filter="state:queued"
    )
    assert "1 jobs" in client.page(
        "/operations/new", action="move", filter="state:queued", queue="slow"
    )
    client.submit("/operations", action="move", filter="state:queued", queue="slow")
    assert app.operations.list()[0].params["queue"] == "slow"


def test_a_bulk_action_is_one_row_of_the_audit(app, client):
    jobs = [app.enqueue("refuse") for _ in range(4)]
    app.run_inline()
    for job in jobs:
        app.jobs.retry(job.id, reason="the disk is back")
    app.jobs.cancel(jobs[0].id, reason="twice")
    page = client.page("/audit")

    assert ">4 jobs" in page
    assert page.count(">job.retried<") == 1
    assert page.count("the disk is back") == 1
    assert f"/jobs/{jobs[3].id}" in page
    assert ">job.retried<" not in client.page("/audit", type="queue.*")


def test_the_rules_of_alerts_are_sentences_with_their_limits(client):
    page = client.page("/alerts")
    for text in (
        "More than 5 % of attempts failed",
        "1 of 20 attempts takes longer than 4 min",
        "Deaths are more than 5× the usual rate",
        "New error: a job died of a failure of class unknown",
    ):
        assert text in page
    assert "… of" not in page


def test_all_matching_jobs_are_offered_above_the_list_and_selected_ones_below(app, client):
    app.enqueue("refuse")
    app.run_inline()
    page = client.page("/jobs", filter="state:dead")
    assert page.index("Retry all 1 that match") < page.index("<table")
    assert page.index("</table>") < page.index('class="selected-bar"')


def test_a_wrong_filter_gets_one_sentence_and_no_list(client):
    answer = client.client.get("/jobs", params={"filter": "state:ded"})
    assert answer.status_code == 400
    assert "0 jobs" not in answer.text
    assert "Save this view" not in answer.text
    assert "Did you mean dead?" in answer.text
    assert 'value="state:ded"' in answer.text


def test_events_and_audit_shorten_ids_and_link_what_they_are_about(app, client):
    batch = app.batch("spring")
    app.enqueue("add", {"a": 1, "b": 2}, batch=batch)
    batch.seal()
    app.enqueue("ask")
    app.run_inline()
    operation = app.operations.start("cancel", "kind:ask state:parked", reason="not needed")
    for path in ("/events", "/audit"):
        page = client.page(path)
        for noun, id_ in (("batches", batch.id), ("operations", operation.id)):
            link = re.search(rf'<a href="/{noun}/{id_}"[^>]*>(.*?)</a>', page)
            assert link is not None, (path, noun)
            assert id_ not in link[1]
            assert f"…{id_[-6:]}" in link[1]
    assert ">returned</td>" not in client.page("/events")


def test_a_batch_says_what_is_left_only_while_something_is(app, client):
    batch = app.batch("spring")
    app.enqueue("add", {"a": 1, "b": 2}, batch=batch)
    batch.seal()
    assert "0 of 1 succeeded, 1 not finished" in client.page("/batches")
    app.run_inline()
    page = client.page("/batches")
    assert "1 of 1 succeeded" in page
    assert "not finished" not in page


def test_doctor_shows_changed_settings_first_and_units(app):
    with sign_in_with_key(app, role="admin") as client:
        page = client.page("/doctor")
    changed, _, defaults = page.partition('id="defaults"')
    assert "database_url" in changed.partition("Settings")[2]
    assert "retry.base_delay" not in changed
    assert re.search(r"retry.max_delay</th><td><code>1 h<", defaults)
    assert re.search(r"limits.payload</th><td><code>1.0 MB<", defaults)
    assert re.search(r"retry.factor</th><td><code>2<", defaults)
