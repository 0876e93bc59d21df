"""Break each invariant in an otherwise correct database: the checker reports it, and no other."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.event import EventType, NewEvent
from mulligan.doctor.verify import Clients, verify, witness
from mulligan.events.queries import EventQueries
from support.store import (
    FAILED,
    FATAL,
    LOST,
    a_job,
    claim,
    claim_new_job,
    claim_when_due,
    close_worker,
    enqueue,
    get,
    insert,
    is_postgres,
    migrated,
    open_worker,
    read_event_table,
    run_once,
    save_checkpoint,
    settle_leases,
    sql,
    unique_job,
)


@pytest.fixture
def store(store_url):
    with migrated(store_url) as opened:
        yield opened


def broken(store, **options):
    """Return the ids of the broken invariants."""
    return set(verify(store, **options).counts)


def insert_event(store, job, kind, *, token=None, attempt=None, actor="", **data):
    sql(
        store,
        "INSERT INTO {p}event (at, type, job_id, owner, attempt, token, actor, data) "
        "SELECT max(at), :type, :job, 'acme', CAST(:attempt AS INTEGER), CAST(:token AS INTEGER), :actor, :data "
        "FROM {p}event",
        {
            "type": kind,
            "job": job,
            "attempt": attempt,
            "token": token,
            "actor": actor,
            "data": json.dumps(data),
        },
    )


def context_of(lease):
    job = SimpleNamespace(id=lease.id, kind=lease.kind)
    return SimpleNamespace(job=job, attempt=lease.attempt, token=lease.token)


# -- Correct databases --------------------------------------------------------------------------------
def test_correct_histories_break_no_invariant(store):
    run_once(store, FATAL)
    lease = claim_new_job(store)
    settle_leases(store, lease, FAILED)
    settle_leases(store, claim_when_due(store, lease.id))
    lost = claim_new_job(store)
    settle_leases(store, lost, LOST)
    settle_leases(store, claim_when_due(store, lost.id))
    insert(store, unique_job("k"), a_job(), announce=False)
    enqueue(store, 3)
    report = verify(store)
    assert (report.ok, report.jobs) == (True, 8), report.to_dict()


def test_without_files_only_invariants_of_the_database_are_checked(store):
    enqueue(store)
    report = verify(store)
    assert {"S8", "S1", "L1"}.isdisjoint(report.checked)
    assert {"S2", "S18", "U1", "N1", "D1"} <= set(report.checked)


# -- Replay of one job ---------------------------------------------------------------------------------------
def test_a_second_end_of_a_job_breaks_s2(store):
    job = run_once(store, FATAL)
    insert_event(store, job, "job.succeeded", token=1, attempt=1)
    assert "S2" in broken(store)


def test_a_generation_without_an_actor_breaks_s2(store):
    job = run_once(store, FATAL)
    sql(
        store,
        "UPDATE {p}job SET state = 'queued', generation = 2, attempt = 0, failures = 0, error = NULL, "
        "finished_at = NULL, died_code = NULL, died_class = NULL, died_group = NULL",
    )
    insert_event(store, job, "job.retried", **{"from": "dead", "generation": 2})
    assert broken(store) == {"S2"}


def test_a_start_after_the_end_breaks_s3(store):
    job = run_once(store, FATAL)
    insert_event(store, job, "job.started", token=2, attempt=2, worker="w1")
    assert "S3" in broken(store)


def test_an_illegal_move_breaks_s4(store):
    (job,) = enqueue(store)
    insert_event(store, job, "job.discarded", actor="kim", **{"from": "queued"})
    assert "S4" in broken(store)


def test_a_token_that_does_not_grow_breaks_s5(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, LOST)
    insert_event(store, lease.id, "job.started", token=1, attempt=2, worker="w1")
    assert "S5" in broken(store)


def test_a_second_claim_of_a_running_job_breaks_s6(store):
    lease = claim_new_job(store)
    insert_event(store, lease.id, "job.started", token=2, attempt=2, worker="w2")
    assert "S6" in broken(store)


def test_an_end_with_another_token_breaks_s7(store):
    lease = claim_new_job(store)
    insert_event(store, lease.id, "job.succeeded", token=7, attempt=1)
    assert "S7" in broken(store)


def test_an_attempt_settled_by_another_worker_breaks_s7(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, FAILED)
    sql(store, "UPDATE {p}attempt SET settled_by = 'w9'")
    assert broken(store) == {"S7"}


def test_a_success_written_by_another_worker_breaks_s7(store):
    lease = claim_new_job(store)
    settle_leases(store, lease)
    sql(store, "UPDATE {p}job SET succeeded_by = 'w9'")
    assert broken(store) == {"S7"}


def insert_late_checkpoint(store):
    lease = claim_new_job(store)
    with store.begin() as tx:
        assert save_checkpoint(tx, lease, "half", "1")
    settle_leases(store, lease, LOST)
    sql(store, "UPDATE {p}step SET ended_at = ended_at + 60000000")


def test_a_checkpoint_after_the_end_of_its_attempt_breaks_s7_on_postgresql(store):
    insert_late_checkpoint(store)
    assert broken(store) == ({"S7"} if is_postgres(store) else set())


def test_a_late_checkpoint_is_ignored_if_the_clock_was_set_back_during_the_attempt(store):
    insert_late_checkpoint(store)
    sql(store, "UPDATE {p}attempt SET ended_at = started_at - 900000000")
    assert "S7" not in broken(store)


def test_an_uncounted_failure_breaks_s12(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, FAILED)
    sql(store, "UPDATE {p}job SET failures = 0")
    assert broken(store) == {"S12"}


def test_an_uncounted_loss_breaks_s12(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, LOST)
    sql(store, "UPDATE {p}job SET losses = 0")
    assert broken(store) == {"S12"}


def test_a_start_before_the_due_time_breaks_s13(store):
    insert(store, job := a_job(delay=600 * SECOND))
    open_worker(store)
    insert_event(store, job.id, "job.started", token=1, attempt=1, worker="w1")
    assert "S13" in broken(store)


@pytest.mark.parametrize("early", [0, SECOND // 20])
def test_a_retry_that_is_due_before_its_attempt_began_breaks_s14(store, early):
    lease = claim_new_job(store)
    due = lease.started_at - early
    insert_event(
        store,
        lease.id,
        "job.retry_scheduled",
        token=lease.token,
        attempt=lease.attempt,
        next_retry_at=due,
    )
    assert ("S14" in broken(store)) == (early > 0 and is_postgres(store))


def test_a_retry_after_a_cancel_request_breaks_s16(store):
    lease = claim_new_job(store)
    insert_event(store, lease.id, "job.cancel_requested", actor="kim")
    settle_leases(store, lease, FAILED)
    assert broken(store) == {"S16"}


def test_a_row_that_differs_from_its_events_breaks_s18(store):
    job = run_once(store, FATAL)
    sql(store, "UPDATE {p}job SET attempt = 0")
    assert broken(store) == {"S18"}
    assert get(store, job).state == "dead"


def test_a_claim_by_a_lost_worker_breaks_s10(store):
    open_worker(store)
    close_worker(store)
    with store.begin() as tx:
        EventQueries(tx).write_events([NewEvent(EventType.WORKER_LOST, data={"worker": "w1"})])
    if is_postgres(store):
        store.shift_clock(60 * SECOND)
    sql(store, "UPDATE {p}worker SET closed_at = NULL")
    enqueue(store)
    claim(store)
    assert "S10" in broken(store)


def test_a_lease_renewed_by_another_clock_breaks_s10_on_postgresql(store):
    open_worker(store)
    sql(store, "UPDATE {p}worker SET renewed_at = started_at - 900000000")
    assert broken(store) == ({"S10"} if is_postgres(store) else set())


# -- Several jobs -------------------------------------------------------------------------------------
def test_two_jobs_with_one_key_break_u1(store):
    insert(store, unique_job("one"))
    insert(store, twin := unique_job("two"))
    sql(store, "UPDATE {p}job SET unique_key = 'one' WHERE id = :id", {"id": twin.id})
    assert broken(store) == {"U1"}


def test_two_jobs_of_one_slot_break_c1(store):
    for job in (*enqueue(store), *enqueue(store)):
        insert_event(store, job, "job.queued", schedule="nightly", slot_at=7, run_at=0)
        sql(
            store,
            "DELETE FROM {p}event WHERE job_id = :job AND data NOT LIKE :pattern",
            {"job": job, "pattern": "%nightly%"},
        )
    assert broken(store) == {"C1"}


# -- Clients file -------------------------------------------------------------------------------------
def test_an_accepted_job_that_does_not_exist_breaks_s1(store, tmp_path):
    clients = Clients(tmp_path / "clients")
    with clients.call("enqueue", kind="render") as call:
        call.ok("01-gone")
    assert broken(store, clients=[clients.path]) == {"S1"}


def test_an_unrequested_job_breaks_s1_but_a_job_of_an_unknown_call_does_not(store, tmp_path):
    clients = Clients(tmp_path / "clients")
    insert(store, a_job(payload='{"n":1}'), a_job(payload='{"n":2}'))
    clients.call("enqueue", kind="render", payload={"n": 1}).__enter__()
    report = verify(store, clients=[clients.path])
    assert (set(report.counts), report.counts["S1"]) == ({"S1"}, 1)


def test_a_rolled_back_job_that_exists_breaks_s17(store, tmp_path):
    clients = Clients(tmp_path / "clients")
    (job,) = enqueue(store)
    with clients.call("enqueue", kind="other") as call:
        call.rolled_back(job)
    assert broken(store, clients=[clients.path]) == {"S17"}


def test_an_accepted_retry_without_an_event_breaks_s1(store, tmp_path):
    clients = Clients(tmp_path / "clients")
    job = run_once(store, FATAL)
    with clients.call("retry", job=job) as call:
        call.ok(job)
    assert broken(store, clients=[clients.path]) == {"S1"}


def test_a_key_that_returns_a_job_with_another_payload_breaks_u3(store, tmp_path):
    clients = Clients(tmp_path / "clients")
    insert(store, job := unique_job("k"))
    with clients.call("enqueue", kind="render", key="k", payload={"another": 1}) as call:
        call.ok(job.id)
    assert broken(store, clients=[clients.path]) == {"U3"}


def test_a_follower_of_the_log_that_missed_an_event_breaks_n5(store, tmp_path):
    clients = Clients(tmp_path / "clients", "sse-1")
    enqueue(store, 3)
    first, _, third = [event[0] for event in read_event_table(store)]
    for event_id in (first, third):
        clients.received("event", event=event_id, owner="acme")
    assert broken(store, clients=[clients.path]) == {"N5"}


# -- Witness file -----------------------------------------------------------------------------------
def test_a_success_whose_handler_did_not_finish_breaks_s9(store, tmp_path):
    lease = claim_new_job(store)
    witness(tmp_path / "witness", context_of(lease), "start")
    settle_leases(store, lease)
    assert broken(store, witness=[tmp_path / "witness"]) == {"S9"}


def test_a_stored_result_that_was_not_returned_breaks_s9(store, tmp_path):
    lease = claim_new_job(store)
    witness(tmp_path / "witness", context_of(lease), "end", result={"pages": 4})
    settle_leases(store, lease)
    assert broken(store, witness=[tmp_path / "witness"]) == {"S9"}


@pytest.mark.parametrize(("outcome", "found"), [(FAILED, {"S8"}), (LOST, set())])
def test_overlapping_handlers_break_s8_unless_the_first_was_lost(store, tmp_path, outcome, found):
    first = claim_new_job(store)
    witness(tmp_path / "witness", context_of(first), "start")
    settle_leases(store, first, outcome)
    second = claim_when_due(store, first.id)
    witness(tmp_path / "witness", context_of(second), "start")
    witness(tmp_path / "witness", context_of(first), "end")
    assert broken(store, witness=[tmp_path / "witness"]) == found


def test_a_token_that_was_run_twice_breaks_s6(store, tmp_path):
    lease = claim_new_job(store)
    for _ in range(2):
        witness(tmp_path / "witness", context_of(lease), "start")
    assert broken(store, witness=[tmp_path / "witness"]) == {"S6"}


# -- Settled databases -------------------------------------------------------------------------------------
def test_a_job_running_on_a_closed_worker_breaks_l2_in_a_settled_database(store):
    lease = claim_new_job(store)
    close_worker(store, lease.worker)
    sql(store, "UPDATE {p}job SET started_at = started_at - 60000000")
    assert broken(store) == set()
    assert broken(store, settled=True, slack=1) == {"L2"}


def test_a_due_job_that_is_not_held_breaks_l1_in_a_settled_database(store):
    open_worker(store, kinds='["render"]')
    insert(store, a_job())
    sql(store, "UPDATE {p}job SET run_at = run_at - 60000000")
    assert broken(store, settled=True, slack=1) == {"L1"}


def test_a_violation_includes_the_story_of_its_job(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, FAILED)
    sql(store, "UPDATE {p}job SET failures = 0")
    (found,) = verify(store).violations
    assert "failed" in found.story
    assert "counted" in found.sentence
