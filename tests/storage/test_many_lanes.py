"""Claims with very many lanes: they stay cheap, and no due job is lost from sight."""

from __future__ import annotations

import re
import statistics
import time

import pytest

from mulligan.core.attempt import Ended, Outcome
from mulligan.core.durations import SECOND
from mulligan.core.job import FIRST_LANE, Gate, Lane, LaneWindow, ReadyWindow
from mulligan.guards.lanes import MAX_READY, ROUND_INTERVAL, take_turns
from mulligan.guards.queries import GuardQueries
from mulligan.storage.postgres_transaction import PostgresTransaction, format_array
from mulligan.storage.sqlite import SqliteTransaction
from mulligan.storage.statements import load_catalog, load_statement
from mulligan.worker import upkeep
from mulligan.worker.claim import Claimer
from support.store import (
    HOUR,
    KINDS,
    a_job,
    claim_by_id,
    enqueue,
    insert,
    is_postgres,
    now,
    open_worker,
    policies,
    settle_leases,
    sql,
)

MANY = 1_000  # more than a claim reads
FLOOD = 39_000  # more than reports read


@pytest.fixture(autouse=True)
def _worker(store):
    open_worker(store)


def flood(store, lanes, **options):
    """Insert a job into each of many lanes that sort before all others."""
    for start in range(0, lanes, 1000):
        end = min(lanes, start + 1000)
        insert(store, *[a_job(queue=f"A{n:06}", **options) for n in range(start, end)])


def claim_once(store, claimer, free=5):
    with store.single_statement() as tx:
        return claimer.claim(tx, free)


def claim_all_read(store, claimer, free=5):
    """Claim as a worker does, again at once while lanes are left to read. Return the leases."""
    leases = claim_once(store, claimer, free).leases
    while claimer.scan.reads_on:
        leases += claim_once(store, claimer, free).leases
    return leases


def started_claimer(store, **options):
    """Return a claimer that has read all lanes, and for which nothing was due."""
    claimer = Claimer("w1", KINDS, **options)
    assert claim_all_read(store, claimer) == []
    return claimer


def ids(result):
    return [lease.id for lease in result.leases]


# --- No due job is lost ---
FLOODS = {
    "of later jobs": ({"delay": HOUR}, {}),
    "of queues that this worker does not serve": ({}, {"queues": frozenset({"default"})}),
    "of kinds that this worker does not know": ({"kind": "strange"}, {}),
}


@pytest.mark.parametrize("name", FLOODS)
def test_lanes_of_one_owner_delay_no_job_of_another(store, name):
    jobs, options = FLOODS[name]
    flood(store, FLOOD, **jobs)
    claimer = started_claimer(store, **options)
    (job_id,) = enqueue(store)
    assert ids(claim_once(store, claimer)) == [job_id]


@pytest.mark.parametrize("name", FLOODS)
def test_a_job_that_was_due_before_the_worker_started_is_found(store, name):
    jobs, options = FLOODS[name]
    (job_id,) = enqueue(store)
    flood(store, MANY, **jobs)
    claimer = Claimer("w1", KINDS, **options)
    assert [lease.id for lease in claim_all_read(store, claimer)] == [job_id]


@pytest.mark.parametrize("scope", ["queue", "kind", "dependency"])
def test_many_held_lanes_with_many_due_jobs_delay_no_other_job(store, scope):
    gate = {"queue": "held", "kind": "mail", "dependency": "gateway"}[scope]
    for n in range(300):
        uses = ",".join(sorted(["gateway", f"host{n:03}"]))
        insert(store, *[a_job(queue="held", kind="mail", uses=uses) for _ in range(30)])
    close_gate(store, scope, gate)
    claimer = started_claimer(store)
    (job_id,) = enqueue(store)
    assert ids(claim_once(store, claimer)) == [job_id]


def close_gate(store, scope, key):
    with store.begin() as tx:
        GuardQueries(tx).close_gate(Gate(scope, key, tx.now(), None, "closed", "a person"))


