"""What holds for any legal policy and any sequence of failures."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mulligan.core.attempt import RETRYABLE, Cls, Ended, Outcome, Verb
from mulligan.core.job import SECOND, State
from mulligan.retries.backoff import Exponential, Fixed, Table, nominal
from mulligan.retries.decide import decide
from mulligan.retries.policy import ClassSettings, Policy, RetrySettings, Then, layer
from support.builders import NOW, a_failure, a_lease

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
    RetrySettings,
    enabled=st.booleans() | st.just(True),
    only=st.none() | st.lists(st.sampled_from(Cls), max_size=4).map(tuple),
    max_retries=st.integers(0, 8),
    jitter=jitters,
    classes=st.dictionaries(
        st.sampled_from(Cls),
        st.builds(ClassSettings, max_retries=numbers, base_delay=st.none() | lengths),
        max_size=3,
    ),
)
effective = st.builds(layer, systems, policies, policies, policies)
terms = st.just({}) | st.builds(
    lambda count, backoff: Policy(max_retries=count, backoff=backoff).to_plain(),
    numbers,
    st.none() | backoffs,
)
failures = st.builds(
    lambda cls, code, said: a_failure(cls, code, terms=said),
    st.sampled_from(Cls),
    st.sampled_from("ABC"),
    terms,
)
lives = st.lists(failures, min_size=1, max_size=20)


def lived(policy, story, seed=0):
    """Every failure of the story with the decision it met, until it is dead."""
    rng, lease = Random(seed), a_lease()
    for failure in story:
        decision = decide(lease, Outcome(Ended.FAILED, failure=failure), policy, NOW, rng)
        yield failure, decision
        if decision.state != State.QUEUED:
            return
        lease = lease._replace(
            failures=decision.failures, counts=decision.counts, settings=decision.settings
        )


def highest(backoff):
    """What no draw may exceed."""
    if isinstance(backoff, Exponential):
        return backoff.cap * (1 + (backoff.jitter if isinstance(backoff.jitter, float) else 0))
    return max(backoff.seconds) if isinstance(backoff, Table) else backoff.seconds


@given(effective, lives, st.integers())
def test_no_delay_is_negative_or_above_its_cap_and_share(policy, story, seed):
    for failure, decision in lived(policy, story, seed):
        if decision.run_at is None:
            continue
        own = policy.by_class[failure.cls]
        said = Policy.from_plain({k: v for k, v in failure.terms.items() if k == "backoff"}).backoff
        backoff = own.backoff if said is None or own.backoff_from == "job" else said
        assert 0 <= decision.run_at - NOW <= highest(backoff) * SECOND * (1 + 1e-9) + 1


@given(st.builds(Exponential, lengths, st.floats(0.1, 10), lengths, jitters), st.integers(0, 50))
def test_the_cap_is_applied_before_the_draw(backoff, n):
    assert nominal(backoff, n) <= backoff.cap


@given(effective, lives, st.integers())
def test_the_same_seed_gives_the_same_schedule(policy, story, seed):
    assert list(lived(policy, story, seed)) == list(lived(policy, story, seed))


@settings(max_examples=120)
@given(effective, lives)
def test_total_class_and_rule_limits_all_hold_for_any_sequence_of_failures(policy, story):
    total, classes, codes = 0, dict.fromkeys(Cls, 0), dict.fromkeys("ABC", 0)
    for failure, decision in lived(policy, story):
        total += 1
        classes[failure.cls] += 1
        codes[failure.code] += 1
        if decision.verb is not Verb.RETRY:
            continue
        assert total <= policy.max_retries
        cap, own = policy.cap_for(failure.cls), failure.terms.get("max_retries")
        assert cap is None or classes[failure.cls] <= cap
        assert own is None or codes[failure.code] <= own


@given(effective, lives)
def test_no_count_and_no_rule_widens_whether(policy, story):
    for failure, decision in lived(policy, story):
        if decision.verb is Verb.RETRY:
            assert failure.cls in RETRYABLE
            assert policy.enabled
            assert policy.only is None or failure.cls in policy.only


@given(effective, lives)
def test_a_retry_is_refused_only_by_something_that_names_itself(policy, story):
    for _, decision in lived(policy, story):
        if decision.verb is Verb.DIE:
            assert decision.reason.startswith("not retried: ") or " retries used" in decision.reason


@settings(
    suppress_health_check=[HealthCheck.too_slow]
)  # it counts time that a busy machine gave to others
@given(effective, lives)
def test_what_a_ladder_gave_is_never_lost_on_the_way(policy, story):
    queue = "default"
    for _, decision in lived(policy, story):
        queue = (decision.then or {}).get("queue", queue)
        if decision.state == State.QUEUED and queue != "default":
            assert '"home":"default"' in (decision.settings or "")
