"""Pages of the dashboard: overview, lists, one job, headers, and database outages."""

from __future__ import annotations

import re
from html import escape, unescape

import pytest
from fastapi.testclient import TestClient

from mulligan import Hold
from mulligan.access.keys import Sessions
from mulligan.config import read_settings
from mulligan.http import services
from mulligan.http.app import create_app

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`

HOSTILE = "<script>alert(1)</script>'\"><img src=x onerror=alert(2)>{{ 7*7 }}"
COOKIE = {"cookie": "mulligan_0=an-ended-session"}


@pytest.fixture
def client(app):
    """A client that is signed in with scope *."""
    app.store.prepare()
    with TestClient(create_app(app.settings), base_url="http://localhost") as client:
        link = Sessions(lambda: app.store).create_link()
        assert (
            client.post("/sign-in", data={"link": link}, follow_redirects=False).status_code == 303
        )
        yield client


@pytest.fixture
def get_page(client):
    """Return a function that requests a page."""
    return client.get


def test_an_empty_database_shows_the_first_commands(app, get_page):
    app.store.prepare()
    page = get_page("/")
    assert page.status_code == 200
    assert "mulligan enqueue" in page.text
    assert "mulligan worker APP" in page.text


def test_the_overview_lists_impaired_dependencies_only(app, get_page):
    app.job(name="call", uses="gateway")(lambda: None).enqueue()
    assert "gateway" not in get_page("/").text
    app.dependencies.open("gateway", until=5400, reason="<b>they told us</b>")
    page = get_page("/").text
    for words in (
        "<strong>gateway</strong> is down · 1 job waits",
        "&lt;b&gt;they told us",
        "up again in 90 min",
        "Probe now",
        "gateway down",
    ):
        assert words in page
    app.dependencies.close("gateway")
    assert "is recovering" in get_page("/").text


def test_the_reason_of_a_handler_that_holds_a_dependency_is_shown_once(app, get_page):
    @app.job(uses="payments")
    def charge():
        return Hold("payments", until=60, reason="down for maintenance")

    charge.enqueue()
    app.run_inline()
    page = get_page("/").text
    assert 'is down · 1 job waits <span class="detail">· down for maintenance</span>' in page
    assert "waits for payments" not in page


def test_the_overview_shows_failures_parked_jobs_and_counts(app, get_page):
    app.enqueue("add", {"a": 1, "b": 2})
    app.enqueue("refuse")
    app.enqueue("ask")
    app.run_inline()
    app.enqueue("add", {"a": 1, "b": 2}, delay=60)
    page = get_page("/").text
    for words in (
        "BAD_FILE",
        "a person must choose",
        "<strong>No worker</strong> is live · 1 job waits",
        "Failing now",
        "parked",
    ):
        assert words in page
    assert '<use href="#i-hand"/></svg> parked' in page
    assert "scheduled" in get_page("/jobs").text


def test_a_filter_lists_matching_jobs_in_pages(app, get_page):
    for number in range(52):
        app.enqueue("add", {"a": number, "b": 0})
    app.enqueue("ask")
    page = get_page("/", params={"filter": "kind:add"})
    assert page.url.path == "/jobs"
    assert page.text.count('<th scope="row">') == 50
    older = re.search(r'href="([^"]*before=[^"]*)"', page.text)[1].replace("&amp;", "&")
    assert get_page(older).text.count('<th scope="row">') == 2
    assert "No matching jobs" in get_page("/", params={"filter": "state:dead"}).text


@pytest.mark.parametrize("words", ["state:ded", "since:soon", "kind:\x00"])
def test_an_invalid_filter_shows_an_error_page(app, get_page, words):
    app.store.prepare()
    page = get_page("/", params={"filter": words})
    assert page.status_code == 400
    assert "This filter is not understood" in page.text


def test_a_wrong_filter_stays_in_the_search_box_with_a_suggestion(app, get_page):
    app.store.prepare()
    page = get_page("/jobs", params={"filter": "state:ded"}).text
    assert 'value="state:ded"' in page
    page = get_page("/jobs", params={"filter": "stat:dead kind:add"}).text
    assert 'href="/jobs?filter=state%3Adead%20kind%3Aadd"><code>state:dead kind:add</code>' in page
    page = get_page("/jobs", params={"filter": "state:ded"}).text
    assert "Did you mean dead?" in page


def test_a_job_page_shows_timeline_attempts_and_events(app, get_page):
    job = app.enqueue("refuse", {"text": "row 17"}, owner="acme")
    app.run_inline()
    page = get_page(f"/jobs/{job.id}").text
    for words in ("<svg", "This file could not be read.", "BAD_FILE", "acme", "job.died", job.id):
        assert words in page


def test_hostile_text_is_escaped(app, get_page):
    job = app.enqueue("crash", {"text": HOSTILE}, owner=HOSTILE, unique=HOSTILE)
    app.run_inline()
    waiting = app.enqueue("free", {HOSTILE: HOSTILE})
    app.jobs.cancel(app.enqueue("add", {"a": 1, "b": 2}).id, reason=HOSTILE)
    filtered = "/jobs?filter=kind:" + HOSTILE.replace('"', "").replace("'", "")
    group = f"/failures/{app.failures.groups()[0].fingerprint}"
    for path in (
        "/",
        f"/jobs/{job.id}",
        f"/jobs/{waiting.id}",
        filtered,
        "/failures",
        group,
        "/events",
        "/audit",
    ):
        page = get_page(path).text
        assert "<script>alert" not in page
        assert "<img" not in page
        assert [
            src for src in re.findall(r"<script([^>]*)>", page) if 'src="/static/' not in src
        ] == []
    assert escape(HOSTILE) in get_page(f"/jobs/{job.id}").text.replace("&#34;", "&quot;").replace(
        "&#39;", "&#x27;"
    )


def test_secrets_are_masked_and_only_operators_see_the_private_part(app, client, get_page):
    job = app.enqueue("free", {"api_key": "sk_live_0123456789abcdef"})
    broken = app.enqueue("crash", {"text": "only in the trace"})
    app.run_inline()
    assert "0123456789abcdef" not in get_page(f"/jobs/{job.id}").text
    page = get_page(f"/jobs/{broken.id}").text
    assert "in crash" in page
    assert f"mulligan jobs show {broken.id}" in page
    client.post("/sign-in", data={"key": app.keys.create("*", "viewer").text})
    page = get_page(f"/jobs/{broken.id}").text
    assert "in crash" not in page
    assert "Retry" not in page


@pytest.mark.security("S26")
def test_every_response_has_the_security_headers(app, get_page):
    app.store.prepare()
    for path in ("/", "/jobs/nope", "/nowhere", "/static/style.css", "/livez"):
        headers = get_page(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
    for path in ("/", "/jobs/nope"):
        page = get_page(path).text
        assert " style=" not in page
        assert re.search(r"\son\w+=", page) is None


def test_unknown_jobs_and_pages_are_404(app, get_page):
    app.store.prepare()
    for path in ("/jobs/nope", "/jobs/" + "z" * 28, "/jobs/" + "%00" * 28, "/nowhere"):
        assert get_page(path).status_code == 404


@pytest.mark.security("A18")
def test_a_loopback_server_refuses_other_host_names(app):
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
def test_get_requests_change_nothing(app, client, get_page):
    app.enqueue("refuse")
    app.run_inline()
    before = [app.jobs.get(job.id) for job in app.jobs.list()], len(app.events.list())
    links = {"/"}
    for path in sorted(links):
        links |= {
            link
            for link in re.findall(r'href="(/[^"]*)"', get_page(path).text)
            if not link.startswith("/static")
        }
    assert len(links) > 12
    for path in sorted(links):
        assert get_page(unescape(path)).status_code == 200
    assert ([app.jobs.get(job.id) for job in app.jobs.list()], len(app.events.list())) == before
    assert client.head("/").status_code == 200


def test_a_missing_database_is_a_503_until_it_exists(folder, sqlite_url):
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
def test_an_unreachable_server_is_a_503_without_its_password(folder, monkeypatch):
    monkeypatch.setattr(services, "QUERY_TIMEOUT", 0.3)
    settings = read_settings({"database_url": "postgresql://nobody:s3cret@127.0.0.1:1/none"})
    client = TestClient(create_app(settings), base_url="http://localhost")
    page = client.get("/", headers=COOKIE)
    assert page.status_code == 503
    assert "s3cret" not in page.text


def test_a_file_that_is_not_a_database_is_a_503(folder):
    (folder / "notes.db").write_text("dear diary, " * 1000)
    settings = read_settings({"database_url": f"sqlite:///{folder}/notes.db"})
    client = TestClient(create_app(settings), base_url="http://localhost")
    assert client.get("/", headers=COOKIE).status_code == 503


def test_a_database_without_a_schema_is_a_503(folder, postgres_url):
    client = TestClient(
        create_app(read_settings({"database_url": postgres_url})), base_url="http://localhost"
    )
    page = client.get("/", headers=COOKIE)
    assert page.status_code == 503
    assert "mulligan migrate" in page.text
