"""What a mail server gets, and what its answers mean."""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mulligan import classify
from mulligan.config import MailSection, Settings, read_settings
from mulligan.core.errors import ConfigError, Fail
from mulligan.failures.classify import classify_facts as judge
from mulligan.failures.matcher import Rulebook
from mulligan.notifications.channel_registry import load_channel
from mulligan.notifications.channels import Sending
from mulligan.notifications.deliveries import RULES
from mulligan.notifications.email import Email
from mulligan.notifications.message import message_of, message_of_incident
from mulligan.notifications.rules import IncidentFacts
from mulligan.worker.runner.outcomes import outcome_of
from support.messages import AT, LINKED, MESSAGE, event, sent
from support.receiving import mail_server

CERTIFICATES = Path(__file__).parents[1] / "support" / "certificates"
KIM, LEE, MO = "kim@example.com", "lee@example.com", "mo@example.com"


def test_a_mail_says_in_its_subject_what_happened_and_in_both_parts_what_is_known(mailbox, by_mail):
    assert sent(Email([KIM, f"Lee <{LEE}>"]), by_mail) == {"reached": 2}
    [letter] = mailbox.letters
    mail = letter.mail
    assert (letter.sender, letter.to) == ("jobs@mulligan.example", [KIM, LEE])
    assert (mail["From"], mail["To"]) == ("Jobs <jobs@mulligan.example>", f"{KIM}, Lee <{LEE}>")
    assert mail["Subject"] == MESSAGE.summary
    assert mail["Message-ID"] == f"<{MESSAGE.id}@mulligan.example>"
    assert mail["Date"] == "Fri, 15 Jan 2027 08:00:00 +0000"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail.get_content_type() == "multipart/alternative"
    for part in (letter.part("plain"), letter.part("html")):
        for said in (MESSAGE.summary, MESSAGE.link, MESSAGE.runbook, "HTTP_5XX", "video", "acme"):
            assert said in part


def test_the_same_message_is_the_same_mail_however_often_it_is_sent(mailbox, by_mail):
    for _ in range(2):
        sent(Email(KIM), by_mail)
    first, second = (letter.mail for letter in mailbox.letters)
    assert first.items()[:7] == second.items()[:7]
    assert first["Message-ID"] == second["Message-ID"]


def test_the_mails_of_an_incident_are_one_thread(mailbox, by_mail):
    incident = IncidentFacts(
        "inc1", AT, AT, 3, kind="render", code="HTTP_5XX", message="A service is away."
    )
    for step in ("opened", "grown:1", "over"):
        sent(Email(KIM), by_mail, message_of_incident(incident, step, LINKED))
    sent(Email(KIM), by_mail, message_of_incident(replace(incident, id="inc2"), "opened", LINKED))
    *thread, other = (letter.mail for letter in mailbox.letters)
    assert (
        len({mail["References"] for mail in thread})
        == len({mail["In-Reply-To"] for mail in thread})
        == 1
    )
    assert len({mail["Message-ID"] for mail in thread}) == 3
    assert other["References"] != thread[0]["References"]


def test_without_a_mail_server_nothing_is_sent_and_nothing_breaks(strict):
    assert sent(Email(KIM), strict) == {"skipped": "mail.host is not set, so no mail is sent"}


def test_who_gets_it_may_be_asked_of_the_app(mailbox, by_mail):
    assert sent(Email(lambda message: [f"{message.owner}@example.com"]), by_mail) == {"reached": 1}
    assert mailbox.letters[0].to == ["acme@example.com"]
    for nobody in (None, [], ""):
        assert sent(Email(lambda _, to=nobody: to), by_mail) == {
            "skipped": "there is nobody to tell"
        }
    with pytest.raises(Fail) as failed:
        sent(Email(lambda _: "kim@example.com\nBcc: eve@example.com"), by_mail)
    assert (failed.value.code_given, failed.value.final) == ("BAD_ADDRESS", True)
    assert len(mailbox.letters) == 1


def test_words_of_ones_own(mailbox, by_mail):
    async def look_up(message):
        return {
            "subject": f"{message.data['kind']} failed",
            "text": "Dear Kim,\nit failed.",
            "html": "<b>it failed</b>",
        }

    sent(Email(KIM, render=look_up), by_mail)
    sent(
        Email(KIM, render=lambda _: "plain", subject=lambda message: f"{message.owner}: look"),
        by_mail,
    )
    sent(Email(KIM, subject="Always the same"), by_mail)
    first, second, third = mailbox.letters
    assert (first.mail["Subject"], first.part("plain"), first.part("html")) == (
        "render failed",
        "Dear Kim,\nit failed.\n",
        "<b>it failed</b>\n",
    )
    assert (second.mail["Subject"], second.mail.get_content_type(), second.part("plain")) == (
        "acme: look",
        "text/plain",
        "plain\n",
    )
    assert third.mail["Subject"] == "Always the same"
    with pytest.raises(Fail, match="render must return"):
        sent(Email(KIM, render=lambda _: {"txt": "x"}), by_mail)


