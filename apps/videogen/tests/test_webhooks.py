"""Webhooks to the owners of tasks."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest
from standardwebhooks import Webhook

from mulligan.testing import worker
from support.receivers import OK, open_receiver
from support.waiting import until

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
    named = ("taskId", "status", "retryCount", "maxRetries", "error")
    assert {tuple(body) for body in bodies} == {(*named, "seq", "time")}  # 002-39
    life = [body for body in bodies if body["taskId"] == task]
    assert [(body["status"], body["retryCount"]) for body in life] == [
        ("running", 0),
        ("retrying", 1),
        ("running", 1),
        ("succeeded", 1),
    ]  # 002-39: the count of each; 002-48: live and in order
    assert {name: life[1][name] for name in named} == {
        "taskId": task,
        "status": "retrying",
        "retryCount": 1,
        "maxRetries": 3,
        "error": "The provider is not available.",
    }  # 002-27, 002-39
    assert [body["error"] for body in life if body["status"] != "retrying"] == [None] * 3
    assert [body["seq"] for body in life] == sorted({body["seq"] for body in life})  # 002-48
    assert [body["time"] for body in life] == sorted(body["time"] for body in life)
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


@pytest.mark.any_store
@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.seed("002-39", "002-48")
def test_last_webhook_of_every_task_has_its_state_and_count_whatever_the_receiver_does(make_world):
    """A real worker, eight tasks at once, and a receiver that refuses some messages once."""
    with open_receiver() as receiver:
        receiver.plans["hook"].next = [*[OK] * 6, "503"] * 2
        hooks = json.dumps({"acme": {"url": receiver.url(), "secret": SECRET}})
        world = make_world(Webhooks=hooks, PrivateWebhooks="true", BaseDelaySeconds="0.1")
        ann = world.caller()
        prompts = ("a cat [503 x1]", "a cat [400]", "a cat", "a cat [break]")
        with worker(world.app, "mulligan.apps.videogen.jobs:app"):
            tasks = [ann.order(prompt) for prompt in prompts * 2]
            ended = [until(lambda one=task: end_of(ann, one), 90, "an end") for task in tasks]
            finals = {task.taskId: (task.status, task.retryCount) for task in ended}
            until(lambda: last_states(receiver) == finals, 90, "webhooks")  # 002-48
        for task in tasks:
            life = [body for body in accepted(receiver) if body["taskId"] == task]
            assert [body["seq"] for body in life] == sorted({body["seq"] for body in life})
            assert (life[0]["status"], life[0]["retryCount"]) == ("running", 0)
            for before, body in pairwise(life):
                if body["status"] == "running":  # 002-39: the count that was announced
                    assert (before["status"], before["retryCount"]) == (
                        "retrying",
                        body["retryCount"],
                    )


def accepted(receiver):
    """Return the bodies that the receiver has accepted, in the order of their arrival."""
    return [one.body for one in list(receiver.received) if one.confirmed]


def last_states(receiver):
    """Return what a client knows that believes the latest webhook of each task."""
    return {body["taskId"]: (body["status"], body["retryCount"]) for body in accepted(receiver)}


def end_of(ann, task):
    found = ann.task(task)
    return found if found.status in ("succeeded", "failed") else None


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