def test_jobs_behind_a_gate_that_opens_are_found(store):
    flood(store, MANY, delay=HOUR)
    (job_id,) = enqueue(store)
    close_gate(store, "queue", "default")
    claimer = started_claimer(store)
    with store.begin() as tx:
        GuardQueries(tx).open_gate("queue", "default")
    assert [lease.id for lease in claim_all_read(store, claimer)] == [job_id]


def test_jobs_of_a_kind_that_the_worker_learns_are_found(store, manifest):
    flood(store, MANY, delay=HOUR)
    (job_id,) = enqueue(store, kind="new")
    claimer = started_claimer(store)
    claimer.apply_manifest(manifest)
    assert [lease.id for lease in claim_all_read(store, claimer)] == [job_id]


@pytest.fixture
def manifest():
    from mulligan.manifest.specs import KindSpec, Manifest

    return Manifest("app", "", {"new": KindSpec("new")}, {}, {})


def test_a_released_job_is_in_the_next_claim_of_another_worker(store):
    """It keeps its old due time, which is before that of the last claim."""
    flood(store, MANY, delay=HOUR)
    (job_id,) = enqueue(store, run_at=now(store) - HOUR)
    (lease,) = claim_by_id(store, job_id, worker=open_worker(store, "w2"))
    claimer = started_claimer(store)
    store.shift_clock(10 * SECOND)
    assert ids(claim_once(store, claimer)) == []
    settle_leases(store, lease, Outcome(Ended.RELEASED, reason="given back"))
    assert ids(claim_once(store, claimer)) == [job_id]


def test_a_retry_is_claimed_when_it_is_due(store):
    flood(store, MANY, delay=HOUR)
    (job_id,) = enqueue(store)
    claimer = started_claimer_after(store, job_id)
    store.shift_clock(SECOND)
    assert ids(claim_once(store, claimer)) == []
    store.shift_clock(60 * SECOND)
    assert job_id in ids(claim_once(store, claimer))


def started_claimer_after(store, job_id):
    from support.store import FAILED

    claimer = Claimer("w1", KINDS)
    (lease,) = claim_all_read(store, claimer)
    assert lease.id == job_id
    settle_leases(store, lease, FAILED, policies=policies(base_delay=20, max_retries=3))
    return claimer


def test_a_job_of_a_callers_transaction_that_was_open_for_long_is_found(store):
    flood(store, MANY, delay=HOUR)
    claimer = started_claimer(store)
    (job,) = insert(store, a_job(), announce=False)
    sql(store, "UPDATE {p}job SET ready_at = 1 WHERE id = :id", {"id": job.id})
    assert ids(claim_once(store, claimer)) == []
    upkeep.announce_inserted(store)
    assert ids(claim_once(store, claimer)) == [job.id]


def test_a_job_that_nothing_else_shows_is_found_within_a_minute(store):
    flood(store, MANY, delay=HOUR)
    claimer = started_claimer(store)
    (job_id,) = enqueue(store)
    sql(store, "UPDATE {p}job SET ready_at = 1 WHERE id = :id", {"id": job_id})
    assert claim_all_read(store, claimer) == []
    store.shift_clock(ROUND_INTERVAL)
    assert [lease.id for lease in claim_all_read(store, claimer)] == [job_id]


def test_more_jobs_than_a_claim_reads_become_ready_at_once(store):
    flood(store, MANY, delay=HOUR)
    claimer = started_claimer(store)
    new = [a_job(queue="held") for _ in range(3 * MAX_READY)]
    last = a_job()
    close_gate(store, "queue", "held")
    insert(store, *new, last)
    assert [lease.id for lease in claim_all_read(store, claimer)] == [last.id]


def test_a_clock_that_is_set_back_hides_no_job(store):
    flood(store, MANY, delay=10 * HOUR)
    store.shift_clock(HOUR)
    claimer = started_claimer(store)
    store.shift_clock(0)
    (job_id,) = enqueue(store)
    assert job_id in [lease.id for lease in claim_all_read(store, claimer)]


