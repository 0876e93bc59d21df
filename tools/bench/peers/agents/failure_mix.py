"""Failures of many libraries, each with a different text: `fail(i, seed)` raises that of job i.

Standard library only: it runs in the environment of every system. Classes of other libraries are
imitated by name, module and attributes. Every failure is one that a retry can cure, because each
job fails once and then succeeds. The same seed gives the same failures.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import sqlite3
import ssl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class Draw:
    """Values for the failure of one job, drawn from a hash of the seed and the job's number."""

    def __init__(self, i: int, seed: int) -> None:
        self.digits = blake2b(f"{seed}:{i}".encode(), digest_size=32).hexdigest()

    def number(self, place: int, limit: int) -> int:
        return int(self.digits[place : place + 6], 16) % limit

    def id(self, place: int, length: int = 12) -> str:
        return self.digits[place : place + length]

    def choose(self, place: int, values: Sequence[T]) -> T:
        return values[self.number(place, len(values))]

    def uuid(self) -> str:
        text = self.digits
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"

    def address(self, place: int) -> str:
        return f"10.{self.number(place, 250)}.{self.number(place + 2, 250)}.{self.number(place + 4, 250)}"


def _class(module: str, name: str, *bases: type, **members: object) -> Any:
    return type(name, bases or (Exception,), {"__module__": module, **members})


class Response:
    """A response like that of httpx, with its body as bytes."""

    def __init__(self, status: int, headers: dict[str, str], body: object) -> None:
        self.status_code = status
        self.headers = Headers(headers)
        self._content = json.dumps(body).encode()


class Headers(dict[str, str]):
    @property
    def raw(self) -> list[tuple[bytes, bytes]]:
        return [(name.encode(), value.encode()) for name, value in self.items()]


def _with(error: Any, **attributes: object) -> Any:
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


# --- Providers with JSON bodies ---

ApiError = _class("openai", "APIError")
ApiStatusError = _class("openai", "APIStatusError", ApiError)
InternalServerError = _class("openai", "InternalServerError", ApiStatusError)
OverloadedError = _class("anthropic", "OverloadedError", _class("anthropic", "APIStatusError"))
HttpStatusError = _class("httpx", "HTTPStatusError", _class("httpx", "HTTPError"))
ClientError = _class("botocore.exceptions", "ClientError")
StripeError = _class("stripe", "APIError", _class("stripe", "StripeError"))


def _response_headers(draw: Draw) -> dict[str, str]:
    return {
        "date": "Tue, 14 Nov 2023 22:13:20 GMT",
        "content-type": "application/json",
        "x-request-id": f"req_{draw.id(0, 24)}",
        "server": draw.choose(3, ("cloudflare", "nginx", "envoy")),
        "cf-ray": f"{draw.id(8, 16)}-FRA",
        "cache-control": "no-store",
    }


def openai_server_error(draw: Draw) -> NoReturn:
    body = {
        "error": {
            "message": f"The server had an error while processing your request {draw.id(2)} "
            f"({draw.number(9, 9000)} tokens)",
            "type": "server_error",
            "param": None,
            "code": None,
        }
    }
    status = draw.choose(4, (500, 502, 503))
    error = InternalServerError(f"Error code: {status} - {body}")
    response = Response(status, _response_headers(draw), body)
    request_id = f"req_{draw.id(0, 24)}"
    raise _with(error, response=response, status_code=status, body=body, request_id=request_id)


def anthropic_overloaded(draw: Draw) -> NoReturn:
    body = {
        "type": "error",
        "error": {"type": "overloaded_error", "message": f"Overloaded (shard {draw.id(5, 4)})"},
        "request_id": f"req_{draw.id(0, 20)}",
    }
    error = OverloadedError(json.dumps(body))
    raise _with(
        error, response=Response(529, _response_headers(draw), body), status_code=529, body=body
    )


def http_status(draw: Draw) -> NoReturn:
    status, phrase = draw.choose(
        1, ((502, "Bad Gateway"), (503, "Service Unavailable"), (504, "Gateway Timeout"))
    )
    body = {
        "status": status,
        "title": phrase,
        "detail": f"upstream {draw.address(3)}:8443 took {draw.number(5, 30_000)} ms",
        "traceId": draw.uuid(),
    }
    text = (
        f"Server error '{status} {phrase}' for url "
        f"'https://api.example.org/v2/shipments/{draw.number(7, 10**6)}/labels?page={draw.number(11, 90)}'\n"
        f"For more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/{status}"
    )
    raise _with(HttpStatusError(text), response=Response(status, _response_headers(draw), body))


