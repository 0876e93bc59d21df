"""Facts in the exceptions of real libraries.

The classes here have the attributes of the real ones, taken from botocore 1.44, google-api-core 2.44, google-genai 3.1,
google-api-python-client 2.202, grpcio 1.85, openai 3.49, anthropic 2.8, httpx 0.28, requests 2.34, aiohttp 3.14,
azure-core 1.41, stripe 16.1, twilio 9.13, asyncpg 0.32, PyMySQL 1.2, redis 8.1. Light libraries are used directly.
"""

from __future__ import annotations

import errno
import ftplib
import io
import smtplib
import socket
import sqlite3
import ssl
import urllib.error
from http import HTTPStatus
from types import SimpleNamespace

import apsw
import httpx2
import psycopg
import pytest
import sqlalchemy.exc

from mulligan.failures.responses import read_body
from support.exceptions import capture_raised, make_exception, make_response

FTP = ftplib.error_perm


def facts_of(exc):
    found = capture_raised(exc)
    names = (
        "provider_codes",
        "http_status",
        "grpc_status",
        "sqlstate",
        "errno",
        "exit_code",
        "signal",
        "retry_after",
    )
    return {name: value for name in names if (value := getattr(found, name)) not in ((), "", None)}


class Unread:
    """A response whose body is still on the connection: reading it would block."""

    status_code = 503
    headers = {"Retry-After": "7"}  # noqa: RUF012

    def _fail_on_read(self, *_):
        raise AssertionError("the body was read")

    content = text = data = body = property(_fail_on_read)
    read = json = iter_content = _fail_on_read


class Rpc(Exception):
    __module__ = "grpc._channel"

    def __init__(self, name, details="", trailers=()):
        self._name, self._details, self._trailers = name, details, trailers

    def code(self):
        return SimpleNamespace(name=self._name, value=(8, "x"))

    def details(self):
        return self._details

    def trailing_metadata(self):
        return self._trailers


QUOTA = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [
        {"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quotaMetric": "m"}
    ],
}
RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "21s"}
INFO = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "reason": "API_KEY_INVALID",
    "domain": "googleapis.com",
}
GENAI = {
    "error": {
        "code": 429,
        "message": "quota",
        "status": "RESOURCE_EXHAUSTED",
        "details": [QUOTA, RETRY],
    }
}


def encode_field(number, *parts):
    """Encode a bytes field of a protobuf message."""
    value = b"".join(parts)
    return bytes([number << 3 | 2, len(value)]) + value


def encode_detail(kind, *parts):
    return encode_field(
        3, encode_field(1, b"type.googleapis.com/google.rpc." + kind), encode_field(2, *parts)
    )


STATUS = b"".join(
    (
        b"\x08\x08",  # code
        encode_field(2, b"message"),
        encode_detail(
            b"ErrorInfo",
            encode_field(1, b"RATE_LIMIT_EXCEEDED"),
            encode_field(2, b"googleapis.com"),
        ),
        encode_detail(b"RetryInfo", encode_field(1, b"\x08\x03")),
        encode_detail(
            b"QuotaFailure",
            encode_field(1, encode_field(1, b"subject"), encode_field(5, b"APerDay")),
        ),
    )
)
AWS = {
    "Error": {"Code": "SlowDown", "Message": "x"},
    "ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": "3"}},
}
DAY = ("quota:day", "GenerateRequestsPerDayPerProjectPerModel-FreeTier")

