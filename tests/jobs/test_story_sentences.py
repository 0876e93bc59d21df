"""A job's life in sentences, compared letter by letter: people will paste them into mails."""

# ruff: noqa: E501 - sentences are compared as they are shown

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

from mulligan.core.event import Event
from mulligan.core.job import SECOND, AttemptRow, Gate, to_datetime
from mulligan.jobs.explain import FIRST, LAST, JobHistory, story, waits, written
from mulligan.retries.backoff import Exponential
from mulligan.retries.policy import Policy, RetrySettings, layer
from support.builders import NOW, a_row

MINUTE = 60 * SECOND
POLICY = layer(RetrySettings())


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
    given = {
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
    return an_attempt(token, **(given | changes))


def an_event(number, at, kind, *, actor="", token=None, **data):
    return Event(number, at, kind, "job", None, "acme", None, token, actor, data)


def queued(**data):
    return an_event(1, NOW, "job.queued", **({"run_at": NOW} | data))


def a_row_like(**changes):
    return a_row(**({"generation": 1, "token": 1, "attempt": 1} | changes))


def told(row, attempts=(), events=(), policy=POLICY, **more):
    life = JobHistory(
        row, attempts, [queued(), *events] if events is not None else (), policy, **more
    )
    return [one.text for one in story(life)]


def test_a_life_with_two_retries_a_hold_and_a_retry_by_hand_as_one_text():
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
    news = [
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
    text = written(
        row,
        "It succeeded.",
        story(JobHistory(row, attempts, events, POLICY, (), news)),
        minutes[11],
    )
    assert text == (
        "Job job of owner acme: kind render, queue default, succeeded. As of 2023-11-14 22:24:20 UTC.\n"
        "\n"
        "Now\n"
        "  It succeeded.\n"
        "\n"
        "What happened\n"
        "  2023-11-14 22:13:20 UTC  The job was enqueued for owner acme: kind render, queue default, to start at once.\n"
        "  2023-11-14 22:13:21 UTC  Attempt 1 of life 1, begun 22:13:20 UTC on worker w_one, failed after 1 s with"
        " GW_TIMEOUT (class timeout: something took too long; judged by rule py.timeout): The gateway did not answer.\n"
        "  2023-11-14 22:13:21 UTC  Retry 1 of 3 was set for 22:13:41 UTC, a wait of 20 s: the schedule says 30 s, and"
        " full jitter, which draws anything from 0 s to that, drew 20 s.\n"
        "  2023-11-14 22:14:20 UTC  It began 39 s after its time: no worker was free for it, none was there, or a limit"
        " left no room. Which of these is not recorded.\n"
        "  2023-11-14 22:14:21 UTC  Attempt 2 of life 1, begun 22:14:20 UTC on worker w_two, failed after 1 s with"
        " GW_TIMEOUT (class timeout: something took too long; judged by rule py.timeout): The gateway did not answer.\n"
        "  2023-11-14 22:14:21 UTC  Retry 2 of 3 was set for 22:15:02 UTC, a wait of 41 s: the schedule says"
        " 30 s × 2 = 1 min, and full jitter, which draws anything from 0 s to that, drew 41 s.\n"
        "  2023-11-14 22:15:20 UTC  It began 18 s after its time: no worker was free for it, none was there, or a limit"
        " left no room. Which of these is not recorded.\n"
        "  2023-11-14 22:15:21 UTC  Attempt 3 of life 1, begun 22:15:20 UTC on worker w_two, put the job off after 1 s,"
        " which costs no retry: waits for gateway, held for 5 min: maintenance.\n"
        "  2023-11-14 22:21:20 UTC  It began 6.0 min after its time, because dependency gateway was held by a job's own"
        " code, with the reason 'maintenance', from 22:15:21 UTC until 22:20:21 UTC.\n"
        "  2023-11-14 22:21:21 UTC  Attempt 4 of life 1, begun 22:21:20 UTC on worker w_two, failed after 1 s with"
        " PROGRAMMING_ERROR (class permanent: trying again would not help; judged by rule py.programming-error):"
        " The job's code has an error.\n"
        "  2023-11-14 22:21:21 UTC  That was the end: not retried: class permanent by rule"
        " py.programming-error.\n"
        "  2023-11-14 22:21:21 UTC  To have such errors tried again: Policy(retry_unknown=True) for the kind, or a rule"
        ' of your own before it. Such a rule: Rule("retry-programming-error", verdict="PROGRAMMING_ERROR", code="PROGRAMMING_ERROR",'
        ' cls="transient").\n'
        "  2023-11-14 22:23:20 UTC  kim (on the command line) retried it by hand: the code is repaired. That began life"
        " 2 (generation 2): the counters start at zero, the history stays.\n"
        "  2023-11-14 22:23:22 UTC  Attempt 1 of life 2, begun 22:23:20 UTC on worker w_6, succeeded after 2 s; its"
        " result has 7 B.\n"
    )


# -- the beginning ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("row", "event", "words"),
    [
        (
            a_row(),
            queued(),
            "enqueued for owner acme: kind render, queue default, to start at once.",
        ),
        (a_row(owner=""), queued(), "enqueued: kind render"),
        (
            a_row(),
            queued(run_at=NOW + 5 * MINUTE),
            "to start not before 22:18:20 UTC, 5 min later.",
        ),
        (
            a_row(),
            queued(run_at=NOW + 3 * 86_400 * SECOND),
            "to start not before 2023-11-17 22:13:20 UTC, 3 d later.",
        ),
        (
            a_row(),
            queued(actor="schedule", schedule="nightly"),
            "enqueued by schedule nightly for owner",
        ),
        (
            a_row(),
            queued(actor="cli:kim", schedule="nightly"),
            "by schedule nightly, started by kim (on the command line)",
        ),
        (a_row_like(deadline_at=NOW + MINUTE), queued(), "to be done by 22:14:20 UTC."),
        (a_row(unique_key="k 1"), queued(), "under the unique key k 1,"),
        (a_row(batch_id="b1"), queued(), "in batch b1,"),
    ],
)
def test_how_it_was_enqueued(row, event, words):
    assert words in story(JobHistory(row, (), [event], POLICY))[0].text


def test_a_life_whose_first_events_are_pruned_says_so():
    assert "no longer kept" in told(a_row_like(), [an_attempt()], None)[1]
    assert "no longer kept" not in " ".join(told(a_row_like(), [an_attempt()]))


# -- attempts ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"ended": "snoozed", "verb": "snooze", "reason": "snoozed for 5 min: not there yet"},
            "put the job off after 1 s, which costs no retry: snoozed for 5 min: not there yet.",
        ),
        (
            {"ended": "released", "verb": "give back", "reason": "worker shuts down"},
            "was given back unharmed after 1 s, at no cost: worker shuts down.",
        ),
        (
            {"ended": "parked", "verb": "park", "reason": "who pays?"},
            "stopped after 1 s to ask a person: who pays?",
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
                "reason": "lost, 1 of 2 allowed; the next attempt runs alone in its process",
            },
            "was lost after 1 s, because its process or worker died under it with PROCESS_DIED",
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
            "asked for another try after 1 s with RETRY_REQUESTED",
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
def test_how_an_attempt_ended(changes, words):
    assert words in told(a_row_like(), [an_attempt(**changes)])[1]


