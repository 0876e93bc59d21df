"""Claims from several lanes: order, shares, limits and gates, and how many statements they take."""

from __future__ import annotations

import pytest

from mulligan.core.attempt import Ended, Outcome
from mulligan.core.durations import SECOND
from mulligan.core.job import Gate, Limit, LimitRow
from mulligan.guards.lanes import MAX_KNOWN, MAX_LANES, read_depth
from mulligan.guards.limits import NO_LIMIT
from mulligan.guards.queries import GuardQueries
from mulligan.manifest.queries import ManifestQueries
from mulligan.manifest.specs import Manifest, QueueSpec
from mulligan.storage.postgres_transaction import PostgresTransaction
from mulligan.storage.sqlite import SqliteTransaction
from mulligan.worker.claim import DECLARATIONS_TTL, Claimer
from mulligan.worker.queries import LeaseQueries
from support.store import (
    KINDS,
    a_job,
    claim,
    close_worker,
    enqueue,
    event_types,
    insert,
    is_postgres,
    jobs,
    now,
    open_worker,
    settle_leases,
    sql,
)

LANE = "default|render||0"
RETRY_LANE = "default|render||1"


@pytest.fixture(autouse=True)
def _worker(store):
    open_worker(store)


@pytest.fixture
def claimer(store):
    """Return a claimer that has claimed from the lane before."""
    claimer = Claimer("w1", KINDS)
    enqueue(store)
    settle_leases(store, claim(store, claimer=claimer))
    return claimer


def taken(store, claimer, n):
    with store.single_statement() as tx:
        return [lease.id for lease in claimer.claim(tx, n).leases]


def close_gate(store, scope, key, until=None):
    with store.begin() as tx:
        GuardQueries(tx).close_gate(Gate(scope, key, tx.now(), until, "closed", "a person"))


def set_limit(store, key, concurrency, until=None):
    with store.begin() as tx:
        GuardQueries(tx).set_limit(
            LimitRow("queue", key, concurrency, None, tx.now(), until, "", "")
        )


# --- Statements of a claim ---
@pytest.fixture
def statements(monkeypatch):
    """Return the names of the statements that were run."""
    names = []
    for transaction in (PostgresTransaction, SqliteTransaction):

        def run(self, statement, *args, original=transaction._run, **options):
            names.append(statement)
            return original(self, statement, *args, **options)

        monkeypatch.setattr(transaction, "_run", run)
    return names


def test_a_claim_is_two_statements_on_postgres(postgres, statements):
    claimer = Claimer(open_worker(postgres), KINDS)
    enqueue(postgres)
    taken(postgres, claimer, 5)
    ids = enqueue(postgres, 3)
    statements.clear()
    assert taken(postgres, claimer, 5) == ids
    assert statements == ["read_claim_state", "claim_from_lanes"]


def test_a_claim_from_a_lane_that_was_not_expected_is_three_statements(postgres, statements):
    claimer = Claimer(open_worker(postgres), KINDS)
    taken(postgres, claimer, 5)
    ids = enqueue(postgres, 3)
    statements.clear()
    assert taken(postgres, claimer, 5) == ids
    assert statements == ["read_claim_state", "list_due_jobs", "claim_from_lanes"]


def test_a_claim_without_due_jobs_is_one_statement(postgres, statements):
    claimer = Claimer(open_worker(postgres), KINDS)
    enqueue(postgres)
    taken(postgres, claimer, 5)
    statements.clear()
    assert taken(postgres, claimer, 5) == []
    assert statements == ["read_claim_state"]


def test_the_number_of_expected_lanes_is_bounded(store, claimer):
    insert(store, *[a_job(queue=f"q{n}") for n in range(MAX_LANES + 5)])
    assert len(taken(store, claimer, 1)) == 1
    assert len(claimer.scan.expected) == MAX_KNOWN
    assert len(taken(store, claimer, 1000)) == MAX_LANES + 4


@pytest.mark.parametrize(
    ("lanes", "slots", "depth"),
    [(0, 10, 10), (1, 10, 10), (20, 10, 10), (20, 4000, 410), (1000, 10, 2), (1000, 4000, 8)],
)
def test_the_depth_to_read_is_about_twice_a_lanes_share(lanes, slots, depth):
    assert read_depth(lanes, slots) == depth


# --- Order ---
def test_a_lane_with_most_of_the_oldest_jobs_is_read_deep_enough(store):
    moment = now(store)
    old = [a_job(queue="q0", run_at=moment - 2 * SECOND) for _ in range(150)]
    others = [a_job(queue=f"q{n % 30}", run_at=moment - SECOND) for n in range(1, 300)]
    insert(store, *others, *old)
    assert taken(store, Claimer("w1", KINDS), 140) == [job.id for job in old[:140]]


def test_high_priority_jobs_of_one_lane_come_before_all_others(store):
    urgent = [a_job(queue="q0", priority=-5) for _ in range(150)]
    others = [a_job(queue=f"q{n % 30}", run_at=now(store) - 60 * SECOND) for n in range(300)]
    insert(store, *others, *urgent)
    assert taken(store, Claimer("w1", KINDS), 140) == [job.id for job in urgent[:140]]