CASES = {
    "botocore": (
        make_exception("botocore.exceptions.ClientError", "x", response=AWS),
        {"provider_codes": ("SlowDown",), "http_status": 503, "retry_after": 3.0},
    ),
    "botocore, a code that is a status": (
        make_exception(
            "botocore.exceptions.ClientError",
            response={"Error": {"Code": "404"}, "ResponseMetadata": {"HTTPStatusCode": 404}},
        ),
        {"http_status": 404},
    ),
    "boto3, only in words": (
        make_exception(
            "boto3.exceptions.S3UploadFailedError",
            "Failed to upload a: An error occurred (AccessDenied) when calling the PutObject operation: Access Denied",
        ),
        {"provider_codes": ("AccessDenied",)},
    ),
    "google.api_core": (
        make_exception(
            "google.api_core.exceptions.ResourceExhausted",
            code=HTTPStatus.TOO_MANY_REQUESTS,
            grpc_status_code=SimpleNamespace(name="RESOURCE_EXHAUSTED"),
            reason="RATE_LIMIT_EXCEEDED",
            errors=[],
            details=[
                SimpleNamespace(violations=[SimpleNamespace(quota_id="XPerMinute")]),
                SimpleNamespace(retry_delay=SimpleNamespace(seconds=9, nanos=500_000_000)),
            ],
        ),
        {
            "provider_codes": ("quota:minute", "XPerMinute", "RATE_LIMIT_EXCEEDED"),
            "http_status": 429,
            "grpc_status": "RESOURCE_EXHAUSTED",
            "retry_after": 9.5,
        },
    ),
    "google.api_core over HTTP": (
        make_exception(
            "google.api_core.exceptions.Forbidden",
            code=403,
            errors=[{"reason": "rateLimitExceeded"}],
            details=[],
        ),
        {"provider_codes": ("rateLimitExceeded",), "http_status": 403},
    ),
    "google-genai, the day's quota": (
        make_exception(
            "google.genai.errors.ClientError", code=429, status="RESOURCE_EXHAUSTED", details=GENAI
        ),
        {
            "provider_codes": DAY,
            "http_status": 429,
            "grpc_status": "RESOURCE_EXHAUSTED",
            "retry_after": 21.0,
        },
    ),
    "google-genai, a key that is none": (
        make_exception(
            "google.genai.errors.ClientError",
            code=400,
            details={"error": {"status": "INVALID_ARGUMENT", "details": [INFO]}},
        ),
        {
            "provider_codes": ("API_KEY_INVALID",),
            "http_status": 400,
            "grpc_status": "INVALID_ARGUMENT",
        },
    ),
    "googleapiclient": (
        make_exception(
            "googleapiclient.errors.HttpError",
            resp=type("Response", (dict,), {"status": 403})({"retry-after": "7"}),
            content=b'{"error": {"errors": [{"reason": "userRateLimitExceeded"}], "status": "PERMISSION_DENIED"}}',
        ),
        {
            "provider_codes": ("userRateLimitExceeded",),
            "http_status": 403,
            "grpc_status": "PERMISSION_DENIED",
            "retry_after": 7.0,
        },
    ),
    "grpc": (
        Rpc("UNAVAILABLE", trailers=(("grpc-retry-pushback-ms", "1500"),)),
        {"grpc_status": "UNAVAILABLE", "retry_after": 1.5},
    ),
    "grpc with details": (
        Rpc("RESOURCE_EXHAUSTED", trailers=(("grpc-status-details-bin", STATUS),)),
        {
            "provider_codes": ("quota:day", "APerDay", "RATE_LIMIT_EXCEEDED"),
            "grpc_status": "RESOURCE_EXHAUSTED",
            "retry_after": 3.0,
        },
    ),
    "grpclib": (
        make_exception(
            "grpclib.exceptions.GRPCError", status=SimpleNamespace(name="NOT_FOUND", value=5)
        ),
        {"grpc_status": "NOT_FOUND"},
    ),
    "openai": (
        make_exception(
            "openai.RateLimitError",
            "Error code: 429",
            status_code=429,
            code="insufficient_quota",
            type="insufficient_quota",
            body={
                "message": "You exceeded",
                "type": "insufficient_quota",
                "code": "insufficient_quota",
            },
            response=make_response(429, headers={"x-ratelimit-reset-requests": "1m3.5s"}),
        ),
        {"provider_codes": ("insufficient_quota",), "http_status": 429, "retry_after": 63.5},
    ),
    "anthropic": (
        make_exception(
            "anthropic.APIStatusError",
            status_code=529,
            body={"type": "error", "error": {"type": "overloaded_error"}},
        ),
        {"provider_codes": ("overloaded_error",), "http_status": 529},
    ),
    "requests, S3's XML": (
        make_exception(
            "requests.HTTPError",
            response=make_response(
                503, b"<?xml?><Error><Code>SlowDown</Code><Message>m</Message></Error>"
            ),
        ),
        {"provider_codes": ("SlowDown",), "http_status": 503},
    ),
    "requests, not read": (
        make_exception("requests.HTTPError", response=Unread()),
        {"http_status": 503, "retry_after": 7.0},
    ),
    "aiohttp": (
        make_exception("aiohttp.ClientResponseError", status=429, headers={"Retry-After": "4"}),
        {"http_status": 429, "retry_after": 4.0},
    ),
    "urllib": (
        urllib.error.HTTPError(
            "http://x", 429, "Too Many", {"Retry-After": "5"}, io.BytesIO(b"{}")
        ),
        {"http_status": 429, "retry_after": 5.0},
    ),
    "azure": (
        make_exception(
            "azure.core.exceptions.ResourceNotFoundError",
            status_code=404,
            reason="Not Found",
            error_code="BlobNotFound",
        ),
        {"provider_codes": ("BlobNotFound",), "http_status": 404},
    ),
    "azure, OData": (
        make_exception(
            "azure.core.exceptions.HttpResponseError",
            status_code=400,
            error=SimpleNamespace(code="QuotaExceeded"),
        ),
        {"provider_codes": ("QuotaExceeded",), "http_status": 400},
    ),
    "stripe": (
        make_exception(
            "stripe.CardError",
            code="card_declined",
            http_status=402,
            json_body={"error": {"type": "card_error"}},
        ),
        {"provider_codes": ("card_error", "card_declined"), "http_status": 402},
    ),
    "twilio": (
        make_exception("twilio.base.exceptions.TwilioRestException", status=400, code=21211),
        {"provider_codes": ("twilio:21211",), "http_status": 400},
    ),
    "kubernetes": (
        make_exception(
            "kubernetes.client.ApiException",
            status=409,
            reason="Conflict",
            body='{"reason": "AlreadyExists", "code": 409}',
        ),
        {"provider_codes": ("AlreadyExists",), "http_status": 409},
    ),
    "slack": (
        make_exception(
            "slack_sdk.errors.SlackApiError",
            response=SimpleNamespace(status_code=200, data={"ok": False, "error": "ratelimited"}),
        ),
        {"http_status": 200, "provider_codes": ("ratelimited",)},
    ),
    "graphql": (
        make_exception(
            "gql.Error",
            response=make_response(
                200, {"data": None, "errors": [{"extensions": {"code": "UNAUTHENTICATED_"}}]}
            ),
        ),
        {"http_status": 200, "provider_codes": ("UNAUTHENTICATED_",)},
    ),
    "not what was expected, but no error": (
        make_exception(
            "aiohttp.ContentTypeError",
            status=200,
            response=make_response(200, {"type": "invoice", "code": "A7"}),
        ),
        {"http_status": 200},
    ),
    "telegram": (
        make_exception("telegram.error.RetryAfter", "Flood control", retry_after=35),
        {"retry_after": 35.0},
    ),
    "psycopg": (psycopg.errors.DeadlockDetected("x"), {"sqlstate": "40P01"}),
    "psycopg2": (
        make_exception("psycopg2.errors.AdminShutdown", pgcode="57P01"),
        {"sqlstate": "57P01"},
    ),
    "pyodbc": (
        make_exception("pyodbc.ProgrammingError", "42S02", "[42S02] no table"),
        {"sqlstate": "42S02"},
    ),
    "pymysql": (
        make_exception("pymysql.err.OperationalError", 1213, "Deadlock"),
        {"provider_codes": ("mysql:1213",)},
    ),
    "mysql.connector": (
        make_exception("mysql.connector.errors.DatabaseError", errno=1205, sqlstate="HY000"),
        {"provider_codes": ("mysql:1205",), "sqlstate": "HY000"},
    ),
    "oracledb": (
        make_exception(
            "oracledb.exceptions.DatabaseError", SimpleNamespace(full_code="ORA-00060", code=60)
        ),
        {"provider_codes": ("ORA-00060",)},
    ),
    "apsw": (
        make_exception("apsw.BusyError", "locked", base=apsw.BusyError, result=5),
        {"provider_codes": ("sqlite:SQLITE_BUSY", "sqlite:5")},
    ),
    "sqlite3, extended": (
        make_exception(
            "sqlite3.IntegrityError",
            base=sqlite3.IntegrityError,
            sqlite_errorname="SQLITE_CONSTRAINT_UNIQUE",
            sqlite_errorcode=2067,
        ),
        {
            "provider_codes": (
                "sqlite:SQLITE_CONSTRAINT_UNIQUE",
                "sqlite:SQLITE_CONSTRAINT",
                "sqlite:19",
            )
        },
    ),
    "redis": (
        make_exception("redis.exceptions.BusyLoadingError", "x", status_code="LOADING"),
        {"provider_codes": ("redis:LOADING",)},
    ),
    "redis, older": (
        make_exception("redis.exceptions.ReadOnlyError", "You can't write"),
        {"provider_codes": ("redis:READONLY",)},
    ),
    "redis, a word": (
        make_exception("redis.exceptions.ResponseError", "MISCONF Redis is"),
        {"provider_codes": ("redis:MISCONF",)},
    ),
    "mongo": (
        make_exception(
            "pymongo.errors.OperationFailure",
            code=112,
            details={"codeName": "WriteConflict", "code": 112},
        ),
        {"provider_codes": ("WriteConflict", "mongo:112")},
    ),
    "smtp": (
        smtplib.SMTPDataError(552, b"5.3.4 Message too big"),
        {"provider_codes": ("smtp:5.3.4", "smtp:552")},
    ),
    "smtp, several recipients": (
        smtplib.SMTPRecipientsRefused(
            {"a@b.c": (550, b"5.1.1 unknown"), "d@e.f": (451, b"4.7.1 greylisted")}
        ),
        {"provider_codes": ("smtp:4.7.1", "smtp:451", "smtp:5.1.1", "smtp:550")},
    ),
    "aiosmtplib": (
        make_exception(
            "aiosmtplib.errors.SMTPResponseException", code=421, message="4.3.2 closing"
        ),
        {"provider_codes": ("smtp:4.3.2", "smtp:421")},
    ),
    "ftp": (FTP("550 No such file"), {"provider_codes": ("ftp:550",)}),
    "curl": (make_exception("pycurl.error", 28, "timed out"), {"provider_codes": ("curl:28",)}),
    "resolver": (socket.gaierror(socket.EAI_AGAIN, "x"), {"provider_codes": ("gai:-3",)}),
    "disk": (OSError(errno.ENOSPC, "full"), {"errno": errno.ENOSPC}),
    "exit code of a parser": (
        make_exception("click.exceptions.UsageError", exit_code=2, cmd=object()),
        {},
    ),
    "a library's page of a manual": (sqlalchemy.exc.InvalidRequestError("x", code="xd2s"), {}),
    "websocket": (
        make_exception("websockets.exceptions.ConnectionClosedError", code=1006),
        {"provider_codes": ("websockets:1006",)},
    ),
    "rabbit": (
        make_exception("amqp.exceptions.NotFound", code=404, reply_code=404),
        {"provider_codes": ("amqp:404",)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_facts_are_found_in_the_exceptions_of_libraries(name):
    exc, expected = CASES[name]
    assert facts_of(exc) == expected


def test_the_cached_response_of_a_real_client_is_read():
    request = httpx2.Request("GET", "https://h/x")
    body = {
        "error": {"code": "rate_limit_exceeded", "type": "tokens", "message": "Slow down, please"}
    }
    response = httpx2.Response(429, json=body, headers={"Retry-After": "20"}, request=request)
    found = capture_raised(
        httpx2.HTTPStatusError("Client error 429", request=request, response=response)
    )
    assert (found.http_status, found.provider_codes, found.retry_after) == (
        429,
        ("rate_limit_exceeded", "tokens"),
        20.0,
    )
    assert found.retry_after_source == "Retry-After"
    assert found.message == "Client error 429\nSlow down, please"


def test_a_streaming_response_is_not_read():
    class Stream(httpx2.SyncByteStream):
        def __iter__(self):
            raise AssertionError("the body was read")

    request = httpx2.Request("GET", "https://h/x")
    response = httpx2.Response(503, stream=Stream(), request=request)
    found = capture_raised(httpx2.HTTPStatusError("x", request=request, response=response))
    assert found.http_status == 503
    assert not response.is_stream_consumed


def test_numbers_of_resolvers_and_tls_libraries_are_not_errnos():
    refused = ssl.SSLCertVerificationError(1, "certificate verify failed")
    refused.reason = "CERTIFICATE_VERIFY_FAILED"
    assert facts_of(refused) == {"provider_codes": ("ssl:CERTIFICATE_VERIFY_FAILED",)}
    assert facts_of(ssl.SSLEOFError(8, "EOF occurred")) == {}
    assert "errno" not in facts_of(socket.gaierror(-2, "x"))


def test_codes_in_the_body_of_a_success_are_ignored():
    assert read_body({"status": 200, "code": 0, "message": "ok"}).codes == []


# --- Hostile attributes ---


class RaisingProperties(Exception):
    """Most properties raise; the others are still found."""

    status_code = 503

    @property
    def response(self):
        raise RuntimeError("no response")

    @property
    def headers(self):
        raise KeyboardInterrupt

    @property
    def code(self):
        raise SystemExit(3)

    @property
    def sqlstate(self):
        return "40001"


def test_a_property_that_raises_loses_one_fact():
    assert facts_of(RaisingProperties()) == {"http_status": 503, "sqlstate": "40001"}


class EveryAttribute(Exception):
    """Has every attribute, as mocks do."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return EveryAttribute()


def test_an_exception_that_has_every_attribute_is_captured():
    assert capture_raised(EveryAttribute("x")).message == "x"
