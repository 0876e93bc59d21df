"""Tests of the story of a job, compared letter by letter: people paste it into mails."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

from mulligan.config import RetrySection
from mulligan.core.durations import SECOND, to_datetime
from mulligan.core.event import Event
from mulligan.core.job import AttemptRow, Gate
from mulligan.jobs.explain import (
    SENTENCES_AT_END,
    SENTENCES_AT_START,
    JobHistory,
    build_story,
    find_late_starts,
    format_story,
)
from mulligan.retries.backoff import Exponential
from mulligan.retries.policy import Policy, resolve_policy
from support.builders import NOW, make_job_row

MINUTE = 60 * SECOND
POLICY = resolve_policy(RetrySection())


def an_attempt(token=1, **changes):
    row = AttemptRow(
        job_id="job",
        token=token,
        generation=1,
        attempt=token,
        worker="w1",
        settled_by="w1",
        started_at=NOW,
        ended_at=NOW + SECOND,
        ended="returned",
        verb="succeed",
        code=None,
        cls=None,
        rule=None,
        public=None,
        evidence=None,
        private=None,
        fingerprint=None,
        next_run_at=None,
        reason="",
        cost=0.0,
    )
    return row._replace(**changes)


def a_failure(token=1, *, at=NOW, wait=10, **changes):
    defaults = {
        "started_at": at,
        "ended_at": at + SECOND,
        "ended": "failed",
        "verb": "retry",
        "code": "GW_TIMEOUT",
        "cls": "timeout",
        "rule": "py.timeout",
        "public": "The gateway did not answer.",
        "next_run_at": at + SECOND + wait * SECOND,
        "reason": f"retry {token} of 3 in {wait} s: timeout",
    }
    return an_attempt(token, **(defaults | changes))


def an_event(number, at, kind, *, actor="", token=None, **data):
    return Event(number, at, kind, "job", None, "acme", None, token, actor, data)


def queued(**data):
    return an_event(1, NOW, "job.queued", **({"run_at": NOW} | data))


def a_row_like(**changes):
    return make_job_row(**({"generation": 1, "token": 1, "attempt": 1} | changes))


def story_texts(row, attempts=(), events=(), policy=POLICY, **more):
    history = JobHistory(
        row, attempts, [queued(), *events] if events is not None else (), policy, **more
    )
    return [sentence.text for sentence in build_story(history)]


def test_a_story_with_two_retries_a_hold_and_a_manual_retry_as_one_text():
    minutes = [NOW + n * MINUTE for n in range(12)]
    held = "waits for gateway, held for 5 min: maintenance"
    attempts = [
        a_failure(1, wait=20, worker="w_one"),
        a_failure(2, at=minutes[1], wait=41, worker="w_two"),
        an_attempt(
            3,
            started_at=minutes[2],
            ended_at=minutes[2] + SECOND,
            ended="held",
            verb="hold",
            next_run_at=minutes[2] + SECOND,
            reason=held,
            worker="w_two",
        ),
        a_failure(
            4,
            at=minutes[8],
            verb="die",
            code="PROGRAMMING_ERROR",
            cls="permanent",
            rule="py.programming-error",
            public="The job's code has an error.",
            next_run_at=None,
            worker="w_two",
            reason="not retried: class permanent by rule py.programming-error; to retry such errors, …",
            judged='{"ground":"class_not_retryable"}',
        ),
        an_attempt(
            5,
            generation=2,
            attempt=1,
            started_at=minutes[10],
            ended_at=minutes[10] + 2 * SECOND,
            worker="w_6",
        ),
    ]
    events = [
        queued(),
        an_event(
            9,
            minutes[10],
            "job.retried",
            actor="cli:kim",
            generation=2,
            reason="the code is repaired",
            **{"from": "dead"},
        ),
    ]
    gate_events = [
        an_event(
            5,
            minutes[2] + SECOND,
            "dependency.opened",
            actor="handler",
            dependency="gateway",
            until=minutes[7] + SECOND,
            reason="maintenance",
        )
    ]
    row = a_row_like(state="succeeded", generation=2, token=5, uses="gateway", result='{"a":1}')
    text = format_story(
        row,
        "It succeeded.",
        build_story(JobHistory(row, attempts, events, POLICY, (), gate_events)),
        minutes[11],
    )
    assert text == (
        "Job job of owner acme: kind render, queue default, succeeded. As of 2023-11-14 22:24:20 UTC.\n"
        "\n"
        "Now\n"
        "  It succeeded.\n"
        "\n"
        "What happened\n"
        "  2023-11-14 22:13:20 UTC  Enqueued for owner acme: kind render, queue default, due at once.\n"
        "  2023-11-14 22:13:21 UTC  Attempt 1 of generation 1, started 22:13:20 UTC on worker w_one, failed after 1 s with"
        " GW_TIMEOUT (class timeout: something took too long; rule py.timeout): The gateway did not answer.\n"
        "  2023-11-14 22:13:21 UTC  Retry 1 of 3 scheduled for 22:13:41 UTC, in 20 s: a backoff of 30 s;"
        " full jitter (0 s to 30 s) drew 20 s.\n"
        "  2023-11-14 22:14:20 UTC  Started 39 s late: no worker was free, no worker was running, or a limit"
        " was reached. Which of these is not recorded.\n"
        "  2023-11-14 22:14:21 UTC  Attempt 2 of generation 1, started 22:14:20 UTC on worker w_two, failed after 1 s with"
        " GW_TIMEOUT (class timeout: something took too long; rule py.timeout): The gateway did not answer.\n"
        "  2023-11-14 22:14:21 UTC  Retry 2 of 3 scheduled for 22:15:02 UTC, in 41 s: a backoff of"
        " 30 s × 2 = 1 min; full jitter (0 s to 1 min) drew 41 s.\n"
        "  2023-11-14 22:15:20 UTC  Started 18 s late: no worker was free, no worker was running, or a limit"
        " was reached. Which of these is not recorded.\n"
        "  2023-11-14 22:15:21 UTC  Attempt 3 of generation 1, started 22:15:20 UTC on worker w_two, postponed the job after 1 s"
        " at no charge: waits for gateway, held for 5 min: maintenance.\n"
        "  2023-11-14 22:21:20 UTC  Started 6.0 min late because dependency gateway was held by a job's"
        " handler, with the reason 'maintenance', from 22:15:21 UTC until 22:20:21 UTC.\n"
        "  2023-11-14 22:21:21 UTC  Attempt 4 of generation 1, started 22:21:20 UTC on worker w_two, failed after 1 s with"
        " PROGRAMMING_ERROR (class permanent: a retry would not help; rule py.programming-error):"
        " The job's code has an error.\n"
        "  2023-11-14 22:21:21 UTC  The job died: not retried: class permanent by rule"
        " py.programming-error.\n"
        "  2023-11-14 22:21:21 UTC  To have such errors retried: Policy(retry_unknown=True) for the kind, or your"
        ' own rule, which comes first. Example: Rule("retry-programming-error", verdict="PROGRAMMING_ERROR", code="PROGRAMMING_ERROR",'
        ' cls="transient").\n'
        "  2023-11-14 22:23:20 UTC  kim (on the command line) retried it manually: the code is repaired. Generation"
        " 2 begins: counters restart, history stays.\n"
        "  2023-11-14 22:23:22 UTC  Attempt 1 of generation 2, started 22:23:20 UTC on worker w_6, succeeded after 2 s; its"
        " result has 7 B.\n"
    )


# -- the beginning -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("row", "event", "expected"),
    [
        (
            make_job_row(),
            queued(),
            "Enqueued for owner acme: kind render, queue default, due at once.",
        ),
        (make_job_row(owner=""), queued(), "Enqueued: kind render"),
        (
            make_job_row(),
            queued(run_at=NOW + 5 * MINUTE),
            "due 22:18:20 UTC, 5 min later.",
        ),
        (
            make_job_row(),
            queued(run_at=NOW + 3 * 86_400 * SECOND),
            "due 2023-11-17 22:13:20 UTC, 3 d later.",
        ),
        (
            make_job_row(),
            queued(actor="schedule", schedule="nightly"),
            "Enqueued by schedule nightly for owner",
        ),
        (
            make_job_row(),
            queued(actor="cli:kim", schedule="nightly"),
            "by schedule nightly, started by kim (on the command line)",
        ),
        (a_row_like(deadline_at=NOW + MINUTE), queued(), "deadline 22:14:20 UTC."),
        (make_job_row(unique_key="k 1"), queued(), "unique key k 1,"),
        (make_job_row(batch_id="b1"), queued(), "batch b1,"),
    ],
)
def test_the_first_sentence_says_how_the_job_was_enqueued(row, event, expected):
    assert expected in build_story(JobHistory(row, (), [event], POLICY))[0].text


def test_a_story_whose_first_events_are_pruned_says_so():
    assert "deleted by retention" in story_texts(a_row_like(), [an_attempt()], None)[1]
    assert "deleted by retention" not in " ".join(story_texts(a_row_like(), [an_attempt()]))


# -- attempts ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"ended": "snoozed", "verb": "snooze", "reason": "snoozed for 5 min: not there yet"},
            "postponed the job after 1 s at no charge: snoozed for 5 min: not there yet.",
        ),
        (
            {"ended": "released", "verb": "give back", "reason": "worker shuts down"},
            "went back to the queue after 1 s at no charge: worker shuts down.",
        ),
        (
            {"ended": "parked", "verb": "park", "reason": "who pays?"},
            "parked the job after 1 s to ask a person: who pays?",
        ),
        (
            {"ended": "cancelled", "verb": "stop", "reason": "stopped on request: too dear"},
            "was stopped after 1 s: stopped on request: too dear.",
        ),
        (
            {
                "ended": "lost",
                "verb": "lose",
                "code": "PROCESS_DIED",
                "cls": "unknown",
                "rule": "mulligan.process-died",
                "public": "The process of this job died.",
                "reason": "lost 1 of at most 2 times; the next attempt runs alone in its process",
            },
            "was lost after 1 s because its process or worker died with PROCESS_DIED",
        ),
        (
            {
                "ended": "retry",
                "verb": "retry",
                "code": "RETRY_REQUESTED",
                "cls": "transient",
                "rule": "mulligan.retry-requested",
                "public": "The job asked for another try.",
                "next_run_at": NOW + 11 * SECOND,
                "reason": "retry 1 of 3 in 10 s: requested by the handler",
            },
            "requested a retry after 1 s with RETRY_REQUESTED",
        ),
        (
            {
                "ended": "failed",
                "verb": "stop",
                "reason": "stopped on request",
                "code": "X",
                "cls": "unknown",
            },
            "was stopped after 1 s: stopped on request.",
        ),
    ],
)
def test_each_ending_of_an_attempt_has_its_sentence(changes, expected):
    assert expected in story_texts(a_row_like(), [an_attempt(**changes)])[1]


def test_evidence_is_shown_and_private_details_only_on_request():
    attempt = a_failure(
        evidence='{"http_status":503}',
        private=json.dumps({"message": "token=abc", "trace": "a\nb"}),
    )
    history = JobHistory(a_row_like(), [attempt], [queued()], POLICY)
    assert "http_status 503" in build_story(history)[1].text
    assert "abc" not in format_story(history.row, "", build_story(history), NOW)
    detail = build_story(history, private=True)[1].detail
    assert detail == ("message: token=abc", "trace: a\nb")
    assert "      message: token=abc\n      trace: a\n      b\n" in format_story(
        history.row, "", build_story(history, private=True), NOW
    )


def a_judged_failure(judged, **changes):
    return a_failure(**changes)._replace(judged=json.dumps(judged))


def test_escalation_and_other_rules_are_named_but_no_values_of_settings():
    then = {
        "queue": "big",
        "memory_limit": 8_000_000_000,
        "timeout": 600,
        "settings": {"key": "s3cret"},
    }
    texts = story_texts(
        a_row_like(), [a_judged_failure({"table": "v3", "also": ["other.rule"], "then": then})]
    )
    assert "Other rules matched too and were not applied: other.rule." in texts
    assert texts[-1] == (
        "The next attempt differs: queue big, memory limit 8 GB, time limit 10 min, "
        "other settings (key)."
    )


def test_the_backoff_of_a_rule_explains_the_wait():
    terms = {
        "terms": {"backoff": {"type": "table", "seconds": [60, 300]}},
        "ground": "retry",
        "retry_count": "2 of 3 (1 of 2 for its code)",
    }
    first = a_failure(code="OTHER")
    second = a_judged_failure(
        terms, token=2, at=NOW + MINUTE, wait=60, reason="retry 2 of 3 (1 of 2 for its code) in …"
    )
    assert story_texts(a_row_like(), [first, second])[-1] == (
        "Retry 2 of 3 (1 of 2 for its code) scheduled for 22:15:21 UTC, in 1 min: step 1 of the backoff table 1 min, 5 min."
    )


def test_an_empty_result_is_reported():
    assert story_texts(a_row_like(result="null", state="succeeded"), [an_attempt()])[1].endswith(
        "it returned nothing."
    )


# -- moves by hand, and without an attempt -------------------------------------------------------
@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            an_event(
                2,
                NOW,
                "job.released",
                actor="python",
                choice="left",
                reason="ok",
                **{"from": "parked"},
            ),
            "A Python program released it with the choice 'left': ok.",
        ),
        (
            an_event(2, NOW, "job.cancel_requested", actor="cli:ann", reason="too dear"),
            "ann (on the command line) asked the running attempt to stop: too dear.",
        ),
        (
            an_event(2, NOW, "job.cancelled", actor="cli:ann", reason=""),
            "ann (on the command line) cancelled it.",
        ),
        (
            an_event(2, NOW, "job.discarded", actor="", reason="old"),
            "An unknown user discarded it: old.",
        ),
        (
            an_event(
                2,
                NOW,
                "job.died",
                actor="upkeep",
                code="DEADLINE_PASSED",
                message="The job's deadline passed.",
                rule="mulligan.deadline-passed",
                **{"class": "permanent"},
            ),
            (
                "Died while waiting, without another attempt, with DEADLINE_PASSED (class permanent; rule "
                "mulligan.deadline-passed): The job's deadline passed."
            ),
        ),
        (an_event(2, NOW, "job.stale_refused", worker="w_9"), "Worker w_9 reported the end"),
        (
            an_event(2, NOW, "job.retried", actor="python", generation=2, max_retries=9, reason=""),
            "A Python program retried it manually with at most 9 retries. Generation 2 begins",
        ),
    ],
)
def test_each_event_without_an_attempt_has_its_sentence(event, expected):
    assert expected in story_texts(a_row_like(), (), [event])[1]


@pytest.mark.parametrize(
    "kind", ["job.released", "job.cancelled", "job.died", "job.succeeded", "job.started"]
)
def test_events_that_an_attempt_describes_are_left_out(kind):
    assert len(story_texts(a_row_like(), (), [an_event(2, NOW, kind, token=1)])) == 1


# -- waits ---------------------------------------------------------------------------------------
def test_a_late_start_names_the_closed_gate_and_the_actor_that_opened_it():
    gate_events = [
        an_event(
            3, NOW - MINUTE, "queue.paused", actor="cli:kim", queue="default", reason="deploy"
        ),
        an_event(4, NOW - MINUTE, "queue.paused", actor="cli:kim", queue="other"),
        an_event(7, NOW + MINUTE, "queue.resumed", actor="cli:ann", queue="default", reason="done"),
    ]
    late = an_attempt(started_at=NOW + MINUTE + SECOND, ended_at=NOW + 2 * MINUTE)
    assert story_texts(a_row_like(), [late], gate_events=gate_events)[1] == (
        "Started 61 s late because queue default was paused by kim (on the command line), with the reason"
        " 'deploy', from 22:12:20 UTC until 22:14:20 UTC, when ann (on the command line) resumed it, with the reason"
        " 'done'."
    )


def test_a_past_outage_is_described_with_cause_and_end():
    gate_events = [
        an_event(
            3,
            NOW - MINUTE,
            "dependency.opened",
            actor="breaker",
            dependency="gw",
            reason="14 of 14 calls failed",
        ),
        an_event(
            7,
            NOW + MINUTE,
            "dependency.closed",
            actor="breaker",
            dependency="gw",
            reason="answers again",
        ),
    ]
    late = an_attempt(started_at=NOW + MINUTE + SECOND, ended_at=NOW + 2 * MINUTE)
    assert story_texts(a_row_like(uses="gw"), [late], gate_events=gate_events)[1] == (
        "Started 61 s late because dependency gw was held by its breaker, with the reason '14 of 14 calls "
        "failed', from 22:12:20 UTC until 22:14:20 UTC, when its breaker released it, with the reason 'answers again'."
    )


def test_an_uncharged_failure_is_described_as_such_and_not_counted():
    spared = a_failure(
        1, verb="hold", reason="no retry charged: gw is down; the job waits until it recovers"
    )
    charged = a_failure(2, at=NOW + MINUTE, reason="retry 1 of 3 in 10 s: timeout")
    texts = story_texts(a_row_like(uses="gw"), [spared, charged])
    assert "failed after 1 s with GW_TIMEOUT" in texts[1]
    assert texts[2] == "No retry charged: gw is down; the job waits until it recovers."
    assert any(line.startswith("Retry 1 of 3 scheduled for") for line in texts)


def test_a_probe_is_described():
    event = an_event(2, NOW, "dependency.probing", actor="breaker", dependency="gw")
    assert story_texts(a_row_like(uses="gw"), (), [event])[1] == (
        "Started alone as a probe, to test whether dependency gw has recovered."
    )


def test_a_gate_that_is_still_closed_explains_a_late_start_without_its_event():
    gate = Gate("dependency", "gateway", NOW - MINUTE, NOW + MINUTE, "down", "handler")
    late = an_attempt(started_at=NOW + 2 * MINUTE, ended_at=NOW + 3 * MINUTE)
    row = a_row_like(uses="gateway")
    assert (
        "dependency gateway was held by a job's handler, with the reason 'down'"
        in story_texts(row, [late], gates=[gate])[1]
    )
    assert "not recorded" in story_texts(a_row_like(), [late], gates=[gate])[1]


def test_only_late_starts_are_explained():
    attempts = [
        a_failure(wait=60),
        an_attempt(2, started_at=NOW + 62 * SECOND, ended_at=NOW + 63 * SECOND),
    ]
    assert find_late_starts(JobHistory(a_row_like(), attempts, [queued()], POLICY)) == []
    late = an_attempt(started_at=NOW + MINUTE, ended_at=NOW + 2 * MINUTE)
    assert find_late_starts(JobHistory(a_row_like(), [late], [queued()], POLICY)) == [
        (NOW, NOW + MINUTE)
    ]


# -- bad input -----------------------------------------------------------------------------------
def test_control_characters_in_an_error_text_are_removed():
    attempt = a_failure(public="bad\n\x1b[2J\u202e fake line", reason="retry 1 of 3\nin 9 s")
    (_, failed, retry) = story_texts(a_row_like(), [attempt])
    for text in (failed, retry):
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", text)


def test_a_very_long_story_loses_its_middle_and_says_so():
    attempts = [
        an_attempt(n, ended="snoozed", verb="snooze", reason="not yet", next_run_at=NOW)
        for n in range(1, 2001)
    ]
    sentences = build_story(JobHistory(a_row_like(), attempts, [queued()], POLICY))
    assert len(sentences) == SENTENCES_AT_START + SENTENCES_AT_END + 1
    assert sentences[SENTENCES_AT_START].text.startswith("1,601 sentences are omitted")


def test_a_clock_that_went_back_gives_an_elapsed_time_of_zero():
    back = an_attempt(started_at=NOW + MINUTE, ended_at=NOW)
    assert any("succeeded after 0 s" in text for text in story_texts(a_row_like(), [back]))


def test_every_sentence_has_its_time():
    (first, *_) = build_story(JobHistory(a_row_like(), [an_attempt()], [queued()], POLICY))
    assert first.at == to_datetime(NOW) == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_a_wait_that_the_current_policy_cannot_explain_says_so():
    policy = resolve_policy(
        RetrySection(), kind=Policy(backoff=Exponential(base=1, factor=1, jitter="none"))
    )
    assert (
        "the policy or server hint that applied then is not stored"
        in story_texts(a_row_like(), [a_failure(wait=500)], policy=policy)[2]
    )


def test_a_stored_retry_after_hint_is_named():
    texts = story_texts(a_row_like(), [a_failure(wait=123, evidence='{"retry_after":120}')])[2]
    assert texts.endswith(
        "a backoff of 30 s, but the service asked for 2 min; a small random delay was added."
    )


def test_the_original_queue_is_named_after_an_escalation_moved_the_job():
    row = a_row_like(queue="big", settings='{"home":"small"}')
    assert "queue small," in story_texts(row)[0]
