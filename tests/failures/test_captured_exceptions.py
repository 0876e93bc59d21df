"""What lies inside and around an exception: causes, programs, bodies, frames."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import urllib.error
from types import SimpleNamespace

import pytest

from mulligan.core.errors import ProcessFailed
from mulligan.failures.capture import capture
from mulligan.failures.responses import read_body
from support.exceptions import NOW, facts, make, reply

# exceptions inside


def inside(found):
    return [(cause.exception_types[0].rpartition(".")[2], cause.implied) for cause in found.causes]


def test_what_requests_wraps_is_a_cause_somebody_named():
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    retries = make(
        "urllib3.exceptions.MaxRetryError",
        "max",
        reason=make("urllib3.exceptions.NewConnectionError", refused),
    )
    found = facts(make("requests.exceptions.ConnectionError", retries, base=OSError))
    assert inside(found) == [
        ("MaxRetryError", False),
        ("NewConnectionError", False),
        ("ConnectionRefusedError", False),
    ]
    assert found.causes[-1].errno == errno.ECONNREFUSED
    assert found.errno is None


@pytest.mark.parametrize(
    ("exc", "name"),
    [
        (
            make(
                "sqlalchemy.exc.OperationalError", orig=make("pymysql.err.OperationalError", 2006)
            ),
            "OperationalError",
        ),
        (urllib.error.URLError(TimeoutError()), "TimeoutError"),
        (make("google.api_core.exceptions.RetryError", cause=ConnectionError()), "ConnectionError"),
        (make("azure.core.exceptions.AzureError", inner_exception=TimeoutError()), "TimeoutError"),
        (
            make("urllib3.exceptions.ProtocolError", "aborted", ConnectionResetError()),
            "ConnectionResetError",
        ),
        (
            make(
                "aiohttp.ClientConnectorError",
                -2,
                "x",
                base=OSError,
                os_error=socket.gaierror(-2, "x"),
            ),
            "gaierror",
        ),
        (
            make(
                "tenacity.RetryError",
                last_attempt=SimpleNamespace(exception=lambda timeout: KeyError()),
            ),
            "KeyError",
        ),
    ],
)
def test_wrappers_hold_what_happened(exc, name):
    found = facts(exc)
    assert inside(found) == [(name, False)]
    assert found.errno is None


def test_circles_inside_come_to_an_end():
    one, two = make("a.One"), make("a.Two")
    one.reason, two.orig, two.__cause__ = two, one, one
    assert inside(facts(one)) == [("Two", False)]
    first = exc = make("a.Deep")
    for _ in range(100):
        exc.orig = exc = make("a.Deep")
    assert len(facts(first).causes) == 15


def test_what_is_below_something_implied_is_implied():
    outer, handled = RuntimeError("outer"), make("a.Handled", orig=KeyError("x"))
    outer.__context__ = handled
    assert inside(facts(outer)) == [("Handled", True), ("KeyError", True)]


def test_a_hint_of_a_cause_counts():
    outer = RuntimeError("render failed")
    outer.__cause__ = make("requests.HTTPError", response=reply(429, headers={"retry-after": "9"}))
    assert (facts(outer).retry_after, facts(outer).hint) == (9.0, "Retry-After")


def test_a_sentence_is_a_hint_of_last_resort():
    exc = make("a.Limited", "Please try again in 350ms", retry_after=2)
    assert (facts(exc).retry_after, facts(exc).hint) == (2.0, "retry_after")
    assert facts(RuntimeError("Please try again in 350ms")).hint == "wording"


# programs


@pytest.mark.parametrize(
    ("exc", "program", "exit_code", "signal"),
    [
        (ProcessFailed("gs", exit_code=137), "gs", None, 9),
        (ProcessFailed("gs", signal=9), "gs", None, 9),
        (subprocess.CalledProcessError(-9, ["/usr/bin/gs", "-x"]), "gs", None, 9),
        (subprocess.CalledProcessError(143, "PASSWORD=x /usr/bin/gs -x"), "gs", None, 15),
        (subprocess.CalledProcessError(139, ["sh", "-c", "x"]), "sh", None, 11),
        (subprocess.CalledProcessError(130, [b"gs"]), "", None, 2),
        (subprocess.CalledProcessError(138, ["gs"]), "gs", 138, None),
        (ProcessFailed("ffmpeg", exit_code=137), "ffmpeg", 137, None),
        (ProcessFailed("/opt/ffprobe", exit_code=134), "ffprobe", 134, None),
        (ProcessFailed("C:\\bin\\ffmpeg.exe", exit_code=183), "ffmpeg", 183, None),
        (
            make(
                "sh.ErrorReturnCode_1",
                exit_code=1,
                full_cmd="/usr/bin/pdftotext a.pdf",
                stderr=b"x",
            ),
            "pdftotext",
            1,
            None,
        ),
        (make("asyncssh.ProcessError", command="ls /x", exit_status=2, stderr="no"), "ls", 2, None),
    ],
)
def test_137_and_minus_9_are_the_same_death_except_for_who_has_bytes_of_its_own(
    exc, program, exit_code, signal
):
    found = facts(exc)
    assert (found.program, found.exit_code, found.signal) == (program, exit_code, signal)


def test_stderr_is_kept_as_text_whoever_started_the_program():
    assert (
        facts(subprocess.CalledProcessError(1, "x", stderr=b"bad \xff end")).stderr
        == "bad \ufffd end"
    )
    assert facts(subprocess.CalledProcessError(1, "x", output="all in one")).stderr == "all in one"
    assert facts(subprocess.TimeoutExpired("x", 3, stderr=b"slow")).stderr == "slow"
    assert facts(subprocess.TimeoutExpired("x", 3)).timed_out
    assert (
        len(facts(subprocess.CalledProcessError(1, "x", stderr=b"y" * 20_000_000)).stderr) <= 8192
    )


def test_what_ffmpeg_says_of_itself_is_left_out():
    said = "ffmpeg version 6.1 Copyright (c) 2000\n  built with gcc\n  libavutil 58\n[mov @ 0x5] moov atom not found\n"
    assert facts(ProcessFailed("ffmpeg", exit_code=183, stderr=said)).stderr == (
        "ffmpeg version 6.1 Copyright (c) 2000\n[mov @ 0x5] moov atom not found\n"
    )


# bodies


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        (b'{"error": "invalid_grant"}', ["invalid_grant"]),
        (
            b'{"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException"}',
            ["ThrottlingException"],
        ),
        (b'[{"errorCode": "REQUEST_LIMIT_EXCEEDED", "message": "x"}]', ["REQUEST_LIMIT_EXCEEDED"]),
        (b'{"errors": [{"message": "x", "extensions": {"code": "FORBIDDEN"}}]}', ["FORBIDDEN"]),
        (b'{"type": "https://example.org/probs/out-of-credit", "status": 403}', ["out-of-credit"]),
        (b'{"error": {"code": "Bad", "innererror": {"code": "TooLong"}}}', ["TooLong", "Bad"]),
        (b'{"error": {"code": 190, "type": "OAuthException"}}', ["OAuthException"]),
        (b'{"error": {"type": "error"}, "code": 10000}', ["10000"]),
        (b"<Error><Code>AuthenticationFailed</Code></Error>", ["AuthenticationFailed"]),
        (b"<html><body>502 Bad Gateway</body></html>", []),
        (b"plain words", []),
        (b"", []),
        (b'{"error": {"code": "two words"}}', []),
    ],
)
def test_a_body_tells_its_codes(body, codes):
    assert list(read_body(body).codes) == codes


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b"[" * 60_000,
        b'{"error":' * 10_000,
        b"\xff" * 70_000,
        b'{"error": {"details": 7, "errors": 7, "code": [], "status": {}}}',
        b'{"error": {"details": [7, null, {"violations": 7}]}}',
        json.dumps({"errors": [{"code": f"c{i}"} for i in range(5_000)]}).encode(),
        "x" * 20_000_000,
        {1: 2, None: 3},
    ],
)
def test_no_body_does_any_harm(body):
    found = facts(make("a.E", "x", status_code=500, body=body))
    assert found.http_status == 500
    assert len(found.provider_codes) <= 8
    assert len(found.message) <= 8192


# frames


def test_frames_are_those_of_the_jobs_own_code():
    def parse():
        return json.loads("{")

    with pytest.raises(json.JSONDecodeError) as info:
        parse()
    frames = capture(info.value, NOW).frames
    assert frames[-1].endswith(
        "test_captured_exceptions:test_frames_are_those_of_the_jobs_own_code.<locals>.parse"
    )
    assert not any(frame.startswith("json") for frame in frames)


def test_frames_of_a_recursion_count_once():
    def dive(n):
        if not n:
            raise ValueError("deep")
        dive(n - 1)

    with pytest.raises(ValueError, match="deep") as info:
        dive(50)
    assert [frame.rpartition(".")[2] for frame in capture(info.value, NOW).frames] == ["dive"]


def test_code_of_the_app_is_its_own_also_where_it_is_installed():
    source = "def handler(call):\n    call()\ndef call():\n    raise ValueError('x')\n"
    app, other = {"__name__": "acme.jobs"}, {"__name__": "library.core"}
    exec(compile(source, "/venv/lib/python3/site-packages/acme/jobs.py", "exec"), app)  # noqa: S102
    exec(compile(source, "/venv/lib/python3/site-packages/library/core.py", "exec"), other)  # noqa: S102
    with pytest.raises(ValueError, match="x") as info:
        app["handler"](other["call"])
    info.value.__traceback__ = info.tb.tb_next  # as from a worker: this function is not in it
    assert capture(info.value, NOW).frames == ("acme.jobs:handler",)
