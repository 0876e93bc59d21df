"""Known errors of libraries and services get the expected code and class."""

from __future__ import annotations

import errno
import json

import pytest

from mulligan.core.attempt import RETRYABLE, Cls
from mulligan.failures import codes
from mulligan.failures.classify import classify_facts
from mulligan.failures.facts import Facts, base_program_name
from mulligan.failures.matcher import Rulebook
from mulligan.failures.rules import Rule


def types(*names):
    return tuple(f"builtins.{name}" for name in names)


KEY_ERROR = types("KeyError", "LookupError")
OS_ERROR = types("OSError")
CONNECTION = types("ConnectionResetError", "ConnectionError", "OSError")


@pytest.mark.parametrize(
    ("facts", "code", "cls", "rule"),
    [
        (Facts(KEY_ERROR), "PROGRAMMING_ERROR", Cls.PERMANENT, "py.programming-error"),
        (
            Facts(types("ModuleNotFoundError", "ImportError")),
            "PROGRAMMING_ERROR",
            Cls.PERMANENT,
            "py.programming-error",
        ),
        (Facts(types("ValueError")), "UNKNOWN_ERROR", Cls.UNKNOWN, "unknown"),
        (
            Facts(types("UnicodeDecodeError", "UnicodeError", "ValueError")),
            "INVALID_INPUT",
            Cls.INVALID_INPUT,
            None,
        ),
        (Facts(CONNECTION), "CONNECTION", Cls.TRANSIENT, "py.connection"),
        (
            Facts(("socket.gaierror", *OS_ERROR), errno=-2),
            "CONNECTION",
            Cls.TRANSIENT,
            "dns.unknown",
        ),
        (Facts(types("TimeoutError", "OSError")), "TIMEOUT", Cls.TIMEOUT, "py.timeout"),
        (Facts(types("MemoryError")), "MEMORY", Cls.RESOURCE, "py.memory"),
        (Facts(OS_ERROR, errno=errno.ENOSPC), "DISK_FULL", Cls.RESOURCE, "os.disk-full"),
        (Facts(OS_ERROR, errno=errno.EDQUOT), "DISK_FULL", Cls.RESOURCE, "os.disk-full"),
        (Facts(OS_ERROR, errno=9999), "UNKNOWN_ERROR", Cls.UNKNOWN, "unknown"),
        (
            Facts(types("PermissionError", "OSError"), errno=errno.EACCES),
            "PERMISSION",
            Cls.PERMANENT,
            "py.permission",
        ),
        (Facts(types("FileNotFoundError", "OSError")), "NOT_FOUND", Cls.PERMANENT, "py.not-found"),
        (Facts(types("SystemExit")), "HANDLER_EXIT", Cls.UNKNOWN, "py.handler-exit"),
        (Facts(types("KeyboardInterrupt")), "STOPPED", Cls.CANCELLED, "py.interrupted"),
        (Facts(exit_code=127), "PROGRAM_MISSING", Cls.PERMANENT, "process.not-runnable"),
        (Facts(exit_code=1), "PROCESS_FAILED", Cls.UNKNOWN, "process.failed"),
        (Facts(signal=9), "PROCESS_KILLED", Cls.RESOURCE, "process.killed"),
        (Facts(signal=11), "PROGRAM_CRASHED", Cls.PERMANENT, "process.crashed"),
        (Facts(signal=6), "PROCESS_CRASHED", Cls.UNKNOWN, "process.aborted"),
        (Facts(signal=9, timed_out=True), "TIMEOUT", Cls.TIMEOUT, "process.timeout"),
        (Facts(http_status=429), "RATE_LIMITED", Cls.RATE_LIMITED, "http.rate-limited"),
        (Facts(http_status=503), "HTTP_5XX", Cls.TRANSIENT, "http.unavailable"),
        (Facts(http_status=404), "MISSING", Cls.INVALID_INPUT, "http.missing"),
        (Facts(http_status=400), "HTTP_4XX", Cls.INVALID_INPUT, "http.refused"),
        (Facts(http_status=402), "QUOTA", Cls.QUOTA, "http.quota"),
        (Facts(http_status=401), "AUTH", Cls.AUTH, "http.auth"),
        (Facts(), "UNKNOWN_ERROR", Cls.UNKNOWN, "unknown"),
    ],
)
def test_structure_determines_code_class_and_rule(facts, code, cls, rule):
    failure = classify_facts(facts)
    assert (failure.code, failure.cls) == (code, cls)
    assert rule is None or failure.rule == rule
    assert failure.retryable == (cls in RETRYABLE)
    assert failure.public
    assert failure.fingerprint.startswith(("v2-", "v3-"))


