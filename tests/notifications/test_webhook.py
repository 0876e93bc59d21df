"""Webhooks: the signed request, and how responses are classified."""

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
from mulligan.notifications import webhook as webhook_module
from mulligan.notifications.channels import ReceiverGone, load_channel
from mulligan.notifications.message import Message, build_event_message
from mulligan.notifications.webhook import Webhook, new_secret
from support.messages import LINKED, MESSAGE, build_event, send
from support.raw_receivers import OK, build_response

CERTIFICATES = Path(__file__).parents[1] / "support" / "certificates"
NEW, OLD = new_secret(), new_secret()


@pytest.mark.security("S38")
def test_a_message_is_signed_and_describes_the_event(receiver, loopback_context):
    target = receiver()
    assert send(Webhook(target.url, secret=NEW, headers={"X-Team": "video"}), loopback_context) == {
        "status": 204
    }
    [request] = target.requests
    body = standardwebhooks.Webhook(NEW).verify(request.body, request.headers)
    assert request.line == "POST /hook HTTP/1.1"
    assert (request.headers["webhook-id"], request.headers["x-team"]) == (MESSAGE.id, "video")
    assert request.headers["content-type"] == "application/json"
    assert body == {
        "type": "job.retry_scheduled",
        "timestamp": "2027-01-15T08:00:00.000000Z",
        "data": {
            "id": MESSAGE.id,
            "summary": "render failed: A service is not available (HTTP_5XX). "
            "Retry 1 of 3 at 08:00:30 UTC (in 30 s).",
            "owner": "acme",
            "job_id": "01jobjobjobjobjobjobjobjobjo",
            "batch_id": None,
            "seq": 7,
            "retrying": True,
            "attempt": 1,
            "retries": 1,
            "of": 4,
            "next_at": "2027-01-15T08:00:30.000000Z",
            "count": None,
            "first_at": None,
            "last_at": None,
            "link": "https://jobs.example/jobs/01jobjobjobjobjobjobjobjobjo",
            "runbook": "https://wiki.example/runbook#http_5xx",
            "alarm": None,
            "details": dict(MESSAGE.data),
        },
    }


def test_an_urgent_message_says_so_to_the_receiver(receiver, loopback_context):
    target = receiver()
    send(Webhook(target.url, secret=NEW), loopback_context, replace(MESSAGE, alarm="page"))
    [request] = target.requests
    assert json.loads(request.body)["data"]["alarm"] == "page"


def test_retries_keep_the_id_and_change_the_timestamp(receiver, loopback_context, monkeypatch):
    target = receiver(build_response(503), OK)
    with pytest.raises(Fail):
        send(Webhook(target.url, secret=NEW), loopback_context)

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(time.time() + 60, tz or UTC)

    monkeypatch.setattr(webhook_module, "datetime", Later)
    send(Webhook(target.url, secret=NEW), loopback_context)
    first, second = (request.headers for request in target.requests)
    assert first["webhook-id"] == second["webhook-id"]
    assert int(second["webhook-timestamp"]) >= int(first["webhook-timestamp"]) + 59
    assert first["webhook-signature"] != second["webhook-signature"]


