"""Attempts that failed alike and are tried again, written in a transaction of their own: the same door and fence."""

from __future__ import annotations

import json
from random import Random

import pytest

from mulligan import Exponential, Fixed, Policy, Then
from mulligan.config import RetrySection
from mulligan.core.attempt import Ended, Ending, Outcome
from mulligan.failures.facts import TRACE_MESSAGE_LIMIT
from mulligan.manifest.specs import KindSpec
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker.fast.failure_cache import CachedFailureOutcome
from mulligan.worker.fast.grouped_endings import MIN_GROUP, GroupedEndings
from mulligan.worker.protocol import shared_failure_from_wire, shared_failure_to_wire
from mulligan.worker.runner.outcomes import outcome_of_exception
from mulligan.worker.settle import finish_simple, settle
from support.store import (
    Background,
    attempts,
    claim,
    close_worker,
    enqueue,
    get,
    insert,
    is_postgres,
    jobs,
    log_of,
    now,
    open_worker,
    story,
    sweep,
    together,
    told,
    unique_job,
    waits_for_a_lock,
)
from support.waiting import until

KIND = jobs(1)[0].kind
ODD = 'a "quoted" \\ text, größer \u2028 {} %s $1 \U0001f600'


def reset(number: int) -> Outcome:
    try:
        raise ConnectionError(f"request {number} was reset")
    except ConnectionError as error:
        return outcome_of_exception(error, 0)


def alike() -> Outcome:
    """As a supervisor hears it of many."""
    outcome = [reset(number) for number in range(2)][-1]
    assert isinstance(outcome, CachedFailureOutcome)
    _, item, head, tail, _ = shared_failure_to_wire(*outcome.shared[:2], [])
    return shared_failure_from_wire(item, head, tail)


def layers(**policy) -> EffectivePolicies:
    said = {"max_retries": 3, "backoff": Fixed(0), **policy}
    return EffectivePolicies(
        RetrySection(), {KIND: KindSpec(KIND, policy=Policy(**said).to_json())}
    )


AT_ONCE = layers()


def endings(leases, words="request {} was reset, " + ODD, took=3):
    outcome = alike()
    return [
        Ending(lease, outcome, took, words.replace("{}", str(n), 1))
        for n, lease in enumerate(leases)
    ]


def retried(store, failed, policies=AT_ONCE, moment=None):
    """The fences of those that were written, and those that were left."""
    moment = now(store) if moment is None else moment
    with store.single_statement() as unit:
        written = finish_simple(unit, failed, GroupedEndings(policies, moment, Random(7)))
    assert written.returned == []
    return fences(ending for _, group in written.retried for ending in group), written.rest


def settled(store, failed, policies=AT_ONCE, moment=None):
    with store.begin() as unit:
        settle(unit, failed, policies, unit.now() if moment is None else moment, Random(7))


def fences(endings):
    return {ending.lease.fence for ending in endings}


def claimed(store, many, **changes):
    open_worker(store)
    enqueue(store, many, **changes)
    return claim(store, many)


@pytest.mark.parametrize("many", [MIN_GROUP, 70])
def test_they_leave_the_same_as_by_settle(store, many):
    moment = now(store)
    failed = endings(claimed(store, 2 * many))
    written, rest = retried(store, failed[:many], moment=moment)
    assert (written, rest) == (fences(failed[:many]), [])
    for start in range(
        many, 2 * many, MIN_GROUP - 1
    ):  # as many as go the whole way, wherever they are written
        settled(store, failed[start : min(start + MIN_GROUP - 1, 2 * many)], moment=moment)
    rows, tries, events = set(), set(), set()
    own = {
        "id",
        "job_id",
        "created_at",
        "payload",
        "started_at",
        "first_started_at",
        "ended_at",
        "private",
    }
    for ending in failed:
        row = get(store, ending.lease.id)
        (attempt,) = attempts(store, ending.lease.id)
        assert (row.state, row.failures, row.worker, row.run_at) == ("queued", 1, None, moment)
        rows.add(str({name: value for name, value in row._asdict().items() if name not in own}))
        tries.add(
            str({name: value for name, value in attempt._asdict().items() if name not in own})
        )
        private = json.loads(attempt.private)
        assert private == ending.outcome.failure.private.render(ending.message)
        assert [*private] == [*ending.outcome.failure.private]
        assert told(store, ending.lease.id) == ["queued", "started", "retry_scheduled"]
        news = story(store, ending.lease.id)[-1]
        assert (news.attempt, news.token, news.at) == (1, 1, attempt.ended_at)
        assert (
            news.data.pop("wait_ms")
            == max(0, ending.lease.started_at - ending.lease.run_at) // 1000
        )
        events.add(json.dumps(news.data))
    assert [len(found) for found in (rows, tries, events)] == [1, 1, 1]


def test_those_that_fail_once_more_are_told_as_such(store):
    failed = endings(claimed(store, MIN_GROUP))
    settled(store, failed)
    again = endings(claim(store, MIN_GROUP), took=0)
    assert [ending.lease.failures for ending in again] == [1] * MIN_GROUP
    settled(store, retried(store, again)[1])
    for ending in again:
        assert [one.token for one in attempts(store, ending.lease.id)] == [1, 2]
        assert get(store, ending.lease.id).failures == 2
        assert story(store, ending.lease.id)[-1].data["failed_before"] == 1


@pytest.mark.parametrize(
    ("changes", "policies"),
    [
        ({}, layers(max_retries=0)),
        ({}, layers(backoff=Exponential(5))),
        ({}, layers(max_age=60)),
        ({}, layers(then=Then(queue="slow"))),
    ],
)
def test_those_of_which_there_is_more_to_say_go_the_whole_way(store, changes, policies):
    failed = endings(claimed(store, MIN_GROUP, **changes))
    assert retried(store, failed, policies) == (set(), failed)


