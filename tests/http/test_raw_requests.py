"""Malformed HTTP requests, sent byte by byte to a real server."""

from __future__ import annotations

import socket

import pytest

from mulligan.config import Settings
from support.web_server import run_server

pytestmark = pytest.mark.processes


@pytest.fixture
def send(app, settings: Settings):
    key = app.keys.create("*", "admin").text

    with run_server(settings) as at:

        def send(head: str, body: bytes = b"", *, chunks: int = 0) -> tuple[int, int]:
            """Return the status and how many bytes of the body the server accepted."""
            with socket.create_connection((at.host, at.port), timeout=20) as connection:
                connection.sendall(
                    f"{head}\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n".encode(
                        "latin-1"
                    )
                    + body
                )
                sent = _send_chunks(connection, chunks)
                return _status(connection), sent

        yield send


def _send_chunks(connection: socket.socket, chunks: int) -> int:
    """Send chunks until the server closes the connection. Return the bytes sent."""
    sent = 0
    piece = f"{65_536:x}\r\n".encode() + b"x" * 65_536 + b"\r\n"
    try:
        for _ in range(chunks):
            connection.sendall(piece)
            sent += 65_536
    except OSError:
        pass
    return sent


def _status(connection: socket.socket) -> int:
    try:
        answer = connection.recv(4096)
    except ConnectionResetError:
        return 0
    return int(answer.split(b" ")[1]) if answer else 0


JSON = "Content-Type: application/json"


@pytest.mark.security("S17")
@pytest.mark.any_store
def test_a_body_of_fifty_megabytes_is_refused_before_it_is_read(send):
    assert send(f"POST /api/v1/jobs HTTP/1.1\r\n{JSON}\r\nContent-Length: 52428800")[0] == 413


@pytest.mark.security("S17")
@pytest.mark.any_store
def test_an_endless_body_is_not_read_to_its_end(send):
    status, sent = send(
        f"POST /api/v1/jobs HTTP/1.1\r\n{JSON}\r\nTransfer-Encoding: chunked", chunks=3000
    )
    assert status in {413, 0}
    # The server reads 13 MB. The kernel may buffer up to 36 MB more, depending on the load.
    assert sent < 64 * 1024 * 1024


PATHS = (
    "/api/v1/jobs/%00",
    "/api/v1/jobs/%ED%A0%80",
    "/api/v1/jobs/%FF%FE",
    "/api/v1/jobs/%",
    "/api/v1/jobs/%zz",
    "/api/v1/jobs/..%2f..%2fetc",
    "/api/v1/dependencies/%00/open",
    "/api/v1/jobs/a%0d%0ab",
    "/api/v1//jobs",
    "/api/v1/jobs?filter=%00",
    "/api/v1/jobs?filter=%ED%A0%80",
    "/api/v1/jobs?cursor=%FF",
    "/api/v1/jobs?limit=%00",
    "/api/v1/jobs?" + "a=b&" * 10_000,
    "/api/v1/jobs?filter=" + "x" * 30_000,
    "/api/v1/jobs?" + "&" * 50_000,
    "/api/v1/queues/%ED%B0%80",
    "/api/v1/kinds/%00",
    "/api/v1/keys/%00",
    "/api/v1/audit?type=%00",
    "/api/v1/audit?since=%00",
    "/api/v1/audit?job=%00",
    "/api/v1/audit?actor=%00",
    "/api/v1/webhooks/%00",
    "/api/v1/policies/%00",
    "/api/v1/schedules/%00/next",
    "/api/v1/insight?kind=%00",
    "/api/v1/failures/%ED%A0%80",
    "/api/v1/deliveries?subscription=%00",
    "/api/v1/batches?state=%00",
    "/api/v1/events?filter=%00",
)
HEADS = (
    "POST /api/v1/jobs HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: -1",
    "POST /api/v1/jobs HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1\r\nContent-Length: 2",
    "POST /api/v1/jobs HTTP/1.1\r\nContent-Type: a\x00b\r\nContent-Length: 2",
    "GET /api/v1/jobs HTTP/1.1\r\nX-Long: " + "x" * 100_000,
    "GET /api/v1/jobs HTTP/9.9",
    "BREW /api/v1/jobs HTTP/1.1",
    "GET http://elsewhere.example/api/v1/jobs HTTP/1.1",
    "GET * HTTP/1.1",
)


@pytest.mark.security("S17", "S19")
def test_malformed_paths_and_queries_cause_no_server_error(send):
    found = {path[:60]: send(f"GET {path} HTTP/1.1\r\nConnection: close")[0] for path in PATHS}
    assert {path: status for path, status in found.items() if not 200 <= status < 500} == {}


@pytest.mark.security("S17")
@pytest.mark.any_store
def test_malformed_headers_cause_no_server_error(send):
    found = {head[:80]: send(head, b"{}")[0] for head in HEADS}
    assert {head: status for head, status in found.items() if not 200 <= status < 500} == {}


@pytest.mark.any_store
def test_a_body_that_is_too_large_is_answered_while_the_client_sends(app, settings):
    """Without reading on, the server resets the connection and the client sees no answer."""
    key = app.keys.create("*", "operator").text
    size = 8 * 1024**2
    with run_server(settings) as web:
        for head in (f"Content-Length: {size}", "Transfer-Encoding: chunked"):
            with socket.create_connection((web.host, web.port), timeout=20) as connection:
                request = f"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
                connection.sendall(
                    f"{request}Content-Type: application/json\r\n{head}\r\n\r\n".encode()
                )
                body = b"x" * size
                if "chunked" in head:
                    body = f"{size:x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
                connection.sendall(body)
                assert connection.recv(65_536).startswith(b"HTTP/1.1 413 ")