def aws_client_error(draw: Draw) -> NoReturn:
    code, status = draw.choose(
        2, (("SlowDown", 503), ("InternalError", 500), ("ThrottlingException", 400))
    )
    operation = draw.choose(6, ("PutObject", "GetItem", "SendMessage", "InvokeModel"))
    message = f"Please reduce your request rate for key {draw.id(7, 10)}."
    error = ClientError(
        f"An error occurred ({code}) when calling the {operation} operation "
        f"(reached max retries: {draw.number(3, 9)}): {message}"
    )
    raise _with(
        error,
        operation_name=operation,
        response={
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {
                "RequestId": draw.id(0, 16).upper(),
                "HostId": draw.id(4, 40),
                "HTTPStatusCode": status,
                "HTTPHeaders": _response_headers(draw),
                "RetryAttempts": draw.number(3, 9),
            },
        },
    )


# --- Chains of three and more exceptions ---

NewConnectionError = _class("urllib3.exceptions", "NewConnectionError")
MaxRetryError = _class("urllib3.exceptions", "MaxRetryError")
RequestsConnectionError = _class(
    "requests.exceptions",
    "ConnectionError",
    _class("requests.exceptions", "RequestException", OSError),
)
CoreReadTimeout = _class("httpcore", "ReadTimeout", _class("httpcore", "TimeoutException"))
HttpxReadTimeout = _class("httpx", "ReadTimeout", _class("httpx", "TimeoutException"))


def refused_connection(draw: Draw) -> NoReturn:
    host, path = draw.address(1), f"/v1/accounts/{draw.id(8, 10)}/ledger"
    try:
        try:
            try:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            except OSError as error:
                pool = f"<urllib3.connection.HTTPConnection object at 0x7f{draw.id(2, 10)}>"
                raise NewConnectionError(
                    f"{pool}: Failed to establish a new connection: {error}"
                ) from error
        except NewConnectionError as error:
            text = (
                f"HTTPConnectionPool(host='{host}', port=8080): Max retries exceeded with url: "
                f"{path} (Caused by {error!r})"
            )
            raise _with(MaxRetryError(text), reason=error) from error
    except MaxRetryError as error:
        raise RequestsConnectionError(error)  # noqa: B904 - as requests does it


def read_timeout(draw: Draw) -> NoReturn:
    try:
        try:
            raise TimeoutError(f"The read operation timed out after {draw.number(2, 60)} s")
        except TimeoutError as error:
            raise CoreReadTimeout(str(error)) from error
    except CoreReadTimeout as error:
        raise HttpxReadTimeout(f"{error} (stream {draw.number(5, 4000)})") from error


class ReplicaLagging(Exception):
    def __init__(self, replica: str, lag_ms: int) -> None:
        super().__init__(f"replica {replica} is {lag_ms} ms behind")
        self.replica = replica
        self.lag_ms = lag_ms


class LedgerOutOfSync(Exception):
    """An application's exception, with attributes that no library knows."""

    def __init__(self, account: str, expected: int, found: int, region: str) -> None:
        self.account = account
        self.expected = expected
        self.found = found
        self.region = region
        super().__init__(account, expected, found)

    def __str__(self) -> str:
        return (
            f"ledger of account {self.account} is out of sync in {self.region}: "
            f"expected version {self.expected}, found {self.found}"
        )


class ImportStepFailed(RuntimeError):
    def __init__(self, step: str, row: int) -> None:
        super().__init__(f"step {step} stopped at row {row}, connection reset by peer")
        self.step = step
        self.row = row


def custom_chain(draw: Draw) -> NoReturn:
    try:
        try:
            raise ReplicaLagging(f"db-{draw.id(1, 6)}", draw.number(3, 90_000))
        except ReplicaLagging as error:
            expected = draw.number(5, 5000)
            region = draw.choose(7, ("eu-central-1", "us-east-2", "ap-south-1"))
            raise LedgerOutOfSync(draw.uuid(), expected, expected - 1, region) from error
    except LedgerOutOfSync as error:
        raise ImportStepFailed(
            draw.choose(9, ("load", "merge", "verify")), draw.number(11, 10**6)
        ) from error


# --- Programs ---

