"""What a receiver gets, and what its answers mean."""

from __future__ import annotations

import json
import socket
import ssl
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import standardwebhooks

from mulligan.core.errors import ConfigError, Fail
from mulligan.notifications import webhook as posting
from mulligan.notifications.channel_registry import load_channel
from mulligan.notifications.channels import Gone
from mulligan.notifications.message import Message, message_of
from mulligan.notifications.webhook import Webhook, new_secret
from support.messages import LINKED, MESSAGE, event, sent
from support.receiving import OK, status

CERTIFICATES = Path(__file__).parents[1] / "support" / "certificates"
NEW, OLD = new_secret(), new_secret()


@pytest.mark.security("S38")
def test_a_message_is_signed_and_says_what_happened_and_what_is_done_about_it(receiver, local):
    there = receiver()
    assert sent(Webhook(there.url, secret=NEW, headers={"X-Team": "video"}), local) == {
        "status": 204
    }
    [request] = there.requests
    body = standardwebhooks.Webhook(NEW).verify(request.body, request.headers)
    assert request.line == "POST /hook HTTP/1.1"
    assert (request.headers["webhook-id"], request.headers["x-team"]) == (MESSAGE.id, "video")
    assert request.headers["content-type"] == "application/json"
    assert body == {
        "type": "job.retry_scheduled",
        "timestamp": "2027-01-15T08:00:00.000000Z",
        "data": {
            "id": MESSAGE.id,
            "summary": "render failed: A service is not available (HTTP_5XX); retry 1 of 3 at 08:00:30 UTC (in 30 s).",
            "owner": "acme",
            "job_id": "01jobjobjobjobjobjobjobjobjo",
            "batch_id": None,
            "event_id": 7,
            "retrying": True,
            "attempt": 1,
            "of": 4,
            "next_at": "2027-01-15T08:00:30.000000Z",
            "count": None,
            "first_at": None,
            "last_at": None,
            "link": "https://jobs.example/jobs/01jobjobjobjobjobjobjobjobjo",
            "runbook": "https://wiki.example/runbook#http_5xx",
            "details": dict(MESSAGE.data),
        },
    }


def test_the_id_is_the_same_at_every_attempt_and_the_time_is_not(receiver, local, monkeypatch):
    there = receiver(status(503), OK)
    with pytest.raises(Fail):
        sent(Webhook(there.url, secret=NEW), local)

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(time.time() + 60, tz or UTC)

    monkeypatch.setattr(posting, "datetime", Later)
    sent(Webhook(there.url, secret=NEW), local)
    first, second = (request.headers for request in there.requests)
    assert first["webhook-id"] == second["webhook-id"]
    assert int(second["webhook-timestamp"]) >= int(first["webhook-timestamp"]) + 59
    assert first["webhook-signature"] != second["webhook-signature"]


