"""Groups of equal retries, settled by row location in their individual transaction."""

from __future__ import annotations

import json
from random import Random

import pytest

from mulligan import Exponential, Fixed, Policy, Then
from mulligan.config import RetrySection
from mulligan.core.attempt import Ended, Ending, Outcome
from mulligan.failures.facts import TRACE_MESSAGE_LIMIT
from mulligan.jobs.queries import JobQueries
from mulligan.manifest.specs import KindSpec
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker.fast.failure_cache import CachedFailureOutcome
from mulligan.worker.fast.grouped_endings import MIN_GROUP, GroupedEndings
from mulligan.worker.protocol import shared_failure_from_wire, shared_failure_to_wire
from mulligan.worker.queries import WorkerQueries
from mulligan.worker.runner.outcomes import outcome_of_exception
from mulligan.worker.settle import finish_simple, settle
from support.store import (
    BackgroundCall,
    attempts,
    claim,
    close_worker,
    enqueue,
    event_types,
    get,
    insert,
    is_postgres,
    is_waiting_for_lock,
    job_events,
    jobs,
    now,
    open_worker,
    read_event_table,
    run_concurrently,
    settle_orphans,
    unique_job,
)
from support.waiting import until

KIND = jobs(1)[0].kind
ODD = 'a "quoted" \\ text, größer \u2028 {} %s $1 \U0001f600'


def reset(number: int) -> Outcome:
    try:
        raise ConnectionError(f"request {number} was reset")
    except ConnectionError as error:
        return outcome_of_exception(error, 0)


def shared_outcome() -> Outcome:
    """Build the outcome that a supervisor receives for many attempts."""
    outcome = [reset(number) for number in range(2)][-1]
    assert isinstance(outcome, CachedFailureOutcome)
    _, item, head, tail, _ = shared_failure_to_wire(*outcome.shared[:2], [])
    return shared_failure_from_wire(item, head, tail)


def layers(**policy) -> EffectivePolicies:
    options = {"max_retries": 3, "backoff": Fixed(0), **policy}
    return EffectivePolicies(
        RetrySection(), {KIND: KindSpec(KIND, policy=Policy(**options).to_json())}
    )


AT_ONCE = layers()


def endings(leases, message="request {} was reset, " + ODD, duration_ms=3):
    outcome = shared_outcome()
    return [
        Ending(lease, outcome, duration_ms, message.replace("{}", str(n), 1))
        for n, lease in enumerate(leases)
    ]


def retried(store, failed, policies=AT_ONCE, moment=None):
    """Settle endings. Return the fences of those written, and the others."""
    moment = now(store) if moment is None else moment
    with store.single_statement() as tx:
        written = finish_simple(tx, failed, GroupedEndings(policies, moment, Random(7)))
    assert written.returned == []
    return fences(ending for _, group in written.retried for ending in group), written.rest


def settled(store, failed, policies=AT_ONCE, moment=None):
    with store.begin() as tx:
        settle(tx, failed, policies, tx.now() if moment is None else moment, Random(7))


def fences(endings):
    return {ending.lease.fence for ending in endings}


def claimed(store, many, **changes):
    open_worker(store)
    enqueue(store, many, **changes)
    return claim(store, many)