@pytest.mark.security("S38")
def test_either_secret_verifies_during_a_rotation(receiver, loopback_context):
    target = receiver()
    send(Webhook(target.url, secret=[NEW, OLD]), loopback_context)
    [request] = target.requests
    for secret in (NEW, OLD):
        standardwebhooks.Webhook(secret).verify(request.body, request.headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(new_secret()).verify(request.body, request.headers)


def test_a_cloud_event_carries_the_same_data(receiver, loopback_context):
    target = receiver()
    send(Webhook(target.url, secret=NEW, form="cloudevents"), loopback_context)
    [request] = target.requests
    body = json.loads(request.body)
    assert request.headers["content-type"] == "application/cloudevents+json"
    assert (body["specversion"], body["id"], body["source"]) == ("1.0", MESSAGE.id, "mulligan")
    assert (body["type"], body["subject"]) == ("dev.mulligan.job.retry_scheduled", MESSAGE.job_id)
    assert body["data"]["retrying"] is True


def test_a_rendered_body_replaces_the_default(receiver, loopback_context):
    target = receiver()

    async def body(message: Message):
        return {
            "taskId": message.job_id,
            "status": "retrying" if message.retrying else "failed",
            "retryCount": message.data["failures"],
            "maxRetries": message.data["max_retries"],
            "error": message.data["message"],
        }

    send(Webhook(target.url, render=body), loopback_context)
    assert json.loads(target.requests[0].body) == {
        "taskId": MESSAGE.job_id,
        "status": "retrying",
        "retryCount": 1,
        "maxRetries": 3,
        "error": "A service is not available.",
    }
    assert send(Webhook(target.url, render=lambda _: None), loopback_context) == {
        "skipped": "render returned None"
    }
    assert len(target.requests) == 1


@pytest.mark.parametrize(
    ("payload", "code"), [({"x": "y" * 20_000}, "TOO_LARGE"), ({"x": object()}, "BAD_OUTCOME")]
)
def test_an_invalid_body_is_a_final_failure(payload, code, receiver, loopback_context):
    with pytest.raises(Fail) as failed:
        send(Webhook(receiver().url, render=lambda _: payload), loopback_context)
    assert (failed.value.failure_code, failed.value.final) == (code, True)


@pytest.mark.parametrize(
    ("response", "code", "after"),
    [
        (build_response(500), "HTTP_5XX", None),
        (build_response(503, "Retry-After: 7"), "HTTP_5XX", 7),
        (build_response(429, "Retry-After: 120"), "RATE_LIMITED", 120),
        (build_response(429, "Retry-After: 600000"), "RATE_LIMITED", 86_400),
        (build_response(429, "Retry-After: -5"), "RATE_LIMITED", None),
        (build_response(429, "Retry-After: NaN"), "RATE_LIMITED", None),
        (build_response(408), "TIMEOUT", None),
        (build_response(409), "BUSY", None),
        (build_response(425), "BUSY", None),
        (build_response(400), "RECEIVER_REFUSED", None),
        (build_response(404), "RECEIVER_REFUSED", None),
        (build_response(401, "Retry-After: 9"), "RECEIVER_REFUSED", None),
    ],
)
def test_response_statuses_are_classified(response, code, after, receiver, loopback_context):
    with pytest.raises(Fail) as failed:
        send(Webhook(receiver(response).url), loopback_context)
    assert (failed.value.failure_code, failed.value.retry_after, failed.value.final) == (
        code,
        after,
        False,
    )


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
def test_only_2xx_is_success(code, receiver, loopback_context):
    assert send(Webhook(receiver(build_response(code)).url), loopback_context) == {"status": code}


def test_410_disables_the_receiver(receiver, loopback_context):
    with pytest.raises(ReceiverGone) as gone:
        send(Webhook(receiver(build_response(410)).url), loopback_context)
    assert (gone.value.failure_code, gone.value.final) == ("RECEIVER_GONE", True)


@pytest.mark.security("S36")
def test_a_response_body_is_not_stored(receiver, loopback_context):
    body = b"<script>secret of the inner network</script>"
    with pytest.raises(Fail) as failed:
        send(Webhook(receiver(build_response(500, body=body)).url), loopback_context)
    assert "secret" not in repr(vars(failed.value))


@pytest.mark.security("S44", "A14")
def test_a_url_with_a_token_is_not_logged(receiver, loopback_context, caplog):
    target = receiver(build_response(500), OK)
    with caplog.at_level("INFO"):
        with pytest.raises(Fail):
            send(Webhook(f"{target.url}/token123?key=token456"), loopback_context)
        send(Webhook(f"{target.url}/token123?key=token456"), loopback_context)
    assert target.requests[0].line == "POST /hook/token123?key=token456 HTTP/1.1"
    assert "token" not in caplog.text


# These receivers hold a connection longer than a test may take: a client that waits fails.
HOLD = 600.0  # seconds


def _drip(connection: socket.socket) -> None:
    for _ in range(int(HOLD / 0.1)):
        connection.sendall(b"H")
        time.sleep(0.1)


def _endless_body(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:  # until the client closes
        connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")


def _unfinished_body(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
    time.sleep(HOLD)


def _hang(connection: socket.socket) -> None:
    time.sleep(HOLD)


def _endless_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for number in range(100_000):
        connection.sendall(b"X-%d: %s\r\n" % (number, b"y" * 1000))


@pytest.mark.security("S36")
@pytest.mark.parametrize("response", [_drip, _hang])
def test_a_receiver_that_does_not_answer_in_time_is_a_timeout(response, receiver, loopback_context):
    with pytest.raises(Fail) as failed:
        send(Webhook(receiver(response).url, timeout=0.4), loopback_context)
    assert failed.value.failure_code == "TIMEOUT"


@pytest.mark.security("S36")
@pytest.mark.parametrize(
    ("response", "drain_timeout", "timeout"),
    [(_endless_body, 5, 15), (_unfinished_body, 0.2, 15), (_unfinished_body, 5, 1.5)],
)
def test_an_endless_response_is_cut_off_and_its_status_counts(
    response, drain_timeout, timeout, receiver, loopback_context, monkeypatch
):
    monkeypatch.setattr(webhook_module, "DRAIN_TIMEOUT", drain_timeout)
    assert send(Webhook(receiver(response).url, timeout=timeout), loopback_context) == {
        "status": 200
    }


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"HTTP/1.1 200",
        b"nonsense\r\n\r\n",
        b"\x00" * 100,
        b"HTTP/1.1 abc OK\r\n\r\n",
        _endless_headers,
    ],
)
def test_an_invalid_response_is_a_connection_failure(response, receiver, loopback_context):
    with pytest.raises(Fail) as failed:
        send(Webhook(receiver(response).url), loopback_context)
    assert failed.value.failure_code == "CONNECTION"


def test_a_refused_connection_is_a_connection_failure(loopback_context):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Fail) as failed:
        send(Webhook(f"http://127.0.0.1:{port}/"), loopback_context)
    assert failed.value.failure_code == "CONNECTION"