@pytest.mark.security("S38")
def test_while_a_secret_is_being_changed_receivers_with_either_can_verify(receiver, local):
    there = receiver()
    sent(Webhook(there.url, secret=[NEW, OLD]), local)
    [request] = there.requests
    for secret in (NEW, OLD):
        standardwebhooks.Webhook(secret).verify(request.body, request.headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(new_secret()).verify(request.body, request.headers)


def test_a_cloud_event_carries_the_same_data(receiver, local):
    there = receiver()
    sent(
        Webhook(there.url, secret=NEW, form="cloudevents"), replace(local, settings=local.settings)
    )
    [request] = there.requests
    body = json.loads(request.body)
    assert request.headers["content-type"] == "application/cloudevents+json"
    assert (body["specversion"], body["id"], body["source"]) == ("1.0", MESSAGE.id, "mulligan")
    assert (body["type"], body["subject"]) == ("dev.mulligan.job.retry_scheduled", MESSAGE.job_id)
    assert body["data"]["retrying"] is True


def test_a_body_of_ones_own(receiver, local):
    there = receiver()

    async def body(message: Message):
        return {
            "taskId": message.job_id,
            "status": "retrying" if message.retrying else "failed",
            "retryCount": message.data["failures"],
            "maxRetries": message.data["max_retries"],
            "error": message.data["message"],
        }

    sent(Webhook(there.url, render=body), local)
    assert json.loads(there.requests[0].body) == {
        "taskId": MESSAGE.job_id,
        "status": "retrying",
        "retryCount": 1,
        "maxRetries": 3,
        "error": "A service is not available.",
    }
    assert sent(Webhook(there.url, render=lambda _: None), local) == {
        "skipped": "render returned nothing"
    }
    assert len(there.requests) == 1


@pytest.mark.parametrize(
    ("made", "code"), [({"x": "y" * 20_000}, "TOO_LARGE"), ({"x": object()}, "BAD_OUTCOME")]
)
def test_a_body_that_cannot_be_sent_ends_the_delivery(made, code, receiver, local):
    with pytest.raises(Fail) as failed:
        sent(Webhook(receiver().url, render=lambda _: made), local)
    assert (failed.value.code_given, failed.value.final) == (code, True)


@pytest.mark.parametrize(
    ("answer", "code", "after"),
    [
        (status(500), "HTTP_5XX", None),
        (status(503, "Retry-After: 7"), "HTTP_5XX", 7),
        (status(429, "Retry-After: 120"), "RATE_LIMITED", 120),
        (status(429, "Retry-After: 600000"), "RATE_LIMITED", 86_400),
        (status(429, "Retry-After: -5"), "RATE_LIMITED", None),
        (status(429, "Retry-After: NaN"), "RATE_LIMITED", None),
        (status(408), "TIMEOUT", None),
        (status(409), "BUSY", None),
        (status(425), "BUSY", None),
        (status(400), "RECEIVER_REFUSED", None),
        (status(404), "RECEIVER_REFUSED", None),
        (status(401, "Retry-After: 9"), "RECEIVER_REFUSED", None),
    ],
)
def test_what_an_answer_means(answer, code, after, receiver, local):
    with pytest.raises(Fail) as failed:
        sent(Webhook(receiver(answer).url), local)
    assert (failed.value.code_given, failed.value.retry_after, failed.value.final) == (
        code,
        after,
        False,
    )


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
def test_only_2xx_is_success(code, receiver, local):
    assert sent(Webhook(receiver(status(code)).url), local) == {"status": code}


def test_410_means_gone_for_good(receiver, local):
    with pytest.raises(Gone) as gone:
        sent(Webhook(receiver(status(410)).url), local)
    assert (gone.value.code_given, gone.value.final) == ("RECEIVER_GONE", True)


@pytest.mark.security("S36")
def test_what_a_receiver_says_is_kept_nowhere(receiver, local):
    said = b"<script>secret of the inner network</script>"
    with pytest.raises(Fail) as failed:
        sent(Webhook(receiver(status(500, body=said)).url), local)
    assert "secret" not in repr(vars(failed.value))


@pytest.mark.security("S44", "A14")
def test_an_address_that_holds_a_token_is_in_no_log(receiver, local, caplog):
    there = receiver(status(500), OK)
    with caplog.at_level("INFO"):
        with pytest.raises(Fail):
            sent(Webhook(f"{there.url}/token123?key=token456"), local)
        sent(Webhook(f"{there.url}/token123?key=token456"), local)
    assert there.requests[0].line == "POST /hook/token123?key=token456 HTTP/1.1"
    assert "token" not in caplog.text


# These receivers hold a connection for longer than a test may take, so a client that waits for them fails.
HOLD = 600.0  # seconds


def _drip(connection: socket.socket) -> None:
    for _ in range(int(HOLD / 0.1)):
        connection.sendall(b"H")
        time.sleep(0.1)


def _endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:  # until the client closes
        connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")


def _never_ending(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
    time.sleep(HOLD)


def _hang(connection: socket.socket) -> None:
    time.sleep(HOLD)


def _headers_for_ever(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for number in range(100_000):
        connection.sendall(b"X-%d: %s\r\n" % (number, b"y" * 1000))


@pytest.mark.security("S36")
@pytest.mark.parametrize("answer", [_drip, _hang])
def test_a_receiver_that_does_not_answer_in_time_is_a_timeout(answer, receiver, local):
    with pytest.raises(Fail) as failed:
        sent(Webhook(receiver(answer).url, timeout=0.4), local)
    assert failed.value.code_given == "TIMEOUT"


@pytest.mark.security("S36")
@pytest.mark.parametrize(
    ("answer", "linger", "timeout"),
    [(_endless, 5, 15), (_never_ending, 0.2, 15), (_never_ending, 5, 1.5)],
)
def test_an_endless_response_is_cut_off_and_its_status_counts(
    answer, linger, timeout, receiver, local, monkeypatch
):
    monkeypatch.setattr(posting, "LINGER", linger)
    assert sent(Webhook(receiver(answer).url, timeout=timeout), local) == {"status": 200}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"nonsense\r\n\r\n",
        b"\x00" * 100,
        b"HTTP/1.1 abc OK\r\n\r\n",
        _headers_for_ever,
    ],
)
def test_what_is_no_answer_is_a_broken_connection(answer, receiver, local):
    with pytest.raises(Fail) as failed:
        sent(Webhook(receiver(answer).url), local)
    assert failed.value.code_given == "CONNECTION"


def test_nobody_listens(local):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Fail) as failed:
        sent(Webhook(f"http://127.0.0.1:{port}/"), local)
    assert failed.value.code_given == "CONNECTION"