@pytest.mark.parametrize(
    "text", ["clip_404.mp4", "memory", "timeout", "deleted", "order 50312 imported", "billing"]
)
def test_a_single_number_or_noun_in_a_text_decides_nothing(text):
    assert classify_facts(Facts(types("RuntimeError"), message=text)).cls == Cls.UNKNOWN


def test_an_attempt_ended_by_mulligan_is_not_classified_by_its_exception():
    assert (
        classify_facts(Facts(KEY_ERROR, code="X", ended_by="MEMORY_LIMIT")).code == "MEMORY_LIMIT"
    )
    assert classify_facts(Facts(KEY_ERROR, ended_by="MEMORY_LIMIT")).cls == Cls.RESOURCE


def test_a_declared_code_wins_over_types():
    failure = classify_facts(
        Facts(KEY_ERROR, code="GW_5XX", public="The gateway is down.", retry_after=9.0, message="m")
    )
    assert (failure.code, failure.cls, failure.rule) == ("GW_5XX", Cls.UNKNOWN, "handler.declared")
    assert (failure.public, failure.retry_after) == ("The gateway is down.", 9.0)
    assert classify_facts(Facts(code="RATE_LIMITED")).cls == Cls.RATE_LIMITED
    assert classify_facts(Facts(code="NOPE")).public == "The job failed with NOPE."


def test_a_cause_decides_if_its_wrapper_is_unknown():
    wrapped = Facts(types("RuntimeError"), causes=(Facts(types("ValueError")), Facts(CONNECTION)))
    assert classify_facts(wrapped).rule == "py.connection"
    assert classify_facts(Facts(KEY_ERROR, causes=(Facts(CONNECTION),))).rule == "py.connection"
    assert (
        classify_facts(Facts(types("RuntimeError"), causes=(Facts(KEY_ERROR),))).rule
        == "py.programming-error"
    )


def test_an_implied_cause_may_allow_a_retry_but_never_forbid_one():
    handled = Facts(KEY_ERROR, implied=True)
    assert classify_facts(Facts(types("RuntimeError"), causes=(handled,))).cls == Cls.UNKNOWN
    assert classify_facts(Facts(http_status=503, causes=(handled,))).rule == "http.unavailable"
    assert (
        classify_facts(Facts(types("RuntimeError"), causes=(Facts(CONNECTION, implied=True),))).cls
        == Cls.TRANSIENT
    )


@pytest.mark.parametrize(
    ("leaves", "rule"),
    [
        ((Facts(KEY_ERROR), Facts(CONNECTION)), "py.connection"),
        ((Facts(KEY_ERROR), Facts(types("RuntimeError"))), "unknown"),
        ((Facts(KEY_ERROR), Facts(types("FileNotFoundError"))), "py.programming-error"),
        ((Facts(types("RuntimeError"), causes=(Facts(CONNECTION),)),), "py.connection"),
    ],
)
def test_an_exception_group_is_retryable_if_one_leaf_is(leaves, rule):
    assert classify_facts(Facts(types("ExceptionGroup"), leaves=leaves)).rule == rule


def test_the_public_part_contains_no_text_of_the_exception():
    failure = classify_facts(
        Facts(
            ("app.Secret",),
            "hunter2",
            "trace",
            "stderr",
            exit_code=3,
            program="ffmpeg",
            detail="more",
        )
    )
    assert dict(failure.evidence) == {"exit_code": 3, "program": "ffmpeg"}
    assert dict(failure.private) == {
        "exception": "app.Secret",
        "message": "hunter2",
        "detail": "more",
        "trace": "trace",
        "stderr": "stderr",
        "facts": {"exception_types": ["app.Secret"], "exit_code": 3, "program": "ffmpeg"},
    }
    assert "hunter2" not in failure.public


