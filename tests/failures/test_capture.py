"""Any exception becomes safe, bounded facts."""

from __future__ import annotations

import errno
import json
import math
import socket
import subprocess
from datetime import UTC, datetime, timedelta

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.core import errors
from mulligan.core.attempt import Cls, Ended
from mulligan.core.durations import SECOND, to_datetime
from mulligan.failures.capture import capture
from mulligan.failures.classify import classify_facts
from mulligan.failures.facts import FACTS_KEY
from mulligan.worker.runner.outcomes import outcome_of_exception, outcome_of_request
from support.builders import NOW
from support.hostile import HOSTILE, ClassTrap, OddClass, StrRaises, Traps


def raised(exc, cause=None):
    """Raise and catch an exception, so that it has a traceback."""
    try:
        raise exc from cause
    except BaseException as caught:  # noqa: BLE001
        return caught


def classify_raised(exc):
    return classify_facts(capture(raised(exc)))


# --- Ordinary exceptions ---


def test_capture_returns_type_message_and_trace():
    facts = capture(raised(ValueError("bad clip 7")))
    assert facts.exception_types == ("builtins.ValueError",)
    assert facts.message == "bad clip 7"
    first, frame, source = facts.trace.splitlines()
    assert first == "builtins.ValueError: bad clip 7"
    assert frame.startswith(f"  {__file__}:")
    assert frame.endswith("in raised")
    assert source.startswith("    | raise exc")


@pytest.mark.parametrize(
    ("exc", "rule"),
    [
        (KeyError("x"), "py.programming-error"),
        (ValueError("x"), "unknown"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "py.connection"),
        (socket.gaierror(-2, "no name"), "dns.unknown"),
        (TimeoutError(), "py.timeout"),
        (OSError(errno.ENOSPC, "full"), "os.disk-full"),
        (PermissionError(errno.EACCES, "no"), "py.permission"),
        (FileNotFoundError(errno.ENOENT, "no"), "py.not-found"),
        (MemoryError(), "py.memory"),
        (SystemExit(429), "py.handler-exit"),
        (KeyboardInterrupt(), "py.interrupted"),
        (subprocess.TimeoutExpired("x", 1), "py.timeout"),
        (subprocess.CalledProcessError(-9, ["/usr/bin/ffmpeg", "-i"]), "process.killed"),
        (subprocess.CalledProcessError(127, "foo --bar"), "process.not-runnable"),
        (errors.ProcessFailed("ffmpeg", exit_code=1, stderr="boom"), "process.failed"),
        (errors.ProcessFailed("ffmpeg", timed_out=True, signal=9), "process.timeout"),
        (errors.StoreUnavailable("gone"), "mulligan.unavailable"),
        (errors.UniqueMismatch("other payload"), "mulligan.refused"),
        (ExceptionGroup("g", [KeyError("a"), ConnectionError()]), "py.connection"),
        (ExceptionGroup("g", [ExceptionGroup("h", [KeyError("a")])]), "py.programming-error"),
    ],
)
def test_common_exceptions_match_their_rule(exc, rule):
    assert classify_raised(exc).rule == rule


def test_a_refused_payload_is_invalid_input():
    with pytest.raises(pydantic.ValidationError) as info:
        pydantic.TypeAdapter(int).validate_python("x")
    assert classify_raised(info.value).rule == "file.validation"


def test_the_stderr_of_a_failed_program_stays_private():
    failure = classify_raised(
        errors.ProcessFailed("/opt/bin/ffmpeg", exit_code=183, stderr="moov atom not found")
    )
    assert dict(failure.evidence) == {"exit_code": 183, "program": "ffmpeg"}
    assert failure.private["stderr"] == "moov atom not found"


def test_the_cause_chain_is_captured_and_traced():
    failure = classify_facts(
        capture(raised(RuntimeError("render failed"), raised(ConnectionError("reset"))))
    )
    assert failure.rule == "py.connection"
    assert "caused by builtins.ConnectionError: reset" in failure.private["trace"]
    assert failure.private["exception"] == "builtins.RuntimeError"


def test_a_failed_program_may_be_a_cause():
    failure = classify_facts(
        capture(raised(RuntimeError("x"), errors.ProcessFailed("ffmpeg", signal=9, stderr="s")))
    )
    assert (failure.rule, failure.evidence["signal"], failure.private["stderr"]) == (
        "process.killed",
        9,
        "s",
    )


