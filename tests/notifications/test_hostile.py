"""Hostile texts in every field of a message: each channel sends one well-formed message."""

from __future__ import annotations

import json
from email.header import decode_header
from html.parser import HTMLParser

import pytest
import standardwebhooks

from mulligan.core.event import EventType
from mulligan.notifications.apprise import Apprise
from mulligan.notifications.email import Email
from mulligan.notifications.message import (
    MAX_SUMMARY,
    Message,
    build_event_message,
    build_incident_message,
)
from mulligan.notifications.rules import IncidentFacts
from mulligan.notifications.webhook import Webhook, new_secret
from support.messages import AT, DATA, LINKED, build_event, send
from support.raw_receivers import build_response

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of apprise's services
KIM = "kim@example.com"
CORPUS = {
    "crlf": "x\r\nBcc: eve@example.com\r\nSubject: forged\r\n\r\nforged body",
    "lf dot": "x\n.\nMAIL FROM:<eve@example.com>\nRCPT TO:<eve@example.com>\nDATA\nforged",
    "boundary": "--===============1==\r\nContent-Type: text/html\r\n\r\n<b>forged</b>",
    "nul": "a\x00b\x00c",
    "controls": "".join(map(chr, range(32))) + "\x7f\x85\x9b31m\x1b[31mred\x1b[0m",
    "html": "</td></table><script>alert(1)</script><img src=x onerror=alert(1)><a href='javascript:alert(1)'>x</a>",
    "template": "{{7*7}} {% raw %} ${7*7} %(x)s {x} %0d%0aBcc: eve@example.com",
    "encoded": "=?utf-8?q?forged=0ABcc=3A_eve?= =?utf-8?b?PHNjcmlwdD4=?=",
    "bidi": "\u202egnp.exe\u2066x\u2069",
    "lines": "a\u2028b\u2029c\x0bd\x0ce",
    "surrogate": "\ud800 \udfff",
    "long line": "y" * 1_000_000,
    "long words": "w " * 500_000,
    "wide": "\N{PILE OF POO}" * 50_000,
}
FIELDS = (
    "kind",
    "queue",
    "code",
    "class",
    "message",
    "reason",
    "name",
    "dependency",
    "worker",
    "host",
    "unknown field",
)


def hostile(type_: str, text: str) -> Message:
    data = DATA | dict.fromkeys(FIELDS, text) | {text: text, "deep": [[{text: [text] * 100}]] * 100}
    return build_event_message(
        build_event(type_, data, owner=text, actor=f"cli:{text}"), "sub", LINKED
    )


def messages(text: str) -> list[Message]:
    facts = dict.fromkeys(
        ("owner", "group", "batch_id", "batch_name", "kind", "queue", "code", "cls", "message"),
        text,
    )
    incident = IncidentFacts("inc", AT, AT, 400, job_id="01job", **facts)
    return [hostile("job.died", text), build_incident_message(incident, "opened", LINKED)]


def _check_printable(message: Message) -> None:
    assert len(message.summary) <= MAX_SUMMARY
    for text in (message.summary, message.owner, *sum(message.details, ())):
        assert text.isprintable(), repr(text[:100])
        assert len(text) <= 500
    assert all(
        url.isascii() and url.isprintable() and len(url) < 2500
        for url in (message.link, message.runbook)
    )
    assert len(message.to_json()) < 64_000


@pytest.mark.parametrize("name", CORPUS)
def test_every_summary_is_one_printable_line(name):
    for type_ in (*EventType, "unknown.event"):
        _check_printable(hostile(type_, CORPUS[name]))
    for message in messages(CORPUS[name]):
        _check_printable(message)


class _TagCollector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("href", "src")]
        assert not [name for name, _ in attrs if name.startswith("on")]


@pytest.mark.security("S25", "S41", "S42")
@pytest.mark.parametrize("name", CORPUS)
def test_hostile_texts_give_one_well_formed_mail(name, mailbox, mail_context):
    for message in messages(CORPUS[name]):
        send(Email(KIM), mail_context, message)
    send(Email(KIM, subject=CORPUS[name], render=lambda _: CORPUS[name]), mail_context, message)
    assert [received.to for received in mailbox.mails] == [[KIM]] * 3
    for received in mailbox.mails:
        mail = received.mail
        assert (received.sender, mail["To"]) == ("jobs@mulligan.example", KIM)
        assert mail.keys().count("Subject") == mail.keys().count("Message-ID") == 1
        assert not {"Bcc", "Cc", "X-Forged"} & set(mail.keys())
        assert list(mail.defects) == []
        assert list(mail["Subject"].defects) == []
        assert all(len(line) <= 998 for line in received.raw.split(b"\r\n"))
        assert b"\n" not in received.raw.replace(b"\r\n", b"")
        assert b"\x00" not in received.raw
    for received in mailbox.mails[:2]:
        assert [part.get_content_type() for part in received.mail.iter_parts()] == [
            "text/plain",
            "text/html",
        ]
        tags = _TagCollector()
        tags.feed(received.part("html"))
        assert not {"script", "img", "b"} & set(tags.tags)
        assert all(
            link.startswith(("https://jobs.example/", "https://wiki.example/"))
            for link in tags.links
        )


@pytest.mark.security("S41")
def test_an_encoded_word_in_a_subject_is_not_decoded(mailbox, mail_context):
    """A text that looks like an encoded header must not become one."""
    send(Email(KIM, subject="=?utf-8?q?forged=0ABcc=3A_eve?="), mail_context)
    [raw] = [line for line in mailbox.mails[0].raw.split(b"\r\n") if line.startswith(b"Subject:")]
    assert not any(
        b"forged\nBcc" in (part if isinstance(part, bytes) else part.encode())
        for part, _ in decode_header(raw.decode())
    )


@pytest.mark.security("S39")
@pytest.mark.parametrize("name", CORPUS)
def test_hostile_texts_give_one_well_formed_webhook(name, receiver, loopback_context):
    target = receiver()
    secret = new_secret()
    for message in messages(CORPUS[name]):
        send(Webhook(target.url, secret=secret), loopback_context, message)
        send(Webhook(target.url, secret=secret, form="cloudevents"), loopback_context, message)
    send(
        Webhook(target.url, secret=secret, render=lambda _: {"x": CORPUS[name][:500]}),
        loopback_context,
        message,
    )
    assert (len(target.requests), target.connections) == (5, 5)
    for request in target.requests:
        assert len(request.names) == len(set(request.names))
        assert not {"bcc", "subject", "x-forged"} & set(request.names)
        assert request.headers["content-length"] == str(len(request.body))
        assert len(request.body) < 20_000
        assert standardwebhooks.Webhook(secret).verify(request.body, request.headers)


@pytest.mark.parametrize("name", CORPUS)
def test_hostile_texts_give_one_well_formed_chat_message(name, receiver, strict_context):
    target = receiver(build_response(200))
    for message in messages(CORPUS[name]):
        send(Apprise(f"json://127.0.0.1:{target.port}/"), strict_context, message)
    assert len(target.requests) == 2
    for request in target.requests:
        body = json.loads(request.body)
        assert body["title"].isprintable() or "\u200b" in body["title"]
        assert len(request.body) < 100_000


def test_data_of_a_large_event_is_marked_as_cut():
    message = build_event_message(
        build_event("job.died", {"kind": "render", "big": ["x" * 1000] * 60}), "sub", LINKED
    )
    assert message.data == {"kind": "render", "cut": True}
