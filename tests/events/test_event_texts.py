"""Event data and judgements of an ending are JSON with its public facts."""

from __future__ import annotations

import json
from random import Random

import pytest

from mulligan.config import RetrySection
from mulligan.core.attempt import Cls, Ended, Ending, Outcome
from mulligan.core.durations import SECOND
from mulligan.retries.decide import decide
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker.settlement import settlement_row
from support.builders import NOW, make_failure, make_lease

LAYERS = EffectivePolicies(RetrySection(), {})
ODD = 'a "quoted"\n\\ text, größer \u2028 \ud800 \x00'
LEASES = [
    make_lease(),
    make_lease(kind=ODD, queue=ODD),
    make_lease(failures=2, counts='{"classes":{"transient":1},"codes":{"BOOM":1}}'),
    make_lease(uses="größe,gateway", failures=1),
    make_lease(started_at=NOW + 3 * SECOND + 999),
    make_lease(started_at=NOW - SECOND),
    make_lease(cancel_reason="enough"),
    make_lease(max_retries=0),
    make_lease(deadline_at=NOW),
]
FAILURES = [
    make_failure(),
    make_failure(code=ODD, public=ODD, rule=ODD),
    make_failure(evidence={"http_status": 503, "kind": "another"}),
    make_failure(Cls.INVALID_INPUT),
    make_failure(retry_after=7.5),
    make_failure(terms={"promise": "We try again."}),
]
OUTCOMES = [
    Outcome(Ended.RETURNED, result="null"),
    Outcome(Ended.RETURNED, result="{}", cost=1.5),
    Outcome(Ended.RETURNED, result="1", skipped=True),
    Outcome(Ended.LOST),
    Outcome(Ended.SNOOZED, after=SECOND),
    *(Outcome(Ended.FAILED, failure=failure) for failure in FAILURES),
    Outcome(Ended.RETRY, reason=ODD),
    Outcome(Ended.FAILED, failure=FAILURES[0], cost=0.5),
    Outcome(Ended.FAILED, failure=FAILURES[0], final=True),
]


def _settle(lease, outcome, took=None):
    ending = Ending(lease, outcome, took)
    decision = decide(lease, outcome, LAYERS.for_job(lease), NOW, Random(1))
    return decision, settlement_row(ending, decision, LAYERS, NOW, "")


@pytest.mark.parametrize("took", [None, 0, 12])
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("lease", LEASES)
def test_event_data_is_json_with_the_public_facts_of_an_ending(lease, outcome, took):
    decision, row = _settle(lease, outcome, took)
    data = json.loads(row.data)
    assert (data["kind"], data["queue"]) == (lease.kind, lease.queue)
    assert data.get("reason", "") == decision.reason
    assert data.get("duration_ms") == took
    assert data["retries"] == lease.failures
    assert data.get("uses", "") == lease.uses
    assert data.get("cost", 0) == decision.cost
    assert data["wait_ms"] == max(0, (lease.started_at - lease.run_at) // 1000)
    assert "private" not in data
    if decision.failure is not None:
        public = (decision.failure.code, decision.failure.public, decision.failure.rule)
        assert (data["code"], data["message"], data["rule"]) == public


@pytest.mark.parametrize(
    "judged", [{}, {"table": "17b0"}, {"table": 7}, {"table": "17b0", "also": ["x"]}, {"also": []}]
)
@pytest.mark.parametrize("terms", [{}, {"max_retries": 1}])
def test_a_judgement_has_the_rules_words_the_ground_and_the_count(judged, terms):
    failure = make_failure(judged=judged, terms=terms)
    decision, row = _settle(make_lease(), Outcome(Ended.FAILED, failure=failure))
    expected = judged | {"ground": "retry", "retry_count": decision.retry_count}
    if terms:
        expected["terms"] = terms
    assert decision.retry_count.startswith("1 of ")
    assert json.loads(row.judged) == expected