def test_an_exception_that_was_merely_being_handled_does_not_forbid_a_retry():
    def fetch():
        try:
            return {}["x"]
        except KeyError:
            raise RuntimeError("cache miss, and then this")  # noqa: B904 - the case under test

    with pytest.raises(RuntimeError) as info:
        fetch()
    assert classify_facts(capture(info.value)).cls == Cls.UNKNOWN


def test_a_suppressed_context_is_not_captured():
    exc = RuntimeError("outer")
    exc.__context__ = ConnectionError("inner")
    assert classify_facts(capture(exc)).cls == Cls.TRANSIENT
    exc.__suppress_context__ = True
    assert classify_facts(capture(exc)).cls == Cls.UNKNOWN
    assert "inner" not in capture(exc).trace


@pytest.mark.parametrize(
    ("attributes", "status"),
    [
        ({"response": type("R", (), {"status_code": 503})()}, 503),
        ({"response": type("R", (), {"status": 502})()}, 502),
        ({"status": 429}, 429),
        ({"status_code": 404}, 404),
        ({"code": 500}, 500),
        ({"code": 5}, None),
        ({"code": "E500"}, None),
        ({"status": True}, None),
    ],
)
def test_an_http_status_is_found_in_attributes(attributes, status):
    exc = RuntimeError("x")
    vars(exc).update(attributes)
    assert capture(exc).http_status == status


def test_secrets_are_removed_before_a_failure_is_stored():
    facts = capture(
        raised(RuntimeError("x"), ValueError("postgres://ann:hunter2@db/x password=hunter2"))
    )
    assert "hunter2" not in repr(facts)


def test_only_the_last_frames_are_kept():
    def dive(n):
        if n == 0:
            raise ValueError("deep")
        dive(n - 1)

    with pytest.raises(ValueError, match="deep") as info:
        dive(200)
    trace = capture(info.value).trace
    assert len(trace.splitlines()) == 61  # the exception, and 30 frames with their lines of code
    assert len(trace) <= 8192


# --- Hostile exceptions ---


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", HOSTILE)
def test_recording_a_failure_never_fails(name):
    facts = capture(raised(HOSTILE[name]()))
    failure = classify_facts(facts)
    texts = {name: value for name, value in failure.private.items() if name != FACTS_KEY}
    json.dumps(failure.private).encode()
    for text in (failure.code, failure.public, *texts.values(), *facts.exception_types):
        assert type(text) is str
        assert len(text) <= 8192
        assert "\0" not in text
        text.encode("utf-8")
    json.dumps(dict(failure.evidence))
    outcome = outcome_of_exception(raised(HOSTILE[name]()), NOW)
    assert outcome.ended == Ended.FAILED


@pytest.mark.parametrize("make", [Traps, ClassTrap])
def test_even_an_unreadable_exception_has_a_type(make):
    assert capture(make()).exception_types[0].endswith(f".{make.__name__}")


@settings(deadline=None)  # the first text builds the index of patterns
@given(st.text(st.characters(codec=None, exclude_categories=[])))
def test_any_text_can_be_captured(text):
    failure = classify_facts(capture(RuntimeError(text)))
    json.dumps(dict(failure.private)).encode("utf-8")


# --- Requested outcomes ---


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (errors.Retry(), {"ended": Ended.RETRY, "after": None, "until": None}),
        (errors.Retry(30, "busy"), {"after": 30 * SECOND, "reason": "busy"}),
        (errors.Retry(timedelta(minutes=1)), {"after": 60 * SECOND}),
        (errors.Retry(to_datetime(NOW + 5)), {"after": None, "until": NOW + 5}),
        (errors.Snooze(0.5), {"ended": Ended.SNOOZED, "after": SECOND // 2}),
        (errors.Snooze(0), {"after": 0}),
        (errors.Cancel("gone"), {"ended": Ended.CANCELLED, "reason": "gone"}),
        (
            errors.Park("which?", ["a", "b"]),
            {"ended": Ended.PARKED, "reason": "which?", "choices": ("a", "b")},
        ),
        (
            errors.Hold("gateway"),
            {"ended": Ended.HELD, "dependency": "gateway", "after": None, "until": None},
        ),
        (errors.Hold("gateway", 60, "down"), {"after": 60 * SECOND, "reason": "down"}),
        (errors.Fail("X", final=True), {"ended": Ended.FAILED, "final": True}),
    ],
)
def test_a_requested_outcome_is_converted(request_, expected):
    for outcome in (outcome_of_request(request_, NOW), outcome_of_exception(raised(request_), NOW)):
        assert {name: getattr(outcome, name) for name in expected} == expected
        assert outcome.ended_at == NOW


