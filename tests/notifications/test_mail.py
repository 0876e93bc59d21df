"""E-mail: the mail that a server gets, and how its replies are classified."""

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
from mulligan.failures.classify import classify_facts
from mulligan.failures.matcher import Rulebook
from mulligan.notifications import DELIVERY_RULES
from mulligan.notifications.channels import SendContext, load_channel
from mulligan.notifications.email import Email
from mulligan.notifications.message import build_event_message, build_incident_message
from mulligan.notifications.rules import IncidentFacts
from mulligan.worker.runner.outcomes import outcome_of_request
from support.messages import AT, LINKED, MESSAGE, build_event, send
from support.raw_receivers import mail_server

CERTIFICATES = Path(__file__).parents[1] / "support" / "certificates"
KIM, LEE, MO = "kim@example.com", "lee@example.com", "mo@example.com"


def test_a_mail_has_the_summary_as_subject_and_details_in_text_and_html(mailbox, mail_context):
    assert send(Email([KIM, f"Lee <{LEE}>"]), mail_context) == {"reached": 2}
    [received] = mailbox.mails
    mail = received.mail
    assert (received.sender, received.to) == ("jobs@mulligan.example", [KIM, LEE])
    assert (mail["From"], mail["To"]) == ("Jobs <jobs@mulligan.example>", f"{KIM}, Lee <{LEE}>")
    assert mail["Subject"] == MESSAGE.summary
    assert mail["Message-ID"] == f"<{MESSAGE.id}@mulligan.example>"
    assert mail["Date"] == "Fri, 15 Jan 2027 08:00:00 +0000"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail.get_content_type() == "multipart/alternative"
    for part in (received.part("plain"), received.part("html")):
        for expected in (
            MESSAGE.summary,
            MESSAGE.link,
            MESSAGE.runbook,
            "HTTP_5XX",
            "video",
            "acme",
        ):
            assert expected in part


def test_a_message_sent_twice_is_the_same_mail(mailbox, mail_context):
    for _ in range(2):
        send(Email(KIM), mail_context)
    first, second = (received.mail for received in mailbox.mails)
    assert first.items()[:7] == second.items()[:7]
    assert first["Message-ID"] == second["Message-ID"]


def test_the_mails_of_an_incident_form_one_thread(mailbox, mail_context):
    incident = IncidentFacts(
        "inc1", AT, AT, 3, kind="render", code="HTTP_5XX", message="A service is away."
    )
    for step in ("opened", "grown:1", "over"):
        send(Email(KIM), mail_context, build_incident_message(incident, step, LINKED))
    send(
        Email(KIM),
        mail_context,
        build_incident_message(replace(incident, id="inc2"), "opened", LINKED),
    )
    *thread, other = (received.mail for received in mailbox.mails)
    assert (
        len({mail["References"] for mail in thread})
        == len({mail["In-Reply-To"] for mail in thread})
        == 1
    )
    assert len({mail["Message-ID"] for mail in thread}) == 3
    assert other["References"] != thread[0]["References"]


def test_without_a_mail_server_nothing_is_sent_and_nothing_breaks(strict_context):
    assert send(Email(KIM), strict_context) == {
        "skipped": "mail.host is not set, so no mail is sent"
    }


def test_recipients_can_be_computed_by_the_app(mailbox, mail_context):
    assert send(Email(lambda message: [f"{message.owner}@example.com"]), mail_context) == {
        "reached": 1
    }
    assert mailbox.mails[0].to == ["acme@example.com"]
    for recipients in (None, [], ""):
        assert send(Email(lambda _, to=recipients: to), mail_context) == {
            "skipped": "no recipients"
        }
    with pytest.raises(Fail) as failed:
        send(Email(lambda _: "kim@example.com\nBcc: eve@example.com"), mail_context)
    assert (failed.value.failure_code, failed.value.final) == ("BAD_ADDRESS", True)
    assert len(mailbox.mails) == 1


