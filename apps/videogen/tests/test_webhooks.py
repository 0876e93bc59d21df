"""What a customer's own program is told."""

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
    heard = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            heard.append((body, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", heard
    server.shutdown()
    server.server_close()


@pytest.mark.seed("002-27", "002-39", "002-48")
def test_the_owner_is_told_of_each_retry_and_of_the_end_signed(make_world, receiver):
    url, heard = receiver
    hooks = {"acme": {"url": url, "secret": SECRET}}
    world = make_world(Webhooks=json.dumps(hooks), PrivateWebhooks="true")
    ann, bob = world.caller(), world.caller("globex")
    task, bad = ann.order("a cat [503 x1]"), ann.order("a dog [400]")
    bob.order("a bird")
    world.run(all_of_it=True)
    told = [json.loads(body) for body, _ in heard]
    assert {one["taskId"] for one in told} == {task, bad}
    assert {tuple(one) for one in told} == {
        ("taskId", "status", "retryCount", "maxRetries", "error")
    }
    story = {one["status"]: one for one in told if one["taskId"] == task}
    assert story["retrying"] == {
        "taskId": task,
        "status": "retrying",
        "retryCount": 1,
        "maxRetries": 3,
        "error": "The provider is not available.",
    }
    assert (story["succeeded"]["retryCount"], story["succeeded"]["error"]) == (1, None)
    ends = [one for one in told if one["taskId"] == bad and one["status"] == "failed"]
    assert [(one["retryCount"], one["error"]) for one in ends] == [
        (0, "The request is not valid. Please change it and try again.")
    ]
    # By the time of the test's clock, which the receiver does not know: only the signature is looked at.
    body, headers = heard[0]
    at = int(headers["webhook-timestamp"])
    signed = Webhook(SECRET).sign(
        headers["webhook-id"], datetime.fromtimestamp(at, UTC), body.decode()
    )
    assert headers["webhook-signature"] == signed


@pytest.mark.seed("002-27")
def test_a_scheduled_retry_is_an_event_of_its_own_name_with_the_count_after_it(world, ann):
    task = ann.order("a cat [503 x1]")
    world.run()
    (event,) = [
        one
        for one in world.app.jobs.history(world.job(task).id)
        if one.type == "job.retry_scheduled"
    ]
    assert (event.job_id, event.data["failures"], event.data["max_retries"]) == (
        world.job(task).id,
        1,
        3,
    )
    assert event.data["next_retry_at"] == round(world.job(task).next_retry_at.timestamp() * 1e6)
    assert event.data["class"] == "transient"