def test_evidence_is_told_and_the_private_half_is_not_unless_it_is_asked_for():
    attempt = a_failure(
        evidence='{"http_status":503}',
        private=json.dumps({"message": "token=abc", "trace": "a\nb"}),
    )
    life = JobHistory(a_row_like(), [attempt], [queued()], POLICY)
    assert "http_status 503" in story(life)[1].text
    assert "abc" not in written(life.row, "", story(life), NOW)
    detail = story(life, private=True)[1].detail
    assert detail == ("message: token=abc", "trace: a\nb")
    assert "      message: token=abc\n      trace: a\n      b\n" in written(
        life.row, "", story(life, private=True), NOW
    )


def a_judged_failure(judged, **changes):
    return a_failure(**changes)._replace(judged=json.dumps(judged))


def test_how_the_next_attempt_differs_and_who_disagreed_is_told_but_no_value_of_a_setting():
    then = {
        "queue": "big",
        "memory_limit": 8_000_000_000,
        "timeout": 600,
        "settings": {"key": "s3cret"},
    }
    words = told(
        a_row_like(), [a_judged_failure({"table": "v3", "also": ["other.rule"], "then": then})]
    )
    assert "Other rules saw it differently and were not followed: other.rule." in words
    assert words[-1] == (
        "The next attempt differs from this one: it goes to queue big, it gets 8 GB of memory, it gets 10 min of time, "
        "it gets other settings (key)."
    )


