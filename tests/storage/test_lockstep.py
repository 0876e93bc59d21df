"""Run the same operations on both databases and compare results, rows and events.

Time is virtual (`shift_clock`), in steps much longer than a run of this test, and every delay of an
outcome lies between two steps. So what is due never depends on the speed of a database.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mulligan.config import RetrySection
from mulligan.core.attempt import Cls, Ended, Ending, Lease, Outcome
from mulligan.core.durations import SECOND
from mulligan.core.errors import MulliganError
from mulligan.core.job import NewJob
from mulligan.core.lifecycle import MOVES
from mulligan.events.queries import EventQueries
from mulligan.jobs import repair as recover
from mulligan.jobs.queries import JobQueries, SearchQueries
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage import Store
from mulligan.worker import upkeep
from mulligan.worker.claim import Claimer
from mulligan.worker.queries import WorkerQueries
from mulligan.worker.settle import SettleContext, settle
from support.store import (
    ATTEMPT_QUERY,
    CANCELLED,
    FAILED,
    FATAL,
    HELD,
    KINDS,
    LOST,
    PARKED,
    RELEASED,
    RETURNED,
    a_job,
    a_worker,
    insert,
    make_failure,
    migrated,
    read_event_table,
    replay,
    save_checkpoint,
    sql,
    unique_job,
    wipe,
)

STEP = 1000 * SECOND
SYSTEM = RetrySection(
    base_delay=100, max_delay=400, jitter="equal", max_losses=1, max_retries=2, max_snoozes=3
)
POLICIES = EffectivePolicies(SYSTEM, {})
OUTCOMES = {
    "returned": RETURNED,
    "failed": FAILED,
    "too large": Outcome(
        Ended.FAILED,
        failure=make_failure(
            Cls.RESOURCE, "OOM", terms={"then": [{"queue": "big"}, {"queue": "huge"}]}
        ),
    ),
    "fatal": FATAL,
    "retry": Outcome(Ended.RETRY, after=500 * SECOND),
    "snoozed": Outcome(Ended.SNOOZED, after=500 * SECOND, cost=0.5),
    "parked": PARKED,
    "held": Outcome(HELD.ended, dependency="bucket", after=500 * SECOND),
    "cancelled": CANCELLED,
    "lost": LOST,
    "released": RELEASED,
}
LEGAL = {(start.value, end.value) for (_, start), end in MOVES.items()} | {(None, "queued")}
WORKERS = ("w1", "w2", "w3")

Answer = Any


def picture(store: Store) -> dict[str, Any]:
    """Return everything that must be equal: all but times."""
    rows = sql(
        store,
        "SELECT id, state, queue, priority, lane, counts, settings, payload, result, error, worker, token, generation, "
        "attempt, failures, losses, snoozes, alone, announced, max_retries, unique_key, unique_hash, batch_id, "
        "cancel_reason, choice, choices, reason, progress, progress_message, cost, started_at IS NULL, "
        "first_started_at IS NULL, finished_at IS NULL, deadline_at IS NULL FROM {p}job ORDER BY id",
    )
    attempts = sql(
        store,
        "SELECT job_id, token, generation, attempt, worker, settled_by, ended, verb, code, cls, rule, public, "  # noqa: S608
        "evidence, private, fingerprint, next_run_at IS NULL, reason, cost, judged "
        f"FROM {ATTEMPT_QUERY} ORDER BY job_id, token",
    )
    log = sorted(read_event_table(store), key=lambda event: (event[3] or "", event[0]))
    events = [(job_id, kind, *rest) for _, _, kind, job_id, *rest in log]
    rest = (
        sql(store, "SELECT job_id, name, value, token FROM {p}step ORDER BY job_id, name"),
        sql(
            store,
            "SELECT scope, key, until IS NULL, reason, actor FROM {p}gate ORDER BY scope, key",
        ),
        sql(store, "SELECT id, closed_at IS NULL, close_reason FROM {p}worker ORDER BY id"),
        sql(store, "SELECT kind, state, owner, code, count FROM {p}pruned ORDER BY id"),
    )
    return {
        "jobs": rows,
        "attempts": attempts,
        "events": [timeless(event) for event in events],
        "rest": rest,
    }


def timeless(event: tuple[Any, ...]) -> tuple[Any, ...]:
    data = {key: value for key, value in json.loads(event[-1]).items() if key not in TIMES}
    return (*event[:-1], data)


TIMES = {"run_at", "next_retry_at", "until", "wait_ms"}


class Lockstep(RuleBasedStateMachine):
    def __init__(self, *stores: Store) -> None:
        super().__init__()
        self.stores = stores
        self.claimers: dict[tuple[int, str], Claimer] = {}
        self.leases: list[tuple[Lease, ...]] = []  # of both databases, including lost ones
        self.seed = 0
        self.states: dict[str, str] = {}
        for store in stores:
            wipe(store)
        for worker in WORKERS:
            self.open(worker)

    def open(self, worker: str) -> None:
        for store in self.stores:
            with store.begin() as tx:
                WorkerQueries(tx).insert_worker(a_worker(worker))

    def both(self, do: Callable[[Store], Answer]) -> Answer:
        """Return the common result of both databases. Refusals are results too."""
        answers = []
        for store in self.stores:
            try:
                answers.append(do(store))
            except MulliganError as refused:
                answers.append((type(refused).__name__, refused.code))
        first, second = answers
        assert first == second
        return first

    # --- Rules ---
    @rule(
        n=st.integers(1, 3),
        kind=st.sampled_from(sorted(KINDS)),
        priority=st.integers(-1, 1),
        delay=st.sampled_from([0, 0, STEP + STEP // 2]),
        deadline=st.sampled_from([None, None, 2 * STEP + STEP // 2]),
        uses=st.sampled_from(["", "bucket"]),
        announce=st.booleans(),
    )
    def insert(self, n: int, announce: bool, **changes: Any) -> None:
        self._insert([a_job(**changes) for _ in range(n)], announce=announce)

    @rule(key=st.sampled_from("ab"), payload=st.sampled_from("12"), exact=st.booleans())
    def insert_unique(self, key: str, payload: str, exact: bool) -> None:
        self._insert([unique_job(key, payload=payload, unique_exact=exact)], announce=True)

    def _insert(self, new: list[NewJob], *, announce: bool) -> None:
        self.both(lambda store: [one[:2] for one in insert(store, *new, announce=announce)])

    @rule(worker=st.sampled_from(WORKERS), n=st.integers(1, 4))
    def claim(self, worker: str, n: int) -> None:
        taken = []
        for place, store in enumerate(self.stores):
            claimer = self.claimers.setdefault((place, worker), Claimer(worker, KINDS))
            with store.begin() as tx:
                taken.append(claimer.claim(tx, n).leases)
        first, second = taken
        assert [lease.fence for lease in first] == [lease.fence for lease in second]
        self.leases += zip(first, second, strict=True)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), outcome=st.sampled_from(sorted(OUTCOMES)))
    def settle(self, data: st.DataObject, outcome: str) -> None:
        """Return a current, settled or lost lease."""
        pairs = data.draw(
            st.lists(
                st.sampled_from(self.leases),
                min_size=1,
                max_size=3,
                unique_by=lambda pair: pair[0].fence,
            )
        )
        self.seed += 1
        verdicts = []
        for place, store in enumerate(self.stores):
            with store.begin() as tx:
                endings = [Ending(pair[place], OUTCOMES[outcome]) for pair in pairs]
                found = settle(tx, endings, SettleContext(POLICIES, tx.now(), Random(self.seed)))
            verdicts.append(
                [(v.lease.fence, v.decision and (v.decision.verb, v.decision.state)) for v in found]
            )
        assert verdicts[0] == verdicts[1]

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def get_ahead(self, data: st.DataObject) -> None:
        first, _ = data.draw(st.sampled_from(self.leases))

        def note(store: Store) -> bool:
            with store.begin() as tx:
                WorkerQueries(tx).update_progress(
                    first.worker, [(first.id, first.token, 0.5, "half")]
                )
                return save_checkpoint(tx, first, "page", str(first.token))

        self.both(note)

    @precondition(lambda self: self.states)
    @rule(
        data=st.data(),
        verb=st.sampled_from(["cancel", "retry", "release", "discard"]),
        actor=st.sampled_from(["ann", "bob"]),
    )
    def by_hand(self, data: st.DataObject, verb: str, actor: str) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.states)))
        self.both(
            lambda store: getattr(recover, verb)(store, job_id, actor=actor, reason="by hand").state
        )

    @rule(steps=st.integers(1, 3))
    def wait(self, steps: int) -> None:
        for store in self.stores:
            store.shift_clock(steps * STEP)

    @rule(worker=st.sampled_from(WORKERS))
    def lose(self, worker: str) -> None:
        """Close the worker and settle its jobs as lost. A new worker continues under another id."""

        def close(store: Store) -> bool:
            with store.begin() as tx:
                return WorkerQueries(tx).close_worker(worker, "gone", last_renewed=None)

        self.both(close)
        self.seed += 1
        self.both(
            lambda store: sorted(
                v.lease.fence for v in upkeep.settle_orphans(store, SYSTEM, Random(self.seed))
            )
        )

    @rule()
    def expire(self) -> None:
        self.both(upkeep.expire_deadlines)

    @rule()
    def announce(self) -> None:
        self.both(upkeep.announce_inserted)

    @rule(state=st.sampled_from(["succeeded", "dead", "cancelled"]))
    def prune(self, state: str) -> None:
        def step(store: Store) -> list[tuple[Any, ...]]:
            with store.begin() as tx:
                return sorted(
                    JobQueries(tx).prune_jobs(
                        state, tx.now() - 3 * STEP, 2, kind=None, except_kinds=["report"]
                    )
                )

        self.both(step)

    # --- Invariants ---
    @invariant()
    def the_stores_agree_and_every_move_was_legal(self) -> None:
        first, second = (picture(store) for store in self.stores)
        assert first == second
        states = {row[0]: row[1] for row in first["jobs"]}
        for job_id, state in states.items():
            before = self.states.get(job_id)
            assert before == state or (before, state) in LEGAL
        self.states = states

    @invariant()
    def every_story_folds_to_its_row(self) -> None:
        store = self.stores[0]
        with store.read() as tx:
            for row in SearchQueries(tx).list_jobs({}, 1000, None):
                events = EventQueries(tx).list_events_of_job(row.id)
                if events and events[0].type == "job.queued":
                    assert replay(events) == (row.state, row.generation, row.attempt, row.token)


def drive(sqlite: Store, postgres: Store, **bounds: Any) -> None:
    run_state_machine_as_test(
        lambda: Lockstep(sqlite, postgres),
        settings=settings(
            deadline=None, suppress_health_check=list(HealthCheck), print_blob=True, **bounds
        ),
    )


@pytest.mark.timeout(240)  # seconds on an idle machine, minutes on a busy one
def test_both_databases_behave_the_same(sqlite, postgres):
    drive(sqlite, postgres, max_examples=8, stateful_step_count=30, derandomize=True, database=None)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_databases_behave_the_same_in_long_runs(sqlite, postgres):
    drive(sqlite, postgres, max_examples=150, stateful_step_count=50)


def test_the_test_compares_two_databases(sqlite_url, postgres_url):
    with migrated(sqlite_url) as one, migrated(postgres_url) as other:
        assert {one.facts()["store"], other.facts()["store"]} == {"sqlite", "postgresql"}
