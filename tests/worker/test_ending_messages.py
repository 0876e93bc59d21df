"""Endings on their way from a runner to the supervisor, and the rows they become."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mulligan import Exponential, Fixed, Policy, Then
from mulligan.config import RetrySection
from mulligan.core.attempt import Ended, Ending, Outcome
from mulligan.core.durations import SECOND
from mulligan.manifest.specs import KindSpec
from mulligan.retries.decide import decide
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker.protocol import (
    failure_from_wire,
    failure_to_wire,
    outcome_from_wire,
    outcome_to_wire,
)
from mulligan.worker.runner.outcomes import outcome_of_exception
from mulligan.worker.settlement import settlement_row
from mulligan.worker.supervisor.runner_process import GARBLED
from support.builders import NOW, make_failure, make_lease

ODD = 'a "quoted"\n\\ text, größer \u2028 \ud800 \x00 \U0001f600'


def failed(exc: BaseException) -> Outcome:
    """Raise an exception at one location and return its outcome."""
    try:
        raise exc
    except BaseException as caught:  # noqa: BLE001
        return outcome_of_exception(caught, NOW)


def sent(outcome: Outcome) -> Outcome:
    """Return the outcome that the supervisor decodes."""
    return outcome_from_wire(json.loads(json.dumps(outcome_to_wire(7, outcome, 3))))


@given(st.text())
@example(ODD)
@example("x" * 2000)
@example("\ude00" * 500)
def test_a_failure_is_decoded_as_it_was_encoded(message):
    outcome = failed(ConnectionError(message))
    assert sent(outcome) == outcome._replace(ended_at=None)


@pytest.mark.parametrize(
    "changes",
    [
        {"cost": 1.5},
        {"final": True},
        {"after": SECOND},
        {"until": NOW},
        {"reason": ODD},
        {"dependency": "gateway"},
        {"choices": ("us", "them")},
    ],
)
def test_an_outcome_is_decoded_as_it_was_encoded(changes):
    outcome = Outcome(Ended.FAILED, failure=make_failure())._replace(**changes)
    assert sent(outcome) == outcome


INVALID = {
    "code": 7,
    "cls": "none",
    "public": None,
    "rule": ["x"],
    "evidence": [],
    "private": [],
    "fingerprint": None,
    "terms": "x",
    "judged": None,
}
FIELDS = ("code", "cls", "public", "rule", "retryable", "retry_after")
FIELDS += ("evidence", "private", "fingerprint", "terms", "judged")


@pytest.mark.parametrize("field", INVALID)
def test_an_invalid_failure_is_refused(field):
    failure = make_failure(private={"message": "x"})
    item = json.loads(json.dumps(failure_to_wire(failure)))
    assert failure_from_wire(item) == failure
    item[FIELDS.index(field)] = INVALID[field]
    with pytest.raises(GARBLED):
        failure_from_wire(item)


# --- Rows ---

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
}


@pytest.mark.parametrize("lease", LEASES.values(), ids=LEASES)
@pytest.mark.parametrize("shadow", [None, POLICIES["never"].to_json()])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_row_contains_its_lease_its_failure_and_its_decision(policy, shadow, lease):
    policies = EffectivePolicies(
        RetrySection(), {"noop": KindSpec("noop", policy=policy.to_json(), shadow=shadow)}
    )
    ending = Ending(make_lease(kind="noop", **lease), sent(failed(ConnectionError(ODD))), 7)
    failure = ending.outcome.failure
    decision = decide(ending.lease, ending.outcome, policies.for_job(ending.lease), NOW, Random(7))
    row = settlement_row(ending, decision, policies, NOW, "")
    data = json.loads(row.data)
    assert row.lease == ending.lease
    for name in ("id", "worker", "token"):
        assert getattr(row, name) == getattr(ending.lease, name)
    assert (row.state, row.verb, row.reason) == (decision.state, decision.verb, decision.reason)
    assert row.settled_by == ending.lease.worker
    assert (row.error is not None) == (row.state == "dead")
    assert (row.queue, row.lane is not None) == (
        (decision.then or {}).get("queue"),
        row.queue is not None,
    )
    assert (row.code, row.fingerprint) == (decision.failure.code, decision.failure.fingerprint)
    if row.code == failure.code:
        assert json.loads(row.private) == failure.private
    assert json.loads(row.judged)["ground"] == decision.ground
    assert ("shadow_policy" in json.loads(row.judged)) == (shadow is not None)
    assert (data["kind"], data["reason"], data["duration_ms"]) == ("noop", decision.reason, 7)
    assert data["wait_ms"] == max(0, ending.lease.started_at - ending.lease.run_at) // 1000
    assert [*data][-1] == "wait_ms"
    assert data["retries"] == ending.lease.failures
    assert "trace" not in data
