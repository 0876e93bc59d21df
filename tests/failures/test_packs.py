"""Packs: contents, selection and errors."""

from __future__ import annotations

import errno
import re
from collections import Counter
from dataclasses import replace
from importlib.resources import files
from random import Random

import pytest

from mulligan import classify, pack
from mulligan.config import RetrySection, Settings
from mulligan.core.attempt import RETRYABLE, Cls, Ended, Failure, Outcome
from mulligan.core.errors import ConfigError
from mulligan.core.job import State
from mulligan.failures.rule_sources import list_packs, load_configured_rules
from mulligan.retries.decide import decide
from mulligan.retries.policy import Policy, resolve_policy
from support.builders import NOW, make_lease


def delays(name, cls, count, code=None):
    """Return the nominal delays of a failure with this code, and its backoff."""
    mine = pack(name)
    rule = next((rule for rule in mine.rules if rule.code == code and rule.backoff), None)
    backoff = (
        rule.backoff if rule else resolve_policy(RetrySection(), kind=mine.policy).backoff_for(cls)
    )
    return [backoff.nominal(n) for n in range(count)], backoff


def verdict(name, text="", **facts):
    failure = classify(text, **facts, rules=pack(name).rules)
    return failure.code, str(failure.cls)


@pytest.mark.parametrize("name", list_packs())
def test_every_code_of_a_pack_has_a_sentence_a_class_and_a_retry_limit(name):
    mine = pack(name)
    text = (files("mulligan") / "failures" / "packs" / f"{name}.toml").read_text()
    assert len(text.splitlines()) <= 40
    assert mine.policy.max_retries is not None
    for rule in mine.rules:
        assert rule.public.strip(), rule.id
        assert rule.retryable == (rule.cls in RETRYABLE)
    effective = resolve_policy(RetrySection(), kind=mine.policy)
    assert all(effective.max_retries_for(rule.cls) >= 0 for rule in mine.rules)


@pytest.mark.parametrize("cls", sorted(RETRYABLE))
def test_the_watermark_pack_waits_1_5_and_15_minutes(cls):
    found, backoff = delays("watermark", cls, 4)
    assert found == [60, 300, 900, 900]
    assert backoff.delay(0, Random(1)) == 60
    assert resolve_policy(RetrySection(), kind=pack("watermark").policy).max_retries_for(cls) == 3


@pytest.mark.seed("001-26")
@pytest.mark.parametrize("cls", sorted(RETRYABLE))
def test_the_pdfxml_pack_waits_5_15_45_seconds_with_20_percent_jitter(cls):
    found, backoff = delays("pdfxml", cls, 3)
    assert found == [5, 15, 45]
    drawn = [backoff.delay(1, Random(seed)) for seed in range(200)]
    assert 12 <= min(drawn) < 12.5
    assert 17.5 < max(drawn) <= 18


@pytest.mark.parametrize("cls", sorted(RETRYABLE))
def test_the_videogen_pack_doubles_30_seconds_up_to_an_hour_and_adds_jitter_after_the_cap(cls):
    found, backoff = delays("videogen", cls, 9)
    assert found == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    drawn = [backoff.delay(8, Random(seed)) for seed in range(400)]
    assert 2880 <= min(drawn) < 3600 < max(drawn) <= 4320


@pytest.mark.parametrize("cls", sorted(RETRYABLE))
def test_the_render_pack_waits_1_2_4_seconds(cls):
    assert delays("render", cls, 3)[0] == [1, 2, 4]
    assert pack("render").policy.max_losses == 2


@pytest.mark.parametrize(
    ("code", "cls", "retries", "expected"),
    [
        ("NetworkTimeout", "timeout", 3, [30, 60, 120]),  # 004-04
        ("RateLimitExceeded", "rate_limited", 5, [60, 180, 540, 1620, 4860]),  # 004-05
        ("TemporaryServiceError", "transient", 3, [30, 60, 120]),  # 004-06
        ("ResourceConstraint", "resource", 2, [30, 45]),  # 004-07
        ("UnknownError", "unknown", 2, [30, 60]),  # 004-16
    ],
)
@pytest.mark.seed("004-04", "004-05", "004-06", "004-07", "004-16")
def test_the_clipscribe_pack_has_retries_and_delays_for_each_class(code, cls, retries, expected):
    assert delays("clipscribe", cls, len(expected), code)[0] == expected
    assert (
        next(rule.max_retries for rule in pack("clipscribe").rules if rule.code == code) == retries
    )