def test_fail_sets_code_class_sentence_and_hint():
    request = errors.Fail(
        "GW_5XX", "secret=abc", "more", "The gateway is down.", retry_after=timedelta(seconds=9)
    )
    failure = outcome_of_request(request, NOW).failure
    assert (failure.code, failure.cls, failure.public, failure.retry_after) == (
        "GW_5XX",
        Cls.UNKNOWN,
        "The gateway is down.",
        9.0,
    )
    assert failure.private["message"] == "secret=[redacted]"
    assert failure.private["detail"] == "more"


def test_fail_accepts_a_time_as_retry_after():
    assert (
        outcome_of_request(
            errors.Fail("X", retry_after=to_datetime(NOW + 3 * SECOND)), NOW
        ).failure.retry_after
        == 3.0
    )
    assert (
        outcome_of_request(
            errors.Fail("X", retry_after=to_datetime(NOW - SECOND)), NOW
        ).failure.retry_after
        == 0.0
    )


def test_fail_keeps_the_trace_of_its_cause():
    failure = outcome_of_exception(raised(errors.Fail("X"), raised(ValueError("why"))), NOW).failure
    assert "caused by builtins.ValueError: why" in failure.private["trace"]


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (errors.Retry(-1), "after must be between"),
        (errors.Retry(math.nan), "after must be between"),
        (errors.Retry(math.inf), "after must be between"),
        (errors.Retry(True), "after must be seconds"),
        (errors.Retry("soon"), "after must be seconds"),
        (errors.Snooze(timedelta(seconds=-1)), "seconds must be between"),
        (errors.Snooze(datetime(2026, 1, 1)), "has no time zone"),  # noqa: DTZ001 - the case under test
        (errors.Snooze(None), "seconds must be"),
        (errors.Snooze(10**400), "seconds must be between"),
        (errors.Hold("gateway", -1), "until must be between"),
        (errors.Hold(7), "dependency must be a str"),
        (errors.Park("x", [1]), "choices must be a str"),
        (errors.Cancel(None), "reason must be a str"),
        (errors.Fail(""), "code must not be empty"),
        (errors.Fail(7), "code must be a str"),
        (errors.Fail("X", retry_after=-1), "retry_after must be between"),
        (ValueError("returned"), "returned builtins.ValueError; raise exceptions"),
        (errors.OutcomeRequest(), "OutcomeRequest"),
    ],
)
def test_an_invalid_outcome_becomes_a_failure_with_the_reason(request_, reason):
    outcome = outcome_of_request(request_, NOW)
    assert (outcome.ended, outcome.failure.code, outcome.failure.cls) == (
        Ended.FAILED,
        "BAD_OUTCOME",
        Cls.PERMANENT,
    )
    assert reason in outcome.failure.private["message"]


@pytest.mark.parametrize("make", [Traps, StrRaises, ClassTrap, OddClass])
def test_a_returned_hostile_exception_is_an_invalid_outcome(make):
    assert outcome_of_request(make(), NOW).failure.code == "BAD_OUTCOME"


def test_an_outcome_without_its_fields_is_invalid():
    class Half(errors.Snooze):
        def __init__(self):
            Exception.__init__(self)

    assert outcome_of_request(Half(), NOW).failure.code == "BAD_OUTCOME"


def test_times_with_a_time_zone_are_parsed_exactly():
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert to_datetime(outcome_of_request(errors.Snooze(at), NOW).until) == at


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            errors.Fail("BAD_FILE", "row 17 has 5 columns", final=True),
            "BAD_FILE: row 17 has 5 columns",
        ),
        (errors.Fail("BAD_FILE"), "BAD_FILE"),
        (errors.Park("too large", ["a", "b"]), "too large"),
        (errors.Hold("payments", 8, "maintenance"), "payments: maintenance"),
        (errors.Snooze(3, "too early"), "too early"),
        (errors.Retry(3, "locked"), "locked"),
    ],
)
def test_a_requested_outcome_reads_as_its_reason(request_, text):
    assert str(request_) == text


def test_the_trace_of_a_declared_failure_is_what_the_handler_states():
    failure = outcome_of_exception(errors.Fail("BAD_FILE", "row 17", public="Broken."), NOW).failure
    assert failure.private["trace"] == "BAD_FILE: row 17"