def test_rendered_parts_replace_the_default(mailbox, mail_context):
    async def render(message):
        return {
            "subject": f"{message.data['kind']} failed",
            "text": "Dear Kim,\nit failed.",
            "html": "<b>it failed</b>",
        }

    send(Email(KIM, render=render), mail_context)
    send(
        Email(KIM, render=lambda _: "plain", subject=lambda message: f"{message.owner}: look"),
        mail_context,
    )
    send(Email(KIM, subject="Always the same"), mail_context)
    first, second, third = mailbox.mails
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
        send(Email(KIM, render=lambda _: {"txt": "x"}), mail_context)


class SavedContext:
    """A context that keeps the accepted recipients between attempts, like a delivery."""

    def __init__(self, context: SendContext) -> None:
        self.context = context

    def __call__(self) -> SendContext:
        return replace(self.context, save_accepted=self._save)

    async def _save(self, accepted: frozenset[str]) -> None:
        self.context = replace(self.context, accepted=accepted)


def test_a_retry_skips_recipients_that_accepted_the_mail(mailbox, mail_context):
    mailbox.rcpt_replies = {LEE: ["451 4.7.1 later", "250 OK"], MO: ["550 5.1.1 no such user"]}
    saved = SavedContext(mail_context)
    email = Email([KIM, LEE, MO])
    with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
        send(email, saved())
    assert list(refused.value.recipients) == [LEE]
    assert classify(refused.value, rules=DELIVERY_RULES).retryable
    mailbox.rcpt_replies.pop(LEE)
    with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
        send(email, saved())
    assert classify(refused.value, rules=DELIVERY_RULES).code == "BAD_ADDRESS"
    assert [received.to for received in mailbox.mails] == [[KIM], [LEE]]
    assert len({received.mail["Message-ID"] for received in mailbox.mails}) == 1


@pytest.mark.parametrize(
    ("reply", "code", "retried"),
    [
        ("451 4.3.0 try later", "MAIL_DEFERRED", True),
        ("452 4.2.2 mailbox full", "MAIL_DEFERRED", True),
        ("554 5.7.1 spam", "MAIL_REFUSED", False),
        ("552 5.3.4 too large", "TOO_LARGE", False),
    ],
)
def test_replies_of_the_mail_server_are_classified(reply, code, retried, mailbox, mail_context):
    mailbox.data_replies = [reply]
    with pytest.raises(smtplib.SMTPResponseException) as failed:
        send(Email(KIM), mail_context)
    judged = classify(failed.value, rules=DELIVERY_RULES)
    assert (judged.code, judged.retryable) == (code, retried)


def test_a_mail_is_resent_unchanged_if_the_connection_drops_after_data(mailbox, mail_context):
    mailbox.data_replies = ["drop"]
    with pytest.raises(smtplib.SMTPServerDisconnected) as dropped:
        send(Email(KIM), mail_context)
    assert classify(dropped.value, rules=DELIVERY_RULES).retryable
    send(Email(KIM), mail_context)
    assert len({received.mail["Message-ID"] for received in mailbox.mails}) == 1


def test_an_unreachable_mail_server_is_a_connection_failure(mail_context):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    mail = mail_context.settings.mail.model_copy(update={"port": port})
    with pytest.raises(Fail) as failed:
        send(Email(KIM), SendContext(mail_context.settings.model_copy(update={"mail": mail})))
    assert (failed.value.failure_code, failed.value.public) == (
        "CONNECTION",
        "The mail server could not be reached.",
    )


