"""Webhooks to the owners of tasks."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from standardwebhooks import Webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="


@pytest.fixture
def receiver():
    deliveries = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            deliveries.append((body, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", deliveries
    server.shutdown()
    server.server_close()


@pytest.mark.seed("002-27", "002-39", "002-48")
def test_owner_gets_a_signed_webhook_for_each_retry_and_the_end(make_world, receiver):
    url, deliveries = receiver
    hooks = {"acme": {"url": url, "secret": SECRET}}
    world = make_world(Webhooks=json.dumps(hooks), PrivateWebhooks="true")
    ann = world.caller()
    bob = world.caller("globex")
    task = ann.order("a cat [503 x1]")
    bad = ann.order("a dog [400]")
    bob.order("a bird")
    world.run(until_done=True)
    bodies = [json.loads(raw) for raw, _ in deliveries]
    assert {body["taskId"] for body in bodies} == {task, bad}
    assert {tuple(body) for body in bodies} == {
        ("taskId", "status", "retryCount", "maxRetries", "error")
    }
    by_status = {body["status"]: body for body in bodies if body["taskId"] == task}
    assert by_status["retrying"] == {
        "taskId": task,
        "status": "retrying",
        "retryCount": 1,
        "maxRetries": 3,
        "error": "The provider is not available.",
    }
    assert (by_status["succeeded"]["retryCount"], by_status["succeeded"]["error"]) == (1, None)
    ends = [body for body in bodies if body["taskId"] == bad and body["status"] == "failed"]
    assert [(body["retryCount"], body["error"]) for body in ends] == [
        (0, "The request is not valid. Please change it and try again.")
    ]
    # The timestamp is that of the test's clock, so only the signature is checked.
    raw, headers = deliveries[0]
    at = int(headers["webhook-timestamp"])
    expected_signature = Webhook(SECRET).sign(
        headers["webhook-id"], datetime.fromtimestamp(at, UTC), raw.decode()
    )
    assert headers["webhook-signature"] == expected_signature


@pytest.mark.seed("002-27")
def test_scheduled_retry_event_has_the_count_of_failures(world, ann):
    task = ann.order("a cat [503 x1]")
    world.run()
    (event,) = [
        item
        for item in world.app.jobs.history(world.job(task).id)
        if item.type == "job.retry_scheduled"
    ]
    assert (event.job_id, event.data["failures"], event.data["max_retries"]) == (
        world.job(task).id,
        1,
        3,
    )
    assert event.data["next_retry_at"] == round(world.job(task).next_retry_at.timestamp() * 1e6)
    assert event.data["class"] == "transient"
