"""Write the steps of running attempts. Steps that finish at the same time share a transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from mulligan.core.errors import StatementAborted, StoreUnavailable
from mulligan.steps.queries import StepWrite, lease_after, step_write
from mulligan.steps.rules import StepRecord
from mulligan.worker.supervisor.loop import OUTAGE_WAIT
from mulligan.worker.supervisor.runner_process import ActiveAttempt
from mulligan.worker.supervisor.transactions import MAX_ABORTS

log = logging.getLogger("mulligan.worker")

SavedKeys = set[tuple[str, str]]
SaveSteps = Callable[[Sequence[StepWrite]], SavedKeys]
Submit = Callable[[Callable[[], SavedKeys]], Awaitable[SavedKeys]]
MAX_BATCH = 500  # steps in one transaction


class _Pending(NamedTuple):
    """A step that is not durable yet."""

    attempt: ActiveAttempt
    record: StepRecord
    saved: asyncio.Future[bool]


class StepWriter:
    """Saves steps in batches: while one is written, the next one collects."""

    def __init__(self, save_steps: SaveSteps, submit: Submit) -> None:
        self._save_steps = save_steps
        self._submit = submit
        self._pending: list[_Pending] = []
        self._task: asyncio.Task[None] | None = None

    def save(self, attempt: ActiveAttempt, record: StepRecord) -> asyncio.Future[bool]:
        """Save a step, however long the database is away. False: the lease is lost."""
        loop = asyncio.get_running_loop()
        pending = _Pending(attempt, record, loop.create_future())
        self._pending.append(pending)
        if self._task is None:
            self._task = loop.create_task(self._write_all())
        return pending.saved

    async def _write_all(self) -> None:
        try:
            while self._pending:
                batch = self._take_batch()
                try:
                    await self._write(batch)
                except Exception:  # noqa: BLE001 - the database refuses one of them
                    for one in batch:
                        await self._write_alone(one)
        finally:
            self._task = None

    def _take_batch(self) -> list[_Pending]:
        """Take the next steps. A name of a job occurs once in a batch: one statement writes all."""
        batch: dict[tuple[str, str], _Pending] = {}
        left = []
        for one in self._pending:
            key = one.attempt.lease.id, one.record.name
            if key in batch or len(batch) >= MAX_BATCH:
                left.append(one)
            else:
                batch[key] = one
        self._pending = left
        return [*batch.values()]

    async def _write_alone(self, one: _Pending) -> None:
        try:
            await self._write([one])
        except Exception as error:  # noqa: BLE001 - of any driver
            _refuse(one, error)

    async def _write(self, batch: Sequence[_Pending]) -> None:
        """Write steps in one transaction; after an outage, again."""
        aborts = 0
        while True:
            writes = [step_write(one.attempt.lease, one.record) for one in batch]
            try:
                saved = await self._submit(partial(self._save_steps, writes))
            except StoreUnavailable as outage:
                aborts += isinstance(outage, StatementAborted)
                if aborts >= MAX_ABORTS:
                    raise
                await asyncio.sleep(OUTAGE_WAIT[1])
                continue
            break
        for one, write in zip(batch, writes, strict=True):
            if write.key in saved:
                one.attempt.lease = lease_after(one.attempt.lease, write)
            if not one.saved.done():
                one.saved.set_result(write.key in saved)


def _refuse(one: _Pending, error: Exception) -> None:
    """Answer that a step is not saved: the attempt must not continue as if it were."""
    log.error("job %s: step %r is not saved: %s", one.attempt.lease.id, one.record.name, error)
    if not one.saved.done():
        one.saved.set_result(False)
