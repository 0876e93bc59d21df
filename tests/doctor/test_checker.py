"""Each invariant, broken by hand in a store that is otherwise well: the checker names it, and nothing else is wrong."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.event import EventType, NewEvent
from mulligan.doctor.verify import Clients, verify, witness
from support.store import (
    FAILED,
    FATAL,
    LOST,
    a_job,
    claim,
    close_worker,
    ended,
    enqueue,
    finish,
    get,
    insert,
    is_postgres,
    log_of,
    migrated,
    once_more,
    open_worker,
    running,
    sql,
    unique_job,
)


@pytest.fixture
def store(store_url):
    with migrated(store_url) as opened:
        yield opened


def broken(store, **given):
    return set(verify(store, **given).counts)


def event(store, job, kind, *, token=None, attempt=None, actor="", **data):
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


def a_context(lease):
    job = SimpleNamespace(id=lease.id, kind=lease.kind)
    return SimpleNamespace(job=job, attempt=lease.attempt, token=lease.token)


# -- what is well --------------------------------------------------------------------------------
def test_lives_of_every_kind_break_nothing(store):
    ended(store, FATAL)
    lease = running(store)
    finish(store, lease, FAILED)
    finish(store, once_more(store, lease.id))
    lost = running(store)
    finish(store, lost, LOST)
    finish(store, once_more(store, lost.id))
    insert(store, unique_job("k"), a_job(), announce=False)
    enqueue(store, 3)
    report = verify(store)
    assert (report.ok, report.jobs) == (True, 8), report.to_plain()


def test_a_store_alone_is_judged_by_what_it_can_show(store):
    enqueue(store)
    report = verify(store)
    assert {"S8", "S1", "L1"}.isdisjoint(report.checked)
    assert {"S2", "S18", "U1", "N1", "D1"} <= set(report.checked)


# -- lives ---------------------------------------------------------------------------------------
def test_an_ending_after_the_end_breaks_s2(store):
    job = ended(store, FATAL)
    event(store, job, "job.succeeded", token=1, attempt=1)
    assert "S2" in broken(store)


def test_a_generation_that_nobody_began_breaks_s2(store):
    job = ended(store, FATAL)
    sql(
        store,
        "UPDATE {p}job SET state = 'queued', generation = 2, attempt = 0, failures = 0, error = NULL, "
        "finished_at = NULL, died_code = NULL, died_class = NULL, died_group = NULL",
    )
    event(store, job, "job.retried", **{"from": "dead", "generation": 2})
    assert broken(store) == {"S2"}


def test_a_start_after_the_end_breaks_s3(store):
    job = ended(store, FATAL)
    event(store, job, "job.started", token=2, attempt=2, worker="w1")
    assert "S3" in broken(store)


def test_a_move_that_is_not_in_the_table_breaks_s4(store):
    (job,) = enqueue(store)
    event(store, job, "job.discarded", actor="kim", **{"from": "queued"})
    assert "S4" in broken(store)


def test_a_token_that_does_not_grow_breaks_s5(store):
    lease = running(store)
    finish(store, lease, LOST)
    event(store, lease.id, "job.started", token=1, attempt=2, worker="w1")
    assert "S5" in broken(store)


def test_a_second_claim_of_what_runs_breaks_s6(store):
    lease = running(store)
    event(store, lease.id, "job.started", token=2, attempt=2, worker="w2")
    assert "S6" in broken(store)


def test_an_ending_with_another_token_breaks_s7(store):
    lease = running(store)
    event(store, lease.id, "job.succeeded", token=7, attempt=1)
    assert "S7" in broken(store)


def test_an_attempt_that_another_worker_ended_breaks_s7(store):
    lease = running(store)
    finish(store, lease, FAILED)
    sql(store, "UPDATE {p}attempt SET settled_by = 'somebody'")
    assert broken(store) == {"S7"}


def test_a_success_at_once_that_another_worker_wrote_breaks_s7(store):
    lease = running(store)
    finish(store, lease)
    sql(store, "UPDATE {p}job SET ran_by = 'somebody'")
    assert broken(store) == {"S7"}


def a_late_checkpoint(store):
    lease = running(store)
    with store.begin() as unit:
        assert unit.save_checkpoint(lease.id, lease.worker, lease.token, "half", "1")
    finish(store, lease, LOST)
    sql(store, "UPDATE {p}checkpoint SET at = at + 60000000")


def test_a_checkpoint_after_the_end_of_its_attempt_breaks_s7_where_there_is_one_clock(store):
    a_late_checkpoint(store)
    assert broken(store) == ({"S7"} if is_postgres(store) else set())


def test_where_the_clock_was_set_back_during_an_attempt_its_times_prove_nothing(store):
    a_late_checkpoint(store)
    sql(store, "UPDATE {p}attempt SET ended_at = started_at - 900000000")
    assert "S7" not in broken(store)


def test_a_failure_that_is_not_counted_breaks_s12(store):
    lease = running(store)
    finish(store, lease, FAILED)
    sql(store, "UPDATE {p}job SET failures = 0")
    assert broken(store) == {"S12"}


def test_a_loss_that_is_not_counted_breaks_s12(store):
    lease = running(store)
    finish(store, lease, LOST)
    sql(store, "UPDATE {p}job SET losses = 0")
    assert broken(store) == {"S12"}


def test_a_start_before_its_time_breaks_s13(store):
    insert(store, job := a_job(delay=600 * SECOND))
    open_worker(store)
    event(store, job.id, "job.started", token=1, attempt=1, worker="w1")
    assert "S13" in broken(store)


def test_what_was_asked_to_stop_and_goes_on_breaks_s16(store):
    lease = running(store)
    event(store, lease.id, "job.cancel_requested", actor="kim")
    finish(store, lease, FAILED)
    assert broken(store) == {"S16"}


def test_a_row_that_its_story_does_not_come_to_breaks_s18(store):
    job = ended(store, FATAL)
    sql(store, "UPDATE {p}job SET attempt = 0")
    assert broken(store) == {"S18"}
    assert get(store, job).state == "dead"


def test_a_claim_by_a_worker_that_was_declared_lost_breaks_s10(store):
    open_worker(store)
    close_worker(store)
    with store.begin() as unit:
        unit.write_events([NewEvent(EventType.WORKER_LOST, data={"worker": "w1"})])
    if is_postgres(store):
        store.shift_clock(60 * SECOND)
    sql(store, "UPDATE {p}worker SET closed_at = NULL")
    enqueue(store)
    claim(store)
    assert "S10" in broken(store)


def test_a_lease_that_was_renewed_by_another_clock_breaks_s10_on_a_server(store):
    open_worker(store)
    sql(store, "UPDATE {p}worker SET renewed_at = started_at - 900000000")
    assert broken(store) == ({"S10"} if is_postgres(store) else set())


# -- several -------------------------------------------------------------------------------------
def test_two_jobs_with_one_key_break_u1(store):
    insert(store, unique_job("one"))
    insert(store, twin := unique_job("two"))
    sql(store, "UPDATE {p}job SET unique_key = 'one' WHERE id = :id", {"id": twin.id})
    assert broken(store) == {"U1"}


def test_two_jobs_of_one_slot_break_c1(store):
    for job in (*enqueue(store), *enqueue(store)):
        event(store, job, "job.queued", schedule="nightly", slot_at=7, run_at=0)
        sql(
            store,
            "DELETE FROM {p}event WHERE job_id = :job AND data NOT LIKE :said",
            {"job": job, "said": "%nightly%"},
        )
    assert broken(store) == {"C1"}


# -- clients -------------------------------------------------------------------------------------
def test_what_was_accepted_and_is_not_there_breaks_s1(store, tmp_path):
    clients = Clients(tmp_path / "clients")
    with clients.call("enqueue", kind="render") as call:
        call.ok("01-gone")
    assert broken(store, clients=[clients.path]) == {"S1"}


def test_what_nobody_asked_for_breaks_s1_and_what_was_left_in_doubt_does_not(store, tmp_path):
    clients = Clients(tmp_path / "clients")
    insert(store, a_job(payload='{"n":1}'), a_job(payload='{"n":2}'))
    clients.call("enqueue", kind="render", payload={"n": 1}).__enter__()
    report = verify(store, clients=[clients.path])
    assert (set(report.counts), report.counts["S1"]) == ({"S1"}, 1)


def test_what_was_rolled_back_and_is_there_breaks_s17(store, tmp_path):
    clients = Clients(tmp_path / "clients")
    (job,) = enqueue(store)
    with clients.call("enqueue", kind="other") as call:
        call.rolled_back(job)
    assert broken(store, clients=[clients.path]) == {"S17"}


def test_a_retry_that_was_told_ok_and_left_no_trace_breaks_s1(store, tmp_path):
    clients = Clients(tmp_path / "clients")
    job = ended(store, FATAL)
    with clients.call("retry", job=job) as call:
        call.ok(job)
    assert broken(store, clients=[clients.path]) == {"S1"}


def test_a_key_that_was_answered_with_another_payload_breaks_u3(store, tmp_path):
    clients = Clients(tmp_path / "clients")
    insert(store, job := unique_job("k"))
    with clients.call("enqueue", kind="render", key="k", payload={"another": 1}) as call:
        call.ok(job.id)
    assert broken(store, clients=[clients.path]) == {"U3"}


def test_a_follower_of_the_log_that_missed_an_event_breaks_n5(store, tmp_path):
    clients = Clients(tmp_path / "clients", "sse-1")
    enqueue(store, 3)
    first, _, third = [event[0] for event in log_of(store)]
    for seen in (first, third):
        clients.saw("event", event=seen, owner="acme")
    assert broken(store, clients=[clients.path]) == {"N5"}


# -- witnesses -----------------------------------------------------------------------------------
def test_success_without_the_end_of_its_handler_breaks_s9(store, tmp_path):
    lease = running(store)
    witness(tmp_path / "seen", a_context(lease), "start")
    finish(store, lease)
    assert broken(store, witness=[tmp_path / "seen"]) == {"S9"}


def test_another_result_than_the_one_returned_breaks_s9(store, tmp_path):
    lease = running(store)
    witness(tmp_path / "seen", a_context(lease), "end", result={"pages": 4})
    finish(store, lease)
    assert broken(store, witness=[tmp_path / "seen"]) == {"S9"}


@pytest.mark.parametrize(("outcome", "found"), [(FAILED, {"S8"}), (LOST, set())])
def test_handlers_side_by_side_break_s8_unless_the_first_was_lost(store, tmp_path, outcome, found):
    first = running(store)
    witness(tmp_path / "seen", a_context(first), "start")
    finish(store, first, outcome)
    second = once_more(store, first.id)
    witness(tmp_path / "seen", a_context(second), "start")
    witness(tmp_path / "seen", a_context(first), "end")
    assert broken(store, witness=[tmp_path / "seen"]) == found


def test_a_token_that_was_run_twice_breaks_s6(store, tmp_path):
    lease = running(store)
    for _ in range(2):
        witness(tmp_path / "seen", a_context(lease), "start")
    assert broken(store, witness=[tmp_path / "seen"]) == {"S6"}


# -- settled -------------------------------------------------------------------------------------
def test_what_runs_on_a_worker_that_is_gone_breaks_l2_once_all_is_calm(store):
    lease = running(store)
    close_worker(store, lease.worker)
    sql(store, "UPDATE {p}job SET started_at = started_at - 60000000")
    assert broken(store) == set()
    assert broken(store, settled=True, slack=1) == {"L2"}


def test_what_is_due_and_held_by_nothing_breaks_l1_once_all_is_calm(store):
    open_worker(store, kinds='["render"]')
    insert(store, a_job())
    sql(store, "UPDATE {p}job SET run_at = run_at - 60000000")
    assert broken(store, settled=True, slack=1) == {"L1"}


def test_the_story_of_the_job_is_told_with_what_is_wrong_with_it(store):
    lease = running(store)
    finish(store, lease, FAILED)
    sql(store, "UPDATE {p}job SET failures = 0")
    (found,) = verify(store).violations
    assert "failed" in found.story
    assert "counted" in found.sentence
