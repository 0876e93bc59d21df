"""The fast path that writes event data as text gives the same JSON as the encoder."""

from __future__ import annotations

from random import Random

import pytest

from mulligan.config import RetrySection
from mulligan.core.attempt import Cls, Ended, Ending, Ground, Outcome
from mulligan.core.durations import SECOND
from mulligan.retries.decide import decide
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker import settlement
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


@pytest.mark.parametrize("took", [None, 0, 12])
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("lease", LEASES)
def test_event_data_equals_the_encoded_fields(lease, outcome, took):
    ending = Ending(lease, outcome, took)
    decision = decide(lease, outcome, LAYERS.for_job(lease), NOW, Random(1))
    parsed = settlement.encode_object(settlement._event_fields(ending, decision, LAYERS))
    assert settlement.event_data(ending, decision, LAYERS) == parsed
    if decision.ground is Ground.RETURNED and not decision.cost:
        assert settlement.success_data(ending, decision.reason) == parsed


@pytest.mark.parametrize(
    "judged", [{}, {"table": "17b0"}, {"table": 7}, {"table": "17b0", "also": ["x"]}, {"also": []}]
)
@pytest.mark.parametrize("terms", [{}, {"max_retries": 1}])
def test_the_judgement_equals_its_encoded_fields(judged, terms):
    failure = make_failure(judged=judged, terms=terms)
    decision = decide(
        make_lease(),
        Outcome(Ended.FAILED, failure=failure),
        LAYERS.for_job(make_lease()),
        NOW,
        Random(1),
    )
    ground = {"ground": "retry", "retry_count": decision.retry_count}
    expected = dict(judged) | ground | ({"terms": terms} if terms else {})
    assert decision.retry_count.startswith("1 of ")
    assert settlement._judgement(decision, None) == settlement.encode_object(expected)
