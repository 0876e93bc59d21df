"""Messages of two specifications: three mails of a watermark service, a video webhook."""

from __future__ import annotations

from collections.abc import Iterator
from email.message import Message as Mail
from typing import Any

import pytest

from mulligan import Email, Fail, Message, Policy, Table, Webhook
from support.app_tools import advance
from support.receivers import MailReceiver, WebReceiver, open_receiver

OWNERS = {"acct_7": ("Ann", "ann@example.com")}


@pytest.fixture
def mail() -> Iterator[MailReceiver]:
    with open_receiver(MailReceiver) as receiver:
        yield receiver


@pytest.fixture
def web() -> Iterator[WebReceiver]:
    with open_receiver() as receiver:
        yield receiver


@pytest.fixture
def service(make_app, mail):
    """A campaign is a batch; addresses and recipients are data of the app."""
    app = make_app(mail__host="127.0.0.1", mail__port=str(mail.port), mail__tls="none")

    @app.job(name="watermark", policy=Policy(max_retries=0))
    def watermark(recipient: str, *, broken: bool = False) -> str | Fail:
        return Fail("FFMPEG", public="The file is damaged.", final=True) if broken else recipient

    def to(message: Message) -> str:
        return OWNERS[message.owner][1]

    def job_failed(message: Message) -> dict[str, str]:
        owner = OWNERS[message.owner][0]
        recipient = app.jobs.get(message.job_id).payload["recipient"]
        campaign = app.batches.get(message.batch_id).name
        error = message.data["message"]
        text = f"Hello {owner},\n\n{campaign}: the file for {recipient} failed: {error}"
        return {"subject": f"{campaign}: {recipient} failed", "text": text}

    def partial(message: Message) -> dict[str, str]:
        owner = OWNERS[message.owner][0]
        done = message.data["succeeded"]
        failed = message.data["dead"]
        return {
            "subject": f"{message.data['name']} is partly done",
            "text": f"Hello {owner}: {done} done, {failed} not",
        }

    def failed(message: Message) -> dict[str, str]:
        owner = OWNERS[message.owner][0]
        count = message.data["dead"]
        return {
            "subject": f"{message.data['name']} failed",
            "text": f"Hello {owner}: all {count} failed",
        }

    app.notify(on="job.died", to=Email(to, render=job_failed), form="each", name="job-failed")
    app.notify(on="batch.partial", to=Email(to, render=partial), name="campaign-partial")
    app.notify(on="batch.failed", to=Email(to, render=failed), name="campaign-failed")
    app.run_inline()
    return app


def campaign(app, *tokens: dict[str, Any]) -> None:
    batch = app.batch("Spring", owner="acct_7")
    for token in tokens:
        app.enqueue("watermark", token, batch=batch)
    batch.seal()
    app.run_inline()


def mails(receiver: MailReceiver) -> list[tuple[str, str, str]]:
    return sorted((one.to, str(one.body["subject"]), _text(one.body)) for one in receiver.received)


def _text(mail: Mail) -> str:
    parts = [part for part in mail.walk() if part.get_content_type() == "text/plain"]
    payload: Any = parts[0].get_payload(decode=True)
    return str(payload.decode()).replace("\r\n", "\n").strip()


def test_a_partial_campaign_sends_one_mail_and_one_per_failed_job(service, mail):
    campaign(
        service,
        {"recipient": "Bo"},
        {"recipient": "Cy", "broken": True},
        {"recipient": "Di", "broken": True},
    )
    damaged = "Hello Ann,\n\nSpring: the file for {} failed: The file is damaged."
    assert mails(mail) == [
        ("ann@example.com", "Spring is partly done", "Hello Ann: 1 done, 2 not"),
        ("ann@example.com", "Spring: Cy failed", damaged.format("Cy")),
        ("ann@example.com", "Spring: Di failed", damaged.format("Di")),
    ]


def test_a_failed_campaign_sends_one_mail_with_the_number(service, mail):
    campaign(service, {"recipient": "Cy", "broken": True})
    assert ("ann@example.com", "Spring failed", "Hello Ann: all 1 failed") in mails(mail)
    assert len(mail.received) == 2


def test_the_webhook_of_a_retried_task(make_app, web):
    app = make_app(notify__allow_private="127.0.0.0/8")

    @app.job(name="generate", policy=Policy(max_retries=3, backoff=Table([30, 60, 120])))
    def generate() -> Fail:
        return Fail("TIMEOUT", public="Connection timeout")

    def body(message: Message) -> dict[str, Any]:
        data = message.data
        return {
            "taskId": message.job_id,
            "status": "retrying" if message.retrying else "failed",
            "retryCount": data["failures"],
            "maxRetries": data["max_retries"],
            "error": data["message"],
        }

    app.notify(on="job.retry_scheduled, job.died", to=Webhook(web.url(), render=body), name="tasks")
    app.run_inline()
    job = app.enqueue("generate")
    for _ in range(4):
        app.run_inline()
        advance(app, 200)
    common = {"taskId": job.id, "maxRetries": 3, "error": "Connection timeout"}
    assert web.bodies() == [
        {**common, "status": "retrying", "retryCount": 1},
        {**common, "status": "retrying", "retryCount": 2},
        {**common, "status": "retrying", "retryCount": 3},
        {**common, "status": "failed", "retryCount": 4},
    ]
