"""Accelerators of the supervisor loop: claim ahead, batches of leases, a second writer.

A job that does nothing ends long before a commit does. With only `concurrency` jobs at hand the
runner would wait for the database between batches. So jobs are claimed ahead while every claim is
full and jobs are short, up to half a second of work, and not at all as soon as jobs are long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from mulligan.core.attempt import Ended, Ending, Lease
from mulligan.core.errors import StoreUnavailable
from mulligan.manifest.specs import DELIVERY_QUEUE
from mulligan.retries.policy import parse_job_settings

MAX_PREFETCH = 4000
MAX_CLAIM = 2000  # jobs in one claim
PREFETCH_MS = 500  # of work to claim ahead, per slot
OVERHEAD_MS = 0.25  # added to the duration of each job
SHORT_MS = 20  # longer jobs are not claimed ahead
RARE_SHARE = 100  # one in 100 jobs may be longer
STALL_SHARE = (
    10  # one in 10, if at most `concurrency` are: a stalled runner delays all its running jobs
)
GROWTH = 4  # at most, from one claim to the next
MIN_DELIVERY_SLOTS = 3
DELIVERY_SHARE = 3  # one for every three other slots


def delivery_slots(concurrency: int) -> int:
    """Return how many slots are reserved for deliveries, in addition to all others.

    Deliveries must not wait until a long job has ended. There are enough slots that an endpoint
    that hangs leaves some for the others.
    """
    return max(MIN_DELIVERY_SLOTS, concurrency // DELIVERY_SHARE)


class Prefetch:
    """How many jobs to claim ahead of free slots. Adapts to how long jobs take."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._recent: list[int] = []  # durations of the last jobs, in ms
        self.ahead = 0

    def free_slots(self, held: int) -> int:
        """Return how many jobs to claim if `held` are held already."""
        return min(MAX_CLAIM, self._concurrency + self.ahead - held)

    def reset(self) -> None:
        """Claim nothing ahead: jobs are isolated, large, or did not start in time."""
        self.ahead = 0

    def learn(self, wanted: int, taken: int, durations_ms: Sequence[int]) -> None:
        """Adapt to one claim, and to the jobs that ended since the last one."""
        recent = self._with_recent(durations_ms)
        if self._are_long(recent):
            self.ahead, self._recent = 0, []
        elif durations_ms and 0 < wanted <= taken:
            each = sum(recent) / len(recent) + OVERHEAD_MS
            most = min(MAX_PREFETCH, int(self._concurrency * PREFETCH_MS / each))
            self.ahead = min(most, GROWTH * max(self._concurrency, self.ahead))

    def _with_recent(self, durations_ms: Sequence[int]) -> Sequence[int]:
        """Add earlier durations to a small sample, which a single stall would dominate."""
        enough = STALL_SHARE * self._concurrency
        recent = (
            durations_ms
            if len(durations_ms) >= enough
            else [*self._recent, *durations_ms][-enough:]
        )
        self._recent = [*recent[-enough:]]
        return recent

    def _are_long(self, durations_ms: Sequence[int]) -> bool:
        """True if jobs are long, rather than a runner having stalled once."""
        long = sum([took > SHORT_MS for took in durations_ms])
        return long * (STALL_SHARE if long <= self._concurrency else RARE_SHARE) > len(durations_ms)


# --- Batches of leases ---


class LeaseBatch(list[Lease]):
    """Leases of one claim, with access by column. Must not change after `columns` was read."""

    @cached_property
    def columns(self) -> Any:
        """Lease whose fields are tuples with the values of all leases."""
        return Lease._make(zip(*self, strict=True) if self else [()] * len(Lease._fields))

    @property
    def non_delivery_count(self) -> int:
        """How many are not deliveries."""
        return len(self) - int(self.columns.queue.count(DELIVERY_QUEUE))

    @property
    def payload_size(self) -> int:
        """Total size of the payloads in characters."""
        return sum(map(len, self.columns.payload))

    def has_isolated(self, isolated_kinds: frozenset[str]) -> bool:
        """True if one of them needs a single-use runner."""
        columns = self.columns
        if any(columns.alone) or not isolated_kinds.isdisjoint(columns.kind):
            return True
        return any(columns.settings) and any(
            needs_single_use_runner(lease, isolated_kinds) for lease in self
        )

    def is_uniform(self, isolated_kinds: frozenset[str], worker: str, kinds: Iterable[str]) -> bool:
        """True if all belong to this worker, are of known kinds, and can share a runner."""
        columns = self.columns
        return (
            {*columns.worker} == {worker}
            and {*columns.kind}.issubset(kinds)
            and not any(columns.losses)
            and not self.has_isolated(isolated_kinds)
        )


