"""Policies: fields, validation and scopes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mulligan.config import RetrySection
from mulligan.core.attempt import Cls
from mulligan.core.errors import InvalidPolicy
from mulligan.retries.backoff import Exponential, Fixed, Table
from mulligan.retries.policy import Policy, resolve_policy

SYSTEM = RetrySection()
counts = st.none() | st.integers(0, 100)
waits = st.none() | st.builds(Fixed, st.integers(0, 100)) | st.builds(Table, st.just((1, 2)))
entries = st.builds(Policy, max_retries=counts, backoff=waits)
policies = st.builds(
    Policy,
    max_retries=counts,
    backoff=waits,
    max_losses=counts,
    max_snoozes=counts,
    max_age=st.none() | st.integers(0, 10**6),
    classes=st.dictionaries(st.sampled_from(Cls), entries, max_size=3),
    retry_unknown=st.none() | st.booleans(),
)


def cls_cap(n, cls="transient"):
    return Policy(classes={cls: Policy(max_retries=n)})


def test_fields_are_unset_by_default():
    policy = Policy()
    given = (
        policy.max_retries,
        policy.backoff,
        policy.max_losses,
        policy.max_snoozes,
        policy.max_age,
    )
    assert given == (None,) * 5
    assert policy.retry_unknown is None
    assert not policy.classes


@given(policies)
def test_policy_survives_json_and_unset_stays_unset(policy):
    assert Policy.from_json(policy.to_json()) == policy
    assert hash(Policy.from_json(policy.to_json())) == hash(policy)


def test_durations_of_a_policy_may_be_timedeltas():
    assert Policy(max_age=timedelta(hours=1)).max_age == 3600


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Policy(classes={"rate_limit": Policy()}), "did you mean 'rate_limited'"),
        (lambda: Policy(classes={"xyz": Policy()}), "one of transient, timeout"),
        (
            lambda: Policy(classes={"auth": Policy(max_losses=1)}),
            "may set max_retries, backoff and then only",
        ),
        (lambda: Policy(max_retries=-1), "max_retries"),
        (lambda: Policy(max_retries=True), "max_retries"),
        (lambda: Policy(max_retries=2.5), "max_retries"),
        (lambda: Policy(max_age=float("nan")), "max_age"),
        (lambda: Policy(max_retry=3), "max_retry"),
        (lambda: RetrySection(base_delay=-1), "base_delay"),
        (lambda: RetrySection(max_retries=-1), "max_retries"),
        (lambda: RetrySection(jitter=2), "jitter"),
        (lambda: Policy.from_json('{"max_retries": "many"}'), "max_retries"),
    ],
)
def test_invalid_value_is_refused_with_the_name_of_its_field(make, message):
    with pytest.raises((InvalidPolicy, ValidationError), match=message):
        make()


def test_settings_parse_environment_texts():
    read = RetrySection(enabled="false", max_retries="5", base_delay="30", jitter="0.2")
    assert (read.enabled, read.max_retries, read.base_delay, read.jitter) == (False, 5, 30.0, 0.2)


@pytest.mark.parametrize(
    ("queue", "kind", "job", "number", "expected"),
    [
        (None, None, None, None, (3, "system")),
        (1, None, None, None, (1, "queue")),
        (1, 2, None, None, (2, "kind")),
        (1, 2, 4, None, (4, "job")),
        (1, 2, 4, 5, (5, "job")),
        (None, None, None, 0, (0, "job")),
        (None, 7, None, None, (7, "kind")),
    ],
)
def test_most_specific_scope_sets_max_retries(queue, kind, job, number, expected):
    def policy(n):
        return None if n is None else Policy(max_retries=n)

    effective = resolve_policy(SYSTEM, policy(queue), policy(kind), policy(job), number)
    assert (effective.max_retries, effective.max_retries_from) == expected


@pytest.mark.parametrize(
    ("queue", "kind", "job", "expected"),
    [
        (None, None, None, (2, "system")),  # our own caution
        (None, Policy(max_retries=5), None, (None, None)),  # a team's number holds alone
        (Policy(max_retries=5), None, None, (None, None)),
        (None, None, Policy(max_retries=1), (None, None)),
        (None, Policy(max_losses=5), None, (2, "system")),  # says nothing about retries
        (None, Policy(retry_unknown=True), None, (None, None)),
        (None, cls_cap(1, "unknown"), None, (1, "kind")),
        (cls_cap(4, "unknown"), Policy(max_retries=9), None, (4, "queue")),
        (cls_cap(4, "unknown"), cls_cap(5, "unknown"), None, (5, "kind")),
    ],
)
def test_limit_for_unknown_failures(queue, kind, job, expected):
    effective = resolve_policy(SYSTEM, queue, kind, job)
    assert (
        effective.class_limit(Cls.UNKNOWN),
        effective.class_limit_scope(Cls.UNKNOWN),
    ) == expected


def test_max_retries_of_a_job_lifts_the_builtin_limit():
    assert resolve_policy(SYSTEM, job_max_retries=9).class_limit(Cls.UNKNOWN) is None


def test_total_and_class_limit_must_both_allow():
    effective = resolve_policy(
        SYSTEM, None, Policy(max_retries=3, classes={"rate_limited": Policy(max_retries=10)})
    )
    assert effective.max_retries_for(Cls.RATE_LIMITED) == 3
    assert (
        resolve_policy(SYSTEM, cls_cap(1), Policy(max_retries=3)).max_retries_for(Cls.TRANSIENT)
        == 1
    )


GENERAL, SPECIAL = Fixed(1), Fixed(2)


@pytest.mark.parametrize(
    ("queue", "kind", "job", "expected"),
    [
        (None, None, None, (Exponential(30, 2, 3600, "full"), "system")),
        (Policy(backoff=GENERAL), None, None, (GENERAL, "queue")),
        (
            None,
            Policy(backoff=GENERAL, classes={"transient": Policy(backoff=SPECIAL)}),
            None,
            (SPECIAL, "kind"),
        ),
        (
            Policy(classes={"transient": Policy(backoff=SPECIAL)}),
            Policy(backoff=GENERAL),
            None,
            (GENERAL, "kind"),
        ),
        (None, Policy(backoff=GENERAL), Policy(max_retries=1), (GENERAL, "kind")),
        (None, Policy(backoff=GENERAL), Policy(backoff=SPECIAL), (SPECIAL, "job")),
    ],
)
def test_most_specific_backoff_wins_and_the_class_entry_within_a_scope(queue, kind, job, expected):
    effective = resolve_policy(SYSTEM, queue, kind, job)
    assert (
        effective.backoff_for(Cls.TRANSIENT),
        effective.backoff_scope_for(Cls.TRANSIENT),
    ) == expected


def test_every_other_field_is_resolved_by_scope():
    effective = resolve_policy(
        SYSTEM, Policy(max_losses=5, max_age=60), Policy(max_snoozes=1), Policy(max_losses=6)
    )
    assert (effective.max_losses, effective.max_losses_from) == (6, "job")
    assert (effective.max_snoozes, effective.max_snoozes_from) == (1, "kind")
    assert (effective.max_age, effective.max_age_from) == (60, "queue")
    assert (effective.retry_unknown, effective.retry_unknown_from) == (None, "system")


def test_effective_policy_is_hashable():
    effective = resolve_policy(SYSTEM)
    assert {effective: 1}[effective] == 1


@given(st.none() | policies, st.none() | policies, st.none() | policies, counts)
def test_every_class_has_a_limit_of_at_most_the_total(queue, kind, job, number):
    effective = resolve_policy(SYSTEM, queue, kind, job, number)
    for cls in Cls:
        assert 0 <= effective.max_retries_for(cls) <= effective.max_retries
        assert effective.backoff_for(cls) is not None