def test_full_claims_continue_in_order(store, claimer):
    ids = enqueue(store, 45)
    claims = [taken(store, claimer, 20) for _ in range(4)]
    assert claims == [ids[:20], ids[20:40], ids[40:], []]


def test_all_free_slots_are_filled(store, claimer):
    ids = enqueue(store, 5)
    assert taken(store, claimer, 3) == ids[:3]
    assert taken(store, claimer, 3) == ids[3:]


def test_earlier_jobs_and_other_lanes_are_in_the_next_claim(store, claimer):
    ids = enqueue(store, 40)
    assert taken(store, claimer, 10) == ids[:10]
    (early,) = enqueue(store, 1, run_at=now(store) - 60 * SECOND)
    (urgent,) = enqueue(store, 1, priority=-9)
    (other,) = enqueue(store, 1, queue="other", run_at=now(store) - 50 * SECOND)
    assert taken(store, claimer, 4) == [urgent, early, other, ids[10]]


def test_released_jobs_are_in_the_next_claim(store, claimer):
    ids = enqueue(store, 30)
    leases = claim(store, 10, claimer=claimer)
    settle_leases(store, leases, Outcome(Ended.RELEASED, reason="given back"))
    assert sorted(taken(store, claimer, 100)) == ids


def test_two_concurrent_claims_share_the_jobs_without_waiting(store, claimer):
    other = Claimer(open_worker(store, "w2"), KINDS)
    insert(store, *jobs(20))
    with store.begin() as tx:
        mine = claimer.claim(tx, 8).leases
        if is_postgres(store):
            theirs = claim(store, 8, claimer=other)
    if not is_postgres(store):
        theirs = claim(store, 8, claimer=other)
    assert len({lease.id for lease in mine + theirs}) == 16


def test_jobs_that_another_worker_took_are_replaced_by_the_next_of_their_lane(postgres):
    open_worker(postgres)
    open_worker(postgres, "w2")
    ids = enqueue(postgres, 20)
    with postgres.single_statement() as tx:
        picked = GuardQueries(tx).list_due_jobs([(LANE, 0)], 5)
        assert [lease.id for lease in LeaseQueries(tx).claim_candidates("w2", picked)] == ids[:5]
        assert [lease.id for lease in LeaseQueries(tx).claim_candidates("w1", picked)] == ids[5:10]


# --- Leases ---
def test_the_lease_contains_the_job_and_the_events_are_written(store, claimer):
    insert(store, a_job(owner="ada", payload='{"a": "b"}', timeout=7, max_retries=3, policy="{}"))
    (lease,) = claim(store, 10, claimer=claimer)
    assert (lease.worker, lease.token, lease.attempt, lease.owner) == ("w1", 1, 1, "ada")
    assert (lease.payload, lease.timeout, lease.max_retries, lease.alone) == (
        '{"a": "b"}',
        7,
        3,
        False,
    )
    assert event_types(store, lease.id) == ["queued", "started"]
    settle_leases(store, lease)
    assert event_types(store, lease.id) == ["queued", "started", "succeeded"]


def test_a_callers_job_is_announced_when_it_is_claimed(store, claimer):
    (job,) = insert(store, a_job(), announce=False)
    assert taken(store, claimer, 1) == [job.id]
    assert event_types(store, job.id) == ["queued", "started"]


def test_the_result_says_when_the_next_job_is_due(store, claimer):
    enqueue(store, 3)
    later = now(store) + 60 * SECOND
    enqueue(store, 1, run_at=later, queue="other")
    with store.single_statement() as tx:
        claimed = claimer.claim(tx, 2)
    assert (len(claimed.leases), claimed.more_due, claimed.next_due) == (2, True, later)


# --- Gates and limits between two claims ---
@pytest.mark.parametrize(("scope", "key"), [("queue", "default"), ("kind", "render")])
def test_a_gate_that_closes_between_two_claims_stops_fresh_jobs_and_retries(
    store, claimer, scope, key
):
    enqueue(store, 5)
    enqueue_retries(store, 5)
    close_gate(store, scope, key)
    assert taken(store, claimer, 10) == []


def test_expired_gates_and_limits_do_not_prevent_a_claim(store, claimer):
    close_gate(store, "queue", "default", until=now(store) + SECOND)
    set_limit(store, "default", 1, until=now(store) + SECOND)
    store.shift_clock(2 * SECOND)
    ids = enqueue(store, 3)
    assert taken(store, claimer, 10) == ids


def test_a_limit_that_an_operator_sets_between_two_claims_is_respected(store, claimer):
    enqueue(store, 40)
    assert len(taken(store, claimer, 5)) == 5
    set_limit(store, "default", 6)
    assert len(taken(store, claimer, 10)) == 1