@pytest.fixture
def tls():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    return context


@pytest.fixture
def trusting(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    posting._trusted.cache_clear()
    yield
    posting._trusted.cache_clear()


async def _here(_host, _port):
    return ["127.0.0.1"]


@pytest.mark.security("S37")
def test_a_certificate_is_checked_against_the_name_although_the_address_is_connected_to(
    receiver, local, tls, trusting
):
    names: list[str | None] = []
    tls.sni_callback = lambda _socket, name, _context: names.append(name)
    there = receiver(context=tls)
    sending = replace(local, resolve=_here)
    assert sent(Webhook(f"https://hook.example:{there.port}/"), sending) == {"status": 204}
    assert names == ["hook.example"]
    with pytest.raises(Fail, match="CERTIFICATE_VERIFY_FAILED") as failed:
        sent(Webhook(f"https://other.example:{there.port}/"), sending)
    assert failed.value.public == "The receiver's certificate was not accepted."
    assert len(there.requests) == 1


@pytest.mark.security("S37")
def test_a_certificate_of_an_unknown_authority_is_refused(receiver, local, tls):
    there = receiver(context=tls)
    with pytest.raises(Fail, match="CERTIFICATE_VERIFY_FAILED"):
        sent(Webhook(f"https://hook.example:{there.port}/"), replace(local, resolve=_here))
    assert there.requests == []


@pytest.mark.security("S39")
@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "b\r\nX-Forged: yes"},
        {"X-A": "b\nc"},
        {"X-A\r\nX-B": "c"},
        {"X-A": "b\x00"},
        {"": "x"},
        {"X A": "x"},
        {"Host": "other"},
        {"content-length": "0"},
        {"Webhook-Id": "forged"},
        {"webhook-signature": "v1,x"},
        {"Transfer-Encoding": "chunked"},
        {"X-A": "ü"},
        {"X-A": 7},
        {"X-A": "x" * 2001},
    ],
)
def test_headers_that_would_forge_something_are_refused(headers):
    with pytest.raises(ConfigError):
        Webhook("https://example.com/", headers=headers)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_short", "not base64 !!", "whsec_" + "A" * 200, ["x"], 7]
)
def test_a_secret_that_protects_nothing_is_refused(secret):
    with pytest.raises((ConfigError, TypeError)):
        Webhook("https://example.com/", secret=secret)


@pytest.mark.parametrize(
    "options", [{"timeout": 0}, {"timeout": 61}, {"timeout": float("nan")}, {"form": "xml"}]
)
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(ConfigError):
        Webhook("https://example.com/", **options)


@pytest.mark.security("S38")
def test_a_webhook_is_stored_and_read_back_and_shows_no_secret():
    webhook = Webhook(
        "https://example.com/hook/token123",
        secret=[NEW, OLD],
        headers={"Authorization": "Bearer x"},
    )
    again = load_channel(json.loads(json.dumps(webhook.to_plain())))
    assert again.to_plain() == webhook.to_plain()
    assert repr(webhook) == "Webhook('https://example.com:443')"
    for own in ({"render": lambda message: {}}, {"allow_private": True}):
        with pytest.raises(ConfigError, match="only be declared in code"):
            Webhook("https://example.com/", **own).to_plain()
    with pytest.raises(ConfigError, match="Use webhook, email or apprise"):
        load_channel({"channel": "pigeon"})


def test_a_message_survives_storage():
    for type_ in ("job.died", "batch.ready", "of.tomorrow"):
        message = message_of(event(type_), "sub", LINKED)
        assert Message.from_json(message.to_json()) == message
    assert Message.from_plain({**MESSAGE.to_plain(), "of_tomorrow": 1}) == MESSAGE