def test_a_hanging_mail_server_times_out_and_leaves_no_thread():
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
            send(Email(KIM), SendContext(Settings(mail=mail)))
    assert failed.value.failure_code == "TIMEOUT"
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
    logins: list[tuple[str, str]] = []

    def login(server, session, envelope, mechanism, data):
        from aiosmtpd.smtp import AuthResult

        logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"pass word", handled=False)

    password = tmp_path / "password"
    password.write_text("pass word\n")
    with mail_server(tls, require_starttls=True, authenticator=login, auth_required=True) as box:
        common = {
            "host": "mail.example",
            "port": box.port,
            "username": "jobs",
            "sender": "jobs@mail.example",
        }
        good = Settings.model_validate({"mail": {**common, "password_file": str(password)}})
        assert send(Email(KIM), SendContext(good)) == {"reached": 1}
        wrong = Settings.model_validate({"mail": {**common, "password": "hunter2hunter2"}})
        with pytest.raises(smtplib.SMTPAuthenticationError) as refused:
            send(Email(KIM), SendContext(wrong))
        other = Settings.model_validate(
            {"mail": {**common, "host": "127.0.0.1", "password": "pass word"}}
        )
        with pytest.raises(Fail, match="certificate"):
            send(Email(KIM), SendContext(other))
    assert len(box.mails) == 1
    assert dict.fromkeys(logins) == dict.fromkeys(
        [("jobs", "pass word"), ("jobs", "hunter2hunter2")]
    )
    assert classify(refused.value, rules=DELIVERY_RULES).retryable, (
        "a mail waits until the password is corrected"
    )
    assert "hunter2" not in f"{refused.value!r} {wrong!r}"


def test_a_mail_server_without_tls_is_refused_if_tls_is_required(mailbox):
    mail = MailSection(host="127.0.0.1", port=mailbox.port, username="jobs", password="secret")
    with pytest.raises(smtplib.SMTPNotSupportedError):
        send(Email(KIM), SendContext(Settings(mail=mail)))
    wrapped = mail.model_copy(update={"tls": "tls", "timeout": 2.0})
    with pytest.raises(Fail):
        send(Email(KIM), SendContext(Settings(mail=wrapped)))
    assert mailbox.mails == []


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
def test_an_invalid_mail_address_is_refused(to):
    with pytest.raises((ConfigError, TypeError)):
        Email(to)


def test_an_email_is_stored_and_read_back():
    email = Email([KIM, f"Lee <{LEE}>"], subject="Jobs")
    assert load_channel(email.to_dict()).to_dict() == email.to_dict()
    assert KIM not in repr(email)
    for channel in (Email(lambda _: KIM), Email(KIM, render=str), Email(KIM, subject=str)):
        with pytest.raises(ConfigError, match="Declare it in code"):
            channel.to_dict()


@pytest.mark.security("S44")
def test_password_and_password_file_together_are_refused_without_showing_them():
    environ = {"MULLIGAN_MAIL__PASSWORD": "hunter2", "MULLIGAN_MAIL__PASSWORD_FILE": "/x"}
    with pytest.raises(ConfigError, match="both set") as refused:
        read_settings(environ=environ)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        read_settings({"mail.password": ["hunter2"]}, environ={})
    assert "hunter2" not in str(refused.value)


def test_a_missing_password_file_fails_before_connecting(mailbox):
    mail = MailSection(
        host="127.0.0.1",
        port=mailbox.port,
        tls="none",
        username="x",
        password_file="/nowhere/at/all",
    )
    with pytest.raises(Fail) as failed:
        send(Email(KIM), SendContext(Settings(mail=mail)))
    assert failed.value.failure_code == "MISCONFIGURED"
    judged = outcome_of_request(
        failed.value, 0, lambda facts: classify_facts(facts, (Rulebook(DELIVERY_RULES),))
    ).failure
    assert judged is not None
    assert judged.retryable, "the file may appear"


def test_an_event_without_a_sentence_template_is_mailed(mailbox, mail_context):
    send(
        Email(KIM),
        mail_context,
        build_event_message(build_event("unknown.event", {}), "sub", Settings()),
    )
    assert mailbox.mails[0].mail["Subject"] == "unknown.event."