class Memory:
    """What a delivery keeps between attempts."""

    def __init__(self, sending: Sending) -> None:
        self.sending = sending

    def __call__(self) -> Sending:
        return replace(self.sending, remember=self._keep)

    async def _keep(self, reached: frozenset[str]) -> None:
        self.sending = replace(self.sending, reached=reached)


def test_who_has_a_mail_does_not_get_it_again_when_others_are_asked_again(mailbox, by_mail):
    mailbox.at_rcpt = {LEE: ["451 4.7.1 later", "250 OK"], MO: ["550 5.1.1 no such user"]}
    memory, email = Memory(by_mail), Email([KIM, LEE, MO])
    with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
        sent(email, memory())
    assert list(refused.value.recipients) == [LEE]
    assert classify(refused.value, rules=RULES).retryable
    mailbox.at_rcpt.pop(LEE)
    with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
        sent(email, memory())
    assert classify(refused.value, rules=RULES).code == "BAD_ADDRESS"
    assert [letter.to for letter in mailbox.letters] == [[KIM], [LEE]]
    assert len({letter.mail["Message-ID"] for letter in mailbox.letters}) == 1


@pytest.mark.parametrize(
    ("answer", "code", "retried"),
    [
        ("451 4.3.0 try later", "MAIL_DEFERRED", True),
        ("452 4.2.2 mailbox full", "MAIL_DEFERRED", True),
        ("554 5.7.1 spam", "MAIL_REFUSED", False),
        ("552 5.3.4 too large", "TOO_LARGE", False),
    ],
)
def test_what_an_answer_of_the_server_means(answer, code, retried, mailbox, by_mail):
    mailbox.at_data = [answer]
    with pytest.raises(smtplib.SMTPResponseException) as failed:
        sent(Email(KIM), by_mail)
    judged = classify(failed.value, rules=RULES)
    assert (judged.code, judged.retryable) == (code, retried)


def test_a_server_that_drops_the_line_after_taking_a_mail_gets_the_same_one_again(mailbox, by_mail):
    mailbox.at_data = ["drop"]
    with pytest.raises(smtplib.SMTPServerDisconnected) as dropped:
        sent(Email(KIM), by_mail)
    assert classify(dropped.value, rules=RULES).retryable
    sent(Email(KIM), by_mail)
    assert len({letter.mail["Message-ID"] for letter in mailbox.letters}) == 1


def test_nobody_listens(by_mail):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    mail = by_mail.settings.mail.model_copy(update={"port": port})
    with pytest.raises(Fail) as failed:
        sent(Email(KIM), Sending(by_mail.settings.model_copy(update={"mail": mail})))
    assert (failed.value.code_given, failed.value.public) == (
        "CONNECTION",
        "The mail server could not be reached.",
    )


def test_a_server_that_hangs_is_given_up_and_leaves_no_thread_behind():
    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            for _ in range(50):
                time.sleep(0.1)
                try:
                    connection.sendall(b"2")
                except OSError:
                    return

    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=drip, args=(listening,), daemon=True).start()
        mail = MailSection(
            host="127.0.0.1", port=listening.getsockname()[1], tls="none", timeout=0.4
        )
        with pytest.raises(Fail) as failed:
            sent(Email(KIM), Sending(Settings(mail=mail)))
    assert failed.value.code_given == "TIMEOUT"
    assert [
        thread
        for thread in threading.enumerate()
        if thread not in before and "asyncio" in thread.name
    ] == []


@pytest.fixture
def tls():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    return context


@pytest.fixture
def mail_example(monkeypatch):
    """`mail.example` is this host, and its authority is trusted."""
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *more, **named: real(
            host.replace("mail.example", "127.0.0.1"), *more, **named
        ),
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))


