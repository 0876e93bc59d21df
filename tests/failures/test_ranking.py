from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

import pytest

from mulligan import Rule, classify
from mulligan.core.attempt import Cls
from mulligan.failures import matcher as rulebook
from mulligan.failures.classify import classify_facts as judged
from mulligan.failures.classify import renamed, timed_out
from mulligan.failures.facts import Facts
from mulligan.failures.matcher import Rulebook

HOSTILE = "404 timeout permission denied insufficient_quota NoSuchKey HTTP Error 401: Unauthorized [Errno 28]"


def book(*rules):
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
def test_a_text_written_by_an_attacker_does_not_steer_the_verdict_when_structure_says_otherwise(
    structure, cls
):
    assert classify("", **structure).cls == cls
    assert classify(HOSTILE, **structure).cls == cls


def test_a_providers_code_says_more_than_the_status_beside_it():
    assert classify("", http_status=400, provider_code="ThrottlingException").cls == "rate_limited"
    assert classify("", http_status=429, provider_code="insufficient_quota").cls == "quota"
    assert classify("", http_status=403, provider_code="rateLimitExceeded").cls == "rate_limited"


def test_the_deepest_cause_that_says_something_decides():
    certificate = Facts(("ssl.SSLCertVerificationError", "ssl.SSLError", "builtins.OSError"))
    wrapped = Facts(
        ("openai.APIConnectionError",), causes=(Facts(("httpx.ConnectError",)), certificate)
    )
    assert judged(wrapped).rule == "py.certificate"


def test_a_special_class_is_asked_before_its_base():
    assert (
        judged(
            Facts(("requests.exceptions.ConnectTimeout", "requests.exceptions.ConnectionError"))
        ).cls
        == Cls.TIMEOUT
    )
    assert judged(Facts(("tarfile.ReadError",))).cls == Cls.INVALID_INPUT
    assert judged(Facts(("httpx.ReadError",))).cls == Cls.TRANSIENT


def test_137_and_minus_9_and_signal_9_are_the_same_death():
    deaths = [classify("", exit_code=137), classify("", exit_code=-9), classify("", signal=9)]
    assert {(death.code, death.evidence["signal"]) for death in deaths} == {("PROCESS_KILLED", 9)}


def test_ffmpegs_own_exit_bytes_are_not_signals():
    assert classify("", exit_code=146, program="ffmpeg").cls == "timeout"
    assert classify("", exit_code=183, program="ffmpeg").cls == "invalid_input"
    assert classify("", exit_code=228, program="ffmpeg").cls == "resource"


def test_own_rules_come_before_the_built_in_table_and_the_kinds_before_the_apps():
    kind = book(Rule("kind", http_status=503, code="KIND", cls="permanent"))
    app = book(Rule("app", http_status=503, code="APP", cls="quota"))
    facts = Facts(http_status=503)
    assert judged(facts).code == "HTTP_5XX"
    assert judged(facts, [app]).code == "APP"
    assert judged(facts, [kind, app]).code == "KIND"


def test_of_two_rules_of_equal_rank_that_disagree_the_less_destructive_wins_and_both_are_named():
    rules = book(
        Rule("gives-up", http_status=503, code="A", cls="permanent"),
        Rule("hopes", http_status=503, code="B", cls="transient"),
    )
    failure = judged(Facts(http_status=503), [rules])
    assert (failure.rule, failure.judged["also"]) == ("hopes", ["gives-up"])


def test_a_rule_that_asks_for_more_knows_more():
    rules = book(
        Rule("any", http_status=503, code="A", cls="transient"),
        Rule("one", http_status=503, program="curl", code="B", cls="permanent"),
    )
    assert judged(Facts(http_status=503, program="curl"), [rules]).rule == "one"
    assert judged(Facts(http_status=503, program="wget"), [rules]).rule == "any"


