"""Endings the store refuses, leases nobody knows of, orphans with a bad one among them: each is for itself."""

from __future__ import annotations

import logging
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
from mulligan.worker.supervisor import chores as chores_of
from mulligan.worker.supervisor.chores import Chores
from mulligan.worker.supervisor.transactions import LoopTransactions
from support.store import (
    KINDS,
    POLICIES,
    RETURNED,
    a_job,
    a_worker,
    attempts,
    close_worker,
    get,
    insert,
    is_postgres,
    migrated,
    now,
    open_worker,
    running,
    sql,
    sweep,
    told,
)

POISON = Outcome(RETURNED.ended, result='"poison"')


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with migrated(store_url) as opened:
        yield opened


@pytest.fixture
def turns(store: Store) -> LoopTransactions:
    return LoopTransactions(store, POLICIES, Claimer("w1", KINDS))


def refuse(store: Store, what: str) -> None:
    """The database takes no such change of a job. `what` is SQL about its OLD and NEW row."""
    if is_postgres(store):
        body = "BEGIN RAISE EXCEPTION 'not this one'; END"
        sql(
            store, f"CREATE FUNCTION {{p}}refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$"
        )
        sql(
            store,
            "CREATE TRIGGER refuse BEFORE UPDATE ON {p}job FOR EACH ROW "
            f"WHEN ({what}) EXECUTE FUNCTION {{p}}refuse()",
        )
    else:
        body = "SELECT RAISE(ABORT, 'not this one');"
        sql(store, f"CREATE TRIGGER refuse BEFORE UPDATE ON {{p}}job WHEN {what} BEGIN {body} END")


def refuse_no_more(store: Store) -> None:
    sql(store, "DROP TRIGGER refuse ON {p}job" if is_postgres(store) else "DROP TRIGGER refuse")


def any_ending_of(lease: Lease) -> str:
    return f"OLD.id = '{lease.id}' AND OLD.state = 'running' AND NEW.state <> 'running'"


def stands(store: Store, lease: Lease) -> bool:
    row = get(store, lease.id)
    return (row.state, row.worker, row.token) == ("running", lease.worker, lease.token)


def charges(store: Store, lease: Lease) -> tuple[str, int, int]:
    row = get(store, lease.id)
    return row.state, row.failures, row.losses


