"""What two teams wrote down is said exactly so: three mails of a watermark service, the webhook of a video service."""

from __future__ import annotations

from collections.abc import Iterator
from email.message import Message as Mail
from typing import Any

import pytest

from mulligan import Email, Fail, Message, Policy, Table, Webhook
from support.app_tools import advance
from support.receivers import MailReceiver, WebReceiver, receiving

OWNERS = {"acct_7": ("Ann", "ann@example.com")}


@pytest.fixture
def mail() -> Iterator[MailReceiver]:
    with receiving(MailReceiver) as receiver:
        yield receiver


@pytest.fixture
def web() -> Iterator[WebReceiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def service(make_app, mail):
    """Tokens of a campaign are jobs of a batch; the owner's address and the recipient's name are the app's own data."""
    app = make_app(mail__host="127.0.0.1", mail__port=str(mail.port), mail__tls="none")

    @app.job(name="watermark", policy=Policy(max_retries=0))
    def watermark(recipient: str, *, broken: bool = False) -> str | Fail:
        return Fail("FFMPEG", public="The file is damaged.", final=True) if broken else recipient

    def to(message: Message) -> str:
        return OWNERS[message.owner][1]

    def job_failed(message: Message) -> dict[str, str]:
        owner, job = OWNERS[message.owner][0], app.jobs.get(message.job_id)
        campaign = app.batches.get(message.batch_id).name
        text = f"Hello {owner},\n\n{campaign}: the file for {job.payload['recipient']} failed: {message.data['message']}"
        return {"subject": f"{campaign}: {job.payload['recipient']} failed", "text": text}

    def partial(message: Message) -> dict[str, str]:
        owner, done, failed = (
            OWNERS[message.owner][0],
            message.data["succeeded"],
            message.data["dead"],
        )
        return {
            "subject": f"{message.data['name']} is partly done",
            "text": f"Hello {owner}: {done} done, {failed} not",
        }

    def failed(message: Message) -> dict[str, str]:
        owner, count = OWNERS[message.owner][0], message.data["dead"]
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


@pytest.mark.seed("000-75", "000-76", "000-80")
def test_a_campaign_that_is_partly_done_is_one_mail_and_one_for_each_job_that_failed(service, mail):
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


@pytest.mark.seed("000-77")
def test_a_campaign_of_which_all_failed_says_so(service, mail):
    campaign(service, {"recipient": "Cy", "broken": True})
    assert ("ann@example.com", "Spring failed", "Hello Ann: all 1 failed") in mails(mail)
    assert len(mail.received) == 2


def test_the_webhook_of_a_task_that_is_tried_again(make_app, web):
    app = make_app(notify__allow_private="127.0.0.0/8")

    @app.job(name="generate", policy=Policy(max_retries=3, backoff=Table([30, 60, 120])))
    def generate() -> Fail:
        return Fail("TIMEOUT", public="Connection timeout")

    def body(message: Message) -> dict[str, Any]:
        said = message.data
        return {
            "taskId": message.job_id,
            "status": "retrying" if message.retrying else "failed",
            "retryCount": said["failures"],
            "maxRetries": said["max_retries"],
            "error": said["message"],
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