def test_a_worker_that_was_closed_claims_nothing(store, claimer):
    enqueue(store, 5)
    close_worker(store)
    assert taken(store, claimer, 10) == []


def test_a_removed_kind_is_not_claimed_any_more(store, claimer):
    claimer.kinds = frozenset({"mail"})
    enqueue(store)
    assert taken(store, claimer, 10) == []


def declare(store, *queues):
    manifest = Manifest("app", "", {}, {spec.name: spec for spec in queues}, {})
    with store.begin() as tx:
        ManifestQueries(tx).store_manifest(
            manifest.id, manifest.app, manifest.release, manifest.to_json()
        )


def test_a_declared_limit_holds_as_soon_as_it_is_read(store, claimer):
    declare(store, QueueSpec("default", concurrency=1))
    store.shift_clock(DECLARATIONS_TTL + SECOND)
    enqueue(store, 5)
    assert len(taken(store, claimer, 10)) == 1
    assert taken(store, claimer, 10) == []


def test_declared_limits_are_read_again_while_no_job_waits(store, claimer, statements):
    store.shift_clock(DECLARATIONS_TTL - SECOND // 2)
    enqueue(store)
    assert len(taken(store, claimer, 1)) == 1
    assert "list_manifests" not in statements
    assert taken(store, claimer, 1) == []
    assert "list_manifests" in statements


def test_a_declared_limit_that_an_operator_lifted_holds_again_when_that_is_cleared(store):
    claimer = Claimer("w1", KINDS, app_limits={("queue", "default"): Limit(concurrency=1)})
    set_limit(store, "default", NO_LIMIT)
    enqueue(store, 3)
    assert len(taken(store, claimer, 10)) == 3
    with store.begin() as tx:
        assert GuardQueries(tx).clear_limit(("queue", "default"))
    enqueue(store, 3)
    assert taken(store, claimer, 10) == []


# --- Fresh work and retries ---
def enqueue_retries(store, n, **options):
    ids = enqueue(store, n, **options)
    for job_id in ids:
        sql(
            store,
            "UPDATE {p}job SET lane = :lane, failures = 1 WHERE id = :id",
            {"lane": RETRY_LANE, "id": job_id},
        )
    return ids


@pytest.fixture
def both(store):
    """Return a claimer with fresh jobs and younger retries, and both lists."""
    moment = now(store)
    fresh = enqueue(store, 60, run_at=moment - 2 * SECOND)
    return Claimer("w1", KINDS), fresh, enqueue_retries(store, 60, run_at=moment - SECOND)


def test_fresh_jobs_and_retries_are_claimed_by_their_shares(store, both):
    claimer, fresh, retries = both
    assert taken(store, claimer, 20) == [*fresh[:9], retries[0], *fresh[9:18], retries[1]]
    assert sorted(taken(store, claimer, 25)) == sorted(fresh[18:41] + retries[2:4])
    assert claimer._retry_credit == pytest.approx(0.5)
    assert sorted(taken(store, claimer, 5)) == sorted(fresh[41:45] + retries[4:5])


def test_older_retries_get_the_larger_share(store):
    moment = now(store)
    fresh = enqueue(store, 60, run_at=moment - SECOND)
    retries = enqueue_retries(store, 60, run_at=moment - 2 * SECOND)
    claimer = Claimer("w1", KINDS)
    assert sorted(taken(store, claimer, 20)) == sorted(fresh[:14] + retries[:6])
    assert sorted(taken(store, claimer, 20)) == sorted(fresh[14:28] + retries[6:12])


def test_a_lane_fills_the_slots_that_the_other_leaves(store, both):
    claimer, fresh, retries = both
    assert sorted(taken(store, claimer, 50)) == sorted(fresh[:45] + retries[:5])
    assert sorted(taken(store, claimer, 50)) == sorted(fresh[45:] + retries[5:40])
    (late,) = enqueue(store, 1)
    assert sorted(taken(store, claimer, 50)) == sorted([*retries[40:], late])
    assert taken(store, claimer, 50) == []


def test_unused_retry_slots_go_to_fresh_jobs(store):
    fresh = enqueue(store, 60, run_at=now(store) - SECOND)
    (retry,) = enqueue_retries(store, 1)
    claimer = Claimer("w1", KINDS)
    assert sorted(taken(store, claimer, 30)) == sorted([*fresh[:29], retry])
    assert taken(store, claimer, 30) == fresh[29:59]


def test_a_job_that_failed_meanwhile_is_in_the_next_claim(store, both):
    claimer, _, _ = both
    taken(store, claimer, 20)
    sql(store, "DELETE FROM {p}job WHERE state = 'queued' AND lane = :lane", {"lane": RETRY_LANE})
    (again,) = enqueue_retries(store, 1)
    assert again in taken(store, claimer, 20)


def test_a_third_lane_is_in_the_next_claim(store, both):
    claimer, _, _ = both
    taken(store, claimer, 20)
    (urgent,) = enqueue(store, 1, priority=-9)
    assert taken(store, claimer, 20)[0] == urgent
