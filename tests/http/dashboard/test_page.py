from __future__ import annotations

import re
from html import escape, unescape

import pytest
from fastapi.testclient import TestClient

from mulligan.access.keys import Sessions
from mulligan.config import read_settings
from mulligan.http import services as asking
from mulligan.http.app import create_app

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`

EVIL = "<script>alert(1)</script>'\"><img src=x onerror=alert(2)>{{ 7*7 }}"


COOKIE = {"cookie": "mulligan_0=of-a-session-that-was"}


@pytest.fixture
def client(app):
    """Somebody who is signed in for everything."""
    app.store.prepare()
    with TestClient(create_app(app.settings), base_url="http://localhost") as client:
        link = Sessions(lambda: app.store).link()
        assert (
            client.post("/sign-in", data={"link": link}, follow_redirects=False).status_code == 303
        )
        yield client


@pytest.fixture
def visit(client):
    """Asks the page on the app's database."""
    return client.get


def test_an_empty_database_says_what_to_type(app, visit):
    app.store.prepare()
    page = visit("/")
    assert page.status_code == 200
    assert "mulligan enqueue" in page.text
    assert "mulligan worker APP" in page.text


def test_the_overview_shows_what_jobs_wait_for_and_says_nothing_of_what_is_well(app, visit):
    app.job(name="call", uses="gateway")(lambda: None).enqueue()
    assert "gateway" not in visit("/").text
    app.dependencies.open("gateway", until=5400, reason="<b>they told us</b>")
    page = visit("/").text
    assert '<span class="icon" aria-hidden="true">⊗</span> open' in page
    for words in (
        "<strong>gateway</strong>",
        "&lt;b&gt;they told us",
        "jobs that wait: 1",
        "closes in 90 min",
        "is down",
    ):
        assert words in page
    app.dependencies.close("gateway")
    assert "recovering" in visit("/").text


def test_the_overview_shows_what_needs_a_look_what_moves_and_what_is_done(app, visit):
    app.enqueue("add", {"a": 1, "b": 2})
    app.enqueue("refuse")
    app.enqueue("ask")
    app.run_inline()
    app.enqueue("add", {"a": 1, "b": 2}, delay=60)
    page = visit("/").text
    for words in (
        "BAD_FILE",
        "a person must choose",
        "No worker is live: 1 job waits",
        "succeeded",
        "parked",
        "dead",
    ):
        assert words in page
    assert '<span class="icon" aria-hidden="true">✕</span> dead' in page
    assert "scheduled" in visit("/jobs").text


def test_a_filter_lists_what_matches_and_pages_on(app, visit):
    for number in range(52):
        app.enqueue("add", {"a": number, "b": 0})
    app.enqueue("ask")
    page = visit("/", params={"filter": "kind:add"})
    assert page.url.path == "/jobs"
    assert page.text.count('<th scope="row">') == 50
    older = re.search(r'href="([^"]*before=[^"]*)"', page.text)[1].replace("&amp;", "&")
    assert visit(older).text.count('<th scope="row">') == 2
    assert "No job matches" in visit("/", params={"filter": "state:dead"}).text


@pytest.mark.parametrize("words", ["state:ded", "nonsense", 'kind:"', "kind:\x00"])
def test_a_filter_nobody_understands_is_told_not_broken(app, visit, words):
    app.store.prepare()
    page = visit("/", params={"filter": words})
    assert page.status_code == 400
    assert "That cannot be asked" in page.text


def test_a_job_has_a_page_with_timeline_attempts_facts_and_events(app, visit):
    job = app.enqueue("refuse", {"text": "row 17"}, owner="acme")
    app.run_inline()
    page = visit(f"/jobs/{job.id}").text
    for words in ("<svg", "This file could not be read.", "BAD_FILE", "acme", "job.died", job.id):
        assert words in page


def test_hostile_text_is_only_text(app, visit):
    job = app.enqueue("crash", {"text": EVIL}, owner=EVIL, unique=EVIL)
    app.run_inline()
    waiting = app.enqueue("free", {EVIL: EVIL})
    app.jobs.cancel(app.enqueue("add", {"a": 1, "b": 2}).id, reason=EVIL)
    asked = "/jobs?filter=kind:" + EVIL.replace('"', "").replace("'", "")
    group = f"/failures/{app.failures.groups()[0].fingerprint}"
    for path in (
        "/",
        f"/jobs/{job.id}",
        f"/jobs/{waiting.id}",
        asked,
        "/failures",
        group,
        "/events",
        "/audit",
    ):
        page = visit(path).text
        assert "<script>alert" not in page
        assert "<img" not in page
        assert [
            src for src in re.findall(r"<script([^>]*)>", page) if 'src="/static/' not in src
        ] == []
    assert escape(EVIL) in visit(f"/jobs/{job.id}").text.replace("&#34;", "&quot;").replace(
        "&#39;", "&#x27;"
    )


def test_secrets_stay_out_and_the_private_half_is_for_operators(app, client, visit):
    job = app.enqueue("free", {"api_key": "sk_live_0123456789abcdef"})
    broken = app.enqueue("crash", {"text": "only in the trace"})
    app.run_inline()
    assert "0123456789abcdef" not in visit(f"/jobs/{job.id}").text
    page = visit(f"/jobs/{broken.id}").text
    assert "in crash" in page
    assert f"mulligan jobs show {broken.id}" in page
    client.post("/sign-in", data={"key": app.keys.create("*", "viewer").text})
    page = visit(f"/jobs/{broken.id}").text
    assert "in crash" not in page
    assert "Retry" not in page


@pytest.mark.security("S26")
def test_every_answer_carries_the_strict_headers(app, visit):
    app.store.prepare()
    for path in ("/", "/jobs/nope", "/nowhere", "/static/style.css", "/livez"):
        headers = visit(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
    for path in ("/", "/jobs/nope"):
        page = visit(path).text
        assert " style=" not in page
        assert re.search(r"\son\w+=", page) is None


def test_unknown_jobs_and_pages_are_404(app, visit):
    app.store.prepare()
    for path in ("/jobs/nope", "/jobs/" + "z" * 28, "/jobs/" + "%00" * 28, "/nowhere"):
        assert visit(path).status_code == 404


@pytest.mark.security("A18")
def test_only_this_machine_may_ask(app):
    app.store.prepare()
    client = TestClient(create_app(app.settings))
    for host in (
        "evil.example",
        "evil.example:8321",
        "127.0.0.1.evil.example",
        "",
        "[::1",
        "10.0.0.1",
    ):
        assert client.get("/", headers={"host": host}).status_code == 421
    for host in ("localhost:8321", "127.0.0.1", "[::1]:8321"):
        assert client.get("/livez", headers={"host": host}).status_code == 200


@pytest.mark.security("S30")
def test_looking_changes_nothing(app, client, visit):
    app.enqueue("refuse")
    app.run_inline()
    before = [app.jobs.get(job.id) for job in app.jobs.list()], len(app.events.list())
    seen = {"/"}
    for path in sorted(seen):
        seen |= {
            link
            for link in re.findall(r'href="(/[^"]*)"', visit(path).text)
            if not link.startswith("/static")
        }
    assert len(seen) > 12
    for path in sorted(seen):
        assert visit(unescape(path)).status_code == 200
    assert ([app.jobs.get(job.id) for job in app.jobs.list()], len(app.events.list())) == before
    assert client.head("/").status_code == 200


def test_a_database_that_is_not_there_is_a_calm_503_and_it_recovers(folder, sqlite_url):
    from mulligan import Mulligan

    client = TestClient(
        create_app(read_settings({"database_url": sqlite_url})), base_url="http://localhost"
    )
    page = client.get("/", headers=COOKIE)
    assert page.status_code == 503
    assert "The database does not answer" in page.text
    assert (client.get("/readyz").status_code, client.get("/livez").status_code) == (503, 200)

    app = Mulligan(sqlite_url)
    app.enqueue("add")
    assert (client.get("/", headers=COOKIE).status_code, client.get("/readyz").status_code) == (
        200,
        200,
    )
    app.close()


@pytest.mark.security("S46")
def test_a_server_that_is_away_is_a_calm_503_without_its_password(folder, monkeypatch):
    monkeypatch.setattr(asking, "PATIENCE", 0.3)
    settings = read_settings({"database_url": "postgresql://nobody:s3cret@127.0.0.1:1/none"})
    client = TestClient(create_app(settings), base_url="http://localhost")
    page = client.get("/", headers=COOKIE)
    assert page.status_code == 503
    assert "s3cret" not in page.text


def test_a_file_that_is_no_database_is_a_calm_503(folder):
    (folder / "notes.db").write_text("dear diary, " * 1000)
    settings = read_settings({"database_url": f"sqlite:///{folder}/notes.db"})
    client = TestClient(create_app(settings), base_url="http://localhost")
    assert client.get("/", headers=COOKIE).status_code == 503


def test_a_database_without_a_schema_is_a_calm_503(folder, postgres_url):
    client = TestClient(
        create_app(read_settings({"database_url": postgres_url})), base_url="http://localhost"
    )
    page = client.get("/", headers=COOKIE)
    assert page.status_code == 503
    assert "mulligan migrate" in page.text