def test_a_rule_may_speak_about_a_dependency_and_about_the_built_in_verdict():
    rules = book(
        Rule("gateway", verdict="timeout", dependency="gateway", code="GW_TIMEOUT", cls="timeout")
    )
    timeout = ("builtins.TimeoutError",)
    assert judged(Facts(timeout, uses=("gateway", "s3")), [rules]).code == "GW_TIMEOUT"
    assert judged(Facts(timeout, uses=("s3",)), [rules]).code == "TIMEOUT"


def test_an_end_without_an_exception_can_be_renamed_too():
    rules = book(
        Rule(
            "late",
            verdict="TIMEOUT",
            code="RENDER_TIMEOUT",
            cls="timeout",
            max_retries=1,
            public="Too slow.",
        )
    )
    failure = renamed(timed_out(300), [rules])
    assert (failure.code, failure.rule, failure.public, failure.terms) == (
        "RENDER_TIMEOUT",
        "late",
        "Too slow.",
        {"max_retries": 1},
    )
    assert renamed(timed_out(300), []) == timed_out(300)


def test_a_rule_in_shadow_changes_nothing_and_says_what_it_would_have_done():
    rules = book(Rule("new", http_status=503, code="GIVE_UP", cls="permanent", shadow=True))
    failure = judged(Facts(http_status=503), [rules])
    assert (failure.code, failure.retryable) == ("HTTP_5XX", True)
    assert failure.judged["shadow"] == {
        "rule": "new",
        "code": "GIVE_UP",
        "class": "permanent",
        "retryable": False,
    }
    assert "shadow" not in judged(Facts(http_status=404), [rules]).judged


def test_a_public_sentence_repeats_numbers_and_names_of_the_failure_only():
    rules = book(
        Rule(
            "p",
            program="ffmpeg",
            exit_code=1,
            code="X",
            cls="permanent",
            public="{program} ended with {exit_code}.",
        )
    )
    assert judged(Facts(program="ffmpeg", exit_code=1), [rules]).public == "ffmpeg ended with 1."


def test_a_code_the_handler_declares_takes_its_meaning_from_the_tables():
    rules = book(
        Rule(
            "gw",
            http_status="5xx",
            code="GW_5XX",
            cls="transient",
            public="The gateway is down.",
            max_retries=2,
        )
    )
    failure = judged(Facts(code="GW_5XX"), [rules])
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
    assert (judged(below).code, judged(below).cls) == ("UPLOAD", "transient")


def test_a_text_that_says_how_long_to_wait_is_heard_as_an_exception_is():
    text = "Rate limit reached. Please try again in 20s."
    assert classify(text).retry_after == 20
    assert classify(RuntimeError(text)).retry_after == 20
    assert classify("no hint at all").retry_after is None


def test_the_table_that_judged_is_named_by_its_content():
    one, other = (
        Rule("a", http_status=503, code="A", cls="quota"),
        Rule("a", http_status=503, code="B", cls="quota"),
    )
    assert judged(Facts(http_status=503), [book(one)]).judged["table"] == book(one).version
    assert book(one).version != book(other).version


def test_failures_on_several_threads_meet_the_whole_table_from_the_first_one_on(monkeypatch):
    """Tables of texts are put in order when the first text is asked about: who asks meanwhile must wait for that."""
    begun, go_on = Event(), Event()

    def slowly(pattern):
        begun.set()
        go_on.wait(10)
        return frozenset({"sulking"})

    monkeypatch.setattr(rulebook, "keywords", slowly)
    rules = book(Rule("sulking", message=r"\bgateway is sulking\b", code="SULKS", cls="transient"))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(judged, Facts(message="the gateway is sulking"), [rules])
        assert begun.wait(10)
        second = threads.submit(judged, Facts(message="the gateway is sulking"), [rules])
        wait(
            [second], timeout=0.2
        )  # without an order in it, this is when it would have judged by half a table
        go_on.set()
        assert [first.result().code, second.result().code] == ["SULKS", "SULKS"]