@pytest.fixture
def tls():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    return context


@pytest.fixture
def trusted_authority(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    webhook_module._tls_context.cache_clear()
    yield
    webhook_module._tls_context.cache_clear()


async def _resolve_to_loopback(_host, _port):
    return ["127.0.0.1"]


@pytest.mark.security("S37")
def test_a_certificate_is_checked_against_the_host_name(
    receiver, loopback_context, tls, trusted_authority
):
    names: list[str | None] = []
    tls.sni_callback = lambda _socket, name, _context: names.append(name)
    target = receiver(context=tls)
    context = replace(loopback_context, resolve=_resolve_to_loopback)
    assert send(Webhook(f"https://hook.example:{target.port}/"), context) == {"status": 204}
    assert names == ["hook.example"]
    with pytest.raises(Fail, match="CERTIFICATE_VERIFY_FAILED") as failed:
        send(Webhook(f"https://other.example:{target.port}/"), context)
    assert failed.value.public == "The receiver's certificate could not be verified."
    assert len(target.requests) == 1


@pytest.mark.security("S37")
def test_a_certificate_of_an_unknown_authority_is_refused(receiver, loopback_context, tls):
    target = receiver(context=tls)
    with pytest.raises(Fail, match="CERTIFICATE_VERIFY_FAILED"):
        send(
            Webhook(f"https://hook.example:{target.port}/"),
            replace(loopback_context, resolve=_resolve_to_loopback),
        )
    assert target.requests == []


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
def test_reserved_and_invalid_headers_are_refused(headers):
    with pytest.raises(ConfigError):
        Webhook("https://example.com/", headers=headers)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_short", "not base64 !!", "whsec_" + "A" * 200, ["x"], 7]
)
def test_a_weak_secret_is_refused(secret):
    with pytest.raises((ConfigError, TypeError)):
        Webhook("https://example.com/", secret=secret)


@pytest.mark.parametrize(
    "options", [{"timeout": 0}, {"timeout": 61}, {"timeout": float("nan")}, {"form": "xml"}]
)
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigError):
        Webhook("https://example.com/", **options)


@pytest.mark.security("S38")
def test_a_stored_webhook_is_read_back_and_shows_no_secret():
    webhook = Webhook(
        "https://example.com/hook/token123",
        secret=[NEW, OLD],
        headers={"Authorization": "Bearer x"},
    )
    again = load_channel(json.loads(json.dumps(webhook.to_dict())))
    assert again.to_dict() == webhook.to_dict()
    assert repr(webhook) == "Webhook('https://example.com:443')"
    for options in ({"render": lambda message: {}}, {"allow_private": True}):
        with pytest.raises(ConfigError, match="Declare it in code"):
            Webhook("https://example.com/", **options).to_dict()
    with pytest.raises(ConfigError, match="Use webhook, email or apprise"):
        load_channel({"channel": "pigeon"})


def test_a_message_survives_storage():
    for type_ in ("job.died", "batch.ready", "unknown.event"):
        message = build_event_message(build_event(type_), "sub", LINKED)
        assert Message.from_json(message.to_json()) == message
    assert Message.from_dict({**MESSAGE.to_dict(), "field_of_a_newer_version": 1}) == MESSAGE
