"""Random walks through the states of a batch, compared with the rules at each step."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from mulligan.batches import completion as batching
from mulligan.batches.queries import BatchQueries
from mulligan.batches.rules import compute_outcome
from mulligan.batches.service import Batches, new_batch
from mulligan.config import read_settings
from mulligan.core.durations import SECOND
from mulligan.core.errors import IllegalMove, MulliganError
from mulligan.jobs import repair as recover
from mulligan.jobs.queries import SearchQueries
from mulligan.jobs.service import Jobs
from support.store import (
    FAILED,
    FATAL,
    PARKED,
    RETURNED,
    SNOOZED,
    claim_by_id,
    insert,
    jobs,
    now,
    open_worker,
    settle_leases,
)

ENDS = (RETURNED, RETURNED, FATAL, PARKED, SNOOZED, FAILED)
OUTCOMES = {"batch.ready", "batch.partial", "batch.failed"}


class Walk:
    """One batch and everything that can happen to it."""

    def __init__(self, store, seed):
        self.store, self.rng = store, Random(seed)
        self.batches = Batches(
            lambda: store, Jobs(lambda: store, lambda: read_settings(environ={}))
        )
        tolerance = self.rng.choice((0, 1, "25%"))
        expires = self.rng.choice((None, None, 3000))
        self.id = self.batches.begin(new_batch("walk", "", tolerance, expires, None)).id
        self.leases = []

    def members(self, *states):
        with self.store.read() as tx:
            rows = SearchQueries(tx).list_jobs({"batch_id": self.id}, 1000, None)
        return [row for row in rows if row.state in states]

    def add(self):
        with self.store.begin() as tx:
            row = BatchQueries(tx).get_batch_for_share(self.id)
        if row.sealed_at is None:
            must = self.rng.random() < 0.1
            insert(self.store, *jobs(self.rng.randint(1, 4), batch_id=self.id, must_have=must))

    def claim(self):
        waiting = self.members("queued")
        if waiting:
            self.store.shift_clock(
                max(0, max(row.run_at for row in waiting) - now(self.store)) + SECOND
            )
            self.leases += claim_by_id(self.store, *[row.id for row in waiting])

    def end(self):
        self.rng.shuffle(self.leases)
        ending = [self.leases.pop() for _ in range(self.rng.randint(0, len(self.leases)))]
        settle_leases(self.store, ending, self.rng.choice(ENDS))

    def seal(self):
        self.batches.seal(self.id)

    def seal_in_a_transaction(self):
        with self.store.transaction() as connection:
            self.batches.seal(self.id, connection=connection)

    def retry_failed(self):
        self.batches.retry_failed(self.id)

    def by_hand(self):
        act = self.rng.choice((recover.retry, recover.cancel, recover.discard, recover.release))
        found = self.members("queued", "running", "parked", "dead", "cancelled", "succeeded")
        if found:
            act(self.store, self.rng.choice(found).id, actor="test", reason="why not")

    def cancel(self):
        if self.rng.random() < 0.2:
            self.batches.cancel(self.id, reason="enough")

    def later(self):
        self.store.shift_clock(600 * SECOND)

    def sweep(self):
        batching.sweep_batches(self.store)

    def step(self):
        acts = (
            self.add,
            self.claim,
            self.claim,
            self.end,
            self.end,
            self.seal,
            self.seal_in_a_transaction,
            self.retry_failed,
            self.by_hand,
            self.cancel,
            self.later,
            self.sweep,
        )
        act = self.rng.choice(acts)
        with suppress(MulliganError):
            act()
        return act.__name__

    def check(self):
        """Check that the outcome is the expected one and has one event."""
        self.sweep()
        with self.store.read() as tx:
            row, counts = (
                BatchQueries(tx).get_batch(self.id),
                batching.load_counts(tx, [self.id])[self.id],
            )
            event_types = [event.type for event in BatchQueries(tx).list_batch_events(self.id)]
        assert (row.outcome is not None) == (row.sealed_at is not None and not counts.unfinished)
        assert len(OUTCOMES.intersection(event_types)) <= row.generation
        outcomes = [name for name in event_types if name in OUTCOMES]
        assert len(outcomes) == row.generation - (row.outcome is None)
        assert event_types.count("batch.reopened") == row.generation - 1
        assert event_types.count("batch.sealed") == (row.sealed_at is not None)
        assert (
            event_types.count("batch.expired")
            == (row.expired_at is not None)
            <= (row.outcome is not None)
        )
        assert event_types.count("batch.cancelled") == (row.cancelled_at is not None)
        assert not outcomes or row.outcome is None or outcomes[-1] == f"batch.{row.outcome}"
        return row, counts


@pytest.mark.parametrize("seed", range(8))
def test_a_batch_always_agrees_with_its_members(store, seed):
    open_worker(store)
    for round_ in range(2):
        walk = Walk(store, seed * 100 + round_)
        path, before = [], None
        for _ in range(25):
            path.append(walk.step())
            row, counts = walk.check()
            fresh = before is None or (before.outcome, before.generation) != (
                row.outcome,
                row.generation,
            )
            if row.outcome is not None and fresh:
                assert row.outcome == compute_outcome(counts, row.tolerance), path
            if before is not None and before.expired_at is not None:
                assert (row.outcome, row.generation) == (before.outcome, before.generation), path
            before = row


def test_a_forbidden_move_of_a_member_changes_nothing(store):
    open_worker(store)
    walk = Walk(store, 1)
    with pytest.raises(IllegalMove):
        walk.retry_failed()
    assert walk.check()[0].generation == 1
