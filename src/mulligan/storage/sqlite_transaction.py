"""One transaction on SQLite: the methods that differ from PostgreSQL."""

from __future__ import annotations

import json
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from itertools import groupby, repeat
from operator import attrgetter, itemgetter
from typing import Any

from mulligan.core.attempt import Lease
from mulligan.core.durations import Micros
from mulligan.core.event import Event, EventType
from mulligan.core.job import NewJob, WorkerRow
from mulligan.core.json import make_encoder
from mulligan.core.statistics import DeathCount, Deaths
from mulligan.storage.base import Move, RetryRow, Settlement, SharedRetryTexts, SuccessRow
from mulligan.storage.event_bundles import (
    EventBundle,
    PendingEvent,
    Row,
    bundle_events,
    bundle_rows,
    bundle_texts,
)
from mulligan.storage.failure_queries import dead_jobs_filter
from mulligan.storage.rows import (
    replace_unstorable,
    unique_taken,
)
from mulligan.storage.search_queries import ArgRow, Conditions, Shape, Where, build_conditions
from mulligan.storage.sql import load_positional, load_statement
from mulligan.storage.sqlite_handle import CONSTRAINT, Handle
from mulligan.storage.stat_queries import StatRow
from mulligan.storage.transaction import SqlTransaction
from mulligan.storage.url import boot_id

PREFIX = "mulligan_"
CLOCK_OFFSET_QUERY = f"SELECT value FROM {PREFIX}meta WHERE key = 'clock_offset'"
# Names of the fields of rows that are bound by position.
EVENT_COLUMNS = ("now", "event", "id", "batch_id", "owner", "attempt", "token", "data")
INSERT_FIELDS = (*NewJob._fields, "now", "announce")
SETTLE_COLUMNS = (*Settlement._fields, "now")
SUCCESS_COLUMNS = (*SuccessRow._fields, "worker", "now")
# Equal rows are written by one statement per group if groups have at least this size on average.
MIN_GROUP_SIZE = 8

_encode = make_encoder(", ", ": ")


