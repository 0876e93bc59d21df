"""Slow clients, greedy clients, and forged cookies and headers."""

from __future__ import annotations

import http.client
import logging
import socket
import time

import pytest
from fastapi.testclient import TestClient

from mulligan.access.keys import Sessions
from mulligan.config import read_settings
from mulligan.http import middleware
from mulligan.http.api import event_hub as hubs
from mulligan.http.app import create_app
from mulligan.http.middleware import TokenBuckets, client_network
from support.waiting import until
from support.web_server import StreamClient, get, run_server

pytestmark = pytest.mark.processes


@pytest.fixture
def store_url(ready_sqlite_url):
    """Use SQLite only: these tests do not depend on the store."""
    return ready_sqlite_url


def settings_of(app, **settings):
    return read_settings({"database_url": app.settings.database_url, **settings})


@pytest.fixture
def web(app):
    app.store.prepare()
    with run_server(app.settings) as server:
        yield server


def closed_by_the_server(line):
    try:
        while line.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


SLOW = {
    "nothing": b"",
    "half a head": b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "half a body": b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\nkey=",
    "half a second request": b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /live",
}


@pytest.mark.security("S48", "A01")
@pytest.mark.parametrize("request_part", SLOW.values(), ids=SLOW)
def test_a_connection_with_an_incomplete_request_is_closed(web, monkeypatch, request_part, caplog):
    monkeypatch.setattr(middleware, "HEAD_TIMEOUT", 0.5)
    monkeypatch.setattr(middleware, "BODY_TIMEOUT", 0.5)
    with socket.create_connection((web.host, web.port), timeout=10) as line:
        line.sendall(request_part)
        assert closed_by_the_server(line)
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


@pytest.mark.security("A01")
def test_a_client_that_sends_single_bytes_gets_no_more_time(web, monkeypatch):
    """A server that granted more time for each byte would never close the connection."""
    monkeypatch.setattr(middleware, "HEAD_TIMEOUT", 0.5)
    with socket.create_connection((web.host, web.port), timeout=10) as line:
        line.sendall(b"GET /livez HTTP/1.1\r\nX-Slow: ")

        def dripped():
            try:
                line.sendall(b"x")
            except OSError:
                return True
            return False

        until(dripped, 30, "the end of the connection")


@pytest.mark.security("A02")
def test_a_connection_whose_client_does_not_read_the_response_is_closed(web, app, monkeypatch):
    monkeypatch.setattr(middleware, "WRITE_TIMEOUT", 0.5)
    key = app.keys.create("*", "admin").text
    for number in range(8):
        app.enqueue("refuse", {"text": "x" * 500_000}, owner=str(number))
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.settimeout(10)
        line.connect((web.host, web.port))
        line.sendall(
            f"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
        )
        assert line.recv(16) == b"HTTP/1.1 200 OK\r"
        with pytest.raises(ConnectionResetError):
            until(lambda: line.send(b"x") and None, 10, "the end of the connection")


@pytest.mark.security("A01")
def test_a_connection_with_many_requests_may_last_longer_than_one_request(web, monkeypatch):
    monkeypatch.setattr(middleware, "HEAD_TIMEOUT", 2.0)
    line = http.client.HTTPConnection(web.host, web.port, timeout=10)
    ends = time.monotonic() + 3
    while time.monotonic() < ends:
        line.request("GET", "/livez")
        assert line.getresponse().read() == b"ok\n"
    line.close()


@pytest.mark.timing
@pytest.mark.security("S48")
def test_requests_stay_fast_with_five_hundred_slow_clients_and_five_hundred_streams(app):
    middleware.raise_file_limit()
    app.store.prepare()
    settings = settings_of(app, **{"web.streams_per_key": 500})
    key, lines = app.keys.create("*", "viewer").text, []
    with run_server(settings) as web:
        for _ in range(500):
            lines.append(socket.create_connection((web.host, web.port), timeout=10))
            lines[-1].sendall(b"GET /api/v1/jobs HTTP/1.1\r\nX: ")
            StreamClient(web, key)
        times = []
        for _ in range(40):
            for line in lines[:50]:
                line.sendall(b"x")
            began = time.monotonic()
            assert get(web, "/api/v1/jobs", key)[0] == 200
            times.append(time.monotonic() - began)
        for line in lines:
            line.close()
    assert sorted(times)[int(len(times) * 0.95)] < 1.0, sorted(times)[-5:]


