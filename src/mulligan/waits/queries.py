"""Statements about jobs that wait without a slot, as methods, and the rows they return."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from mulligan.core.job import JobRow
from mulligan.steps.queries import StepRow
from mulligan.storage.base import Queries


class WaitRow(NamedTuple):
    """A wait that begins: the row of its step, and what the row of its job says."""

    id: str
    token: int
    name: str
    kind: str
    number: int
    detail: str
    waits: str


class AnswerRow(NamedTuple):
    """An answer to a wait, ready to write."""

    id: str
    name: str
    value: str
    token: int
    actor: str


class WaitQueries(Queries):
    """Statements about waits, in a transaction."""

    def begin_waits(self, rows: Sequence[WaitRow]) -> None:
        """Write the waits of jobs that this transaction has settled, and so has locked.

        A job whose wait is over already, because the answer came first, is due at once.
        """
        in_order = sorted(rows, key=attrgetter("id"))
        self.tx.run_set("insert_waits", in_order)
        self.tx.run_set("mark_waiting", in_order)

    def lock_job(self, job_id: str) -> JobRow | None:
        """Return a job and lock it until the end of the transaction. None: there is none."""
        return self.first_row(JobRow, "lock_waiting_job", id=job_id)

    def get_step(self, job_id: str, name: str) -> StepRow | None:
        """Return a step of a job by its name."""
        return self.first_row(StepRow, "get_step", id=job_id, name=name)

    def write_answer(self, row: AnswerRow) -> None:
        """Write the answer to a wait, whether it has begun or not."""
        self.tx.rows("write_answer", **row._asdict())

    def write_children(self, row: AnswerRow, state: str) -> None:
        """Write how child jobs ended into the step of the wait for them."""
        self.tx.rows("write_children", state=state, **row._asdict())

    def wake(self, job_id: str) -> None:
        """Make a waiting job due."""
        self.tx.rows("wake_job", id=job_id, channel=self.tx.channel)

    def find_by_key(self, key: str, owner: str | None) -> list[str]:
        """Return the ids of the unfinished jobs with a unique key; of an owner if one is given."""
        rows = self.tx.rows("find_jobs_to_tell", key=key, owner=owner)
        return [row[0] for row in rows]
