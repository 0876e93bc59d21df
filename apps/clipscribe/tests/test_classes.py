"""Types of errors and whether they are retried, as in the corrected table of the specification."""

from __future__ import annotations

from random import Random

import pytest

from mulligan import classify, pack, redact
from mulligan.apps.clipscribe.records import duration_bucket

rule_pack = pack("clipscribe")
RULES = rule_pack.rules
NETWORK = "NetworkTimeout"
SERVICE = "TemporaryServiceError"
RATE = "RateLimitExceeded"
RESOURCE = "ResourceConstraint"
# Type: whether it is retried, and how often.
RETRIES = {NETWORK: 3, RATE: 5, SERVICE: 3, RESOURCE: 2, "UnknownError": 2}
QUOTA_PER_MINUTE = (
    "Quota exceeded for quota metric 'Generate Content API requests per minute' and limit "
    "'GenerateContent request limit per minute for a region' of service "
    "'generativelanguage.googleapis.com' for consumer 'project_number:1234'."
)
# The 32 patterns of the specification (§1.1), each in sentences as providers write them.
SENTENCES = {
    NETWORK: {  # 004-04
        "timeout": [
            "Connection timeout while downloading",
            "Connect timeout on endpoint URL: https://v.example/a",
        ],
        "timed out": [
            "The read operation timed out",
            "HTTPSConnectionPool(host='youtube.com', port=443): Read timed out. (read timeout=60)",
        ],
        "connection reset": ["[Errno 104] Connection reset by peer"],
    },
    RATE: {  # 004-05
        "rate limit": [
            "Rate limit exceeded for requests per minute",
            "You have hit the rate limit. Please try again later.",
        ],
        "quota exceeded": [
            QUOTA_PER_MINUTE,
            f"RESOURCE_EXHAUSTED: {QUOTA_PER_MINUTE}",
            "Quota exceeded for quota metric 'Queries' and limit 'Queries per day'",
            "Quota exceeded",
        ],
        "429": [
            "HTTP Error 429: Too Many Requests",
            "429 Resource has been exhausted (e.g. check quota).",
        ],
    },
    SERVICE: {  # 004-06
        "503": [
            "HTTP Error 503: Service Unavailable",
            "503 The model is overloaded. Please try again later.",
        ],
        "service unavailable": ["Service Unavailable"],
        "temporarily unavailable": ["The service is temporarily unavailable"],
    },
    RESOURCE: {  # 004-07
        "memory": ["Cannot allocate memory", "ffmpeg: out of memory"],
        "resource exhausted": ["Resource exhausted: OOM when allocating tensor"],
    },
    "InvalidInput": {  # 004-08
        "private video": [
            "ERROR: [youtube] dQw4w9: Private video. Sign in if you've been granted access",
            "Video is private",
        ],
        "deleted": ["The video was deleted by its owner", "This video has been deleted"],
        "not found": ["not found", "Video not found", "Requested entity was not found."],
        "404": ["HTTP Error 404: Not Found", "404 Client Error: Not Found for url: https://v.io/x"],
        "invalid url": ["Invalid URL 'foo': No scheme supplied", "Invalid URL"],
    },
    "AuthenticationFailure": {  # 004-09
        "401": ["HTTP Error 401: Unauthorized"],
        "403": ["HTTP Error 403: Forbidden"],
        "forbidden": ["Forbidden", "Access to this resource is forbidden"],
        "unauthorized": ["Unauthorized"],
    },
    "PaymentRequired": {  # 004-10
        "402": ["HTTP Error 402: Payment Required"],
        "payment required": ["Payment required for this project"],
        "billing": [
            "This API method requires billing to be enabled",
            "Billing has not been enabled for this project",
        ],
    },
    "ContentViolation": {  # 004-11
        "terms of service": [
            "This video has been removed for violating YouTube's Terms of Service",
            "This video is no longer available because it violated YouTube's Terms of Service",
        ],
        "copyright": [
            "This video contains content from UMG, who has blocked it on copyright grounds",
            "This video is no longer available due to a copyright claim by Sony Music",
        ],
        "content policy": [
            "Blocked by content policy",
            "The request was rejected: content policy violation",
            "Response blocked: PROHIBITED_CONTENT",
        ],
    },
    "VideoExceedsLimits": {  # 004-12
        "exceeds maximum duration": ["The video exceeds the maximum duration of 6 hours"],
        "video too large": ["Video too large", "The video is too large: 12 GB"],
        "over 6 hours": ["Videos over 6 hours are not supported"],
    },
    "QuotaExceeded": {  # 004-13
        "daily limit reached": ["Daily limit reached", "You have reached your daily limit"],
        "monthly quota exceeded": ["Your monthly quota has been exceeded"],
        "tier limit": ["You have reached your tier limit", "Tier limit exceeded"],
    },
}
CASES = [
    (error_type, sentence)
    for error_type, patterns in SENTENCES.items()
    for sentences in patterns.values()
    for sentence in sentences
]