@pytest.mark.seed("004-77")
def test_a_thousand_jobs_that_fail_together_are_retried_at_different_times():
    _, backoff = delays("clipscribe", "timeout", 1)
    seconds = Counter(int(backoff.delay(0, Random(seed))) for seed in range(1000))
    assert len(seconds) >= 12
    assert max(seconds.values()) < 150


@pytest.mark.parametrize(
    ("name", "facts", "expected"),
    [
        (
            "watermark",
            {"text": "Invalid data found when processing input"},
            ("CORRUPT_SOURCE", "invalid_input"),
        ),
        ("watermark", {"text": "[mov] moov atom not found"}, ("CORRUPT_SOURCE", "invalid_input")),
        (
            "watermark",
            {"text": "open input: no such file or directory"},
            ("SOURCE_GONE", "invalid_input"),
        ),
        ("watermark", {"text": "unknown job type: detct"}, ("UNKNOWN_JOB_TYPE", "permanent")),
        ("watermark", {"text": "exit status 137"}, ("OUT_OF_MEMORY", "resource")),
        ("watermark", {"text": "context deadline exceeded"}, ("ENCODE_TIMEOUT", "timeout")),
        ("watermark", {"text": "write: no space left on device"}, ("DISK_WRITE", "resource")),
        ("watermark", {"text": "open out.mp4: permission denied"}, ("DISK_WRITE", "transient")),
        ("watermark", {"exit_code": 127, "program": "python"}, ("TOOL_MISSING", "transient")),
        ("watermark", {"text": "what is this"}, ("ENCODE_FAILED", "transient")),
        ("pdfxml", {"http_status": 400}, ("GW_4XX", "invalid_input")),
        ("pdfxml", {"http_status": 406}, ("GW_4XX", "invalid_input")),
        ("pdfxml", {"http_status": 413}, ("GW_4XX", "invalid_input")),
        ("pdfxml", {"http_status": 415}, ("GW_4XX", "invalid_input")),
        ("pdfxml", {"http_status": 500}, ("GW_5XX", "transient")),
        ("pdfxml", {"http_status": 503}, ("GW_5XX", "transient")),
        ("pdfxml", {"exception_type": "httpx.ConnectError"}, ("GW_5XX", "transient")),
        ("pdfxml", {"exception_type": "httpx.ReadTimeout"}, ("GW_TIMEOUT", "timeout")),
        ("pdfxml", {"errno": 5}, ("IO_ERROR", "resource")),
        ("pdfxml", {"http_status": 401}, ("GW_4XX", "auth")),
        ("pdfxml", {"http_status": 408}, ("GW_TIMEOUT", "timeout")),
        ("pdfxml", {"http_status": 429}, ("GW_5XX", "rate_limited")),
        ("pdfxml", {"http_status": 504}, ("GW_5XX", "transient")),
        ("pdfxml", {"exception_type": "obstore.exceptions.BaseError"}, ("IO_ERROR", "resource")),
        ("videogen", {"exception_type": "builtins.TimeoutError"}, ("TIMEOUT", "timeout")),
        ("videogen", {"http_status": 429}, ("RATE_LIMIT", "rate_limited")),
        ("videogen", {"http_status": 401}, ("AUTHENTICATION_FAILED", "auth")),
        ("videogen", {"http_status": 422}, ("VALIDATION_ERROR", "invalid_input")),
        ("videogen", {"http_status": 503}, ("SERVICE_UNAVAILABLE", "transient")),
        (
            "render",
            {
                "program": "ffmpeg",
                "exit_code": 1,
                "text": "Invalid data found when processing input",
            },
            ("FFMPEG_ERROR", "invalid_input"),
        ),
        ("render", {"program": "ffmpeg", "exit_code": 1}, ("FFMPEG_ERROR", "resource")),
        (
            "render",
            {"exception_type": "builtins.ConnectionResetError"},
            ("IMAGE_DOWNLOAD_FAILED", "transient"),
        ),
        (
            "clipscribe",
            {"text": "Connection timeout while downloading"},
            ("NetworkTimeout", "timeout"),
        ),
        ("clipscribe", {"text": "Video is private"}, ("InvalidInput", "invalid_input")),
        ("clipscribe", {"http_status": 429}, ("RateLimitExceeded", "rate_limited")),
        ("clipscribe", {"http_status": 503}, ("TemporaryServiceError", "transient")),
        ("clipscribe", {"exit_code": -9}, ("ResourceConstraint", "resource")),
        ("clipscribe", {"http_status": 403}, ("AuthenticationFailure", "auth")),
        ("clipscribe", {"http_status": 402}, ("PaymentRequired", "quota")),
        ("clipscribe", {"text": "daily limit reached"}, ("QuotaExceeded", "quota")),
        (
            "clipscribe",
            {"text": "Video exceeds maximum duration"},
            ("VideoExceedsLimits", "invalid_input"),
        ),
        (
            "clipscribe",
            {"text": "frame 404 of 9000: connection reset"},
            ("NetworkTimeout", "timeout"),
        ),
    ],
)
def test_each_pack_assigns_the_codes_of_its_seed(name, facts, expected):
    assert verdict(name, **facts) == expected