def test_few_go_the_whole_way(store):
    failed = endings(claimed(store, MIN_GROUP - 1))
    assert retried(store, failed) == (set(), failed)


def test_those_with_many_words_go_the_whole_way(store):
    failed = endings(claimed(store, MIN_GROUP), words="x" * (TRACE_MESSAGE_LIMIT + 1))
    assert retried(store, failed) == (set(), failed)


def test_those_of_which_nobody_knows_how_long_they_took_go_the_whole_way(store):
    failed = endings(claimed(store, MIN_GROUP), took=None)
    assert retried(store, failed) == (set(), failed)


def test_those_that_give_their_key_back_go_the_whole_way(store):
    open_worker(store)
    insert(store, *[unique_job(f"key {n}", cover=("running",)) for n in range(MIN_GROUP)])
    failed = endings(claim(store, MIN_GROUP))
    assert retried(store, failed) == (set(), failed)


def test_those_that_returned_among_them_are_written_too(store):
    leases = claimed(store, 2 * MIN_GROUP)
    failed, done = (
        endings(leases[:MIN_GROUP]),
        [Ending(lease, Outcome(Ended.RETURNED, "null"), 3) for lease in leases[MIN_GROUP:]],
    )
    with store.single_statement() as unit:
        written = finish_simple(unit, [*failed, *done], GroupedEndings(AT_ONCE, unit.now(), Random(7)))
    settled(store, written.rest)
    states = [get(store, lease.id).state for lease in leases]
    assert states == ["queued"] * MIN_GROUP + ["succeeded"] * MIN_GROUP


def test_whose_fence_is_in_doubt_is_left(store):
    leases = claimed(store, MIN_GROUP + 4)
    asked, other, ended, moved, *_ = failed = endings(leases)
    with store.begin() as unit:
        assert unit.request_cancel(asked.lease.id, asked.lease.token, "no longer wanted")
        unit.update_progress("w1", [(moved.lease.id, moved.lease.token, 0.5, "half")])
    settled(store, [ended])
    failed[1] = other = other._replace(lease=other.lease._replace(row_location=failed[-1].lease.row_location))
    written, rest = retried(store, failed)
    if is_postgres(store):  # a store may as well write none
        assert (written, fences(rest)) == (fences(failed[4:]), fences([asked, other, ended, moved]))
    assert get(store, asked.lease.id).state == get(store, other.lease.id).state == "running"
    assert len(attempts(store, ended.lease.id)) == 1
    settled(store, rest)
    assert get(store, asked.lease.id).state == "cancelled"
    assert {get(store, ending.lease.id).state for ending in failed[1:]} == {"queued"}
    assert {len(attempts(store, ending.lease.id)) for ending in failed} == {1}


@pytest.mark.parametrize("how", ["another worker", "another token"])
def test_a_lease_of_somebody_else_is_none(store, how):
    leases = claimed(store, MIN_GROUP)
    changed = {"worker": "w2"} if how == "another worker" else {"token": 2}
    failed = endings([lease._replace(**changed) for lease in leases])
    assert retried(store, failed) == (set(), failed)
    assert {get(store, lease.id).state for lease in leases} == {"running"}


@pytest.mark.parametrize("place", [None, "(4294967295,65535)", "(0,0)"])
def test_where_nothing_lies_nothing_is_written_and_nothing_fails(store, place):
    failed = endings([lease._replace(row_location=place) for lease in claimed(store, MIN_GROUP)])
    written, rest = retried(store, failed)
    assert written == (set() if is_postgres(store) else fences(failed))
    settled(store, rest)
    assert {get(store, ending.lease.id).state for ending in failed} == {"queued"}


def test_who_finds_a_row_in_another_hand_waits_and_then_believes_what_it_finds(store):
    if not store.concurrent_writers:
        pytest.skip("SQLite has one writer")
    failed = endings(claimed(store, MIN_GROUP))
    first = failed[0].lease
    with store.begin() as unit:
        assert unit.request_cancel(first.id, first.token, "no longer wanted")
        ending = Background(lambda: retried(store, failed))
        until(lambda: waits_for_a_lock(store))
    written, rest = ending.answer()
    assert (written, fences(rest)) == (fences(failed[1:]), {first.fence})
    assert get(store, first.id).state == "running"


def test_many_threads_that_write_overlapping_sets_beside_a_sweep_write_each_once(store):
    failed = endings(claimed(store, 300))

    def flush(seed: int) -> None:
        rng = Random(seed)
        for _ in range(6):
            settled(store, retried(store, rng.sample(failed, 120))[1])

    together(*[lambda seed=seed: flush(seed) for seed in range(4)], lambda: sweep(store))
    settled(store, retried(store, failed)[1])
    assert {get(store, ending.lease.id).state for ending in failed} == {"queued"}
    assert sum(len(attempts(store, ending.lease.id)) for ending in failed) == 300
    assert [event[2] for event in log_of(store)].count("job.retry_scheduled") == 300


def test_a_sweep_and_endings_at_once_make_one(store):
    failed = endings(claimed(store, 60))
    close_worker(store)
    together(lambda: settled(store, retried(store, failed)[1]), lambda: sweep(store))
    for ending in failed:
        (attempt,) = attempts(store, ending.lease.id)
        assert (get(store, ending.lease.id).state, attempt.ended) in {
            ("queued", "failed"),
            ("queued", "lost"),
        }
