"""Which rule wins: structure before text, the deepest cause, the kind before the app."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

import pytest

from mulligan import Rule, classify
from mulligan.core.attempt import Cls
from mulligan.failures import matcher
from mulligan.failures.classify import classify_facts
from mulligan.failures.codes import timed_out
from mulligan.failures.facts import Facts
from mulligan.failures.matcher import Rulebook, apply_verdict_rules

HOSTILE = "404 timeout permission denied insufficient_quota NoSuchKey HTTP Error 401: Unauthorized [Errno 28]"


def make_rulebook(*rules):
    return Rulebook(rules)


@pytest.mark.parametrize(
    ("structure", "cls"),
    [
        ({"http_status": 503}, "transient"),
        ({"http_status": 422}, "invalid_input"),
        ({"exception_type": "builtins.KeyError"}, "permanent"),
        ({"errno": 111}, "transient"),
        ({"exit_code": 137}, "resource"),
        ({"provider_code": "NoSuchKey"}, "invalid_input"),
        ({"provider_code": "UNAVAILABLE"}, "transient"),
        ({"provider_code": "40001"}, "transient"),
    ],
)
def test_a_hostile_text_does_not_override_structure(structure, cls):
    assert classify("", **structure).cls == cls
    assert classify(HOSTILE, **structure).cls == cls


def test_a_provider_code_wins_over_the_http_status():
    assert classify("", http_status=400, provider_code="ThrottlingException").cls == "rate_limited"
    assert classify("", http_status=429, provider_code="insufficient_quota").cls == "quota"
    assert classify("", http_status=403, provider_code="rateLimitExceeded").cls == "rate_limited"


def test_the_deepest_known_cause_decides():
    certificate = Facts(("ssl.SSLCertVerificationError", "ssl.SSLError", "builtins.OSError"))
    wrapped = Facts(
        ("openai.APIConnectionError",), causes=(Facts(("httpx.ConnectError",)), certificate)
    )
    assert classify_facts(wrapped).rule == "py.certificate"


def test_a_class_is_matched_before_its_bases():
    assert (
        classify_facts(
            Facts(("requests.exceptions.ConnectTimeout", "requests.exceptions.ConnectionError"))
        ).cls
        == Cls.TIMEOUT
    )
    assert classify_facts(Facts(("tarfile.ReadError",))).cls == Cls.INVALID_INPUT
    assert classify_facts(Facts(("httpx.ReadError",))).cls == Cls.TRANSIENT


def test_exit_codes_137_and_minus_9_equal_signal_9():
    deaths = [classify("", exit_code=137), classify("", exit_code=-9), classify("", signal=9)]
    assert {(death.code, death.evidence["signal"]) for death in deaths} == {("PROCESS_KILLED", 9)}


def test_exit_codes_of_ffmpeg_are_not_signals():
    assert classify("", exit_code=146, program="ffmpeg").cls == "timeout"
    assert classify("", exit_code=183, program="ffmpeg").cls == "invalid_input"
    assert classify("", exit_code=228, program="ffmpeg").cls == "resource"


def test_rules_of_the_kind_win_over_the_app_and_these_over_the_built_in_table():
    kind = make_rulebook(Rule("kind", http_status=503, code="KIND", cls="permanent"))
    app = make_rulebook(Rule("app", http_status=503, code="APP", cls="quota"))
    facts = Facts(http_status=503)
    assert classify_facts(facts).code == "HTTP_5XX"
    assert classify_facts(facts, [app]).code == "APP"
    assert classify_facts(facts, [kind, app]).code == "KIND"


def test_of_two_equal_rules_that_disagree_the_retryable_one_wins_and_both_are_recorded():
    rules = make_rulebook(
        Rule("gives-up", http_status=503, code="A", cls="permanent"),
        Rule("hopes", http_status=503, code="B", cls="transient"),
    )
    failure = classify_facts(Facts(http_status=503), [rules])
    assert (failure.rule, failure.judged["also"]) == ("hopes", ["gives-up"])


def test_a_rule_with_more_conditions_wins():
    rules = make_rulebook(
        Rule("any", http_status=503, code="A", cls="transient"),
        Rule("one", http_status=503, program="curl", code="B", cls="permanent"),
    )
    assert classify_facts(Facts(http_status=503, program="curl"), [rules]).rule == "one"
    assert classify_facts(Facts(http_status=503, program="wget"), [rules]).rule == "any"


def test_a_rule_may_match_a_dependency_and_a_verdict():
    rules = make_rulebook(
        Rule("gateway", verdict="timeout", dependency="gateway", code="GW_TIMEOUT", cls="timeout")
    )
    timeout = ("builtins.TimeoutError",)
    assert classify_facts(Facts(timeout, uses=("gateway", "s3")), [rules]).code == "GW_TIMEOUT"
    assert classify_facts(Facts(timeout, uses=("s3",)), [rules]).code == "TIMEOUT"


def test_a_failure_without_an_exception_can_be_renamed():
    rules = make_rulebook(
        Rule(
            "late",
            verdict="TIMEOUT",
            code="RENDER_TIMEOUT",
            cls="timeout",
            max_retries=1,
            public="Too slow.",
        )
    )
    failure = apply_verdict_rules(timed_out(300), [rules])
    assert (failure.code, failure.rule, failure.public, failure.terms) == (
        "RENDER_TIMEOUT",
        "late",
        "Too slow.",
        {"max_retries": 1},
    )
    assert apply_verdict_rules(timed_out(300), []) == timed_out(300)


def test_a_renamed_failure_of_mulligan_keeps_its_origin():
    rules = make_rulebook(
        Rule("other", verdict=["timeout", "transient"], code="UNKNOWN", cls="unknown")
    )
    twice = apply_verdict_rules(apply_verdict_rules(timed_out(300), [rules]), [rules])
    assert (twice.code, twice.origin, twice.by_system) == ("UNKNOWN", "mulligan.timeout", True)
    outage = classify_facts(Facts(("mulligan.core.errors.StoreUnavailable",)), [rules])
    assert (outage.code, outage.rule, outage.origin) == (
        "UNKNOWN",
        "other",
        "mulligan.unavailable",
    )
    reset = classify_facts(Facts(("builtins.ConnectionResetError",)), [rules])
    assert (reset.code, reset.origin, reset.by_system) == ("UNKNOWN", "other", False)


def test_a_shadow_rule_records_what_it_would_have_decided():
    rules = make_rulebook(
        Rule("new", http_status=503, code="GIVE_UP", cls="permanent", shadow=True)
    )
    failure = classify_facts(Facts(http_status=503), [rules])
    assert (failure.code, failure.retryable) == ("HTTP_5XX", True)
    assert failure.judged["shadow"] == {
        "rule": "new",
        "code": "GIVE_UP",
        "class": "permanent",
        "retryable": False,
    }
    assert "shadow" not in classify_facts(Facts(http_status=404), [rules]).judged


def test_a_public_sentence_may_contain_numbers_and_names_of_the_failure():
    rules = make_rulebook(
        Rule(
            "p",
            program="ffmpeg",
            exit_code=1,
            code="X",
            cls="permanent",
            public="{program} ended with {exit_code}.",
        )
    )
    assert (
        classify_facts(Facts(program="ffmpeg", exit_code=1), [rules]).public
        == "ffmpeg ended with 1."
    )


def test_a_declared_code_gets_class_and_sentence_from_the_rules():
    rules = make_rulebook(
        Rule(
            "gw",
            http_status="5xx",
            code="GW_5XX",
            cls="transient",
            public="The gateway is down.",
            max_retries=2,
        )
    )
    failure = classify_facts(Facts(code="GW_5XX"), [rules])
    assert (failure.cls, failure.public, failure.rule, failure.terms) == (
        "transient",
        "The gateway is down.",
        "gw",
        {"max_retries": 2},
    )
    below = Facts(
        code="UPLOAD",
        causes=(Facts(("builtins.ConnectionResetError", "builtins.ConnectionError")),),
    )
    assert (classify_facts(below).code, classify_facts(below).cls) == ("UPLOAD", "transient")


def test_a_hint_is_found_in_a_text_and_in_an_exception():
    text = "Rate limit reached. Please try again in 20s."
    assert classify(text).retry_after == 20
    assert classify(RuntimeError(text)).retry_after == 20
    assert classify("no hint at all").retry_after is None


def test_the_version_of_a_rulebook_depends_on_its_content():
    one, other = (
        Rule("a", http_status=503, code="A", cls="quota"),
        Rule("a", http_status=503, code="B", cls="quota"),
    )
    assert (
        classify_facts(Facts(http_status=503), [make_rulebook(one)]).judged["table"]
        == make_rulebook(one).version
    )
    assert make_rulebook(one).version != make_rulebook(other).version


def test_threads_wait_until_the_index_of_a_rulebook_is_complete(monkeypatch):
    """The index of texts is built at its first use; other threads must wait until it is complete."""
    started = Event()
    may_finish = Event()

    def slow_keywords(pattern):
        started.set()
        may_finish.wait(10)
        return [frozenset({"sulking"})]

    monkeypatch.setattr(matcher, "keyword_sets", slow_keywords)
    rules = make_rulebook(
        Rule("sulking", message=r"\bgateway is sulking\b", code="SULKS", cls="transient")
    )
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(classify_facts, Facts(message="the gateway is sulking"), [rules])
        assert started.wait(10)
        second = threads.submit(classify_facts, Facts(message="the gateway is sulking"), [rules])
        # Without the lock, the second thread would use an incomplete index now.
        wait([second], timeout=0.2)
        may_finish.set()
        assert [first.result().code, second.result().code] == ["SULKS", "SULKS"]
