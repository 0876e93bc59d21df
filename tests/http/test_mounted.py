"""The dashboard and the API mounted under a prefix of another application."""

from __future__ import annotations

import asyncio
import re
from html import unescape

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Mount

from mulligan.http.app import create_app
from support.app_tools import run_job

PREFIX = "/ops/jobs"


@pytest.fixture
def store_url(sqlite_url):
    """Use SQLite only: these tests do not depend on the store."""
    return sqlite_url


def in_fastapi(app):
    site = FastAPI()
    site.mount(PREFIX, create_app(app))
    return site


def in_starlette(app):
    return Starlette(routes=[Mount(PREFIX, app=create_app(app))])


@pytest.fixture(params=[in_fastapi, in_starlette], ids=["fastapi", "starlette"])
def site(request, app):
    with TestClient(
        request.param(app), base_url="https://shop.example", follow_redirects=False
    ) as client:
        yield client


@pytest.fixture
def signed_in(app, site):
    key = app.keys.create("*", "admin").text
    answer = site.post(f"{PREFIX}/sign-in", data={"key": key, "next": "/jobs?filter=state:dead"})
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        f"{PREFIX}/jobs?filter=state:dead",
    )
    assert f"Path={PREFIX};" in answer.headers["set-cookie"]
    return site


def test_api_health_and_openapi_are_under_the_prefix(app, site, key):
    headers = key("acme", "operator")
    created = site.post(f"{PREFIX}/api/v1/jobs", json={"kind": "works"}, headers=headers)
    assert created.status_code == 201, created.text
    assert (
        site.get(f"{PREFIX}/api/v1/jobs/{created.json()['id']}", headers=headers).json()["owner"]
        == "acme"
    )
    for path in ("/livez", "/readyz", "/startupz"):
        assert site.get(f"{PREFIX}{path}").text == "ok\n"
    assert site.get(f"{PREFIX}/openapi.json").json()["servers"] == [{"url": f"{PREFIX}/api/v1"}]
    assert "mulligan_jobs" in site.get(f"{PREFIX}/metrics", headers=key()).text
    nothing = site.get(f"{PREFIX}/api/v1/nothing", headers=headers)
    assert (nothing.status_code, nothing.json()["code"]) == (404, "NOT_FOUND")
    assert site.get("/api/v1/jobs", headers=headers).status_code == 404


def test_the_redirect_to_sign_in_is_under_the_prefix(site):
    answer = site.get(f"{PREFIX}/jobs?filter=state:dead")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"{PREFIX}/sign-in?next=%2Fjobs%3Ffilter%3Dstate%3Adead"


def test_every_link_form_and_file_of_every_page_is_under_the_prefix(app, signed_in):
    job = run_job(app, app.enqueue("fails"))
    visited = set()
    queue = [f"{PREFIX}/", f"{PREFIX}/jobs/{job.id}"]
    for url in queue:  # it grows while it is read
        path = url.partition("?")[0]
        if path in visited:
            continue
        visited.add(path)
        answer = signed_in.get(url)
        assert answer.status_code in {200, 400}, (
            url
        )  # a filter that an action refuses is a page too
        if "text/html" in answer.headers["content-type"]:
            found = re.findall(r'(href|src|action|data-\w+|hx-\w+)="(/[^"#]*)', answer.text)
            assert [one for one in found if not one[1].startswith(PREFIX)] == [], url
            queue += [unescape(where) for name, where in found if name in {"href", "src"}]
    assert f"{PREFIX}/failures" in visited
    assert any("/static/" in path for path in visited)


def test_a_form_redirects_under_the_prefix(app, signed_in):
    job = run_job(app, app.enqueue("fails"))
    page = signed_in.get(f"{PREFIX}/jobs/{job.id}").text
    csrf = re.search(r'name="csrf" value="([^"]+)"', page)[1]
    answer = signed_in.post(f"{PREFIX}/jobs/{job.id}/retry", data={"csrf": csrf, "reason": "fixed"})
    assert answer.status_code == 303
    assert answer.headers["location"].startswith(f"{PREFIX}/jobs/{job.id}")
    assert app.jobs.get(job.id).generation == 2


def test_a_status_link_opens_under_the_prefix(app, site):
    job = run_job(app, app.enqueue("fails"))
    answer = site.get(PREFIX + app.status.link(job))
    assert "This file could not be read." in answer.text
    assert f'action="{PREFIX}/status/' in answer.text


async def first_chunk(site, path, headers):
    """Return the status and the first chunk of a stream, then disconnect."""
    received = asyncio.Event()
    messages = []

    async def receive():
        await received.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        messages.append(message.get("status") or message["body"])
        if message.get("body"):
            received.set()

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"shop.example"), *raw],
        "root_path": "",
        "scheme": "https",
        "server": ("shop.example", 443),
        "client": ("192.0.2.1", 5),
        "http_version": "1.1",
    }
    await asyncio.wait_for(site(scope, receive, send), 20)
    return messages[0], messages[1]


def test_streams_work_under_the_prefix(app, signed_in, key):
    cookie = "; ".join(f"{one.name}={one.value}" for one in signed_in.cookies.jar)
    for path, headers in (("/api/v1/events", key()), ("/live", {"cookie": cookie})):
        site = in_fastapi(app)
        assert asyncio.run(first_chunk(site, PREFIX + path, headers)) == (
            200,
            b"retry: 2000\n\n",
        ), path