def test_every_change_that_puts_a_job_into_a_lane_sets_when_it_is_ready():
    for dialect in ("sqlite", "postgres"):
        for name, statement in load_catalog(dialect).items():
            moves = re.search(r"(UPDATE|INSERT INTO) \{p\}job\b", statement.text)
            sets = re.search(
                r"\b(?<!\.)(lane|run_at|priority)( = COALESCE| = CASE|, )", statement.text
            )
            if moves and sets and not statement.is_fragment:
                assert "ready_at" in statement.text, name


# --- Wake-ups ---
def test_a_worker_wakes_when_the_next_job_of_many_lanes_is_due(store):
    flood(store, MANY, delay=HOUR)
    later = now(store) + 20 * SECOND
    enqueue(store, run_at=later)
    claimer = started_claimer(store)
    assert claim_once(store, claimer).next_due == later
    store.shift_clock(21 * SECOND)
    assert len(ids(claim_once(store, claimer))) == 1


def test_a_worker_does_not_sleep_past_jobs_that_it_did_not_read(store):
    flood(store, MANY, kind="strange", delay=10 * SECOND)
    later = now(store) + 20 * SECOND
    (job_id,) = enqueue(store, run_at=later)
    claimer = started_claimer(store)
    claimed = claim_once(store, claimer)
    while not claimed.leases:
        assert claimed.next_due <= later
        store.shift_clock(claimed.next_due - now(store) + clock_offset(store) + 1)
        claimed = claim_once(store, claimer)
    assert ids(claimed) == [job_id]


def clock_offset(store):
    if is_postgres(store):
        (row,) = sql(
            store,
            "SELECT {p}now_us() - CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint)",
        )
        return row[0]
    return now(store) - time.time_ns() // 1000


# --- Order ---
def test_jobs_of_many_due_lanes_are_each_claimed_once(store):
    new = [a_job(queue=f"q{n:04}", priority=n % 3) for n in range(MANY)]
    insert(store, *new)
    claimer = Claimer("w1", KINDS)
    found = []
    while leases := claim_all_read(store, claimer, 40):
        found += [lease.id for lease in leases]
    assert sorted(found) == sorted(job.id for job in new)


def test_an_urgent_job_of_a_new_lane_comes_first(store):
    insert(store, *[a_job(queue=f"q{n:04}") for n in range(MANY)])
    store.shift_clock(10 * SECOND)
    claimer = Claimer("w1", KINDS)
    assert len(claim_once(store, claimer).leases) == 5
    (urgent,) = enqueue(store, queue="z", priority=-5)
    assert ids(claim_once(store, claimer))[0] == urgent


def test_the_due_order_holds_among_known_lanes(store):
    at = now(store)
    flood(store, MANY, delay=HOUR)
    claimer = started_claimer(store)
    new = [a_job(queue=f"q{n:02}", run_at=at - n * SECOND) for n in range(15)]
    insert(store, *new)
    expected = [job.id for job in reversed(new)]
    assert ids(claim_once(store, claimer)) + ids(claim_once(store, claimer, 10)) == expected


def test_lanes_of_one_owner_leave_the_turn_of_others_in_a_fair_queue(store):
    at = now(store) - HOUR
    insert(store, *[a_job(uses=f"host{n:04}", share="00", run_at=at) for n in range(MANY)])
    store.shift_clock(10 * SECOND)
    claimer = Claimer("w1", KINDS)
    assert len(claim_once(store, claimer).leases) == 5
    (other,) = enqueue(store, uses="zhost", share="01")
    assert other in ids(claim_once(store, claimer))


def test_a_part_of_the_lanes_holds_some_of_every_queue():
    lanes = [(Lane("a", f"k{n}", "", retry=False).key, 0, n) for n in range(9)]
    other = (Lane("b", "k", "", retry=False).key, 0, 100)
    urgent = (Lane("c", "k", "", retry=False).key, -1, 100)
    turns = take_turns([*lanes, other, urgent])
    assert turns[:3] == [urgent[:2], lanes[0][:2], other[:2]]
    assert turns[3:] == [lane[:2] for lane in lanes[1:]]