# -- refusals ------------------------------------------------------------------------------------
def test_an_ending_the_store_refuses_is_recorded_as_refused_and_the_others_normally(
    store: Store, turns: LoopTransactions
) -> None:
    before, bad, after = (running(store) for _ in range(3))
    refuse(store, "NEW.result LIKE '%poison%'")
    turns.settle_each(
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
    assert turns.unrecordable == set()


def test_an_ending_the_store_refuses_in_any_form_is_skipped_and_the_others_are_settled(
    store: Store, turns: LoopTransactions, caplog: pytest.LogCaptureFixture
) -> None:
    before, bad, after = (running(store) for _ in range(3))
    refuse(store, any_ending_of(bad))
    with caplog.at_level(logging.ERROR):
        turns.settle_each([Ending(lease, RETURNED) for lease in (before, bad, after)], now(store))
    assert [get(store, lease.id).state for lease in (before, bad, after)] == [
        "succeeded",
        "running",
        "succeeded",
    ]
    assert turns.unrecordable == {bad.fence}
    assert stands(store, bad)
    assert attempts(store, bad.id) == []
    assert "the database refuses this failure too" in caplog.text


def test_a_worker_that_exits_releases_all_but_unrecordable_jobs(
    store: Store, turns: LoopTransactions
) -> None:
    bad, good = running(store), running(store)
    refuse(store, any_ending_of(bad))
    turns.settle_each([Ending(bad, RETURNED)], now(store))
    refuse_no_more(
        store
    )  # its work was done: given back, it would run a second time as if nothing had happened
    turns.release_all([], now(store))
    assert stands(store, bad)
    assert charges(store, good) == ("queued", 0, 0)
    close_worker(store)
    sweep(store)
    assert charges(store, bad) == ("queued", 0, 1)


class Away:
    """A store that does not answer the second time somebody wants to write."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._begun = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def begin(self) -> Iterator[Any]:
        self._begun += 1
        if self._begun == 2:
            raise StoreUnavailable("nobody answers")
        with self._store.begin() as unit:
            yield unit


@pytest.mark.seed("000-34")
def test_an_outage_does_not_count_as_a_refused_ending(store: Store) -> None:
    leases = [running(store) for _ in range(3)]
    turns = LoopTransactions(Away(store), POLICIES, Claimer("w1", KINDS))  # type: ignore[arg-type]
    endings = [Ending(lease, RETURNED) for lease in leases]
    with pytest.raises(StoreUnavailable):
        turns.settle_each(endings, now(store))
    assert [get(store, lease.id).state for lease in leases] == ["succeeded", "running", "running"]
    turns.settle_each(endings, now(store))  # all of them once more, as the supervisor does
    for lease in leases:
        assert told(store, lease.id) == ["queued", "started", "succeeded"]
    assert turns.unrecordable == set()


def test_an_outage_while_a_refusal_is_recorded_gives_up_no_job(
    store: Store,
) -> None:
    bad = running(store)
    refuse(store, "NEW.result LIKE '%poison%'")
    turns = LoopTransactions(Away(store), POLICIES, Claimer("w1", KINDS))  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        turns.settle_each([Ending(bad, POISON)], now(store))
    assert turns.unrecordable == set()
    turns.settle_each([Ending(bad, POISON)], now(store))
    assert [attempt.code for attempt in attempts(store, bad.id)] == ["OUTCOME_REFUSED"]


# -- leases nobody knows of ----------------------------------------------------------------------
def test_a_worker_that_exits_releases_leases_it_does_not_know(
    store: Store, turns: LoopTransactions
) -> None:
    ended, unheard = running(store), [running(store), running(store)]
    somebody_elses = running(store, worker="w2")
    turns.release_all([Ending(ended, RETURNED)], now(store))
    assert charges(store, ended) == ("succeeded", 0, 0)
    for lease in unheard:
        assert charges(store, lease) == ("queued", 0, 0)
        assert told(store, lease.id) == ["queued", "started", "released"]
        assert get(store, lease.id).reason == "its worker shut down"
    assert stands(store, somebody_elses)


def test_one_lease_that_cannot_be_released_does_not_stop_the_others(
    store: Store, turns: LoopTransactions
) -> None:
    first, bad, last = (running(store) for _ in range(3))
    refuse(store, any_ending_of(bad))
    turns.release_all([], now(store))
    assert [charges(store, lease)[0] for lease in (first, bad, last)] == [
        "queued",
        "running",
        "queued",
    ]


def test_reconciling_returns_leases_that_the_worker_does_not_know(
    store: Store, turns: LoopTransactions
) -> None:
    known, unheard = running(store), running(store)
    ids = [job.id for job in insert(store, a_job())]
    turn = turns.settle_and_claim([], 5, now(store), {known.fence})
    assert sorted(lease.id for lease in turn.leases) == sorted([unheard.id, *ids])
    assert [lease.token for lease in turn.leases] == [1, 1]


# -- orphans -------------------------------------------------------------------------------------
def left_behind(store: Store) -> list[Lease]:
    """Three jobs, in order of their ids: of a closed worker, of one whose row is gone, of the closed one again."""
    leases = [running(store, worker=worker) for worker in ("closed", "missing", "closed")]
    close_worker(store, "closed")
    sql(store, "DELETE FROM {p}worker WHERE id = 'missing'")
    return leases


@pytest.mark.seed("000-90")
def test_one_orphan_that_cannot_be_settled_does_not_stop_the_others(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    first, missing, last = left_behind(store)
    living = running(store, worker="alive")
    refuse(store, any_ending_of(first))
    with caplog.at_level(logging.ERROR):
        assert {verdict.lease.id for verdict in sweep(store)} == {missing.id, last.id}
    assert f"job {first.id} of a lost worker cannot be settled" in caplog.text
    assert stands(store, first)
    assert stands(store, living)
    assert [charges(store, lease) for lease in (missing, last)] == [("queued", 0, 1)] * 2
    sweep(store)
    assert [charges(store, lease) for lease in (missing, last)] == [("queued", 0, 1)] * 2
    refuse_no_more(store)
    assert [verdict.lease.id for verdict in sweep(store)] == [first.id]
    assert charges(store, first) == ("queued", 0, 1)


def test_orphans_are_not_tried_one_by_one_while_the_store_is_away(store: Store) -> None:
    first, missing, last = left_behind(store)
    refuse(store, any_ending_of(first))
    with pytest.raises(StoreUnavailable):
        sweep(Away(store))  # type: ignore[arg-type]
    assert [stands(store, lease) for lease in (first, missing, last)] == [True] * 3


def test_a_sweep_before_the_registration_publishes_no_manifest(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    """Its row was closed by somebody: the new one is opened by one part of the supervisor, swept by another."""
    lease = running(store, worker="w_gone")
    close_worker(store, "w_gone")
    chores = Chores(store, Settings(database_url=store_url), tmp_path)
    assert chores.sweep("w_new") == 1
    assert get(store, lease.id).state == "queued"


def test_after_an_outage_no_worker_is_declared_lost_before_one_full_lease(
    store: Store, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(chores_of, "time", SimpleNamespace(monotonic=lambda: clock.now))
    chores = Chores(store, Settings(database_url=store_url), tmp_path)
    lease = chores.settings.worker.lease
    open_worker(store, "me")
    other = a_worker("other", lease=round(lease * SECOND))

    def renewed_for(seconds: float) -> None:
        for _ in range(10):
            clock.now += seconds / 10
            chores.renew("me", False)

    renewed_for(2 * lease)
    assert not chores._is_silent_for_a_lease(other)  # seen for the first time
    clock.now += 3 * lease  # the database is away, for everybody
    assert not chores._is_silent_for_a_lease(other)
    chores.renew("me", False)
    assert not chores._is_silent_for_a_lease(other)
    renewed_for(0.9 * lease)
    assert not chores._is_silent_for_a_lease(other)
    renewed_for(0.2 * lease)
    assert chores._is_silent_for_a_lease(other)
