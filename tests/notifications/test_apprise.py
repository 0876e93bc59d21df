"""Apprise: messages to a JSON service on this host, and to a fake PagerDuty."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mulligan.core.errors import ConfigError, Fail
from mulligan.notifications import apprise as apprise_module
from mulligan.notifications.apprise import Apprise, notify_type
from mulligan.notifications.channels import load_channel
from mulligan.notifications.message import build_event_message
from support.messages import LINKED, MESSAGE, build_event, send
from support.raw_receivers import OK, build_response

pytest.importorskip("apprise")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its services


def test_a_message_reaches_a_service_with_its_sentence_as_title(receiver, strict_context):
    target = receiver(build_response(200))
    assert send(Apprise(f"json://127.0.0.1:{target.port}/"), strict_context) == {"reached": 1}
    body = json.loads(target.requests[0].body)
    assert (body["title"], body["type"]) == (MESSAGE.summary, "warning")
    for expected in (MESSAGE.link, MESSAGE.runbook, "HTTP_5XX"):
        assert expected in body["message"]


def test_a_dead_job_becomes_a_pagerduty_event(receiver, strict_context, monkeypatch):
    from apprise.plugins import pagerduty

    target = receiver(build_response(202))
    monkeypatch.setitem(
        pagerduty.PAGERDUTY_API_LOOKUP, "us", f"http://127.0.0.1:{target.port}/v2/enqueue"
    )
    died = build_event_message(build_event("job.died"), "sub", LINKED)
    assert send(
        Apprise("pagerduty://integrationkey12345@routingkey12345/source/render"),
        strict_context,
        died,
    ) == {"reached": 1}
    [request] = target.requests
    body = json.loads(request.body)
    assert request.line == "POST /v2/enqueue HTTP/1.1"
    assert (body["event_action"], body["payload"]["severity"]) == ("trigger", "critical")
    assert died.summary in body["payload"]["summary"]


def test_a_retry_skips_services_that_accepted_the_message(receiver, strict_context):
    up = receiver(build_response(200))
    down = receiver(build_response(500), OK)
    saved = []

    async def save_accepted(accepted):
        saved.append(accepted)

    both = Apprise([f"json://127.0.0.1:{up.port}/", f"json://127.0.0.1:{down.port}/token"])
    with pytest.raises(Fail) as failed:
        send(both, replace(strict_context, save_accepted=save_accepted))
    assert failed.value.public == "1 of 2 services did not accept the message."
    assert "token" not in repr(saved)
    assert send(both, replace(strict_context, accepted=saved[0])) == {"reached": 2}
    assert (len(up.requests), len(down.requests)) == (1, 2)


def test_a_rendered_text_replaces_the_default(receiver, strict_context):
    target = receiver(build_response(200))
    url = f"json://127.0.0.1:{target.port}/"
    send(Apprise(url, render=lambda message: f"{message.owner} failed"), strict_context)
    send(Apprise(url, render=lambda _: ("A title", "A text")), strict_context)
    bodies = [json.loads(request.body) for request in target.requests]
    assert [(one["title"], one["message"]) for one in bodies] == [
        (MESSAGE.summary, "acme failed"),
        ("A title", "A text"),
    ]


def test_a_service_that_takes_too_long_fails(receiver, strict_context, monkeypatch):
    import time

    monkeypatch.setattr(apprise_module, "SERVICE_TIMEOUT", 0.2)
    slow = receiver(lambda _: time.sleep(1))
    with pytest.raises(Fail) as failed:
        send(Apprise(f"json://127.0.0.1:{slow.port}/?rto=0.5"), strict_context)
    assert failed.value.failure_code == "REMOTE_ERROR"


@pytest.mark.parametrize("name", ["@everyone look", "<!channel> look", "<@U123> look", "@HERE"])
def test_mentions_in_a_job_name_are_disarmed(name, receiver, strict_context):
    target = receiver(build_response(200))
    hostile = build_event_message(build_event("job.died", {"kind": name}), "sub", LINKED)
    send(Apprise(f"json://127.0.0.1:{target.port}/"), strict_context, hostile)
    body = json.loads(target.requests[0].body)
    assert name not in body["title"]
    assert name not in body["message"]


def test_a_missing_library_is_refused_with_the_install_command(monkeypatch):
    monkeypatch.setattr("mulligan.core.extras.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'mulligan\[apprise\]'"):
        Apprise("slack://x")


def test_a_url_that_apprise_does_not_support_is_reported(strict_context):
    for urls in ("", [], "slack", ["slack://x\r\n"]):
        with pytest.raises(ConfigError):
            Apprise(urls)
    with pytest.raises(Fail) as failed:
        send(Apprise("pigeon://roof"), strict_context)
    assert failed.value.failure_code == "MISCONFIGURED"


def test_a_stored_channel_is_read_back_and_shows_no_token():
    one = Apprise("slack://tokenA/tokenB/tokenC")
    assert load_channel(one.to_dict()).to_dict() == one.to_dict()
    assert "token" not in repr(one)
    with pytest.raises(ConfigError, match="Declare it in code"):
        Apprise("slack://x", render=str).to_dict()


def test_each_event_type_has_an_apprise_type():
    types = {
        notify_type(type_): type_
        for type_ in ("job.queued", "incident.over", "incident.grown", "job.parked")
    }
    assert types == {
        "info": "job.queued",
        "success": "incident.over",
        "failure": "incident.grown",
        "warning": "job.parked",
    }
