"""What goes through apprise: to a service on this host that takes JSON, and to one that looks like PagerDuty."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mulligan.core.errors import ConfigError, Fail
from mulligan.notifications import apprise as channel
from mulligan.notifications.apprise import Apprise, kind_of
from mulligan.notifications.channel_registry import load_channel
from mulligan.notifications.message import message_of
from support.messages import LINKED, MESSAGE, event, sent
from support.receiving import OK, status

pytest.importorskip("apprise")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its services


def test_a_message_reaches_a_service_with_its_sentence_as_title(receiver, strict):
    there = receiver(status(200))
    assert sent(Apprise(f"json://127.0.0.1:{there.port}/"), strict) == {"reached": 1}
    body = json.loads(there.requests[0].body)
    assert (body["title"], body["type"]) == (MESSAGE.summary, "warning")
    for said in (MESSAGE.link, MESSAGE.runbook, "HTTP_5XX"):
        assert said in body["message"]


def test_a_death_is_an_event_of_pagerduty(receiver, strict, monkeypatch):
    from apprise.plugins import pagerduty

    there = receiver(status(202))
    monkeypatch.setitem(
        pagerduty.PAGERDUTY_API_LOOKUP, "us", f"http://127.0.0.1:{there.port}/v2/enqueue"
    )
    died = message_of(event("job.died"), "sub", LINKED)
    assert sent(
        Apprise("pagerduty://integrationkey12345@routingkey12345/source/render"), strict, died
    ) == {"reached": 1}
    [request] = there.requests
    body = json.loads(request.body)
    assert request.line == "POST /v2/enqueue HTTP/1.1"
    assert (body["event_action"], body["payload"]["severity"]) == ("trigger", "critical")
    assert died.summary in body["payload"]["summary"]


def test_who_has_it_does_not_get_it_again_when_another_is_down(receiver, strict):
    well, down = receiver(status(200)), receiver(status(500), OK)
    kept = []

    async def remember(reached):
        kept.append(reached)

    both = Apprise([f"json://127.0.0.1:{well.port}/", f"json://127.0.0.1:{down.port}/token"])
    with pytest.raises(Fail) as failed:
        sent(both, replace(strict, remember=remember))
    assert failed.value.public == "1 of 2 services did not take the message."
    assert "token" not in repr(kept)
    assert sent(both, replace(strict, reached=kept[0])) == {"reached": 2}
    assert (len(well.requests), len(down.requests)) == (1, 2)


def test_words_of_ones_own(receiver, strict):
    there = receiver(status(200))
    url = f"json://127.0.0.1:{there.port}/"
    sent(Apprise(url, render=lambda message: f"{message.owner} failed"), strict)
    sent(Apprise(url, render=lambda _: ("A title", "A text")), strict)
    told = [json.loads(request.body) for request in there.requests]
    assert [(one["title"], one["message"]) for one in told] == [
        (MESSAGE.summary, "acme failed"),
        ("A title", "A text"),
    ]


def test_a_service_that_takes_too_long_is_given_up(receiver, strict, monkeypatch):
    import time

    monkeypatch.setattr(channel, "LIMIT", 0.2)
    slow = receiver(lambda _: time.sleep(1))
    with pytest.raises(Fail) as failed:
        sent(Apprise(f"json://127.0.0.1:{slow.port}/?rto=0.5"), strict)
    assert failed.value.code_given == "REMOTE_ERROR"


@pytest.mark.parametrize("name", ["@everyone look", "<!channel> look", "<@U123> look", "@HERE"])
def test_the_name_of_a_job_wakes_nobody(name, receiver, strict):
    there = receiver(status(200))
    hostile = message_of(event("job.died", {"kind": name}), "sub", LINKED)
    sent(Apprise(f"json://127.0.0.1:{there.port}/"), strict, hostile)
    body = json.loads(there.requests[0].body)
    assert name not in body["title"]
    assert name not in body["message"]


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(channel, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'mulligan\[apprise\]'"):
        Apprise("slack://x")


def test_what_apprise_cannot_read_is_said(strict):
    for nothing in ("", [], "slack", ["slack://x\r\n"]):
        with pytest.raises(ConfigError):
            Apprise(nothing)
    with pytest.raises(Fail) as failed:
        sent(Apprise("pigeon://roof"), strict)
    assert failed.value.code_given == "MISCONFIGURED"


def test_it_is_stored_and_read_back_and_shows_no_token():
    one = Apprise("slack://tokenA/tokenB/tokenC")
    assert load_channel(one.to_plain()).to_plain() == one.to_plain()
    assert "token" not in repr(one)
    with pytest.raises(ConfigError, match="only be declared in code"):
        Apprise("slack://x", render=str).to_plain()


def test_what_kind_of_news_it_is():
    told = {
        kind_of(type_): type_
        for type_ in ("job.queued", "incident.over", "incident.grown", "job.parked")
    }
    assert told == {
        "info": "job.queued",
        "success": "incident.over",
        "failure": "incident.grown",
        "warning": "job.parked",
    }
