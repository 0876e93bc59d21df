"""Properties of any valid policy and any sequence of failures."""

from __future__ import annotations

import re
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.config import ClassRetrySection, RetrySection
from mulligan.core.attempt import RETRYABLE, Cls, Ended, Outcome, Verb
from mulligan.core.durations import SECOND
from mulligan.core.job import State
from mulligan.core.setting_types import RETRYABLE_CLASSES
from mulligan.retries.backoff import Exponential, Fixed, Table
from mulligan.retries.decide import decide
from mulligan.retries.policy import Policy, Then, resolve_policy
from support.builders import NOW, make_failure, make_lease

lengths = st.floats(0, 10**6)
jitters = st.sampled_from(["full", "equal", "none"]) | st.floats(0, 1)
backoffs = (
    st.builds(Exponential, lengths, st.floats(0.1, 10), lengths, jitters)
    | st.builds(Table, st.lists(lengths, min_size=1, max_size=4))
    | st.builds(Fixed, lengths)
)
numbers = st.none() | st.integers(0, 6)
ladders = st.none() | st.lists(
    st.builds(
        Then,
        queue=st.sampled_from([None, "big", "huge"]),
        memory_limit=st.none() | st.integers(1, 99),
    ),
    max_size=3,
)
entries = st.builds(Policy, max_retries=numbers, backoff=st.none() | backoffs, then=ladders)
policies = st.none() | st.builds(
    Policy,
    max_retries=numbers,
    backoff=st.none() | backoffs,
    then=ladders,
    retry_unknown=st.none() | st.booleans(),
    classes=st.dictionaries(st.sampled_from(Cls), entries, max_size=4),
)
systems = st.builds(
    RetrySection,
    enabled=st.booleans() | st.just(True),
    only=st.none() | st.lists(st.sampled_from(RETRYABLE_CLASSES), min_size=1, max_size=4),
    max_retries=st.integers(0, 8),
    jitter=jitters,
    classes=st.dictionaries(
        st.sampled_from(RETRYABLE_CLASSES),
        st.builds(
            ClassRetrySection, max_retries=numbers, base_delay=st.none() | st.floats(0, 3600)
        ),
        max_size=3,
    ),
)
effective = st.builds(resolve_policy, systems, policies, policies, policies)
terms = st.just({}) | st.builds(
    lambda count, backoff: Policy(max_retries=count, backoff=backoff).to_dict(),
    numbers,
    st.none() | backoffs,
)
failures = st.builds(
    lambda cls, code, terms: make_failure(cls, code, terms=terms),
    st.sampled_from(Cls),
    st.sampled_from("ABC"),
    terms,
)
lives = st.lists(failures, min_size=1, max_size=20)


def decide_all(policy, story, seed=0):
    """Yield each failure with its decision, until the job is dead."""
    rng, lease = Random(seed), make_lease()
    for failure in story:
        decision = decide(lease, Outcome(Ended.FAILED, failure=failure), policy, NOW, rng)
        yield failure, decision
        if decision.state != State.QUEUED:
            return
        lease = lease._replace(
            failures=decision.failures, counts=decision.counts, settings=decision.settings
        )


def highest(backoff):
    """Return the longest delay that a backoff can draw."""
    if isinstance(backoff, Exponential):
        return backoff.cap * (1 + (backoff.jitter if isinstance(backoff.jitter, float) else 0))
    return max(backoff.seconds) if isinstance(backoff, Table) else backoff.seconds


@given(effective, lives, st.integers())
def test_delay_is_never_negative_or_above_the_cap_plus_jitter(policy, story, seed):
    for failure, decision in decide_all(policy, story, seed):
        if decision.run_at is None:
            continue
        for_class = policy.by_class[failure.cls]
        rule_backoff = Policy.from_dict(
            {k: v for k, v in failure.terms.items() if k == "backoff"}
        ).backoff
        backoff = (
            for_class.backoff
            if rule_backoff is None or for_class.backoff_from == "job"
            else rule_backoff
        )
        assert 0 <= decision.run_at - NOW <= highest(backoff) * SECOND * (1 + 1e-9) + 1


@given(st.builds(Exponential, lengths, st.floats(0.1, 10), lengths, jitters), st.integers(0, 50))
def test_cap_is_applied_before_jitter(backoff, n):
    assert backoff.nominal(n) <= backoff.cap


@given(effective, lives, st.integers())
def test_the_same_seed_gives_the_same_schedule(policy, story, seed):
    assert list(decide_all(policy, story, seed)) == list(decide_all(policy, story, seed))


@settings(max_examples=120)
@given(effective, lives)
def test_total_class_and_rule_limits_hold_for_any_failures(policy, story):
    total, classes, codes = 0, dict.fromkeys(Cls, 0), dict.fromkeys("ABC", 0)
    for failure, decision in decide_all(policy, story):
        total += 1
        classes[failure.cls] += 1
        codes[failure.code] += 1
        if decision.verb is not Verb.RETRY:
            continue
        assert total <= policy.max_retries
        class_limit, rule_limit = policy.class_limit(failure.cls), failure.terms.get("max_retries")
        assert class_limit is None or classes[failure.cls] <= class_limit
        assert rule_limit is None or codes[failure.code] <= rule_limit


@given(effective, lives)
def test_no_limit_and_no_rule_makes_a_failure_retryable(policy, story):
    for failure, decision in decide_all(policy, story):
        if decision.verb is Verb.RETRY:
            assert failure.cls in RETRYABLE
            assert policy.enabled
            assert policy.only is None or failure.cls in policy.only


@given(effective, lives)
def test_every_refusal_has_a_reason(policy, story):
    for _, decision in decide_all(policy, story):
        if decision.verb is Verb.DIE:
            assert re.match(
                r"not retried: |\d+ of \d+ retries( for \w+ \w+)? used", decision.reason
            )


@given(effective, lives)
def test_escalated_settings_are_never_lost(policy, story):
    queue = "default"
    for _, decision in decide_all(policy, story):
        queue = (decision.then or {}).get("queue", queue)
        if decision.state == State.QUEUED and queue != "default":
            assert '"home":"default"' in (decision.settings or "")
