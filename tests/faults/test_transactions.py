"""Errors in one ending, lease or orphan do not affect the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mulligan.config import Settings
from mulligan.core.attempt import Ending, Lease, Outcome
from mulligan.core.durations import SECOND
from mulligan.core.errors import StoreUnavailable
from mulligan.storage import Store
from mulligan.worker.claim import Claimer
from mulligan.worker.supervisor import chores as chores_module
from mulligan.worker.supervisor.chores import Chores
from mulligan.worker.supervisor.transactions import LoopTransactions
from support.store import (
    KINDS,
    POLICIES,
    RETURNED,
    a_job,
    a_worker,
    attempts,
    claim,
    claim_new_job,
    close_worker,
    enqueue,
    event_types,
    get,
    insert,
    is_postgres,
    migrated,
    now,
    open_worker,
    settle_orphans,
    sql,
)

POISON = Outcome(RETURNED.ended, result='"poison"')


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with migrated(store_url) as opened:
        yield opened


@pytest.fixture
def transactions(store: Store) -> LoopTransactions:
    return LoopTransactions(store, POLICIES, Claimer("w1", KINDS))


def refuse_updates(store: Store, condition: str) -> None:
    """Let the database refuse updates of jobs that match SQL about the OLD and NEW row."""
    if is_postgres(store):
        body = "BEGIN RAISE EXCEPTION 'not this one'; END"
        sql(
            store, f"CREATE FUNCTION {{p}}refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$"
        )
        sql(
            store,
            "CREATE TRIGGER refuse BEFORE UPDATE ON {p}job FOR EACH ROW "
            f"WHEN ({condition}) EXECUTE FUNCTION {{p}}refuse()",
        )
    else:
        body = "SELECT RAISE(ABORT, 'not this one');"
        sql(
            store,
            f"CREATE TRIGGER refuse BEFORE UPDATE ON {{p}}job WHEN {condition} BEGIN {body} END",
        )


def accept_updates(store: Store) -> None:
    sql(store, "DROP TRIGGER refuse ON {p}job" if is_postgres(store) else "DROP TRIGGER refuse")


def any_ending_of(lease: Lease) -> str:
    return f"OLD.id = '{lease.id}' AND OLD.state = 'running' AND NEW.state <> 'running'"


def is_still_running(store: Store, lease: Lease) -> bool:
    row = get(store, lease.id)
    return (row.state, row.worker, row.token) == ("running", lease.worker, lease.token)


def charges(store: Store, lease: Lease) -> tuple[str, int, int]:
    row = get(store, lease.id)
    return row.state, row.failures, row.losses


# --- Refusals ---


def test_an_ending_the_store_refuses_is_recorded_as_refused_and_the_others_normally(
    store: Store, transactions: LoopTransactions
) -> None:
    before, bad, after = (claim_new_job(store) for _ in range(3))
    refuse_updates(store, "NEW.result LIKE '%poison%'")
    transactions.settle_each(
        [Ending(before, RETURNED), Ending(bad, POISON), Ending(after, RETURNED)], now(store)
    )
    assert [get(store, lease.id).state for lease in (before, bad, after)] == [
        "succeeded",
        "dead",
        "succeeded",
    ]
    [attempt] = attempts(store, bad.id)
    assert attempt.code == "OUTCOME_REFUSED"
    assert "not this one" in (attempt.private or "")
    assert transactions.unrecordable == set()


def test_an_ending_the_store_refuses_in_any_form_is_skipped_and_the_others_are_settled(
    store: Store, transactions: LoopTransactions, caplog: pytest.LogCaptureFixture
) -> None:
    before, bad, after = (claim_new_job(store) for _ in range(3))
    refuse_updates(store, any_ending_of(bad))
    with caplog.at_level(logging.ERROR):
        transactions.settle_each(
            [Ending(lease, RETURNED) for lease in (before, bad, after)], now(store)
        )
    assert [get(store, lease.id).state for lease in (before, bad, after)] == [
        "succeeded",
        "running",
        "succeeded",
    ]
    assert transactions.unrecordable == {bad.fence}
    assert is_still_running(store, bad)
    assert attempts(store, bad.id) == []
    assert "the database refuses this failure too" in caplog.text


def test_a_worker_that_exits_releases_all_but_unrecordable_jobs(
    store: Store, transactions: LoopTransactions
) -> None:
    bad, good = claim_new_job(store), claim_new_job(store)
    refuse_updates(store, any_ending_of(bad))
    transactions.settle_each([Ending(bad, RETURNED)], now(store))
    accept_updates(store)
    # The job must not be released: its work is done, and it would run a second time.
    transactions.release_all([], now(store))
    assert is_still_running(store, bad)
    assert charges(store, good) == ("queued", 0, 0)
    close_worker(store)
    settle_orphans(store)
    assert charges(store, bad) == ("queued", 0, 1)


class UnavailableStore:
    """Store whose second write transaction fails."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._begun = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def begin(self) -> Iterator[Any]:
        self._begun += 1
        if self._begun == 2:
            raise StoreUnavailable("no answer")
        with self._store.begin() as tx:
            yield tx


