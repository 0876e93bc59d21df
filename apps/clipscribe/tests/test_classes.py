"""Types of errors and whether they are retried, as in the corrected table of the specification."""

from __future__ import annotations

import pytest

from clipscribe.jobs import MESSAGES, RULES, app, process_job
from clipscribe.metrics import duration_bucket
from mulligan import classify, pack, redact

NETWORK = "NetworkTimeout"
SERVICE = "TemporaryServiceError"
RATE = "RateLimitExceeded"
RESOURCE = "ResourceConstraint"


@pytest.mark.seed("004-65", "004-66", "004-14")
@pytest.mark.parametrize(
    ("text", "error_type", "retriable", "retries"),
    [
        ("Connection timeout while downloading", NETWORK, True, 3),
        ("Video is private", "InvalidInput", False, None),
    ],
)
def test_examples_of_the_specification_are_classified(text, error_type, retriable, retries):
    classification = classify(Exception(text), rules=RULES)
    assert (
        classification.code,
        classification.retryable,
        classification.terms.get("max_retries"),
    ) == (
        error_type,
        retriable,
        retries,
    )


@pytest.mark.seed(
    "004-04", "004-05", "004-06", "004-07", "004-08", "004-09", "004-10", "004-11", "004-13"
)
@pytest.mark.parametrize(
    ("facts", "error_type"),
    [
        ({"text_or_exception": TimeoutError("the model timed out")}, NETWORK),
        ({"text_or_exception": ConnectionResetError("Connection reset by peer")}, NETWORK),
        ({"text_or_exception": "read timed out"}, NETWORK),
        ({"http_status": 429}, RATE),
        ({"text_or_exception": "Rate limit exceeded for requests per minute"}, RATE),
        ({"http_status": 503}, SERVICE),
        ({"text_or_exception": "503 Service Unavailable"}, SERVICE),
        ({"text_or_exception": "the service is temporarily unavailable"}, SERVICE),
        ({"text_or_exception": MemoryError()}, RESOURCE),
        ({"exit_code": -9, "program": "ffmpeg"}, RESOURCE),
        ({"text_or_exception": "This is a private video"}, "InvalidInput"),
        ({"http_status": 404}, "InvalidInput"),
        ({"http_status": 410}, "InvalidInput"),
        ({"http_status": 401}, "AuthenticationFailure"),
        ({"http_status": 403}, "AuthenticationFailure"),
        ({"http_status": 402}, "PaymentRequired"),
        (
            {"text_or_exception": "The prompt was blocked: it violates our content policy"},
            "ContentViolation",
        ),
        ({"text_or_exception": "tier limit reached"}, "QuotaExceeded"),
        ({"text_or_exception": "monthly quota exceeded"}, "QuotaExceeded"),
        ({"text_or_exception": "video too large"}, "VideoExceedsLimits"),
    ],
)
def test_every_type_is_recognised(facts, error_type):
    assert classify(**facts, rules=RULES).code == error_type


@pytest.mark.seed("004-04", "004-05", "004-06", "004-07", "004-08", "004-10", "004-74")
@pytest.mark.parametrize(
    ("text", "wrong_type"),
    [
        ("timeout=None is not allowed", NETWORK),
        ("order 50312 could not be read", SERVICE),
        ("job 1429 has no frames", RATE),
        ("the in-memory cache has no such key", RESOURCE),
        ("frame 404 of 9000 could not be drawn", "InvalidInput"),
        ("the billing export has a wrong column", "PaymentRequired"),
    ],
)
def test_numbers_and_nouns_inside_other_text_do_not_match(text, wrong_type):
    assert classify(text, rules=RULES).code != wrong_type


@pytest.mark.seed("004-15")
def test_status_code_precedes_text():
    classification = classify("404 timeout", http_status=503, rules=RULES)
    assert (classification.code, classification.retryable) == (SERVICE, True)


@pytest.mark.seed("004-16", "004-03", "004-25")
def test_unknown_errors_are_retried_twice_and_every_rule_has_a_limit():
    classification = classify(Exception("what is this"), rules=RULES)
    assert (classification.code, classification.retryable, classification.terms["max_retries"]) == (
        "UnknownError",
        True,
        2,
    )
    assert all(rule.max_retries is not None for rule in RULES if rule.retryable)
    assert pack("clipscribe").policy.backoff.cap == 86_400


@pytest.mark.seed("004-50")
def test_every_type_has_a_message():
    assert all(line.strip() for line in MESSAGES.values())
    assert {"PaymentRequired", "ContentViolation"} <= set(MESSAGES)


@pytest.mark.seed("004-17")
def test_time_limit_of_an_attempt_is_two_hours():
    assert app.manifest().kinds[process_job.name].timeout == 7200 * 1_000_000


@pytest.mark.seed("004-59")
@pytest.mark.parametrize(
    ("seconds", "name"),
    [
        (None, "unknown"),
        (0, "0-5min"),
        (299, "0-5min"),
        (300, "5-15min"),
        (899, "5-15min"),
        (900, "15-45min"),
        (2699, "15-45min"),
        (2700, "45min+"),
        (86400, "45min+"),
    ],
)
def test_durations_are_sorted_into_buckets(seconds, name):
    assert duration_bucket(seconds) == name


PLANTED = [
    "/srv/clips/ann/secret.mp4",
    "10.1.2.3",
    "sk-proj-abcdefghij0123456789abcdefghij0123456789",
    "hunter2",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlLW9mLWl0",
    "k1-short",
    "s3cr3t",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "xoxb-123456789012-abcdefghijkl",
    "/home/ann/.netrc",
]
TEXT = (
    "open {0} on {1}: key {2} https://ann:{3}@host.example/a?api_key={6} {4} "
    "Authorization: Bearer {5} password={7} {8} {9} {10} {11} "
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
)


@pytest.mark.seed("004-40")
def test_secrets_are_redacted_and_hashes_and_hosts_are_not():
    redacted = redact(TEXT.format(*PLANTED))
    assert [secret for secret in PLANTED if secret in redacted] == []
    assert "host.example" in redacted
    assert "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" in redacted
