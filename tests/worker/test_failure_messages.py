"""Failures that differ only in their messages are sent, decided and written together."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mulligan import Exponential, Fixed, Policy, Then
from mulligan.config import RetrySection
from mulligan.core.attempt import Ending, Outcome
from mulligan.core.durations import SECOND
from mulligan.core.json import encode
from mulligan.failures.facts import TRACE_MESSAGE_LIMIT, PrivateTemplate
from mulligan.manifest.specs import KindSpec
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker.fast.failure_cache import CachedFailureOutcome, SharedFailure
from mulligan.worker.fast.grouped_endings import GroupedEndings
from mulligan.worker.protocol import (
    SharedFailureCache,
    failed_from_wire,
    failure_to_wire,
    shared_failure_from_wire,
    shared_failure_to_wire,
)
from mulligan.worker.runner.outcomes import outcome_of_exception
from mulligan.worker.supervisor.runner_process import GARBLED
from support.builders import NOW, make_failure, make_lease

PRIVATE = {
    "exception": "builtins.OSError",
    "message": "x",
    "trace": "y",
    "facts": {"exception_types": ["größe\n"]},
}
ODD = 'a "quoted"\n\\ text, größer \u2028 \ud800 \x00 \U0001f600'


# -- one text ------------------------------------------------------------------------------------
@given(st.text(), st.text(), st.text())
@example(ODD, ODD, ODD)
@example("", "x" * (TRACE_MESSAGE_LIMIT + 1), "")
@example("\ud83d", "\ude00" * TRACE_MESSAGE_LIMIT + "x", "\n")
def test_a_rendered_private_part_equals_the_encoded_one(head, words, tail):
    whole = {**PRIVATE, "message": words, "trace": f"{head}{words[:TRACE_MESSAGE_LIMIT]}{tail}"}
    wording = PrivateTemplate(PRIVATE, head, tail)
    assert wording.render(words) == whole
    assert [*wording.render(words)] == [*whole]
    assert wording.render_json(words) == encode(whole)


@pytest.mark.parametrize(
    "private",
    [{"message": "", "trace": ""}, {"a": 1, "message": "", "b": [2], "trace": "", "c": {}}],
)
def test_a_template_keeps_fields_between_message_and_trace(private):
    whole = {**private, "message": "words", "trace": "a words z"}
    assert PrivateTemplate(private, "a ", " z").render_json("words") == encode(whole)


# --- Messages between runner and supervisor ---


def failed(exc: BaseException) -> Outcome:
    """Raise an exception at one location and return its outcome."""
    try:
        raise exc
    except BaseException as caught:  # noqa: BLE001
        return outcome_of_exception(caught, NOW)


def shared_part(outcome: Outcome) -> SharedFailure | None:
    return outcome.shared if isinstance(outcome, CachedFailureOutcome) else None


def send_failures(*messages: str) -> tuple[list[Outcome], list[Ending]]:
    """Return the outcomes in the runner and the endings that the supervisor decodes."""
    failed(ConnectionError("the first"))
    found = [failed(ConnectionError(text)) for text in messages]
    shared = [shared_part(outcome) for outcome in found]
    assert shared[0] is not None
    assert all(part is shared[0] for part in shared)
    texts = [outcome.failure.private["message"] for outcome in found]
    message = shared_failure_to_wire(
        *shared[0][:2], [one for seq, text in enumerate(texts) for one in (seq, 7, text)]
    )
    _, item, head, tail, triples = json.loads(json.dumps(message))
    outcome = shared_failure_from_wire(item, head, tail)
    return found, [
        Ending(make_lease(id=f"job{seq}"), outcome, ms, text)
        for seq, ms, text in zip(*failed_from_wire(triples), strict=True)
    ]


def test_a_shared_failure_is_decoded_as_it_was_encoded():
    found, received = send_failures("request 1 was reset", ODD, "x" * 2000)
    for outcome, ending in zip(found, received, strict=True):
        assert ending.outcome.failure.private.render(ending.message) == outcome.failure.private
        assert ending.outcome.failure.code == outcome.failure.code
        assert ending.duration_ms == 7


def test_a_failure_with_more_facts_is_sent_as_a_whole():
    failed(ConnectionError("the first"))
    outcome = failed(ConnectionError("request 1"))
    assert shared_part(outcome) is not None
    assert shared_part(outcome._replace(cost=1.5)) is None
    elsewhere = replace(
        outcome.failure, evidence={"asked": "done"}
    )  # not by the handler, but before it
    assert shared_part(outcome._replace(failure=elsewhere)) is None
    assert shared_part(failed(ValueError("words matter"))) is None


@pytest.mark.parametrize(
    "ends",
    [
        [],
        [7],
        [7, 1],
        [7, 1, 8],
        [7, 1, "w", 8],
        [7, "1", "w"],
        [True, 1, "w"],
        [7, 1, None],
        [7, 1, ["w"]],
        [-1, 1, "w"],
        [7, 2**53, "w"],
        [7, 1.0, "w"],
        ["w", 7, 1],
        "7w",
        {"7": 1},
        7,
        None,
    ],
)
def test_messages_without_valid_numbers_are_refused(ends):
    with pytest.raises(GARBLED):
        failed_from_wire(ends)


@pytest.mark.parametrize(
    "odd",
    [
        {"head": None},
        {"tail": 7},
        {"item": None},
        {"private": {}},
        {"private": {"message": ""}},
        {"private": {"trace": "", "message": ""}},
        {"private": []},
        {"code": 7},
    ],
)
def test_an_invalid_shared_part_is_refused(odd):
    _, [ending, *_] = send_failures("request 1")
    wording = ending.outcome.failure.private
    _, item, head, tail, _ = json.loads(
        json.dumps(shared_failure_to_wire(ending.outcome.failure, wording, []))
    )
    assert shared_failure_from_wire(item, head, tail) == ending.outcome
    item = odd.get(
        "item", [odd.get("code", item[0]), *item[1:7], odd.get("private", item[7]), *item[8:]]
    )
    with pytest.raises(GARBLED):
        shared_failure_from_wire(item, odd.get("head", head), odd.get("tail", tail))


def test_an_equal_shared_part_is_decoded_to_the_same_outcome_object():
    failed(ConnectionError("the first"))
    _, *common, _ = json.loads(
        json.dumps(
            shared_failure_to_wire(*shared_part(failed(ConnectionError("request 1")))[:2], [])
        )
    )
    cache = SharedFailureCache()
    first = cache.outcome(common)
    assert cache.outcome(json.loads(json.dumps(common))) is first
    for number in range(20):
        assert cache.outcome([*common[:-1], f"{number}"]).failure.private.tail == f"{number}"
    assert cache.outcome(common) == first


# -- decided and written -------------------------------------------------------------------------
POLICIES = {
    "at once": Policy(max_retries=3, backoff=Fixed(0)),
    "by chance": Policy(max_retries=3, backoff=Exponential(5)),
    "not for long": Policy(max_retries=3, backoff=Fixed(0), max_age=10),
    "once": Policy(max_retries=1, backoff=Fixed(0)),
    "never": Policy(max_retries=0),
    "with more time": Policy(
        max_retries=3, backoff=Fixed(0), then=Then(timeout=60, settings={"a": 1}, queue="slow")
    ),
}
LEASES = {
    "simple": {},
    "again": {
        "failures": 1,
        "counts": '{"classes":{"transient":1},"codes":{"CONNECTION":1}}',
        "attempt": 2,
        "token": 2,
    },
    "late": {"started_at": NOW + 3 * SECOND},
    "long ago": {"first_started_at": NOW - 60 * SECOND, "attempt": 2},
    "with a deadline": {"deadline_at": NOW - 1},
    "with an owner and a batch": {"owner": "größe", "batch_id": "b1"},
    "of another queue": {"queue": "other"},
    "with a key": {"unique_key": "k", "unique_cover": "running"},
    "with a cancellation": {"cancel_reason": "enough"},
    "using something": {"uses": "gateway"},
    "of another day": {
        "created_at": 1,
        "run_at": 2,
        "first_started_at": 3,
        "started_at": NOW - SECOND,
    },
    "with individual fields": {
        "payload": '{"a":1}',
        "choice": "b",
        "unique_key": "c",
        "trace": "d",
        "row_location": "e",
    },
}


@pytest.mark.parametrize("shadow", [None, POLICIES["never"].to_json()])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_grouped_endings_get_the_same_rows_as_single_ones(policy, shadow):
    policies = EffectivePolicies(
        RetrySection(), {"noop": KindSpec("noop", policy=policy.to_json(), shadow=shadow)}
    )
    messages = [f"request {n} was reset" for n in range(3)]
    found, received = send_failures(*(messages * len(LEASES)))
    leases = [
        make_lease(kind="noop", **{"id": f"{n}-{i}", **changes})
        for i in range(3)
        for n, changes in LEASES.items()
    ]
    together = [
        ending._replace(lease=lease) for ending, lease in zip(received, leases, strict=True)
    ]
    apart = [
        Ending(lease, outcome._replace(ended_at=None), 7)
        for outcome, lease in zip(found, leases, strict=True)
    ]

    def rows(endings):
        grouped = GroupedEndings(policies, NOW, Random(7))
        decisions = [grouped.decide(ending) for ending in endings]
        return [
            grouped.settlement_row(ending, decision)
            for ending, decision in zip(endings, decisions, strict=True)
        ], decisions

    (one, decided), (other, _) = rows(together), rows(apart)
    assert one == other
    if policy is POLICIES["at once"] and shadow is None:
        assert (
            len({id(decision) for decision in decided}) < len(LEASES) + 1
        )  # shared, not one per job


@pytest.mark.parametrize("where", ["head", "tail", "private", "public", "evidence"])
def test_a_shared_part_beyond_the_size_limit_is_refused(where):
    long = "x" * 1_000_000
    private = {
        "exception": long if where == "private" else "x",
        "message": "",
        "trace": "",
        "facts": {},
    }
    parts = {"private": private, "public": long if where == "public" else "x"}
    item = failure_to_wire(
        make_failure(**parts, evidence={"a": long} if where == "evidence" else {})
    )
    with pytest.raises(GARBLED):
        shared_failure_from_wire(
            item, long if where == "head" else "x: ", long if where == "tail" else ""
        )