_PROGRAMS = (
    (
        ("git", "fetch", "--depth=1", "https://git.example.org/teams/{a}/site.git"),
        128,
        (
            "fatal: unable to access 'https://git.example.org/teams/{a}/site.git/': "
            "Failed to connect to git.example.org port 443 after {n} ms: Connection timed out\n"
        ),
    ),
    (
        ("rsync", "-a", "/srv/export/{a}/", "backup@{b}:/data/{a}/"),
        12,
        (
            "rsync: connection unexpectedly closed ({n} bytes received so far) [sender]\n"
            "rsync error: error in rsync protocol data stream (code 12) at io.c(231) [sender=3.2.7]\n"
        ),
    ),
    (
        ("ffmpeg", "-i", "https://media.example.org/{a}.m3u8", "/srv/out/{a}.mp4"),
        1,
        (
            "ffmpeg version 6.1.1 Copyright (c) 2000-2023 the FFmpeg developers\n"
            "  built with gcc 13 (Ubuntu 13.2.0-23ubuntu3)\n  libavutil      58. 29.100 / 58. 29.100\n"
            "[tls @ 0x55{a}] Error in the pull function.\n[https @ 0x55{a}] HTTP error 503 Service Unavailable\n"
            "https://media.example.org/{a}.m3u8: Server returned 5XX Server Error reply\n"
        ),
    ),
    (
        ("pg_dump", "--dbname", "tenant_{n}", "--file", "/var/backups/{a}.sql"),
        1,
        (
            'pg_dump: error: connection to server at "{b}", port 5432 failed: '
            "FATAL:  the database system is starting up\n"
        ),
    ),
)


def program_failed(draw: Draw) -> NoReturn:
    command, exit_code, stderr = draw.choose(1, _PROGRAMS)
    values = {"a": draw.id(4, 10), "b": draw.address(6), "n": draw.number(9, 10**6)}
    arguments = [argument.format(**values) for argument in command]
    raise subprocess.CalledProcessError(exit_code, arguments, "", stderr.format(**values))


def program_timed_out(draw: Draw) -> NoReturn:
    arguments = ["libreoffice", "--convert-to", "pdf", f"/srv/in/{draw.id(3)}.docx"]
    raise subprocess.TimeoutExpired(arguments, draw.number(5, 300), stderr=b"javaldx failed!\n")


# --- Databases ---

DeadlockDetected = _class(
    "psycopg.errors", "DeadlockDetected", _class("psycopg", "OperationalError"), sqlstate="40P01"
)
SqlAlchemyError = _class(
    "sqlalchemy.exc", "OperationalError", _class("sqlalchemy.exc", "DBAPIError")
)


def deadlock(draw: Draw) -> NoReturn:
    process = draw.number(1, 60_000)
    text = (
        f"deadlock detected\nDETAIL:  Process {process} waits for ShareLock on transaction "
        f"{draw.number(3, 10**7)}; blocked by process {process + 7}.\n"
        f'HINT:  See server log for query details.\nCONTEXT:  while updating tuple ({draw.number(5, 900)},{draw.number(7, 60)}) in relation "orders"'
    )
    try:
        raise DeadlockDetected(text)
    except DeadlockDetected as error:
        statement = "UPDATE orders SET state = %(state)s WHERE id = %(id)s"
        parameters = {"state": "paid", "id": draw.number(9, 10**8)}
        wrapped = SqlAlchemyError(
            f"(psycopg.errors.DeadlockDetected) {text}\n[SQL: {statement}]\n[parameters: {parameters}]\n"
            "(Background on this error at: https://sqlalche.me/e/20/e3q8)"
        )
        raise _with(wrapped, orig=error, statement=statement, params=parameters) from error


def locked_database(draw: Draw) -> NoReturn:
    try:
        raise sqlite3.OperationalError("database is locked")
    except sqlite3.OperationalError as error:
        raise RuntimeError(
            f"could not save page {draw.number(2, 10**6)} of {draw.uuid()}"
        ) from error


# --- Operating system, network, time ---


def operating_system(draw: Draw) -> NoReturn:
    number, text = draw.choose(
        1,
        (
            (errno.ENOSPC, "No space left on device"),
            (errno.EMFILE, "Too many open files"),
            (errno.EIO, "Input/output error"),
        ),
    )
    raise OSError(
        number, text, f"/var/spool/render/{draw.id(3)}/frame-{draw.number(7, 10_000):05}.png"
    )


def name_resolution(draw: Draw) -> NoReturn:
    try:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    except OSError as error:
        raise ConnectionError(
            f"cannot reach inventory-{draw.id(1, 8)}.internal.example.org"
        ) from error