def test_the_pdfxml_pack_retries_a_failed_write_once_but_not_a_full_disk():
    found = {
        n: classify(OSError(n, "write"), rules=pack("pdfxml").rules)
        for n in (errno.EIO, errno.ENOSPC)
    }
    assert {number: failure.code for number, failure in found.items()} == dict.fromkeys(
        found, "IO_ERROR"
    )
    assert [failure.terms["max_retries"] for failure in found.values()] == [1, 0]


# Statements about what happens next. They are untrue about a job that has ended.
ANNOUNCEMENTS = re.compile(
    r"\b(?:retr(?:y|ies|ied|ying)|is tried again|soon|shortly|will|moving|moves|paused|waits"
    r"|waiting|queue|automatically)\b",
    re.IGNORECASE,
)


def sentences(rule):
    """Return the sentence of a rule by the state of the job: ended, and queued for a retry."""
    failure = Failure(rule.code, Cls(rule.cls), rule.public, rule.id, rule.retryable)
    failure = replace(failure, terms=rule.terms)
    outcome = Outcome(Ended.FAILED, failure=failure)
    policy = resolve_policy(RetrySection(max_retries=9))
    found = {}
    for final in (False, True):
        decision = decide(make_lease(), outcome._replace(final=final), policy, NOW, Random(0))
        found[decision.state] = decision.failure.public
    return found


@pytest.mark.parametrize(
    ("name", "rule"), [pytest.param(n, r, id=r.id) for n in list_packs() for r in pack(n).rules]
)
@pytest.mark.seed("004-56")
def test_the_sentence_about_a_job_that_ended_announces_nothing(name, rule):
    found = sentences(rule)
    assert not ANNOUNCEMENTS.search(found[State.DEAD]), found  # 004-56
    if State.QUEUED in found:
        assert found[State.QUEUED] == " ".join(filter(None, (rule.public, rule.promise)))
    else:
        assert not rule.promise


@pytest.mark.parametrize(
    "untrue",
    [
        "We've hit our processing limit. Your video will be processed soon.",
        "This video requires more resources than available. Moving to priority queue.",
        "Processing is paused until a payment is settled.",
        "The video could not be stored. It is tried again.",
    ],
)
def test_an_announcement_in_a_sentence_is_found(untrue):
    assert ANNOUNCEMENTS.search(untrue)


def test_the_error_about_an_unknown_pack_lists_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match="clipscribe, pdfxml, render, videogen, watermark"):
        pack("nope")
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'policy = { max_retries = 1 }\nrules = [{ id = "a", errno = 5, code = "A", cls = "quota" }]\n'
    )
    assert pack(str(mine)).policy == Policy(max_retries=1)
    mine.write_text("rulez = []\n")
    with pytest.raises(ConfigError, match="unknown key 'rulez'"):
        pack(str(mine))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('rules = "x"', "rules must be tables"),
        ("rules = [5]", "rules must be tables"),
        ("policy = 5", "policy must be a table"),
        ("[policy]\nmax_retries = -1", "policy: max_retries: "),
        ("[policy]\nmax_retry = 1", "policy: max_retry: "),
        ("other = 1", "unknown key 'other'"),
        ("rules = [", "not valid TOML"),
        (
            2 * '[[rules]]\nid = "a"\nerrno = 5\ncode = "X"\ncls = "timeout"\n',
            "rule 'a' is defined twice",
        ),
        (
            '[[rules]]\nid = "a"\nerrno = 5\ncode = "X"\ncls = "timeout"\nbackoff = [5, -1]',
            "backoff.table.seconds.1: ",
        ),
    ],
)
def test_an_invalid_pack_file_is_refused_with_its_name_and_the_reason(tmp_path, text, reason):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(reason)) as refused:
        pack(str(file))
    assert "mine" in str(refused.value)
    assert "pydantic" not in str(refused.value)


def test_a_folder_is_not_a_pack(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot read rule pack"):
        pack(str(tmp_path / "folder.toml"))


def test_duplicate_rule_ids_in_the_settings_are_refused():
    twin = {"id": "twin", "errno": 5, "code": "X", "cls": "timeout"}
    with pytest.raises(ConfigError, match="rule 'twin' is defined twice"):
        load_configured_rules(Settings(rules=(twin, twin)))