@pytest.mark.parametrize("many", [MIN_GROUP, 70])
def test_grouped_retries_write_what_settle_writes(store, many):
    moment = now(store)
    failed = endings(claimed(store, 2 * many))
    written, rest = retried(store, failed[:many], moment=moment)
    assert (written, rest) == (fences(failed[:many]), [])
    for start in range(many, 2 * many, MIN_GROUP - 1):  # as many as use the general form
        settled(store, failed[start : min(start + MIN_GROUP - 1, 2 * many)], moment=moment)
    rows, tries, events = set(), set(), set()
    individual = {
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
        rows.add(
            str({name: value for name, value in row._asdict().items() if name not in individual})
        )
        tries.add(
            str(
                {name: value for name, value in attempt._asdict().items() if name not in individual}
            )
        )
        private = json.loads(attempt.private)
        assert private == ending.outcome.failure.private.render(ending.message)
        assert [*private] == [*ending.outcome.failure.private]
        assert event_types(store, ending.lease.id) == ["queued", "started", "retry_scheduled"]
        event = job_events(store, ending.lease.id)[-1]
        assert (event.attempt, event.token, event.at) == (1, 1, attempt.ended_at)
        assert (
            event.data.pop("wait_ms")
            == max(0, ending.lease.started_at - ending.lease.run_at) // 1000
        )
        events.add(json.dumps(event.data))
    assert [len(found) for found in (rows, tries, events)] == [1, 1, 1]


def test_repeated_failures_are_recorded_as_such(store):
    failed = endings(claimed(store, MIN_GROUP))
    settled(store, failed)
    again = endings(claim(store, MIN_GROUP), duration_ms=0)
    assert [ending.lease.failures for ending in again] == [1] * MIN_GROUP
    settled(store, retried(store, again)[1])
    for ending in again:
        assert [one.token for one in attempts(store, ending.lease.id)] == [1, 2]
        assert get(store, ending.lease.id).failures == 2
        assert job_events(store, ending.lease.id)[-1].data["failed_before"] == 1


@pytest.mark.parametrize(
    ("changes", "policies"),
    [
        ({}, layers(max_retries=0)),
        ({}, layers(backoff=Exponential(5))),
        ({}, layers(max_age=60)),
        ({}, layers(then=Then(queue="slow"))),
    ],
)
def test_retries_with_other_changes_use_the_general_form(store, changes, policies):
    failed = endings(claimed(store, MIN_GROUP, **changes))
    assert retried(store, failed, policies) == (set(), failed)


def test_small_groups_use_the_general_form(store):
    failed = endings(claimed(store, MIN_GROUP - 1))
    assert retried(store, failed) == (set(), failed)


def test_retries_with_long_messages_use_the_general_form(store):
    failed = endings(claimed(store, MIN_GROUP), message="x" * (TRACE_MESSAGE_LIMIT + 1))
    assert retried(store, failed) == (set(), failed)


def test_retries_without_a_duration_use_the_general_form(store):
    failed = endings(claimed(store, MIN_GROUP), duration_ms=None)
    assert retried(store, failed) == (set(), failed)


def test_retries_that_release_their_key_use_the_general_form(store):
    open_worker(store)
    insert(store, *[unique_job(f"key {n}", cover=("running",)) for n in range(MIN_GROUP)])
    failed = endings(claim(store, MIN_GROUP))
    assert retried(store, failed) == (set(), failed)


def test_successes_among_retries_are_written_too(store):
    leases = claimed(store, 2 * MIN_GROUP)
    failed, done = (
        endings(leases[:MIN_GROUP]),
        [Ending(lease, Outcome(Ended.RETURNED, "null"), 3) for lease in leases[MIN_GROUP:]],
    )
    with store.single_statement() as tx:
        written = finish_simple(tx, [*failed, *done], GroupedEndings(AT_ONCE, tx.now(), Random(7)))
    settled(store, written.rest)
    states = [get(store, lease.id).state for lease in leases]
    assert states == ["queued"] * MIN_GROUP + ["succeeded"] * MIN_GROUP


def test_retries_whose_fence_may_fail_are_left_to_settle(store):
    leases = claimed(store, MIN_GROUP + 4)
    cancelled, other, ended, moved, *_ = failed = endings(leases)
    with store.begin() as tx:
        assert JobQueries(tx).request_cancel(
            cancelled.lease.id, cancelled.lease.token, "no longer wanted"
        )
        WorkerQueries(tx).update_progress("w1", [(moved.lease.id, moved.lease.token, 0.5, "half")])
    settled(store, [ended])
    failed[1] = other = other._replace(
        lease=other.lease._replace(row_location=failed[-1].lease.row_location)
    )
    written, rest = retried(store, failed)
    if is_postgres(store):  # a store may write none
        assert (written, fences(rest)) == (
            fences(failed[4:]),
            fences([cancelled, other, ended, moved]),
        )
    assert get(store, cancelled.lease.id).state == get(store, other.lease.id).state == "running"
    assert len(attempts(store, ended.lease.id)) == 1
    settled(store, rest)
    assert get(store, cancelled.lease.id).state == "cancelled"
    assert {get(store, ending.lease.id).state for ending in failed[1:]} == {"queued"}
    assert {len(attempts(store, ending.lease.id)) for ending in failed} == {1}


@pytest.mark.parametrize("how", ["another worker", "another token"])
def test_a_lease_of_another_worker_is_refused(store, how):
    leases = claimed(store, MIN_GROUP)
    changed = {"worker": "w2"} if how == "another worker" else {"token": 2}
    failed = endings([lease._replace(**changed) for lease in leases])
    assert retried(store, failed) == (set(), failed)
    assert {get(store, lease.id).state for lease in leases} == {"running"}


@pytest.mark.parametrize("place", [None, "(4294967295,65535)", "(0,0)"])
def test_a_location_without_a_row_changes_nothing(store, place):
    failed = endings([lease._replace(row_location=place) for lease in claimed(store, MIN_GROUP)])
    written, rest = retried(store, failed)
    assert written == (set() if is_postgres(store) else fences(failed))
    settled(store, rest)
    assert {get(store, ending.lease.id).state for ending in failed} == {"queued"}


def test_a_locked_row_is_waited_for_and_checked_again(store):
    if not store.concurrent_writers:
        pytest.skip("SQLite has one writer")
    failed = endings(claimed(store, MIN_GROUP))
    first = failed[0].lease
    with store.begin() as tx:
        assert JobQueries(tx).request_cancel(first.id, first.token, "no longer wanted")
        ending = BackgroundCall(lambda: retried(store, failed))
        until(lambda: is_waiting_for_lock(store))
    written, rest = ending.result()
    assert (written, fences(rest)) == (fences(failed[1:]), {first.fence})
    assert get(store, first.id).state == "running"


def test_many_threads_with_overlapping_retries_and_a_sweep_write_each_once(store):
    failed = endings(claimed(store, 300))

    def flush(seed: int) -> None:
        rng = Random(seed)
        for _ in range(6):
            settled(store, retried(store, rng.sample(failed, 120))[1])

    run_concurrently(
        *[lambda seed=seed: flush(seed) for seed in range(4)], lambda: settle_orphans(store)
    )
    settled(store, retried(store, failed)[1])
    assert {get(store, ending.lease.id).state for ending in failed} == {"queued"}
    assert sum(len(attempts(store, ending.lease.id)) for ending in failed) == 300
    assert [event[2] for event in read_event_table(store)].count("job.retry_scheduled") == 300


def test_a_concurrent_sweep_and_retries_write_one_ending_each(store):
    failed = endings(claimed(store, 60))
    close_worker(store)
    run_concurrently(
        lambda: settled(store, retried(store, failed)[1]), lambda: settle_orphans(store)
    )
    for ending in failed:
        (attempt,) = attempts(store, ending.lease.id)
        assert (get(store, ending.lease.id).state, attempt.ended) in {
            ("queued", "failed"),
            ("queued", "lost"),
        }
