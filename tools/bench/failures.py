"""Typical failures, each with a distinct message, so that no cache can help."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator

from mulligan.core.errors import ProcessFailed
from mulligan.failures.capture import capture
from mulligan.failures.classify import classify_facts


def _class(module: str, name: str, *bases: type, **members: object) -> type:
    return type(name, bases or (Exception,), {"__module__": module, **members})


class Response:
    """A response like that of httpx."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status_code = status
        self.headers = Headers(headers)
        self._content = body


class Headers(dict[str, str]):
    @property
    def raw(self) -> list[tuple[bytes, bytes]]:
        return [(key.encode(), value.encode()) for key, value in self.items()]


StatusError = _class("httpx", "HTTPStatusError", _class("httpx", "HTTPError"))
ClientError = _class("botocore.exceptions", "ClientError")
Deadlock = _class(
    "psycopg.errors", "DeadlockDetected", _class("psycopg", "OperationalError"), sqlstate="40P01"
)
Refused = _class(
    "urllib3.exceptions", "NewConnectionError", _class("urllib3.exceptions", "HTTPError")
)
MaxRetry = _class("urllib3.exceptions", "MaxRetryError", _class("urllib3.exceptions", "HTTPError"))
ConnectionLost = _class(
    "requests.exceptions",
    "ConnectionError",
    _class("requests.exceptions", "RequestException", OSError),
)

HEADERS = {
    "date": "Tue, 14 Nov 2023 22:13:20 GMT",
    "content-type": "application/json",
    "content-length": "312",
    "server": "nginx",
    "retry-after": "20",
    "x-request-id": "req_1",
    "cache-control": "no-store",
    "vary": "Origin",
}
BANNER = """ffmpeg version 6.1.1 Copyright (c) 2000-2023 the FFmpeg developers
  built with gcc 13 (Ubuntu 13.2.0-23ubuntu3)
  configuration: --prefix=/usr --extra-version=3ubuntu5 --toolchain=hardened --libdir=/usr/lib/x86_64-linux-gnu
  --incdir=/usr/include/x86_64-linux-gnu --arch=amd64 --enable-gpl --disable-stripping --enable-libaom --enable-libass
  --enable-libbluray --enable-libbs2b --enable-libcaca --enable-libcdio --enable-libcodec2 --enable-libdav1d
  --enable-libflite --enable-libfontconfig --enable-libfreetype --enable-libfribidi --enable-libglslang
  --enable-libgme --enable-libgsm --enable-libharfbuzz --enable-libmp3lame --enable-libmysofa --enable-libopenjpeg
  --enable-libopenmpt --enable-libopus --enable-librubberband --enable-libshine --enable-libsnappy --enable-libsoxr
  --enable-libspeex --enable-libtheora --enable-libtwolame --enable-libvidstab --enable-libvorbis --enable-libvpx
  --enable-libwebp --enable-libx265 --enable-libxml2 --enable-libxvid --enable-libzimg --enable-openal
  libavutil      58. 29.100 / 58. 29.100
  libavcodec     60. 31.102 / 60. 31.102
  libavformat    60. 16.100 / 60. 16.100
  libavdevice    60.  3.100 / 60.  3.100
  libavfilter     9. 12.100 /  9. 12.100
  libswscale      7.  5.100 /  7.  5.100
  libswresample   4. 12.100 /  4. 12.100
  libpostproc    57.  3.100 / 57.  3.100
[mov,mp4,m4a,3gp,3g2,mj2 @ 0x55{n:06x}] moov atom not found
[in#0 @ 0x55{n:06x}] Error opening input: Invalid data found when processing input
Error opening input file /srv/media/incoming/{n}/clip-{n}.mp4.
Error opening input files: Invalid data found when processing input
"""


def _http(n: int) -> None:
    body = {
        "error": {
            "message": f"Rate limit reached for org-{n} on tokens per min",
            "type": "tokens",
            "code": "slow",
        }
    }
    exc = StatusError(
        f"Client error '429 Too Many Requests' for url 'https://api.example.org/v1/jobs/{n}'"
    )
    exc.response = Response(429, HEADERS, json.dumps(body).encode())  # type: ignore[attr-defined]
    raise exc


def _aws(n: int) -> None:
    exc = ClientError(
        f"An error occurred (SlowDown) when calling the PutObject operation: Reduce rate {n}"
    )
    exc.response = {  # type: ignore[attr-defined]
        "Error": {"Code": "SlowDown", "Message": f"Reduce your request rate {n}"},
        "ResponseMetadata": {
            "RequestId": f"R{n}",
            "HTTPStatusCode": 503,
            "HTTPHeaders": HEADERS,
            "RetryAttempts": 4,
        },
    }
    exc.operation_name = "PutObject"  # type: ignore[attr-defined]
    raise exc


def _key(n: int) -> None:
    {"a": 1}[f"column_{n}"]


def _program(n: int) -> None:
    raise ProcessFailed(
        "ffmpeg", exit_code=183, stderr=BANNER.replace("{n:06x}", f"{n:06x}").replace("{n}", str(n))
    )


def _database(n: int) -> None:
    raise Deadlock(
        f"deadlock detected\nDETAIL:  Process {n} waits for ShareLock on transaction {n * 7}; blocked by process "
        f"{n + 1}.\nProcess {n + 1} waits for ShareLock.\nHINT:  See server log for query details.\n"
        f'CONTEXT:  while updating tuple (0,{n}) in relation "orders"'
    )


def _chained(n: int) -> None:
    try:
        try:
            try:
                raise ConnectionRefusedError(111, "Connection refused")
            except OSError as error:
                text = f"<Connection object at 0x7f{n:06x}>: Failed to establish a new connection"
                raise Refused(text) from error
        except Refused as error:
            exc = MaxRetry(
                f"HTTPConnectionPool(host='10.0.0.7', port=80): Max retries exceeded with url: /items/{n}"
            )
            exc.reason = error  # type: ignore[attr-defined]
            raise exc from error
    except MaxRetry as error:
        raise ConnectionLost(error)  # noqa: B904 - as requests does it


def _nested(raise_it: Callable[[int], None], n: int, depth: int = 4) -> None:
    if depth:
        _nested(raise_it, n, depth - 1)
    else:
        raise_it(n)


KINDS = {
    "http": _http,
    "aws": _aws,
    "key": _key,
    "program": _program,
    "database": _database,
    "chained": _chained,
}


def _catch(raise_it: Callable[[int], None], n: int) -> Exception:
    try:
        _nested(raise_it, n)
    except Exception as error:  # noqa: BLE001 - any exception
        return error
    raise AssertionError


def measure(n: int) -> Iterator[tuple[str, float]]:
    """Yield the median microseconds to capture, classify and fingerprint, per kind and overall."""
    every: list[float] = []
    for name, raise_it in KINDS.items():
        times = []
        for i in range(n):
            exc = _catch(raise_it, i)
            began = time.perf_counter()
            failure = classify_facts(capture(exc))
            times.append((time.perf_counter() - began) * 1e6)
            assert failure.fingerprint
        yield f"{name}, µs", statistics.median(times)
        every += times
    yield "all, µs", statistics.median(every)