@pytest.mark.parametrize(
    ("failure", "code", "cls", "excerpt"),
    [
        (codes.timed_out(300), "TIMEOUT", Cls.TIMEOUT, "limit of 5 min"),
        (
            codes.process_died(signal=9, peak_rss=1_900_000_000),
            "PROCESS_DIED",
            Cls.UNKNOWN,
            "signal 9 (SIGKILL), peak",
        ),
        (codes.process_died(signal=9, oom=True), "PROCESS_DIED", Cls.RESOURCE, "OOM"),
        (
            codes.process_died(exit_code=3, shared=True),
            "PROCESS_DIED",
            Cls.UNKNOWN,
            "exited with 3; other jobs",
        ),
        (codes.process_died(), "PROCESS_DIED", Cls.UNKNOWN, "died"),
        (codes.process_died(signal=999), "PROCESS_DIED", Cls.UNKNOWN, "signal 999"),
        (codes.worker_lost("w1"), "WORKER_LOST", Cls.TRANSIENT, "stopped responding"),
        (
            codes.memory_limit_exceeded(1_000_000, 2_500_000),
            "MEMORY_LIMIT",
            Cls.RESOURCE,
            "2.5 MB of memory, more than",
        ),
        (codes.unknown_kind("render"), "KIND_UNKNOWN", Cls.PERMANENT, "render"),
        (codes.deadline_passed(), "DEADLINE_PASSED", Cls.PERMANENT, "deadline"),
        (
            codes.result_refused("RESULT_NOT_JSON", "a set"),
            "RESULT_NOT_JSON",
            Cls.PERMANENT,
            "result",
        ),
        (codes.payload_refused("clip: missing"), "PAYLOAD_REFUSED", Cls.INVALID_INPUT, "payload"),
    ],
)
def test_failures_without_an_exception(failure, code, cls, excerpt):
    assert (failure.code, failure.cls) == (code, cls)
    assert excerpt in failure.public
    assert failure.fingerprint.startswith(("v2-", "v3-"))
    json.dumps(dict(failure.evidence))


def test_out_of_memory_is_reported_only_if_the_kernel_reported_it():
    assert "OOM" not in codes.process_died(signal=9, peak_rss=10**12).public
    assert "memory ran out" in codes.process_died(signal=9, oom=True).public


@pytest.mark.parametrize(
    "program", ["ffmpeg", "ffmpeg-linux-x86_64-v7.0.2", "ffmpeg.exe", "ffmpeg-6.1"]
)
def test_version_and_platform_in_a_program_name_are_ignored(program):
    failure = classify_facts(
        Facts(
            stderr="a.mp4: Invalid data found when processing input", exit_code=183, program=program
        )
    )
    assert (failure.code, failure.rule) == ("BAD_FILE", "ffmpeg.bad-file")


@pytest.mark.parametrize(
    "program", ["docker-compose", "git-lfs", "7z", "x264", "sha256sum", "s3cmd"]
)
def test_digits_and_dashes_that_belong_to_a_program_name_stay(program):
    assert base_program_name(program) == program


def test_a_rule_may_name_a_version():
    rule = Rule("old", program="python3.11", exit_code=3, code="OLD", cls="permanent")
    facts = Facts(exit_code=3, program="python3.11")
    assert classify_facts(facts, [Rulebook([rule])]).code == "OLD"


def test_a_declared_code_uses_the_rule_that_matches_its_cause():
    passing = Rule("passing", verdict="HTTP_5XX", code="FETCH", cls="transient")
    gone = Rule("gone", http_status=404, code="FETCH", cls="invalid_input")
    book = [Rulebook([passing, gone])]
    for status, rule in ((503, "passing"), (404, "gone")):
        cause = Facts(types("httpx2.HTTPStatusError"), http_status=status)
        assert (
            classify_facts(
                Facts(types("mulligan.core.errors.Fail"), code="FETCH", causes=(cause,)), book
            ).rule
            == rule
        )
    assert (
        classify_facts(Facts(types("mulligan.core.errors.Fail"), code="FETCH"), book).rule
        == "passing"
    )


def test_a_rule_about_a_verdict_and_a_program_matches_anywhere_in_the_chain():
    rule = Rule(
        "bad-clip", program="ffmpeg", verdict="BAD_FILE", code="BAD_CLIP", cls="invalid_input"
    )
    cause = Facts(types("OSError"), stderr="moov atom not found", exit_code=183, program="ffmpeg")
    assert (
        classify_facts(Facts(types("RuntimeError"), causes=(cause,)), [Rulebook([rule])]).code
        == "BAD_CLIP"
    )
