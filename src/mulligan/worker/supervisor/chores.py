"""What the chore thread does: renew, sweep, keep house. Each call is one or a few short transactions."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from mulligan.batches import completion as batching
from mulligan.config import Settings
from mulligan.core.errors import ConfigError
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import SECOND, Micros, WorkerRow
from mulligan.manifest.declared import speak
from mulligan.manifest.specs import Manifest
from mulligan.operations import chore as operate
from mulligan.schedules.chore import Timekeeper
from mulligan.storage.base import Renewal, Store
from mulligan.storage.url import boot_id
from mulligan.worker import liveness as life
from mulligan.worker import upkeep
from mulligan.worker.job_log import tell_sweep

log = logging.getLogger("mulligan.upkeep")

KEEP_HOUSE = 60.0  # seconds: what is old leaves, and we say that we are here
NEVER = float("-inf")
CHORE_BUDGET = 2.0  # seconds of one sweep for one kind of upkeep


class Chores:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        folder: Path,
    ) -> None:
        self._store = store
        self.settings = settings
        self._folder = folder
        self._rng = Random(SystemRandom().getrandbits(64))
        self._boot = boot_id()
        self._renewed = time.monotonic()
        self._unbroken_since = self._renewed
        self._heard: dict[
            str, tuple[Micros, float]
        ] = {}  # others: last renewal, and since when we know it
        self._pruned = NEVER
        self._timekeeper = Timekeeper(store, settings.worker)
        self._hurried = False
        self._manifest: Manifest | None = (
            None  # who begins again sweeps before it has said who it is
        )

    def tell_death(self, worker: str, facts: Mapping[str, Any]) -> None:
        with self._store.begin() as unit:
            unit.write_events(
                [NewEvent(EventType.WORKER_RUNNER_DIED, data={"worker": worker, **facts})]
            )

    def look_around(self, worker: str) -> int:
        """First of all, while the runners still load the app: did a sibling leave jobs behind?"""
        self._refuse_second_machine()
        return self.recover(worker)

    def open(self, row: WorkerRow, manifest: Manifest) -> None:
        """Enter our row and our manifest."""
        self._manifest = manifest
        with self._store.begin() as unit:
            speak(unit, manifest)
            unit.open_worker(row)
        self._renewed = self._unbroken_since = time.monotonic()

    def _say_we_are_here(self, manifest: Manifest) -> None:
        """Kinds and schedules hold for a day after they were named, and the clock may have leapt by more."""
        with self._store.begin() as unit:
            speak(unit, manifest)

    def _refuse_second_machine(self) -> None:
        """Monotonic clocks of two kernels cannot be compared: two machines on one SQLite file are refused."""
        if not self._store.place:
            return
        for _ in range(2):
            with self._store.read() as unit:
                strangers = {
                    w.id: w.renewed_at
                    for w in unit.workers(closed=False)
                    if w.boot_id != self._boot
                }
                living = [
                    w
                    for w in unit.workers(closed=False)
                    if w.id in strangers and not unit.expired(w)
                ]
            if not living:
                return
            time.sleep(max(w.lease for w in living) / 1e6 / 3)  # long enough for one more heartbeat
            with self._store.read() as unit:
                for worker in unit.workers(closed=False):
                    if worker.id in strangers and worker.renewed_at > strangers[worker.id]:
                        message = (
                            f"worker {worker.id} on {worker.host} uses this SQLite file from another machine; "
                            "use PostgreSQL to run workers on several machines"
                        )
                        raise ConfigError(message)

    # -- lease ------------------------------------------------------------------------------------
    def renew(self, worker: str, draining: bool) -> Renewal:  # noqa: FBT001 - called through an executor
        with self._store.begin() as unit:
            renewal = unit.renew(worker, draining=draining)
        now = time.monotonic()
        if now - self._renewed > self.settings.worker.lease / 2:
            self._unbroken_since = (
                now  # others may have had the same trouble: judge nobody for a full lease
            )
        self._renewed = now
        return renewal

    def cancels(self, worker: str) -> tuple[Micros, list[tuple[str, int, str]]]:
        """Only a look: a hint must not make us write, or we would hint ourselves."""
        with self._store.read() as unit:
            return unit.now(), unit.cancels(worker)

    def must_not_claim(self) -> bool:
        """Who cannot renew must not take more than it may lose."""
        return time.monotonic() - self._renewed > self.settings.worker.lease / 2

    def _may_judge(self) -> bool:
        """Not the first who comes after an outage, before its own next renewal: nobody could renew meanwhile."""
        return (
            not self.must_not_claim()
            and self._renewed - self._unbroken_since >= self.settings.worker.lease
        )

    def _silent_for_a_lease(self, other: WorkerRow) -> bool:
        """Its row has not changed for a full lease of our own monotonic clock, while we could renew all the time.

        No wall clock is asked, not even the database's: one that steps would kill or revive a whole fleet.
        """
        now = time.monotonic()
        renewed_at, since = self._heard.get(other.id, (other.renewed_at, now))
        if renewed_at != other.renewed_at:
            since = now
        self._heard[other.id] = (other.renewed_at, since)
        return self._may_judge() and now - since >= other.lease / SECOND

    # -- sweep ------------------------------------------------------------------------------------
    def sweep(self, worker: str) -> int:
        """Returns how many jobs came to the queue."""
        manifest = (
            self._manifest
            if self._hurried or time.monotonic() - self._pruned > KEEP_HOUSE
            else None
        )
        self._hurried = False
        if manifest is not None:
            self._say_we_are_here(manifest)
        fired = self._timekeeper.fire()
        requeued = self.recover(worker)
        upkeep.announce(self._store)
        late = self._while_full(lambda: upkeep.expire_deadlines(self._store))
        unknown = upkeep.bury_unknown(self._store, self.settings.worker.unknown_kind_after)
        self._while_full(lambda: batching.sweep(self._store))
        removed = self._prune(manifest) if manifest is not None else 0
        tell_sweep(
            {
                "jobs past their deadline ended": late,
                "jobs of unknown kinds ended": unknown,
                "jobs of schedules enqueued": fired,
                "rows removed by retention": removed,
            }
        )
        return requeued + fired

    def hurry(self) -> None:
        """The next sweep does what otherwise waits its turn."""
        self._hurried = True

    def recover(self, worker: str) -> int:
        judge = upkeep.Judge(worker, self._boot, self._silent_for_a_lease)
        upkeep.close_dead(self._store, judge)
        lost = upkeep.settle_orphans(self._store, self.settings.retry, self._rng)
        tell_sweep({"jobs of lost workers settled": len(lost)})
        life.sweep_folders(self._folder, worker)
        return len(lost)

    def _prune(self, manifest: Manifest) -> int:
        removed = self._while_full(lambda: upkeep.prune(self._store, self.settings, manifest.kinds))
        self._store.tidy()
        self._pruned = (
            NEVER if removed else time.monotonic()
        )  # more to do: go on with the next sweep
        return removed

    def _while_full(self, step: Callable[[], int]) -> int:
        """Repeat a small step while it finds plenty, for a bounded time; what they found together."""
        ends = time.monotonic() + CHORE_BUDGET
        all_found = 0
        while True:
            found = step()
            all_found += found
            if found < upkeep.STEP or time.monotonic() > ends:
                return all_found

    def operate(self) -> tuple[int, bool]:
        """Returns how many jobs were moved, and whether there will be something to do again."""
        return operate.turn(self._store), operate.under_way(self._store)

    # -- for running jobs -------------------------------------------------------------------------
    def progress(self, worker: str, news: Sequence[tuple[str, int, float | None, str]]) -> None:
        with self._store.begin() as unit:
            unit.progress(worker, news)

    def keep(self, job_id: str, worker: str, token: int, name: str, value: str) -> bool:
        with self._store.begin() as unit:
            return unit.checkpoint(job_id, worker, token, name, value)

    # -- the end ----------------------------------------------------------------------------------
    def close(self, worker: str) -> None:
        with self._store.begin() as unit:
            unit.close_worker(worker, "left in order", seen=None)

    def remove_folders(self, worker: str) -> None:
        shutil.rmtree(life.work_folder(self._folder, worker), ignore_errors=True)