def tls(draw: Draw) -> NoReturn:
    error = ssl.SSLError(
        1,
        f"[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol (_ssl.c:{draw.number(3, 2000)})",
    )
    error.reason = "UNEXPECTED_EOF_WHILE_READING"
    raise error


def time_limit(draw: Draw) -> NoReturn:
    try:
        raise asyncio.CancelledError
    except asyncio.CancelledError as error:
        raise TimeoutError(
            f"no answer for message {draw.uuid()} within {draw.number(4, 900) / 10} s"
        ) from error


def connection_reset(draw: Draw) -> NoReturn:
    raise ConnectionResetError(
        errno.ECONNRESET, f"Connection reset by peer {draw.address(1)}:{draw.number(7, 60_000)}"
    )


# --- Other languages, groups, calls by gRPC, deep recursion ---


def other_languages(draw: Draw) -> NoReturn:
    text = draw.choose(
        1,
        (
            "Übertragung von „Größe {a}“ nach München nach {n} ms abgebrochen (Zeitüberschreitung)",
            "サーバー {a} への接続が {n} ミリ秒後にタイムアウトしました",
            "Не удалось сохранить документ {a}: сервер {b} временно недоступен",  # noqa: RUF001 - Russian
            "échec de l’envoi de la facture {a} à {b} 📦 après {n} essais",
        ),
    )
    raise RuntimeError(text.format(a=draw.id(3), b=draw.address(5), n=draw.number(9, 90_000)))


def group(draw: Draw) -> NoReturn:
    errors = [
        ConnectionResetError(errno.ECONNRESET, f"Connection reset by peer ({draw.id(2, 8)})"),
        TimeoutError(f"part {draw.number(5, 64)} of {draw.uuid()} took too long"),
    ]
    raise ExceptionGroup(f"{len(errors)} uploads failed for {draw.id(8, 10)}", errors)


class RpcCode:
    def __init__(self, name: str) -> None:
        self.name = name


RpcError = _class("grpc._channel", "_InactiveRpcError", _class("grpc", "RpcError"))


def rpc(draw: Draw) -> NoReturn:
    details = f"failed to connect to all addresses; last error: ipv4:{draw.address(1)}:50051 (attempt {draw.number(7, 99)})"
    text = (
        f'<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "{details}"\n'
        f'\tdebug_error_string = "UNKNOWN:{details} {{grpc_status:14, created_time:"2026-11-18T04:{draw.number(9, 60):02}:07+00:00"}}"\n>'
    )
    raise _with(
        RpcError(text),
        code=lambda: RpcCode("UNAVAILABLE"),
        details=lambda: details,
        trailing_metadata=tuple,
    )


def deep_recursion(draw: Draw) -> NoReturn:
    def visit(node: int) -> NoReturn:
        if node:
            visit_children(node - 1)
        raise RuntimeError(
            f"render of {draw.uuid()} stopped at node {draw.number(3, 10**6)}: worker pool is exhausted, try again later"
        )

    def visit_children(node: int) -> None:
        for child in _children(node):
            visit(child)

    visit(10)


def _children(node: int) -> Iterator[int]:
    yield node


FAMILIES: tuple[Callable[[Draw], NoReturn], ...] = (
    openai_server_error,
    anthropic_overloaded,
    http_status,
    aws_client_error,
    refused_connection,
    read_timeout,
    custom_chain,
    program_failed,
    program_timed_out,
    deadlock,
    locked_database,
    operating_system,
    name_resolution,
    tls,
    time_limit,
    connection_reset,
    other_languages,
    group,
    rpc,
    deep_recursion,
)
DEEP_TRACE = 24  # calls between the handler and a third of the failures


def fail(i: int, seed: int = 1) -> NoReturn:
    """Raise the failure of job i: every family in turn, at different depths of the call stack."""
    draw = Draw(i, seed)
    family = FAMILIES[(i + seed) % len(FAMILIES)]
    depth = draw.choose(20, (2, 5, DEEP_TRACE))
    load(draw, family, depth)
    raise AssertionError(family)


def load(draw: Draw, family: Callable[[Draw], NoReturn], depth: int) -> None:
    if not depth:
        family(draw)
    transform(draw, family, depth - 1)


def transform(draw: Draw, family: Callable[[Draw], NoReturn], depth: int) -> None:
    if not depth:
        family(draw)
    store(draw, family, depth - 1)


def store(draw: Draw, family: Callable[[Draw], NoReturn], depth: int) -> None:
    if not depth:
        family(draw)
    load(draw, family, depth - 1)