def test_a_rules_own_schedule_explains_its_wait():
    terms = {
        "terms": {"backoff": {"type": "table", "seconds": [60, 300]}},
        "ground": "retry",
        "retry_count": "2 of 3 (1 of 2 for its code)",
    }
    first = a_failure(code="OTHER")
    second = a_judged_failure(
        terms, token=2, at=NOW + MINUTE, wait=60, reason="retry 2 of 3 (1 of 2 for its code) in …"
    )
    assert told(a_row_like(), [first, second])[-1] == (
        "Retry 2 of 3 (1 of 2 for its code) was set for 22:15:21 UTC, a wait of 1 min: step 1 of the schedule 1 min, 5 min."
    )


def test_a_result_of_nothing_is_said_so():
    assert told(a_row_like(result="null", state="succeeded"), [an_attempt()])[1].endswith(
        "it returned nothing."
    )


# -- moves by hand, and without an attempt ----------------------------------------------------------
@pytest.mark.parametrize(
    ("event", "words"),
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
            "A program (through Python) released it with the choice 'left': ok.",
        ),
        (
            an_event(2, NOW, "job.cancel_requested", actor="cli:ann", reason="too dear"),
            "ann (on the command line) asked the running attempt to stop: too dear.",
        ),
        (
            an_event(2, NOW, "job.cancelled", actor="cli:ann", reason=""),
            "ann (on the command line) cancelled it.",
        ),
        (an_event(2, NOW, "job.discarded", actor="", reason="old"), "Somebody discarded it: old."),
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
                "It ended while it waited, without a further attempt, with DEADLINE_PASSED (class permanent; judged by rule "
                "mulligan.deadline-passed): The job's deadline passed."
            ),
        ),
        (an_event(2, NOW, "job.stale_refused", worker="w_9"), "Worker w_9 reported an end"),
        (
            an_event(2, NOW, "job.retried", actor="python", generation=2, max_retries=9, reason=""),
            "A program (through Python) retried it by hand with at most 9 retries. That began life 2",
        ),
    ],
)
def test_a_move_that_no_attempt_tells_of(event, words):
    assert words in told(a_row_like(), (), [event])[1]


@pytest.mark.parametrize(
    "kind", ["job.released", "job.cancelled", "job.died", "job.succeeded", "job.started"]
)
def test_what_an_attempt_tells_is_not_told_twice(kind):
    assert len(told(a_row_like(), (), [an_event(2, NOW, kind, token=1)])) == 1


# -- waits ------------------------------------------------------------------------------------------
def test_a_late_start_names_what_was_closed_meanwhile_and_who_opened_it():
    news = [
        an_event(
            3, NOW - MINUTE, "queue.paused", actor="cli:kim", queue="default", reason="deploy"
        ),
        an_event(4, NOW - MINUTE, "queue.paused", actor="cli:kim", queue="other"),
        an_event(7, NOW + MINUTE, "queue.resumed", actor="cli:ann", queue="default", reason="done"),
    ]
    late = an_attempt(started_at=NOW + MINUTE + SECOND, ended_at=NOW + 2 * MINUTE)
    assert told(a_row_like(), [late], news=news)[1] == (
        "It began 61 s after its time, because queue default was paused by kim (on the command line), with the reason"
        " 'deploy', from 22:12:20 UTC until 22:14:20 UTC, when ann (on the command line) opened it, with the reason"
        " 'done'."
    )