class SqliteTransaction(SqlTransaction):
    """Transaction on one connection. SQLite has one writer, so nothing is ever locked by others."""

    supports_settle_retries = True

    def __init__(self, handle: Handle, clock_offset: Micros | None = None) -> None:
        self._handle = handle
        offset = read_clock_offset(handle) if clock_offset is None else clock_offset
        self._now = time.time_ns() // 1000 + offset

    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._run(statement, {"now": self._now} | params)

    def rows_where(self, statement: str, where: Where, /, **params: Any) -> list[tuple[Any, ...]]:
        return self.rows_matching(statement, build_conditions(where), **params)

    def rows_matching(
        self, statement: str, conditions: Conditions, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        values = {"now": self._now} | conditions.params | params
        return self._run(statement, values, conditions.shape)

    def _run(
        self, statement: str, params: dict[str, Any], shape: Shape = ()
    ) -> list[tuple[Any, ...]]:
        text = load_statement(statement, "sqlite", PREFIX, shape=shape)
        try:
            return self._handle.execute(text, params)
        except UnicodeEncodeError:
            storable = {name: replace_unstorable(value) for name, value in params.items()}
            return self._handle.execute(text, storable)

    def run_command(self, text: str) -> None:
        self._handle.execute(text)

    def count_group_deaths(
        self, names: Sequence[str], where: Where, now: Micros, hours: int, cap: int
    ) -> dict[str, Deaths]:
        death_times = self.get_group_death_times(names, where)
        conditions = build_conditions(dead_jobs_filter(where))
        bounds = {"at_time": now, "hours": hours, "cap": cap}
        found = {}
        for name, (first, last) in death_times.items():
            rows = self.rows_matching("count_group_deaths", conditions, name=name, **bounds)
            found[name] = _count_deaths(rows, first, last)
        return found

    def count_group_recoveries(
        self, names: Sequence[str], owner: str | None, limit: int
    ) -> dict[str, tuple[int, int]]:
        found = {}
        for name in names:
            rows = self.rows("count_group_recoveries", name=name, owner=owner, limit=limit)
            found[name] = (rows[0][0], rows[0][1])
        return found

    def array_param(self, values: Sequence[Any]) -> Any:
        return json.dumps(list(values))

    def now(self) -> Micros:
        return self._now

    def monotonic_now(self) -> Micros:
        return time.monotonic_ns() // 1000

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

    def write_args(self, rows: Sequence[ArgRow]) -> None:
        self._run_many("write_args", ArgRow._fields, rows)

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
    def list_due_jobs(
        self, lanes: Sequence[tuple[str, int]], limit: int, *, each: int | None = None
    ) -> list[tuple[int, Micros, str, str]]:
        found: list[Any] = []
        lane_limit = min(limit, each or limit)
        for lane, priority in lanes:
            found += self.rows("list_due_jobs", lane=lane, priority=priority, limit=lane_limit)
        return sorted(found)[:limit]

    def claim_from_lane(self, worker: str, lane: str, priority: int, limit: int) -> list[Lease]:
        if not self._is_open(worker):
            return []
        rows = self.rows(
            "list_claimable_in_lane", worker=worker, lane=lane, priority=priority, limit=limit
        )
        return self._claim(worker, rows)

    def claim_jobs(self, worker: str, ids: Sequence[str], limit: int) -> list[Lease]:
        if not self._is_open(worker):
            return []
        rows = self.rows("list_claimable_jobs", worker=worker, ids=self.array_param(ids))
        by_id = {row[1]: row for row in rows}
        chosen = [by_id[job_id] for job_id in ids if job_id in by_id]
        return self._claim(worker, chosen[:limit])

    def _is_open(self, worker: str) -> bool:
        """True if the worker's row is open. A closed worker claims nothing."""
        return bool(self.rows("is_open_worker", worker=worker))

    def _claim(self, worker: str, claimable: Sequence[tuple[Any, ...]]) -> list[Lease]:
        """Claim rows of `lease_after_claim`: rowid, the columns of the lease, `announced`.

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
        written = settlements
        if not self._settle_all(settlements):
            written = [row for row in settlements if self._settle_all([row])]
        for event_type, group in groupby(written, key=attrgetter("event")):
            self._write_row_events(event_type, [*group], attrgetter("data"))
        return {(row.id, row.token) for row in written}

    def _settle_all(self, settlements: Sequence[Settlement]) -> bool:
        """Settle all or none. False: a fence did not hold."""
        return self._all_or_none(len(settlements), *self._settle_steps(settlements))

    def _settle_steps(self, settlements: Sequence[Settlement]) -> Iterator[Callable[[], int]]:
        """Yield the update and the insert of attempts: per group of equal decisions, or per row."""
        groups: dict[tuple[Any, ...], list[Settlement]] = {}
        for row in settlements:
            groups.setdefault(_decision_fields(row), []).append(row)
        if len(groups) * MIN_GROUP_SIZE > len(settlements):
            rows = [(*row, self._now) for row in settlements]
            yield partial(self._run_many, "settle", SETTLE_COLUMNS, rows)
            yield partial(self._run_many, "write_attempts", SETTLE_COLUMNS, rows)
            return
        group_params = [self._group_params(group) for group in groups.values()]
        yield partial(self._run_groups, "settle_equal", group_params)
        yield partial(self._run_groups, "write_equal_attempts", group_params)

    def _group_params(self, group: Sequence[Settlement]) -> dict[str, Any]:
        return group[0]._asdict() | {
            "ids": self.array_param([row.id for row in group]),
            "privates": json.dumps(dict(map(_id_and_private, group))),
        }

    def settle_successes(
        self, worker: str, successes: Sequence[SuccessRow]
    ) -> set[tuple[str, int]]:
        if not self._all_or_none(len(successes), *self._success_steps(worker, successes)):
            return set()
        self._write_row_events(EventType.JOB_SUCCEEDED.value, successes, attrgetter("data"))
        return {(row.id, row.token) for row in successes}

    def _success_steps(
        self, worker: str, successes: Sequence[SuccessRow]
    ) -> Iterator[Callable[[], int]]:
        """Yield the update and the insert of attempts: per group of equal rows, or per row.

        First attempts (token 1) have no attempt row: their jobs' rows contain everything.
        """
        first_attempts = sum([row.token == 1 for row in successes])
        groups: dict[tuple[Any, ...], list[str]] = {}
        for row in successes:
            key = _first_attempt_fields(row) if row.token == 1 else _later_attempt_fields(row)
            groups.setdefault(key, []).append(row.id)
        if len(groups) * MIN_GROUP_SIZE > len(successes):
            rows = [(*row, worker, self._now) for row in successes]
            later = [row for row, success in zip(rows, successes, strict=True) if success.token > 1]
            yield partial(self._run_many, "settle_successes", SUCCESS_COLUMNS, rows)
            yield (
                lambda: (
                    first_attempts
                    + self._run_many("write_success_attempts", SUCCESS_COLUMNS, later)
                )
            )
            return
        group_params = [
            dict(zip(_LATER_ATTEMPT_FIELDS, key, strict=False))
            | {"worker": worker, "ids": self.array_param(ids)}
            for key, ids in groups.items()
        ]
        later_groups = [params for params in group_params if params["token"] != 1]
        yield partial(self._run_groups, "settle_equal_successes", group_params)
        yield (
            lambda: first_attempts + self._run_groups("write_equal_success_attempts", later_groups)
        )

    def settle_retries(
        self, row: Settlement, texts: SharedRetryTexts, retries: Sequence[RetryRow]
    ) -> set[tuple[str, int]]:
        params = row._asdict() | texts._asdict()
        if not self._all_or_none(len(retries), *self._retry_steps(params, retries)):
            return set()
        event = PendingEvent(
            self._now, row.event, "", row.batch_id, row.owner, row.attempt, row.token, ""
        )
        data = [
            (one.id, f"{texts.event_head}{one.duration_ms}{texts.event_middle}{one.waited_ms}}}")
            for one in retries
        ]
        self._write_pending(*bundle_texts(event, data))
        return {(one.id, row.token) for one in retries}

    def _retry_steps(
        self, params: dict[str, Any], retries: Sequence[RetryRow]
    ) -> Iterator[Callable[[], int]]:
        """Yield the update of all jobs, and the insert of attempts per start time."""
        messages_by_start: dict[Micros, dict[str, str]] = {}
        for one in retries:
            messages_by_start.setdefault(one.started_at, {})[one.id] = one.message
        ids = self.array_param([one.id for one in retries])
        group_params = [
            params | {"started_at": started_at, "messages": json.dumps(messages)}
            for started_at, messages in messages_by_start.items()
        ]
        yield partial(self._run_groups, "settle_retries", [params | {"ids": ids}])
        yield partial(self._run_groups, "write_retry_attempts", group_params)

    def _run_groups(self, statement: str, groups: Iterable[dict[str, Any]]) -> int:
        """Run a statement for each group. Return the number of changed rows."""
        changed = 0
        for params in groups:
            self.rows(statement, **params)
            changed += self._handle.changes()
        return changed

    def _all_or_none(self, count: int, *steps: Callable[[], int]) -> bool:
        """Run steps that each must change `count` rows. Undo all and return False otherwise."""
        self.run_command("SAVEPOINT mulligan_all")
        complete = all(step() == count for step in steps)
        if not complete:
            self.run_command("ROLLBACK TO SAVEPOINT mulligan_all")
        self.run_command("RELEASE SAVEPOINT mulligan_all")
        return complete

    # --- Other statements ---
    def write_stats(self, rows: Sequence[StatRow]) -> None:
        for row in rows:
            self._run("write_stats", row._asdict())

    def move_job(self, move: Move) -> bool:
        try:
            return super().move_job(move)
        except CONSTRAINT as error:
            if "unique_hash" not in str(error):
                raise
            raise unique_taken(move.id, str(error)) from error

    def is_expired(self, worker: WorkerRow) -> bool:
        elapsed = self.monotonic_now() - worker.renewed_mono
        # A negative time comes from another boot, even if the boot id is the same.
        if worker.boot_id == boot_id() and elapsed >= 0:
            return elapsed > worker.lease
        return self._now - worker.renewed_at > worker.lease

    def list_events_after(self, cursor: int, limit: int) -> list[Event]:
        # There is one writer, so ids are drawn in commit order.
        return self.events_in_range("list_events", cursor, 2**62, limit)

    def newest_event(self, above: int = -1) -> int:
        del above
        return int(self.rows("newest_event")[0][0])

    def event_lag(self) -> Micros:
        return 0

    def check_integrity(self) -> list[str]:
        found = [str(row[0]) for row in self._handle.execute("PRAGMA quick_check(10)")]
        return [] if found == ["ok"] else found


def read_clock_offset(handle: Handle) -> Micros:
    found = handle.execute(CLOCK_OFFSET_QUERY)
    return int(found[0][0]) if found else 0


# --- Groups of rows that one statement can write ---

_LATER_ATTEMPT_FIELDS = ("token", "result", "generation", "attempt", "started_at")
_first_attempt_fields = attrgetter(*_LATER_ATTEMPT_FIELDS[:2])
_later_attempt_fields = attrgetter(*_LATER_ATTEMPT_FIELDS)

# Fields in which settlements of a group may differ: parameters of write_equal_attempts, columns
# that it reads from the job's row, and fields of the event.
_GROUP_PARAMS = ("id", "private")
_JOB_COLUMNS = ("generation", "attempt", "started_at")
_EVENT_FIELDS = ("owner", "batch_id", "data")
_varying_fields = {*_GROUP_PARAMS, *_JOB_COLUMNS, *_EVENT_FIELDS}
_id_and_private = itemgetter(*map(Settlement._fields.index, _GROUP_PARAMS))
_decision_fields = itemgetter(
    *[place for place, name in enumerate(Settlement._fields) if name not in _varying_fields]
)


_QUEUED = EventType.JOB_QUEUED.value


@lru_cache(maxsize=64)  # the same for all jobs of a bulk enqueue
def _queued_data(kind: str, queue: str, run_at: Micros) -> str:
    """Return the data of a job.queued event as JSON."""
    return _encode({"kind": kind, "queue": queue, "run_at": run_at})


def _count_deaths(rows: Sequence[tuple[Any, ...]], first: Micros, last: Micros) -> Deaths:
    """Count deaths by kind, code and class, and by age in hours."""
    counts = Counter(row[:3] for row in rows)
    hours = Counter(row[3] for row in rows)
    death_counts = [DeathCount._make((*group, jobs)) for group, jobs in counts.items()]
    return Deaths(death_counts, list(hours.items()), first, last)