@pytest.mark.seed("000-34")
def test_an_outage_does_not_count_as_a_refused_ending(store: Store) -> None:
    leases = [claim_new_job(store) for _ in range(3)]
    transactions = LoopTransactions(UnavailableStore(store), POLICIES, Claimer("w1", KINDS))  # type: ignore[arg-type]
    endings = [Ending(lease, RETURNED) for lease in leases]
    with pytest.raises(StoreUnavailable):
        transactions.settle_each(endings, now(store))
    assert [get(store, lease.id).state for lease in leases] == ["succeeded", "running", "running"]
    transactions.settle_each(endings, now(store))  # all of them again, as the supervisor does
    for lease in leases:
        assert event_types(store, lease.id) == ["queued", "started", "succeeded"]
    assert transactions.unrecordable == set()


def test_an_outage_while_a_refusal_is_recorded_gives_up_no_job(
    store: Store,
) -> None:
    bad = claim_new_job(store)
    refuse_updates(store, "NEW.result LIKE '%poison%'")
    transactions = LoopTransactions(UnavailableStore(store), POLICIES, Claimer("w1", KINDS))  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        transactions.settle_each([Ending(bad, POISON)], now(store))
    assert transactions.unrecordable == set()
    transactions.settle_each([Ending(bad, POISON)], now(store))
    assert [attempt.code for attempt in attempts(store, bad.id)] == ["OUTCOME_REFUSED"]


# --- Unknown leases ---


def test_a_worker_that_exits_releases_leases_it_does_not_know(
    store: Store, transactions: LoopTransactions
) -> None:
    ended, unknown = claim_new_job(store), [claim_new_job(store), claim_new_job(store)]
    foreign = claim_new_job(store, worker="w2")
    transactions.release_all([Ending(ended, RETURNED)], now(store))
    assert charges(store, ended) == ("succeeded", 0, 0)
    for lease in unknown:
        assert charges(store, lease) == ("queued", 0, 0)
        assert event_types(store, lease.id) == ["queued", "started", "released"]
        assert get(store, lease.id).reason == "its worker shut down"
    assert is_still_running(store, foreign)


def test_one_lease_that_cannot_be_released_does_not_stop_the_others(
    store: Store, transactions: LoopTransactions
) -> None:
    first, bad, last = (claim_new_job(store) for _ in range(3))
    refuse_updates(store, any_ending_of(bad))
    transactions.release_all([], now(store))
    assert [charges(store, lease)[0] for lease in (first, bad, last)] == [
        "queued",
        "running",
        "queued",
    ]


