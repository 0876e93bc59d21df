"""An alert about 429 responses lowers the concurrency of a queue, and restores it afterwards.

Worker and server are real.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mulligan import Mulligan
from mulligan.config import read_settings
from mulligan.events.queries import EventQueries
from support.app_tools import advance
from support.waiting import until
from support.worker import Worker

pytestmark = [pytest.mark.processes, pytest.mark.slow]


class Server(ThreadingHTTPServer):
    """A server that counts concurrent calls and answers 429 while it is `limited`."""

    request_queue_size = 64
    limited = False
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CountingHandler)
        self.lock = threading.Lock()
        self.active = 0  # calls now
        self.peak = 0  # most calls at a time
        self.answered = 0

    def wait_for_answers(self, more: int) -> None:
        """Wait until so many more calls have been answered."""
        enough = self.answered + more
        until(lambda: self.answered >= enough, 60, f"{more} more answers")


class CountingHandler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.active += 1
            self.server.peak = max(self.server.peak, self.server.active)
        time.sleep(0.05)
        with self.server.lock:
            self.server.active -= 1
            self.server.answered += 1
        self.send_response(429 if self.server.limited else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def wait_for_concurrency(app, concurrency):
    until(
        lambda: app.queues.get("pages").concurrency == concurrency,
        40,
        f"a concurrency of {concurrency}",
    )


def test_a_spike_of_429s_lowers_concurrency_and_restores_it(store_url, tmp_path, server):
    app = Mulligan(
        settings=read_settings({"database_url": store_url}, environ={}, file=tmp_path / "none.toml")
    )
    app.open()
    environ = {"CALLED": f"http://127.0.0.1:{server.server_port}/"}
    worker = Worker(
        store_url,
        tmp_path,
        app="support.limited:app",
        environ=environ,
        worker__concurrency="20",
        alerts__every="1",
    )
    feeding = threading.Event()

    def feed() -> None:
        while not feeding.wait(0.1):
            app.enqueue("fetch", queue="pages")

    threading.Thread(target=feed, daemon=True).start()
    try:
        for _ in range(200):
            app.enqueue("fetch", queue="pages")
        wait_for_concurrency(app, 10)  # as the manifest of the worker declares
        server.limited = True
        wait_for_concurrency(app, 7)
        server.wait_for_answers(20)  # jobs that ran then have ended
        with server.lock:
            server.peak = server.active
        server.wait_for_answers(30)
        assert 0 < server.peak <= 7
        (alert,) = [one for one in app.alerts.list() if one.rule == "rate_limited_queue"]
        assert (alert.state, alert.limit, alert.action) == ("firing", 7, "reduce")
        server.limited = False
        server.wait_for_answers(30)  # no more 429 responses
        observed = set()
        for _ in range(40):
            advance(app, 31)
            server.wait_for_answers(20)
            queue = app.queues.get("pages")
            observed.add(queue.concurrency)
            over = not [one for one in app.alerts.list() if one.rule == "rate_limited_queue"]
            if over and queue.concurrency == 10 and not queue.set_by_hand:
                break
        assert {8, 9, 10} <= observed <= set(range(1, 11))
        assert not app.queues.get("pages").set_by_hand
        with app.store.read() as tx:
            log = EventQueries(tx).list_events_after(0, 1_000_000)
        events = [event for event in log if event.actor == "alert"]
        of_rule = [event for event in events if event.data.get("rule") == "rate_limited_queue"]
        assert [event.type for event in of_rule] == ["alert.fired", "alert.resolved"]
        assert "queue.changed" in {event.type for event in events}
    finally:
        feeding.set()
        worker.end()
        app.close()
