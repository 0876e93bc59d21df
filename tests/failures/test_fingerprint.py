"""Failures with one cause share a fingerprint, others do not."""

from __future__ import annotations

import errno
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.attempt import Cls
from mulligan.core.errors import Fail, ProcessFailed
from mulligan.failures.facts import Facts
from mulligan.failures.fingerprint import (
    compute_fingerprint,
    explain_fingerprint,
    mask_variable_parts,
)
from mulligan.worker.runner.outcomes import outcome_of_exception
from support.exceptions import capture_raised, make_exception, make_response


def fingerprint_of(exc):
    try:
        raise exc
    except Exception as caught:  # noqa: BLE001
        return outcome_of_exception(caught, 0).failure.fingerprint


def with_cause(exc, cause=None):
    """Set the cause without raising: all cases then have the same frames."""
    exc.__cause__ = cause
    return exc


@given(st.text(), st.text(), st.sampled_from(Cls))
def test_a_fingerprint_has_a_version_and_is_repeatable(code, message, cls):
    found = Facts(message=message)
    assert re.fullmatch(r"v2-[0-9a-f]{12}", compute_fingerprint(found, code, cls))
    assert compute_fingerprint(found, code, cls) == compute_fingerprint(found._replace(), code, cls)


def test_a_fingerprint_never_changes_within_a_version():
    """If this fails, existing groups would be split: a new algorithm needs a new version."""
    found = Facts(
        exception_types=("builtins.KeyError",), frames=("app.jobs:render",), message="'x'"
    )
    assert compute_fingerprint(found, "PROGRAMMING_ERROR", "permanent") == "v2-54be003740f9"
    assert compute_fingerprint(Facts(ended_by="TIMEOUT"), "TIMEOUT", "timeout") == "v2-f02bec46b01f"
    text = Facts(
        exception_types=("builtins.RuntimeError",),
        message="order 7 of ann@x.org: no stock in /srv/a",
    )
    assert compute_fingerprint(text, "UNKNOWN_ERROR", "unknown") == "v2-19bac52ed74c"