def test_reconciling_returns_leases_that_the_worker_does_not_know(
    store: Store, transactions: LoopTransactions
) -> None:
    known, unknown = claim_new_job(store), claim_new_job(store)
    ids = [job.id for job in insert(store, a_job())]
    result = transactions.settle_and_claim([], 5, now(store), {known.fence})
    assert sorted(lease.id for lease in result.leases) == sorted([unknown.id, *ids])
    assert [lease.token for lease in result.leases] == [1, 1]


# --- Orphans ---


def create_orphans(store: Store) -> list[Lease]:
    """Create jobs of a closed worker, of a missing one, and of the closed one again, by id."""
    leases = [claim_new_job(store, worker=worker) for worker in ("closed", "missing", "closed")]
    close_worker(store, "closed")
    sql(store, "DELETE FROM {p}worker WHERE id = 'missing'")
    return leases


@pytest.mark.seed("000-90")
def test_one_orphan_that_cannot_be_settled_does_not_stop_the_others(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    first, missing, last = create_orphans(store)
    living = claim_new_job(store, worker="alive")
    refuse_updates(store, any_ending_of(first))
    with caplog.at_level(logging.ERROR):
        assert {verdict.lease.id for verdict in settle_orphans(store)} == {missing.id, last.id}
    assert f"job {first.id} of a lost worker cannot be settled" in caplog.text
    assert is_still_running(store, first)
    assert is_still_running(store, living)
    assert [charges(store, lease) for lease in (missing, last)] == [("queued", 0, 1)] * 2
    settle_orphans(store)
    assert [charges(store, lease) for lease in (missing, last)] == [("queued", 0, 1)] * 2
    accept_updates(store)
    assert [verdict.lease.id for verdict in settle_orphans(store)] == [first.id]
    assert charges(store, first) == ("queued", 0, 1)


def test_orphans_are_not_tried_one_by_one_while_the_store_is_away(store: Store) -> None:
    first, missing, last = create_orphans(store)
    refuse_updates(store, any_ending_of(first))
    with pytest.raises(StoreUnavailable):
        settle_orphans(UnavailableStore(store))  # type: ignore[arg-type]
    assert [is_still_running(store, lease) for lease in (first, missing, last)] == [True] * 3


def test_a_sweep_before_the_registration_recovers_jobs(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    """A worker that was declared lost registers anew while another thread sweeps."""
    lease = claim_new_job(store, worker="w_gone")
    close_worker(store, "w_gone")
    chores = Chores(store, Settings(database_url=store_url), tmp_path)
    assert chores.sweep("w_new") == 1
    assert get(store, lease.id).state == "queued"


def test_one_sweep_recovers_all_jobs_of_a_lost_worker(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    open_worker(store, "lost")
    enqueue(store, 3000)
    claimed = 0
    while claimed < 3000:
        claimed += len(claim(store, 1000, worker="lost"))
    close_worker(store, "lost")
    chores = Chores(store, Settings(database_url=store_url), tmp_path)
    began = time.monotonic()
    assert chores.recover("me") == 3000
    assert time.monotonic() - began < 7
    assert sql(store, "SELECT DISTINCT state FROM {p}job") == [("queued",)]


def test_after_an_outage_no_worker_is_declared_lost_before_one_full_lease(
    store: Store, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(chores_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    chores = Chores(store, Settings(database_url=store_url), tmp_path)
    lease = chores.settings.worker.lease
    open_worker(store, "me")
    with store.read() as tx:
        other = a_worker("other", lease=round(lease * SECOND), renewed_at=tx.now())

    def renewed_for(seconds: float) -> None:
        for _ in range(10):
            clock.now += seconds / 10
            chores.renew("me", False)

    renewed_for(2 * lease)
    assert not chores._is_silent_for_a_lease(other)  # read for the first time
    clock.now += 3 * lease  # the database is unavailable for all workers
    assert not chores._is_silent_for_a_lease(other)
    chores.renew("me", False)
    assert not chores._is_silent_for_a_lease(other)
    renewed_for(0.9 * lease)
    assert not chores._is_silent_for_a_lease(other)
    renewed_for(0.2 * lease)
    assert chores._is_silent_for_a_lease(other)