def needs_single_use_runner(lease: Lease, isolated_kinds: frozenset[str]) -> bool:
    """True if this attempt needs a single-use runner."""
    if lease.settings is not None and "memory_limit" in parse_job_settings(lease.settings):
        return True
    return lease.alone or lease.kind in isolated_kinds


def durations(endings: Iterable[Ending], isolated_kinds: frozenset[str]) -> list[int]:
    """Return the durations in ms of jobs in shared runners, without deliveries."""
    return [
        took
        for lease, _, took in endings
        if took is not None
        and lease.queue != DELIVERY_QUEUE
        and not (lease.alone or lease.kind in isolated_kinds)
        and (lease.settings is None or not needs_single_use_runner(lease, isolated_kinds))
    ]


# --- Second writer: short endings while a transaction of the loop runs ---

log = logging.getLogger("mulligan.worker")

MIN_BATCH = 200  # endings that are worth their own transaction
MAX_BATCH = 2000  # endings in one transaction
SLOW_AFTER = 1.0  # seconds; then another transaction probably holds a lock


class SideWriter:
    """Writes endings on a second thread."""

    def __init__(
        self,
        thread: ThreadPoolExecutor,
        write: Callable[[list[Ending]], object],
        on_written: Callable[[list[Ending]], None],
    ) -> None:
        """Create it. `on_written` gets, after each write, the endings that were not written."""
        self.waiting: list[Ending] = []
        self.writing: list[Ending] = []  # being written now
        self._thread = thread
        self._write = write
        self._on_written = on_written
        self._began = 0.0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def busy(self) -> bool:
        """True if it is writing."""
        return bool(self.writing)

    @property
    def is_fast(self) -> bool:
        """True if it is writing and has not taken long: what waits may wait for it."""
        return self.busy and time.monotonic() - self._began < SLOW_AFTER

    def accept(self, endings: list[Ending]) -> list[Ending]:
        """Take simple endings. Return the others."""
        simple = [ending for ending in endings if is_simple(ending)]
        self.waiting += simple
        if len(simple) == len(endings):
            return []
        return [ending for ending in endings if not is_simple(ending)]

    def withdraw(self, fences: Collection[tuple[str, int]] | None = None) -> list[Ending]:
        """Give back what waits: all, or the endings with these fences."""
        if fences is None:
            withdrawn = self.waiting
            self.waiting = []
        else:
            withdrawn = [ending for ending in self.waiting if ending.lease.fence in fences]
            self.waiting = [ending for ending in self.waiting if ending.lease.fence not in fences]
        return withdrawn

    def write(self) -> None:
        """Start to write what waits, if it is enough and nothing is being written."""
        if self.busy or len(self.waiting) < MIN_BATCH:
            return
        batch = self.waiting[:MAX_BATCH]
        try:
            writing = asyncio.get_running_loop().run_in_executor(self._thread, self._write, batch)
        except RuntimeError:  # no thread can be started: the loop writes them
            return
        del self.waiting[:MAX_BATCH]
        self.writing = batch
        self._began = time.monotonic()
        self._idle.clear()
        writing.add_done_callback(self._written)

    def _written(self, writing: asyncio.Future[object]) -> None:
        """Give back what was not written, or may not have been. Settling twice is harmless."""
        error = writing.exception()
        if error is not None and not isinstance(error, StoreUnavailable):
            log.error(
                "the side writer could not write %d endings", len(self.writing), exc_info=error
            )
        endings = self.writing
        self.writing = []
        self._idle.set()
        self._on_written([] if error is None else endings)

    async def wait_until_idle(self) -> None:
        """Wait until nothing is being written."""
        await self._idle.wait()


def is_simple(ending: Ending) -> bool:
    """True if the job was short and settling it touches no batch, dependency or delivery."""
    lease, outcome, took = ending
    return (
        took is not None
        and took <= SHORT_MS
        # Two comparisons are twice as fast as a lookup in a set.
        and (outcome.ended is Ended.RETURNED or outcome.ended is Ended.FAILED)
        and not (lease.uses or lease.batch_id or lease.alone)
        and lease.queue != DELIVERY_QUEUE
    )