def test_claims_read_all_lanes_again_when_there_are_few(store):
    flood(store, MANY, delay=HOUR)
    claimer = started_claimer(store)
    sql(store, "DELETE FROM {p}job WHERE lane > 'A000010'")
    store.shift_clock(ROUND_INTERVAL)
    claim_all_read(store, claimer)
    (job_id,) = enqueue(store)
    sql(store, "UPDATE {p}job SET ready_at = 1 WHERE id = :id", {"id": job_id})
    assert ids(claim_once(store, claimer)) == [job_id]


# --- Cost ---
@pytest.fixture
def rows_read(monkeypatch):
    """Return the number of rows that each statement returned."""
    counts = []
    for transaction in (PostgresTransaction, SqliteTransaction):

        def run(self, *args, original=transaction._run, **options):
            rows = original(self, *args, **options)
            counts.append(len(rows))
            return rows

        monkeypatch.setattr(transaction, "_run", run)
    return counts


@pytest.mark.parametrize("delay", [0, HOUR], ids=["due", "later"])
def test_the_rows_that_a_claim_reads_do_not_grow_with_the_lanes(store, rows_read, delay):
    flood(store, 10 * MANY, delay=delay)
    store.shift_clock(10 * SECOND)
    claimer = Claimer("w1", KINDS)
    claim_once(store, claimer)
    rows_read.clear()
    for _ in range(20):
        claim_once(store, claimer)
        assert sum(rows_read) <= 250
        rows_read.clear()


def test_the_server_reads_only_the_rows_of_a_claim_with_many_lanes(postgres):
    flood(postgres, MANY, delay=HOUR)
    enqueue(postgres, 30)
    window = {"after_lane": FIRST_LANE[0], "after_priority": FIRST_LANE[1], "max_lanes": 50}
    lanes = {"lanes": format_array(["default|render||0"]), "priorities": format_array([0])}
    ready = {"expected": 1, "depth": 5, "ready_since": 0, "max_ready": 20, "max_upcoming": 10}
    text = load_statement("read_claim_state_partly", "postgres", postgres.prefix)
    with postgres.transaction() as connection:
        connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {text}"
        answer = connection.execute(explain, window | lanes | ready, prepare=True).fetchone()
    read = rows_of_jobs_read(answer[0][0]["Plan"])
    assert 50 + 1 + 20 + 10 + 5 <= read <= 100


def rows_of_jobs_read(node):
    count = 0
    if node.get("Relation Name") == "job":
        count = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return count + sum(map(rows_of_jobs_read, node.get("Plans", [])))


@pytest.mark.timing
@pytest.mark.parametrize("delay", [0, HOUR], ids=["due", "later"])
def test_a_claim_with_ten_thousand_lanes_costs_at_most_twice_that_with_ten(store, delay):
    def time_claims():
        claimer = Claimer("w1", KINDS)
        while claim_once(store.dedicated(), claimer, 0) and claimer.scan.reads_on:
            pass
        times = []
        for _ in range(100):
            began = time.perf_counter()
            leases = claim_once(store.dedicated(), claimer).leases
            times.append(time.perf_counter() - began)
            assert len(leases) == 5
        return statistics.median(times)

    insert(store, *[a_job(queue=f"q{n % 10}") for n in range(2000)])
    few = time_claims()
    flood(store, 10 * MANY, delay=delay)
    store.shift_clock(10 * SECOND)
    assert time_claims() <= 2 * few


def test_known_lanes_without_jobs_are_left_out(store):
    (job_id,) = enqueue(store, run_at=now(store) - HOUR)
    lane = ("default|render||0", 0)
    with store.read() as tx:
        state = GuardQueries(tx).read_claim_state_partly(
            [lane], 3, LaneWindow(max_lanes=0), ReadyWindow([("no|such||0", 3)], 0, 10, 10)
        )
    assert state.lanes == []
    assert [entry[:2] for entry in state.known] == [lane]
    assert [entry[:2] for entry in state.ready] == [lane]
    assert [job.id for job in state.candidates] == [job_id]