@pytest.mark.security("S44")
def test_starttls_comes_before_the_password_and_certificates_are_checked(
    tls, mail_example, tmp_path
):
    seen: list[tuple[str, str]] = []

    def login(server, session, envelope, mechanism, data):
        from aiosmtpd.smtp import AuthResult

        seen.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"pass word", handled=False)

    password = tmp_path / "password"
    password.write_text("pass word\n")
    with mail_server(tls, require_starttls=True, authenticator=login, auth_required=True) as box:
        said = {
            "host": "mail.example",
            "port": box.port,
            "username": "jobs",
            "sender": "jobs@mail.example",
        }
        good = Settings.model_validate({"mail": {**said, "password_file": str(password)}})
        assert sent(Email(KIM), Sending(good)) == {"reached": 1}
        wrong = Settings.model_validate({"mail": {**said, "password": "hunter2hunter2"}})
        with pytest.raises(smtplib.SMTPAuthenticationError) as refused:
            sent(Email(KIM), Sending(wrong))
        other = Settings.model_validate(
            {"mail": {**said, "host": "127.0.0.1", "password": "pass word"}}
        )
        with pytest.raises(Fail, match="certificate"):
            sent(Email(KIM), Sending(other))
    assert len(box.letters) == 1
    assert dict.fromkeys(seen) == dict.fromkeys([("jobs", "pass word"), ("jobs", "hunter2hunter2")])
    assert classify(refused.value, rules=RULES).retryable, (
        "a mail waits until somebody has corrected the password"
    )
    assert "hunter2" not in f"{refused.value!r} {wrong!r}"


def test_a_server_without_tls_is_not_talked_to_where_tls_is_wanted(mailbox):
    mail = MailSection(host="127.0.0.1", port=mailbox.port, username="jobs", password="secret")
    with pytest.raises(smtplib.SMTPNotSupportedError):
        sent(Email(KIM), Sending(Settings(mail=mail)))
    wrapped = mail.model_copy(update={"tls": "tls", "timeout": 2.0})
    with pytest.raises(Fail):
        sent(Email(KIM), Sending(Settings(mail=wrapped)))
    assert mailbox.letters == []


@pytest.mark.security("S41")
@pytest.mark.parametrize(
    "to",
    [
        "",
        [],
        "kim",
        "kim@",
        "@example.com",
        "kim@example.com\r\nBcc: eve@example.com",
        "kim@x.com,eve@example.com",
        "kim@example.com eve@example.com",
        "kim@exa mple.com",
        "<kim@example.com",
        'kim"@example.com',
        "kim@-x.com",
        "a@b@example.com",
        "kim@example..com",
        "ki..m@example.com",
        "Kim\n <kim@example.com>",
        "kim@example.com\x00",
        "\u202ekim@example.com",
        "kim@" + "a" * 300,
        "kim@" + "a." * 200,
        7,
        [None],
        [f"k{n}@example.com" for n in range(101)],
    ],
)
def test_what_is_not_plainly_an_address_is_refused(to):
    with pytest.raises((ConfigError, TypeError)):
        Email(to)


def test_an_email_is_stored_and_read_back():
    email = Email([KIM, f"Lee <{LEE}>"], subject="Jobs")
    assert load_channel(email.to_plain()).to_plain() == email.to_plain()
    assert KIM not in repr(email)
    for own in (Email(lambda _: KIM), Email(KIM, render=str), Email(KIM, subject=str)):
        with pytest.raises(ConfigError, match="only be declared in code"):
            own.to_plain()


@pytest.mark.security("S44")
def test_two_passwords_are_one_too_many_and_none_is_shown():
    said = {"MULLIGAN_MAIL__PASSWORD": "hunter2", "MULLIGAN_MAIL__PASSWORD_FILE": "/x"}
    with pytest.raises(ConfigError, match="both set") as refused:
        read_settings(environ=said)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        read_settings({"mail.password": ["hunter2"]}, environ={})
    assert "hunter2" not in str(refused.value)


def test_a_password_file_that_is_not_there_is_said_without_a_try(mailbox):
    mail = MailSection(
        host="127.0.0.1",
        port=mailbox.port,
        tls="none",
        username="x",
        password_file="/nowhere/at/all",
    )
    with pytest.raises(Fail) as failed:
        sent(Email(KIM), Sending(Settings(mail=mail)))
    assert failed.value.code_given == "MISCONFIGURED"
    judged = outcome_of(failed.value, 0, lambda facts: judge(facts, (Rulebook(RULES),))).failure
    assert judged is not None
    assert judged.retryable, "somebody will put it there"


def test_an_event_nobody_has_words_for_is_still_a_mail(mailbox, by_mail):
    sent(Email(KIM), by_mail, message_of(event("of.tomorrow", {}), "sub", Settings()))
    assert mailbox.letters[0].mail["Subject"] == "of.tomorrow."
