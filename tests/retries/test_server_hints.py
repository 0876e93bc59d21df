"""Waits that a server requested are explained: a real HTTP response, from the header to the sentence."""

from __future__ import annotations

import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from mulligan import Fixed, Policy


class _Busy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(429)
        self.send_header("Retry-After", "120")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def busy_url():
    server = HTTPServer(("127.0.0.1", 0), _Busy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_wait_that_a_server_requested_is_named_in_the_reason_and_in_the_story(make_app, busy_url):
    app = make_app()

    @app.job(policy=Policy(backoff=Fixed(1)))
    def fetch():
        with urllib.request.urlopen(busy_url) as response:  # noqa: S310 - our own server
            return response.status

    job = fetch.enqueue()
    app.run_inline()
    [attempt] = app.jobs.attempts(job.id)
    assert json.loads(attempt.evidence)["retry_after"] == 120
    assert "the service asked for 2 min" in attempt.reason
    story = app.jobs.explain(job.id).text
    assert "a fixed backoff of 1 s, but the service asked for 2 min" in story
    assert "not stored" not in story