def test_an_outage_that_is_over_is_told_with_its_cause_and_its_end():
    news = [
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
    assert told(a_row_like(uses="gw"), [late], news=news)[1] == (
        "It began 61 s after its time, because dependency gw was held by its breaker, with the reason '14 of 14 calls "
        "failed', from 22:12:20 UTC until 22:14:20 UTC, when its breaker let it go, with the reason 'answers again'."
    )


def test_a_failure_that_was_not_charged_is_told_as_such_and_not_counted():
    spared = a_failure(
        1, verb="hold", reason="no retry charged: gw is down; the job waits until it recovers"
    )
    charged = a_failure(2, at=NOW + MINUTE, reason="retry 1 of 3 in 10 s: timeout")
    said = told(a_row_like(uses="gw"), [spared, charged])
    assert "failed after 1 s with GW_TIMEOUT" in said[1]
    assert said[2] == "No retry charged: gw is down; the job waits until it recovers."
    assert any(line.startswith("Retry 1 of 3 was set for") for line in said)


def test_a_probe_is_told():
    event = an_event(2, NOW, "dependency.probing", actor="breaker", dependency="gw")
    assert told(a_row_like(uses="gw"), (), [event])[1] == (
        "It was let through alone as a probe, to see whether dependency gw answers again."
    )


def test_a_gate_that_stands_is_as_good_as_its_event():
    gate = Gate("dependency", "gateway", NOW - MINUTE, NOW + MINUTE, "down", "handler")
    late = an_attempt(started_at=NOW + 2 * MINUTE, ended_at=NOW + 3 * MINUTE)
    row = a_row_like(uses="gateway")
    assert (
        "dependency gateway was held by a job's own code, with the reason 'down'"
        in told(row, [late], gates=[gate])[1]
    )
    assert "not recorded" in told(a_row_like(), [late], gates=[gate])[1]


def test_only_waits_beyond_its_time_are_looked_into():
    attempts = [
        a_failure(wait=60),
        an_attempt(2, started_at=NOW + 62 * SECOND, ended_at=NOW + 63 * SECOND),
    ]
    assert waits(JobHistory(a_row_like(), attempts, [queued()], POLICY)) == []
    late = an_attempt(started_at=NOW + MINUTE, ended_at=NOW + 2 * MINUTE)
    assert waits(JobHistory(a_row_like(), [late], [queued()], POLICY)) == [(NOW, NOW + MINUTE)]


# -- bad input --------------------------------------------------------------------------------------
def test_a_hostile_text_stays_on_its_line_and_moves_no_cursor():
    attempt = a_failure(public="bad\n\x1b[2J\u202e fake line", reason="retry 1 of 3\nin 9 s")
    (_, failed, retry) = told(a_row_like(), [attempt])
    for text in (failed, retry):
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", text)


def test_a_very_long_life_loses_its_middle_and_says_so():
    attempts = [
        an_attempt(n, ended="snoozed", verb="snooze", reason="not yet", next_run_at=NOW)
        for n in range(1, 2001)
    ]
    sentences = story(JobHistory(a_row_like(), attempts, [queued()], POLICY))
    assert len(sentences) == FIRST + LAST + 1
    assert sentences[FIRST].text.startswith("1601 sentences are left out")


def test_a_clock_that_went_back_breaks_no_sentence():
    back = an_attempt(started_at=NOW + MINUTE, ended_at=NOW)
    assert any("succeeded after 0 s" in text for text in told(a_row_like(), [back]))


def test_every_sentence_has_its_moment():
    (first, *_) = story(JobHistory(a_row_like(), [an_attempt()], [queued()], POLICY))
    assert first.at == to_datetime(NOW) == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_a_policy_that_has_changed_since_is_not_passed_off_as_the_one_of_then():
    policy = layer(
        RetrySettings(), kind=Policy(backoff=Exponential(base=1, factor=1, jitter="none"))
    )
    assert (
        "what was in force then, or a server's hint, is not stored"
        in told(a_row_like(), [a_failure(wait=500)], policy=policy)[2]
    )


def test_a_servers_hint_that_is_stored_is_named():
    words = told(a_row_like(), [a_failure(wait=123, evidence='{"retry_after":120}')])[2]
    assert words.endswith(
        "the schedule says 30 s, but the other side asked for 2 min and a little spread was added."
    )


def test_the_queue_it_was_enqueued_for_is_told_also_after_a_step_has_moved_it():
    row = a_row_like(queue="big", settings='{"home":"small"}')
    assert "queue small," in told(row)[0]