@pytest.mark.seed(
    "004-04",
    "004-05",
    "004-06",
    "004-07",
    "004-08",
    "004-09",
    "004-10",
    "004-11",
    "004-13",
)
@pytest.mark.parametrize(("error_type", "sentence"), CASES)
def test_every_pattern_of_the_specification_has_its_type_and_retries(error_type, sentence):
    failure = classify(Exception(sentence), rules=RULES)
    assert failure.code == error_type, failure.rule
    assert failure.retryable is (error_type in RETRIES)
    assert failure.terms.get("max_retries") == RETRIES.get(error_type)


def test_no_pattern_of_the_specification_is_missing():
    assert sum(len(patterns) for patterns in SENTENCES.values()) == 32


@pytest.mark.seed("004-65", "004-66", "004-14")
@pytest.mark.parametrize(
    ("text", "error_type", "retriable", "retries"),
    [
        ("Connection timeout while downloading", NETWORK, True, 3),  # 004-65
        ("Video is private", "InvalidInput", False, None),  # 004-66
    ],
)
def test_examples_of_the_specification_are_classified(text, error_type, retriable, retries):
    failure = classify(Exception(text), rules=RULES)
    found = (failure.code, failure.retryable, failure.terms.get("max_retries"))
    assert found == (error_type, retriable, retries)  # 004-14


@pytest.mark.seed("004-04", "004-05", "004-06", "004-07", "004-08", "004-09", "004-10")
@pytest.mark.parametrize(
    ("facts", "error_type"),
    [
        ({"text_or_exception": TimeoutError("the model timed out")}, NETWORK),  # 004-04
        ({"text_or_exception": ConnectionResetError("reset by peer")}, NETWORK),
        ({"http_status": 429}, RATE),  # 004-05
        ({"http_status": 503}, SERVICE),  # 004-06
        ({"text_or_exception": MemoryError()}, RESOURCE),  # 004-07
        ({"exit_code": -9, "program": "ffmpeg"}, RESOURCE),
        ({"http_status": 404}, "InvalidInput"),  # 004-08
        ({"http_status": 410}, "InvalidInput"),
        ({"http_status": 401}, "AuthenticationFailure"),  # 004-09
        ({"http_status": 403}, "AuthenticationFailure"),
        ({"http_status": 402}, "PaymentRequired"),  # 004-10
    ],
)
def test_exceptions_and_statuses_have_their_type(facts, error_type):
    assert classify(**facts, rules=RULES).code == error_type


@pytest.mark.seed("004-04", "004-05", "004-06", "004-07", "004-08", "004-10", "004-74")
@pytest.mark.parametrize(
    ("text", "wrong_type"),
    [
        ("timeout=None is not allowed", NETWORK),  # 004-04
        ("job 1429 has no frames", RATE),  # 004-05
        ("write failed: Disk quota exceeded on /srv", RATE),
        ("order 50312 could not be read", SERVICE),  # 004-06
        ("the in-memory cache has no such key", RESOURCE),  # 004-07
        ("frame 404 of 9000 could not be drawn", "InvalidInput"),  # 004-08
        ("the billing export has a wrong column", "PaymentRequired"),  # 004-10
    ],
)
def test_numbers_and_nouns_inside_other_text_do_not_match(text, wrong_type):
    assert classify(text, rules=RULES).code != wrong_type  # 004-74


@pytest.mark.seed("004-15")
@pytest.mark.parametrize("text", ["404 timeout", "see our Terms of Service: try again later"])
def test_status_code_precedes_text(text):
    failure = classify(text, http_status=503, rules=RULES)
    assert (failure.code, failure.retryable) == (SERVICE, True)  # 004-15


@pytest.mark.seed("004-15")
@pytest.mark.parametrize(
    ("text", "error_type"),
    [
        ("Video not found: the read operation timed out", NETWORK),
        ("Unauthorized: connection reset by peer", NETWORK),
        ("Service Unavailable (Forbidden)", SERVICE),
        ("Rate limit exceeded. This video has been deleted", RATE),
    ],
)
def test_of_two_patterns_in_one_text_the_one_that_is_retried_wins(text, error_type):
    failure = classify(Exception(text), rules=RULES)
    assert (failure.code, failure.retryable) == (error_type, True)


@pytest.mark.seed("004-16", "004-03", "004-25")
def test_unknown_errors_are_retried_twice_and_every_rule_has_a_limit():
    failure = classify(Exception("what is this"), rules=RULES)
    found = (failure.code, failure.retryable, failure.terms["max_retries"])
    assert found == ("UnknownError", True, 2)  # 004-16
    assert all(0 < rule.max_retries <= 5 for rule in RULES if rule.retryable)  # 004-03
    backoffs = [rule_pack.policy.backoff, *[rule.backoff for rule in RULES if rule.backoff]]
    delays = [backoff.delay(200, Random(seed)) for backoff in backoffs for seed in range(50)]
    assert max(delays) <= 1.2 * 86_400  # 004-25


@pytest.mark.seed("004-16")
def test_an_error_of_the_program_itself_is_unknown_and_not_retried():
    failure = classify(KeyError("frames"), rules=RULES)
    assert (failure.code, failure.retryable) == ("UnknownError", False)


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