# -- Streams -------------------------------------------------------------------------------------
@pytest.mark.security("S48", "A03")
def test_the_stream_limit_counts_all_keys_of_an_owner(app):
    app.store.prepare()
    settings = settings_of(app, **{"web.streams_per_key": 2, "web.streams_per_owner": 3})
    with run_server(settings) as web:
        keys = [app.keys.create("acme", "viewer").text for _ in range(3)]
        first, *_ = [StreamClient(web, key).ready() for key in keys]
        status, problem = get(web, "/api/v1/events", keys[0])
        assert (status, problem["code"]) == (429, "TOO_MANY_STREAMS")
        assert StreamClient(web, app.keys.create("globex", "viewer").text).ready()
        first.close()
        until(lambda: web.hub._owners["acme"] == 2, 10, "room")
        assert StreamClient(web, keys[1]).status == 200


@pytest.mark.security("S05", "A04")
@pytest.mark.parametrize("by", ["key", "link"])
def test_the_stream_of_a_page_ends_when_its_visitor_signs_out(app, web, monkeypatch, by):
    monkeypatch.setattr(hubs, "KEY_CHECK_INTERVAL", 0.2)
    sessions = Sessions(lambda: app.store)
    entered = (
        sessions.sign_in(app.keys.create("*", "viewer").text)
        if by == "key"
        else sessions.redeem(sessions.create_link())
    )
    line = http.client.HTTPConnection(web.host, web.port, timeout=10)
    line.request("GET", "/live", headers={"Cookie": f"mulligan_{web.port}={entered}"})
    answer = line.getresponse()
    assert answer.status == 200
    until(lambda: web.hub._open, 10, "a listener")
    sessions.sign_out(entered)
    until(lambda: not answer.read1(65_536), 10, "the end of the stream")
    line.close()


# -- Cookies -------------------------------------------------------------------------------------
@pytest.fixture
def visit(app):
    """Sign in with these settings. Return the client and its Set-Cookie header."""
    app.store.prepare()

    def entered(url="http://localhost", headers=None, **settings):
        client = TestClient(
            create_app(settings_of(app, **settings)), base_url=url, follow_redirects=False
        )
        key = app.keys.create("*", "admin").text
        answer = client.post("/sign-in", data={"key": key}, headers=headers or {})
        assert answer.status_code == 303
        return client, answer.headers["set-cookie"]

    return entered


@pytest.mark.security("S06", "A05")
def test_a_cookie_is_secure_behind_a_proxy_that_speaks_tls(visit):
    assert "; secure" not in visit()[1].lower()
    assert "; secure" in visit("https://localhost")[1].lower()
    assert "; secure" in visit(**{"web.public_url": "https://jobs.example.com/m"})[1].lower()


@pytest.mark.security("A06")
@pytest.mark.parametrize(
    "value", ["\xe9", "a.\xe9", "a.b.c", ".", "x" * 3000, "e30.\xff", '"', "e30."]
)
def test_a_forged_message_cookie_is_ignored(visit, value):
    client, _ = visit()
    session = next(f"{name}={text}" for name, text in client.cookies.items())
    flash_cookie = session.partition("=")[0] + "_flash"
    answer = client.get(
        "/jobs", headers={"Cookie": f"{session}; {flash_cookie}={value}".encode("latin-1")}
    )
    assert answer.status_code == 200


@pytest.mark.security("A07")
def test_signing_in_replaces_a_session_cookie_that_was_planted(app, visit):
    sessions = Sessions(lambda: app.store)
    planted = sessions.redeem(sessions.create_link("acme"))
    _, cookie = visit(headers={"Cookie": f"mulligan_0={planted}"})
    assert planted not in cookie
    assert sessions.authenticate(planted).scope == "acme"


# -- Client addresses --------------------------------------------------------------------------------------
class FromElsewhere:
    def __init__(self, host):
        self.client = type("Client", (), {"host": host})()


@pytest.mark.security("A08")
def test_forged_client_addresses_cannot_fill_the_rate_limiter(app):
    buckets = TokenBuckets(1.0, 10)
    for number in range(10_050):
        buckets.take(client_network(FromElsewhere(f"{number:05}" + "x" * 60_000)))
    assert len(buckets) <= 10_000
    assert max(map(len, buckets._buckets)) <= 64


@pytest.mark.security("A08")
def test_forwarded_headers_count_only_from_a_proxy_on_this_machine(app):
    from mulligan.http.app import server_config

    app.store.prepare()
    config = server_config(create_app(app.settings))
    config.load()
    with TestClient(
        config.loaded_app, base_url="http://localhost", client=("203.0.113.9", 1)
    ) as client:
        answers = [
            client.post(
                "/sign-in",
                data={"key": "mk_wrong"},
                headers={"X-Forwarded-For": f"198.51.100.{number}"},
            )
            for number in range(12)
        ]
    assert answers[-1].status_code == 429
