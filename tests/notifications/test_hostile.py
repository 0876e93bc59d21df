"""Texts that would forge something, in every field that reaches a message: one well-formed message on each channel."""

from __future__ import annotations

import json
from email.header import decode_header
from html.parser import HTMLParser

import pytest
import standardwebhooks

from mulligan.core.event import EventType
from mulligan.notifications.apprise import Apprise
from mulligan.notifications.email import Email
from mulligan.notifications.message import SUMMARY, Message, message_of, message_of_incident
from mulligan.notifications.rules import IncidentFacts
from mulligan.notifications.webhook import Webhook, new_secret
from support.messages import AT, DATA, LINKED, event, sent
from support.receiving import status

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
    "unheard of",
)


def hostile(type_: str, text: str) -> Message:
    data = DATA | dict.fromkeys(FIELDS, text) | {text: text, "deep": [[{text: [text] * 100}]] * 100}
    return message_of(event(type_, data, owner=text, actor=f"cli:{text}"), "sub", LINKED)


def messages(text: str) -> list[Message]:
    facts = dict.fromkeys(
        ("owner", "group", "batch_id", "batch_name", "kind", "queue", "code", "cls", "message"),
        text,
    )
    incident = IncidentFacts("inc", AT, AT, 400, job_id="01job", **facts)
    return [hostile("job.died", text), message_of_incident(incident, "opened", LINKED)]


def _plain(message: Message) -> None:
    assert len(message.summary) <= SUMMARY
    for text in (message.summary, message.owner, *sum(message.details, ())):
        assert text.isprintable(), repr(text[:100])
        assert len(text) <= 500
    assert all(
        url.isascii() and url.isprintable() and len(url) < 2500
        for url in (message.link, message.runbook)
    )
    assert len(message.to_json()) < 64_000


@pytest.mark.parametrize("name", CORPUS)
def test_every_sentence_is_one_plain_line(name):
    for type_ in (*EventType, "of.tomorrow"):
        _plain(hostile(type_, CORPUS[name]))
    for message in messages(CORPUS[name]):
        _plain(message)


class _Tags(HTMLParser):
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
def test_one_well_formed_mail(name, mailbox, by_mail):
    for message in messages(CORPUS[name]):
        sent(Email(KIM), by_mail, message)
    sent(Email(KIM, subject=CORPUS[name], render=lambda _: CORPUS[name]), by_mail, message)
    assert [letter.to for letter in mailbox.letters] == [[KIM]] * 3
    for letter in mailbox.letters:
        mail = letter.mail
        assert (letter.sender, mail["To"]) == ("jobs@mulligan.example", KIM)
        assert mail.keys().count("Subject") == mail.keys().count("Message-ID") == 1
        assert not {"Bcc", "Cc", "X-Forged"} & set(mail.keys())
        assert [mail.defects, mail["Subject"].defects] == [[], ()] or [
            mail.defects,
            mail["Subject"].defects,
        ] == [
            [],
            [],
        ]
        assert all(len(line) <= 998 for line in letter.raw.split(b"\r\n"))
        assert b"\n" not in letter.raw.replace(b"\r\n", b"")
        assert b"\x00" not in letter.raw
    for letter in mailbox.letters[:2]:
        assert [part.get_content_type() for part in letter.mail.iter_parts()] == [
            "text/plain",
            "text/html",
        ]
        tags = _Tags()
        tags.feed(letter.part("html"))
        assert not {"script", "img", "b"} & set(tags.tags)
        assert all(
            link.startswith(("https://jobs.example/", "https://wiki.example/"))
            for link in tags.links
        )


@pytest.mark.security("S41")
def test_a_subject_is_what_was_said_and_not_what_it_decodes_to(mailbox, by_mail):
    """A text that looks like an encoded header must not become one."""
    sent(Email(KIM, subject="=?utf-8?q?forged=0ABcc=3A_eve?="), by_mail)
    [raw] = [line for line in mailbox.letters[0].raw.split(b"\r\n") if line.startswith(b"Subject:")]
    assert not any(
        b"forged\nBcc" in (part if isinstance(part, bytes) else part.encode())
        for part, _ in decode_header(raw.decode())
    )


@pytest.mark.security("S39")
@pytest.mark.parametrize("name", CORPUS)
def test_one_well_formed_webhook(name, receiver, local):
    there, secret = receiver(), new_secret()
    for message in messages(CORPUS[name]):
        sent(Webhook(there.url, secret=secret), local, message)
        sent(Webhook(there.url, secret=secret, form="cloudevents"), local, message)
    sent(
        Webhook(there.url, secret=secret, render=lambda _: {"x": CORPUS[name][:500]}),
        local,
        message,
    )
    assert (len(there.requests), there.connections) == (5, 5)
    for request in there.requests:
        assert len(request.names) == len(set(request.names))
        assert not {"bcc", "subject", "x-forged"} & set(request.names)
        assert request.headers["content-length"] == str(len(request.body))
        assert len(request.body) < 20_000
        assert standardwebhooks.Webhook(secret).verify(request.body, request.headers)


@pytest.mark.parametrize("name", CORPUS)
def test_one_well_formed_message_to_a_chat(name, receiver, strict):
    there = receiver(status(200))
    for message in messages(CORPUS[name]):
        sent(Apprise(f"json://127.0.0.1:{there.port}/"), strict, message)
    assert len(there.requests) == 2
    for request in there.requests:
        body = json.loads(request.body)
        assert body["title"].isprintable() or "\u200b" in body["title"]
        assert len(request.body) < 100_000


def test_what_was_left_out_of_a_large_event_is_said():
    message = message_of(
        event("job.died", {"kind": "render", "big": ["x" * 1000] * 60}), "sub", LINKED
    )
    assert message.data == {"kind": "render", "cut": True}
