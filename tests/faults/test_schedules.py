"""Schedules with killed, frozen and resumed workers: each slot runs once or is reported."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mulligan import Mulligan
from mulligan.core.durations import SECOND
from mulligan.events.queries import EventQueries
from support.store import sql
from support.waiting import until
from support.worker import Worker

HOUR = 3600 * SECOND


@pytest.fixture
def start(store_url: str, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Start workers of the scheduled app on this test's store."""
    workers: list[Worker] = []

    def make() -> Worker:
        workers.append(Worker(store_url, tmp_path, app="support.schedule_app:app"))
        return workers[-1]

    yield make
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()


class Ledger:
    """Compares the slots in the database with those that handlers ran."""

    def __init__(self, app: Mulligan, witness: Path) -> None:
        self._app = app
        self._witness = witness

    def slots(self) -> list[int]:
        return [slot for (slot,) in sql(self._app.store, "SELECT slot FROM {p}slot ORDER BY slot")]

    def ran(self) -> set[str]:
        lines = self._witness.read_text().splitlines() if self._witness.exists() else []
        return {line.split()[1] for line in lines}

    def run_since(self, slot: int) -> int:
        """How many slots after this one have run."""
        after = sql(
            self._app.store, "SELECT job_id FROM {p}slot WHERE slot > :slot", {"slot": slot}
        )
        return len(self.ran() & {job_id for (job_id,) in after})

    def skipped(self) -> list[int]:
        with self._app.store.read() as tx:
            reported = [
                event.data
                for event in EventQueries(tx).list_events_after(0, 100_000)
                if event.type == "schedule.skipped"
            ]
        ranges = [range(data["first"], data["last"] + 1, SECOND) for data in reported]
        assert [len(gone) for gone in ranges] == [data["count"] for data in reported]
        return [slot for gone in ranges for slot in gone]

    def check(self) -> None:
        """One job for each slot, and each slot either has one or was skipped."""
        jobs = sql(self._app.store, "SELECT id, run_at FROM {p}job")
        slots = sql(self._app.store, "SELECT job_id, slot FROM {p}slot")
        assert {job_id for job_id, _ in jobs} == {job_id for job_id, _ in slots}
        assert len(jobs) == len(slots)
        reported = sorted(self.slots() + self.skipped())
        assert reported == list(range(reported[0], reported[-1] + 1, SECOND))


@pytest.fixture
def ledger(app: Mulligan, tmp_path: Path) -> Ledger:
    return Ledger(app, tmp_path / "witness")


@pytest.mark.slow
def test_killed_and_frozen_workers_miss_no_slot_while_one_lives(
    app: Mulligan, start: Callable[..., Worker], ledger: Ledger, store_url: str
) -> None:
    first, second, third = [worker.ready() for worker in (start(), start(), start())]
    until(ledger.ran, 15, "a slot has run")
    first.kill()
    second.freeze(store_url)
    last = ledger.slots()[-1]
    until(
        lambda: ledger.run_since(last) >= 5,
        15,
        "the third worker runs alone, for longer than a lease",
    )
    second.stop_all(signal.SIGCONT)
    third.kill()
    last = ledger.slots()[-1]
    until(lambda: ledger.run_since(last) >= 1, 20, "the resumed workers continue")
    assert second.end() == 0
    ledger.check()
    assert ledger.skipped() == []
    times = sql(
        app.store,
        "SELECT slot, created_at, first_started_at FROM {p}slot JOIN {p}job ON id = job_id",
    )
    assert any(made < slot for slot, made, _ in times)
    assert all(begun >= slot for slot, _, begun in times if begun is not None)


@pytest.mark.slow
@pytest.mark.any_store
def test_after_a_time_without_workers_only_the_newest_slot_runs_and_the_others_are_reported(
    app: Mulligan, start: Callable[..., Worker], ledger: Ledger
) -> None:
    alone = start().ready()
    until(ledger.ran, 15, "a slot has run")
    alone.kill()
    left = ledger.slots()[-1]
    app.store.shift_clock(HOUR)
    pair = [start(), start()]
    until(lambda: ledger.run_since(left) >= 2, 20, "the schedule continues")
    assert [worker.end() for worker in pair] == [0, 0]
    ledger.check()
    gone = ledger.skipped()
    assert (gone[0], len(gone) >= 3590) == (left + SECOND, True)
