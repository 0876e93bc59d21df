"""Capture of causes, programs, response bodies and frames."""

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
from support.exceptions import NOW, capture_raised, make_exception, make_response

# --- Nested exceptions ---


def cause_names(found):
    return [(cause.exception_types[0].rpartition(".")[2], cause.implied) for cause in found.causes]


def test_an_exception_wrapped_by_requests_is_an_explicit_cause():
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    retries = make_exception(
        "urllib3.exceptions.MaxRetryError",
        "max",
        reason=make_exception("urllib3.exceptions.NewConnectionError", refused),
    )
    found = capture_raised(
        make_exception("requests.exceptions.ConnectionError", retries, base=OSError)
    )
    assert cause_names(found) == [
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
            make_exception(
                "sqlalchemy.exc.OperationalError",
                orig=make_exception("pymysql.err.OperationalError", 2006),
            ),
            "OperationalError",
        ),
        (urllib.error.URLError(TimeoutError()), "TimeoutError"),
        (
            make_exception("google.api_core.exceptions.RetryError", cause=ConnectionError()),
            "ConnectionError",
        ),
        (
            make_exception("azure.core.exceptions.AzureError", inner_exception=TimeoutError()),
            "TimeoutError",
        ),
        (
            make_exception("urllib3.exceptions.ProtocolError", "aborted", ConnectionResetError()),
            "ConnectionResetError",
        ),
        (
            make_exception(
                "aiohttp.ClientConnectorError",
                -2,
                "x",
                base=OSError,
                os_error=socket.gaierror(-2, "x"),
            ),
            "gaierror",
        ),
        (
            make_exception(
                "tenacity.RetryError",
                last_attempt=SimpleNamespace(exception=lambda timeout: KeyError()),
            ),
            "KeyError",
        ),
    ],
)
def test_exceptions_in_attributes_and_arguments_are_causes(exc, name):
    found = capture_raised(exc)
    assert cause_names(found) == [(name, False)]
    assert found.errno is None


def test_a_cycle_of_nested_exceptions_ends():
    one, two = make_exception("a.One"), make_exception("a.Two")
    one.reason, two.orig, two.__cause__ = two, one, one
    assert cause_names(capture_raised(one)) == [("Two", False)]
    first = exc = make_exception("a.Deep")
    for _ in range(100):
        exc.orig = exc = make_exception("a.Deep")
    assert len(capture_raised(first).causes) == 15


def test_causes_of_an_implied_cause_are_implied():
    outer, handled = RuntimeError("outer"), make_exception("a.Handled", orig=KeyError("x"))
    outer.__context__ = handled
    assert cause_names(capture_raised(outer)) == [("Handled", True), ("KeyError", True)]


def test_the_hint_of_a_cause_is_used():
    outer = RuntimeError("render failed")
    outer.__cause__ = make_exception(
        "requests.HTTPError", response=make_response(429, headers={"retry-after": "9"})
    )
    assert (capture_raised(outer).retry_after, capture_raised(outer).retry_after_source) == (
        9.0,
        "Retry-After",
    )


def test_a_hint_in_the_text_is_the_last_resort():
    exc = make_exception("a.Limited", "Please try again in 350ms", retry_after=2)
    assert (capture_raised(exc).retry_after, capture_raised(exc).retry_after_source) == (
        2.0,
        "retry_after",
    )
    assert capture_raised(RuntimeError("Please try again in 350ms")).retry_after_source == "wording"


# --- Programs ---


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
            make_exception(
                "sh.ErrorReturnCode_1",
                exit_code=1,
                full_cmd="/usr/bin/pdftotext a.pdf",
                stderr=b"x",
            ),
            "pdftotext",
            1,
            None,
        ),
        (
            make_exception("asyncssh.ProcessError", command="ls /x", exit_status=2, stderr="no"),
            "ls",
            2,
            None,
        ),
    ],
)
def test_exit_codes_137_and_minus_9_are_signal_9_except_for_ffmpeg(exc, program, exit_code, signal):
    found = capture_raised(exc)
    assert (found.program, found.exit_code, found.signal) == (program, exit_code, signal)


def test_stderr_is_stored_as_text():
    assert (
        capture_raised(subprocess.CalledProcessError(1, "x", stderr=b"bad \xff end")).stderr
        == "bad \ufffd end"
    )
    assert (
        capture_raised(subprocess.CalledProcessError(1, "x", output="all in one")).stderr
        == "all in one"
    )
    assert capture_raised(subprocess.TimeoutExpired("x", 3, stderr=b"slow")).stderr == "slow"
    assert capture_raised(subprocess.TimeoutExpired("x", 3)).timed_out
    assert (
        len(capture_raised(subprocess.CalledProcessError(1, "x", stderr=b"y" * 20_000_000)).stderr)
        <= 8192
    )


def test_the_banner_of_ffmpeg_is_removed():
    stderr = "ffmpeg version 6.1 Copyright (c) 2000\n  built with gcc\n  libavutil 58\n[mov @ 0x5] moov atom not found\n"
    assert capture_raised(ProcessFailed("ffmpeg", exit_code=183, stderr=stderr)).stderr == (
        "ffmpeg version 6.1 Copyright (c) 2000\n[mov @ 0x5] moov atom not found\n"
    )


# --- Response bodies ---


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
def test_codes_are_found_in_a_response_body(body, codes):
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
def test_a_malformed_body_does_no_harm(body):
    found = capture_raised(make_exception("a.E", "x", status_code=500, body=body))
    assert found.http_status == 500
    assert len(found.provider_codes) <= 8
    assert len(found.message) <= 8192


# --- Frames ---


def test_frames_are_those_of_the_job():
    def parse():
        return json.loads("{")

    with pytest.raises(json.JSONDecodeError) as info:
        parse()
    frames = capture(info.value, NOW).frames
    assert frames[-1].endswith(
        "test_captured_exceptions:test_frames_are_those_of_the_job.<locals>.parse"
    )
    assert not any(frame.startswith("json") for frame in frames)


def test_a_recursive_frame_counts_once():
    def dive(n):
        if not n:
            raise ValueError("deep")
        dive(n - 1)

    with pytest.raises(ValueError, match="deep") as info:
        dive(50)
    assert [frame.rpartition(".")[2] for frame in capture(info.value, NOW).frames] == ["dive"]


def test_frames_of_an_installed_app_belong_to_the_job():
    source = "def handler(call):\n    call()\ndef call():\n    raise ValueError('x')\n"
    app, other = {"__name__": "acme.jobs"}, {"__name__": "library.core"}
    exec(compile(source, "/venv/lib/python3/site-packages/acme/jobs.py", "exec"), app)  # noqa: S102
    exec(compile(source, "/venv/lib/python3/site-packages/library/core.py", "exec"), other)  # noqa: S102
    with pytest.raises(ValueError, match="x") as info:
        app["handler"](other["call"])
    info.value.__traceback__ = info.tb.tb_next  # as in a worker: without this function
    assert capture(info.value, NOW).frames == ("acme.jobs:handler",)
