"""One transaction on SQLite: the methods that differ from PostgreSQL."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from itertools import groupby, repeat
from operator import attrgetter
from typing import Any

from mulligan.core.attempt import Lease
from mulligan.core.durations import Micros
from mulligan.core.event import EventType
from mulligan.core.job import Candidate, ClaimState, LaneRef, NewJob
from mulligan.core.json import make_encoder
from mulligan.storage.base import Move, Settlement, StatementConditions
from mulligan.storage.event_bundles import (
    EventBundle,
    PendingEvent,
    Row,
    bundle_events,
    bundle_rows,
)
from mulligan.storage.rows import (
    replace_unstorable,
    unique_taken,
)
from mulligan.storage.sql import load_positional, load_statement
from mulligan.storage.sqlite_handle import CONSTRAINT, Handle
from mulligan.storage.statements import SQLITE_PREFIX, SqlDialect
from mulligan.storage.transaction import MAX_LANES, SqlTransaction

PREFIX = SQLITE_PREFIX
CLOCK_OFFSET_QUERY = f"SELECT value FROM {PREFIX}meta WHERE key = 'clock_offset'"
# Names of the fields of rows that are bound by position.
EVENT_COLUMNS = ("now", "event", "id", "batch_id", "owner", "attempt", "token", "data")
INSERT_FIELDS = (*NewJob._fields, "now", "announce")
SETTLE_COLUMNS = (*Settlement._fields, "now")

_encode = make_encoder(", ", ": ")


class SqliteTransaction(SqlTransaction):
    """Transaction on one connection. SQLite has one writer, so nothing is ever locked by others."""

    dialect = SqlDialect.SQLITE

    def __init__(self, handle: Handle, clock_offset: Micros | None = None) -> None:
        self._handle = handle
        offset = read_clock_offset(handle) if clock_offset is None else clock_offset
        self._now = time.time_ns() // 1000 + offset

    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._run(statement, {"now": self._now} | params)

    def rows_matching(
        self, statement: str, conditions: StatementConditions, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        values = {"now": self._now, **conditions.params, **params}
        return self._run(statement, values, conditions.text(self.dialect))

    def run_set(self, statement: str, rows: Sequence[Any]) -> None:
        for row in rows:
            self.rows(statement, **row._asdict())

    def _run(
        self, statement: str, params: dict[str, Any], matching: str = "1 = 1"
    ) -> list[tuple[Any, ...]]:
        text = load_statement(statement, "sqlite", PREFIX, matching=matching)
        try:
            return self._handle.execute(text, params)
        except UnicodeEncodeError:
            storable = {name: replace_unstorable(value) for name, value in params.items()}
            return self._handle.execute(text, storable)

    def run_command(self, text: str) -> None:
        self._handle.execute(text)

    def array_param(self, values: Sequence[Any]) -> Any:
        return json.dumps(list(values))

    def now(self) -> Micros:
        return self._now

    def _run_many(
        self, statement: str, fields: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
    ) -> int:
        """Run a statement for each row, for all or none. Return the number of changed rows."""
        text, select_params = load_positional(statement, PREFIX, fields)
        return self._execute_rows(text, [*map(select_params, rows)])

    def _execute_rows(self, text: str, rows: Sequence[tuple[Any, ...]]) -> int:
        try:
            if len(rows) <= 1:
                return self._handle.execute_one(text, rows[0]) if rows else 0
            with self.savepoint():
                return self._handle.execute_many(text, rows)
        except UnicodeEncodeError:
            storable = [tuple(map(replace_unstorable, row)) for row in rows]
            return self._handle.execute_many(text, storable)

    # --- Enqueue ---
    def insert_rows(self, jobs: Sequence[NewJob], *, announce: bool) -> tuple[int, Micros]:
        rows = [*map(operator.add, jobs, repeat((self._now, announce)))]
        insert, job_params = load_positional("insert_jobs", PREFIX, INSERT_FIELDS)
        with self.savepoint() if len(jobs) > 1 else nullcontext():
            count = self._handle.execute_many(insert, [*map(job_params, rows)])
            if count == len(jobs) == 1 and announce:
                insert, event_params = load_positional("write_queued_event", PREFIX, INSERT_FIELDS)
                self._handle.execute_many(insert, [event_params(rows[0])])
            elif count and announce:
                self._write_queued_events(jobs if count == len(jobs) else self._stored(jobs))
        return count, self._now

    def _stored(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Return the jobs that were inserted. The unique keys of the others were held."""
        ids = self.array_param([job.id for job in jobs])
        found = {row[0] for row in self.rows("list_existing_ids", ids=ids)}
        return [job for job in jobs if job.id in found]

    def _write_queued_events(self, jobs: Sequence[NewJob]) -> None:
        now = self._now
        rows = []
        for job in jobs:
            run_at = now + job.delay if job.run_at is None else job.run_at
            rows.append((job.id, job.batch_id, job.owner, job.kind, job.queue, run_at, now))
        self._write_queued(rows)

    # --- Events of jobs ---
    def _write_queued(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write job.queued events of the rows that `announce_jobs` returns."""
        events = []
        for job_id, batch_id, owner, kind, queue, run_at, at in rows:
            data = _queued_data(kind, queue, run_at)
            events.append(PendingEvent(at, _QUEUED, job_id, batch_id, owner, None, None, data))
        self._write_pending(*bundle_events(events))

    def _write_row_events(
        self, event_type: str, rows: Sequence[Row], data: Callable[[Row], str]
    ) -> None:
        self._write_pending(*bundle_rows(self._now, event_type, rows, data))

    def _write_pending(
        self, singles: Sequence[PendingEvent], bundles: Sequence[EventBundle]
    ) -> None:
        if singles:
            self._run_many("write_job_event", EVENT_COLUMNS, singles)
        for bundle in bundles:
            self._run("write_event_bundle", bundle._asdict())

    def announce_jobs(self, limit: int) -> int:
        found = self.rows("list_unannounced", limit=limit)
        return self._announce_ids([row[0] for row in found])

    def _announce_ids(self, ids: Sequence[str]) -> int:
        if not ids:
            return 0
        rows = self.rows("announce_jobs", ids=self.array_param(ids))
        self._write_queued(rows)
        return len(rows)

    # --- Claim ---
    def read_claim_state(self, expected: Sequence[LaneRef] = (), depth: int = 0) -> ClaimState:
        state = self.parse_claim_state(self.rows("read_claim_state", max_lanes=MAX_LANES))
        return state._replace(candidates=self.list_due_jobs(expected, depth))

    def list_due_jobs(self, lanes: Sequence[LaneRef], depth: int) -> list[Candidate]:
        found: list[Candidate] = []
        for lane, priority in lanes:
            rows = self.rows("list_due_jobs", lane=lane, priority=priority, depth=depth)
            found += map(Candidate._make, rows)
        return found

    def claim_candidates(self, worker: str, picked: Sequence[Candidate]) -> list[Lease]:
        return self.claim_jobs(worker, [job.id for job in picked], len(picked))

    def claim_jobs(self, worker: str, ids: Sequence[str], limit: int) -> list[Lease]:
        if not ids or not self._is_open(worker):
            return []
        rows = self.rows("list_claimable_jobs", worker=worker, ids=self.array_param(ids))
        by_id = {row[1]: row for row in rows}
        chosen = [by_id[job_id] for job_id in ids if job_id in by_id]
        return self._claim(worker, chosen[:limit])

    def _is_open(self, worker: str) -> bool:
        """True if the worker's row is open. A closed worker claims nothing."""
        return bool(self.rows("is_open_worker", worker=worker))

    def _claim(self, worker: str, claimable: Sequence[tuple[Any, ...]]) -> list[Lease]:
        """Claim rows of `list_claimable_jobs`: rowid, the columns of the lease, `announced`.

        This transaction holds the write lock, so the rows cannot have changed since they were read.
        """
        if not claimable:
            return []
        self.rows(
            "claim_jobs", worker=worker, places=self.array_param([row[0] for row in claimable])
        )
        leases = [Lease._make(row[1:-1]) for row in claimable]
        self._announce_ids([row[1] for row in claimable if not row[-1]])
        data = json.dumps({"worker": worker})
        self._write_row_events(EventType.JOB_STARTED.value, leases, lambda _: data)
        return leases

    # --- Settle ---
    def settle_fenced(self, settlements: Sequence[Settlement]) -> set[tuple[str, int]]:
        written = self._settle_jobs(settlements)
        attempts = [(*row, self._now) for row in written if row.succeeded_by is None]
        self._run_many("write_attempts", SETTLE_COLUMNS, attempts)
        by_type = sorted(written, key=attrgetter("event"))
        for event_type, group in groupby(by_type, key=attrgetter("event")):
            self._write_row_events(event_type, [*group], attrgetter("data"))
        return {(row.id, row.token) for row in written}

    def _settle_jobs(self, settlements: Sequence[Settlement]) -> Sequence[Settlement]:
        """Update the jobs whose fence holds, and return their settlements.

        Usually all do, so all are tried at once first.
        """
        rows = [(*row, self._now) for row in settlements]
        self.run_command("SAVEPOINT mulligan_settle")
        written = settlements
        if self._run_many("settle", SETTLE_COLUMNS, rows) < len(rows):
            self.run_command("ROLLBACK TO SAVEPOINT mulligan_settle")
            written = [
                settlement
                for settlement, row in zip(settlements, rows, strict=True)
                if self._run_many("settle", SETTLE_COLUMNS, [row])
            ]
        self.run_command("RELEASE SAVEPOINT mulligan_settle")
        return written

    # --- Other statements ---
    def move_job(self, move: Move) -> bool:
        try:
            return super().move_job(move)
        except CONSTRAINT as error:
            if "unique_hash" not in str(error):
                raise
            raise unique_taken(move.id, str(error)) from error

    def check_integrity(self) -> list[str]:
        found = [str(row[0]) for row in self._handle.execute("PRAGMA quick_check(10)")]
        return [] if found == ["ok"] else found


def read_clock_offset(handle: Handle) -> Micros:
    found = handle.execute(CLOCK_OFFSET_QUERY)
    return int(found[0][0]) if found else 0


# --- Inserts ---

_QUEUED = EventType.JOB_QUEUED.value


@lru_cache(maxsize=64)  # the same for all jobs of a bulk enqueue
def _queued_data(kind: str, queue: str, run_at: Micros) -> str:
    """Return the data of a job.queued event as JSON."""
    return _encode({"kind": kind, "queue": queue, "run_at": run_at})
