"""The texts of the commonest events are put together without a parser: they are what the parser would have written."""

from __future__ import annotations

from random import Random

import pytest

from mulligan.config import RetrySection
from mulligan.core.attempt import Cls, Ended, Ending, Ground, Outcome
from mulligan.core.job import SECOND
from mulligan.retries.decide import decide
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker import settlement as news
from mulligan.worker import settlement as recording
from support.builders import NOW, a_failure, a_lease

LAYERS = EffectivePolicies(RetrySection(), {})
ODD = 'a "quoted"\n\\ text, größer \u2028 \ud800 \x00'
LEASES = [
    a_lease(),
    a_lease(kind=ODD, queue=ODD),
    a_lease(failures=2, counts='{"classes":{"transient":1},"codes":{"BOOM":1}}'),
    a_lease(uses="größe,gateway", failures=1),
    a_lease(started_at=NOW + 3 * SECOND + 999),
    a_lease(started_at=NOW - SECOND),
    a_lease(cancel_reason="enough"),
    a_lease(max_retries=0),
    a_lease(deadline_at=NOW),
]
FAILURES = [
    a_failure(),
    a_failure(code=ODD, public=ODD, rule=ODD),
    a_failure(evidence={"http_status": 503, "kind": "another"}),
    a_failure(Cls.INVALID_INPUT),
    a_failure(retry_after=7.5),
    a_failure(terms={"promise": "We try again."}),
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
def test_an_event_says_the_same_either_way(lease, outcome, took):
    ending = Ending(lease, outcome, took)
    decision = decide(lease, outcome, LAYERS.of(lease), NOW, Random(1))
    parsed = news.as_json(news._news(ending, decision, LAYERS))
    assert news.data_of(ending, decision, LAYERS) == parsed
    if decision.ground is Ground.RETURNED and not decision.cost:
        assert news.short(ending, decision.reason) == parsed


@pytest.mark.parametrize(
    "judged", [{}, {"table": "17b0"}, {"table": 7}, {"table": "17b0", "also": ["x"]}, {"also": []}]
)
@pytest.mark.parametrize("terms", [{}, {"max_retries": 1}])
def test_how_a_verdict_came_about_is_said_the_same_either_way(judged, terms):
    failure = a_failure(judged=judged, terms=terms)
    decision = decide(
        a_lease(), Outcome(Ended.FAILED, failure=failure), LAYERS.of(a_lease()), NOW, Random(1)
    )
    ground = {"ground": "retry", "retry_count": decision.retry_count}
    said = dict(judged) | ground | ({"terms": terms} if terms else {})
    assert decision.retry_count.startswith("1 of ")
    assert recording._judged(decision, None) == news.as_json(said)