FFMPEG = """[mov,mp4 @ 0x55{0}] moov atom not found
Error opening input file /srv/media/{0}.mp4.
Error opening input files: Invalid data found when processing input
"""
SAME = {
    "ids in a message": lambda n: RuntimeError(f"order {n} for customer cus_{n}xYz was refused"),
    "a text in quotes": lambda n: RuntimeError(f"no user '{'ann' if n == 1 else 'bob smith'}'"),
    "a path": lambda n: RuntimeError(f"cannot open /srv/{'a/b' if n == 1 else 'deep/er/c'}.mp4"),
    "a host": lambda n: RuntimeError(f"no answer from db-{n}.eu.example.org:5432 within {n} s"),
    "an address": lambda n: RuntimeError(
        f"bounced: {'ann' if n == 1 else 'bob'}@{'x.org' if n == 1 else 'y.com'}"
    ),
    "a file": lambda n: RuntimeError(
        f"{'holiday' if n == 1 else 'wedding'}.mp4: codec not supported"
    ),
    "a key": lambda n: KeyError(f"column_{n}"),
    "a provider's words": lambda n: make_exception(
        "a.ApiError", f"request {n}: {'x' * n}", status_code=429, code="slow_down"
    ),
    "a status": lambda n: make_exception(
        "httpx.HTTPStatusError", f"for url 'https://h{n}/x/{n}'", response=make_response(503)
    ),
    "a row": lambda n: make_exception(
        "psycopg.errors.UniqueViolation", f"Key (id)=({n}) exists", sqlstate="23505"
    ),
    "a full disk": lambda n: OSError(errno.ENOSPC, "No space left on device", f"/srv/{n}"),
    "a telling exit code": lambda n: ProcessFailed(
        "ffmpeg", exit_code=183, stderr=FFMPEG.format(n)
    ),
    "an exit code that says little": lambda n: ProcessFailed(
        "ffmpeg", exit_code=1, stderr=FFMPEG.format(n)
    ),
    "the two ways to report a death": lambda n: subprocess.CalledProcessError(
        -9 if n == 1 else 137, ["gs"]
    ),
    "a wrapped cause": lambda n: with_cause(
        RuntimeError(f"clip {n} failed"), make_exception("a.Odd", f"clip {n}: {'y' * n}")
    ),
    "a wrapped status": lambda n: with_cause(
        RuntimeError(f"clip {n} {'z' * n}"), make_exception("a.E", response=make_response(502))
    ),
    "a code of the handler": lambda n: Fail(
        "BAD_ROW", f"row {n}: {'ann' if n == 1 else 'bob'} is too long"
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_failures_that_differ_only_in_variable_parts_have_one_fingerprint(case):
    assert fingerprint_of(SAME[case](1)) == fingerprint_of(SAME[case](2))


OTHER = {
    "messages": (RuntimeError("gateway said no"), RuntimeError("disk is gone")),
    "types": (KeyError("a"), TypeError("a")),
    "provider codes": (
        make_exception("a.E", status_code=429, code="slow"),
        make_exception("a.E", status_code=429, code="insufficient_quota"),
    ),
    "statuses": (make_exception("a.E", status_code=502), make_exception("a.E", status_code=503)),
    "errnos": (OSError(errno.EIO, "x"), OSError(errno.ENOSPC, "x")),
    "SQLSTATEs": (make_exception("a.E", sqlstate="40001"), make_exception("a.E", sqlstate="40P01")),
    "exit codes": (ProcessFailed("ffmpeg", exit_code=183), ProcessFailed("ffmpeg", exit_code=228)),
    "programs": (ProcessFailed("ffmpeg", exit_code=3), ProcessFailed("gs", exit_code=3)),
    "last lines of a program": (
        ProcessFailed("ffmpeg", exit_code=1, stderr="moov atom not found\nConversion failed!"),
        ProcessFailed("ffmpeg", exit_code=1, stderr="Unknown encoder 'x'\nConversion failed!"),
    ),
    "causes": (
        with_cause(RuntimeError("x"), make_exception("a.One")),
        with_cause(RuntimeError("x"), make_exception("a.Two")),
    ),
    "codes of the handler": (Fail("A", "x"), Fail("B", "x")),
}


@pytest.mark.parametrize("case", OTHER)
def test_different_causes_have_different_fingerprints(case):
    one, other = OTHER[case]
    assert fingerprint_of(one) != fingerprint_of(other)


def test_a_fingerprint_depends_on_functions_and_not_on_lines():
    source = "{}def parse():\n    raise KeyError('x')\ndef load():\n    raise KeyError('x')\n"
    places = {"__name__": "app.jobs"}
    moved = {"__name__": "app.jobs"}
    exec(compile(source.format(""), "/srv/v1/app/jobs.py", "exec"), places)  # noqa: S102
    exec(compile(source.format("\n" * 40), "/srv/v2/app/jobs.py", "exec"), moved)  # noqa: S102

    def fingerprint_of_call(call):
        with pytest.raises(KeyError) as info:
            call()
        info.value.__traceback__ = info.tb.tb_next
        return outcome_of_exception(info.value, 0).failure.fingerprint

    assert fingerprint_of_call(places["parse"]) == fingerprint_of_call(moved["parse"])
    assert fingerprint_of_call(places["parse"]) != fingerprint_of_call(places["load"])


def test_a_fingerprint_explains_itself():
    found = capture_raised(
        make_exception("a.ApiError", "request 7", status_code=429, code="slow_down")
    )
    explanation = explain_fingerprint(found, "RATE_LIMITED", Cls.RATE_LIMITED)
    assert explanation.pop("frames") == ["support.exceptions:capture_raised"]
    assert explanation == {
        "version": "v2",
        "class": "rate_limited",
        "code": "RATE_LIMITED",
        "type": "a.ApiError",
        "signal": "slow_down",
    }
    by_message = explain_fingerprint(
        Facts(message="order 7 of 'ann' failed"), "UNKNOWN_ERROR", "unknown"
    )
    assert by_message["words"] == "order * of * failed"


def test_a_fingerprint_uses_the_exception_that_decided():
    decisive = Facts(exception_types=("a.Inner",), http_status=503)
    outer = Facts(exception_types=("builtins.RuntimeError",), message="x", causes=(decisive,))
    assert explain_fingerprint(outer, "HTTP_5XX", "transient", decisive)["signal"] == "http:503"
    assert compute_fingerprint(outer, "HTTP_5XX", "transient", decisive) == compute_fingerprint(
        decisive, "HTTP_5XX", "transient"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("clip 7 failed after 3.5 s", "clip 12 failed after 10 s"),
        ("no user 'ann'", "no user 'bob smith'"),
        ('bad "x"', 'bad "yy z"'),
        ("cannot open /srv/a/b.mp4", "cannot open /tmp/c.mov"),
        ("cannot open C:\\a\\b.txt", "cannot open D:\\c"),
        ("GET https://h/x?y=1 failed", "GET http://other/z failed"),
        ("id 3f2a9c77d1e0 gone", "id a02b9c77d1ff gone"),
        ("id 0b5b1f0e-8f43-4f6e-9b5d-3a1f0c2d4e5f", "id 9b5b1f0e-8f43-4f6e-9b5d-3a1f0c2d4e50"),
        ("at 0x7f3a2b", "at 0x55aa"),
        ("job 01hf3m2k9x8y7z6w5v4t3s2r1q", "job 01hf3m2k9x8y7z6w5v4t3s2r2p"),
        ("mail to ann@x.org", "mail to bob.b@mail.y.com"),
        ("host db.eu.example.org is down", "host cache.us.example.org is down"),
        ("a  b\nc", "a b c"),
    ],
)
def test_variable_parts_are_masked(one, other):
    assert mask_variable_parts(one) == mask_variable_parts(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("moov atom not found", "no such filter"),
        ("can't read, don't try", "can't write, don't try"),
    ],
)
def test_meaningful_differences_are_not_masked(one, other):
    assert mask_variable_parts(one) != mask_variable_parts(other)


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "piece",
    ["a", "1", "'", '"', "/", "a1", "://", "\\", ".", "a.", "@", "\n", "a\n", "error\n", "`"],
)
def test_no_message_makes_it_slow(piece):
    compute_fingerprint(
        Facts(message=piece * 2_000_000, stderr=piece * 1_000_000, exit_code=1), "X", "unknown"
    )
