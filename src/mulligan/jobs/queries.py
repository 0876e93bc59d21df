"""Statements about jobs and their attempts."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from mulligan.core.durations import Micros
from mulligan.core.errors import UniqueMismatch, UniqueRace, UniqueTaken
from mulligan.core.event import EventType, NewEvent
from mulligan.core.ids import MAX_CLOCK_SKEW, first_id
from mulligan.core.job import ArgRow, AttemptRow, JobRow, NewJob, State
from mulligan.core.json import make_encoder, scalar_text
from mulligan.events.queries import (
    EventQueries,
    JobEventQueries,
    PendingEvent,
    bundle_events,
)
from mulligan.jobs.filter import (
    ABOVE_ALL_IDS,
    ALL_JOBS,
    BY_STATE,
    Conditions,
    SearchPlan,
    Where,
    build_conditions,
    choose_plan,
    expand_filter,
    follow_plan,
    leading_conditions,
    plan_without_state,
)
from mulligan.storage.base import Queries, RowQueries, RowTransaction
from mulligan.storage.statements import SqlDialect

# Statements that delete jobs with all that belongs to them.
DELETE_JOBS = (
    "delete_attempts",
    "delete_attempt_logs",
    "delete_steps",
    "delete_args",
    "delete_jobs",
)


class PrunedJobs(NamedTuple):
    """Summary of jobs that retention deleted together."""

    kind: str
    state: str
    owner: str
    code: str
    jobs: int
    first_id: str
    last_id: str


class Inserted(NamedTuple):
    """Result of inserting one job: its id, or that of the job that holds its unique key."""

    id: str
    fresh: bool
    created_at: Micros = 0


class Move(NamedTuple):
    """Transition outside an attempt, by compare-and-set on (state, generation, token).

    In the fields from `max_retries` on, None leaves the job's value unchanged.
    """

    id: str
    from_state: str
    generation: int
    token: int
    state: str
    run_at: int | None
    new_generation: bool
    finished: bool
    error: str | None
    reason: str
    choice: str | None
    unique_hash: str | None
    max_retries: int | None = None
    queue: str | None = None
    lane: str | None = None  # for the new queue and dependencies
    priority: int | None = None
    timeout: int | None = None
    policy: str | None = None
    payload: str | None = None
    version: int | None = None  # of this payload
    uses: str | None = None
    unique_key: str | None = None
    lane_suffix: str | None = "0"  # "0" fresh, "1" retry
    died_code: str | None = None  # of the failure, if the job dies
    died_class: str | None = None
    died_group: str | None = None
    settings: str | None = None
    drop_deadline: bool = False


UNIQUE_ROUNDS_LIMIT = 3  # attempts to insert a unique key whose holder changes
INDEXED_KEY_LENGTH = 200  # characters of a unique key in the index job_for_key
INSERT_FIELDS = (*NewJob._fields, "now", "announce")

_QUEUED = EventType.JOB_QUEUED.value
_encode = make_encoder(", ", ": ")
_unique_hash = attrgetter("unique_hash")
_args = attrgetter("args")


class InsertRows(Protocol):
    """Function that inserts the jobs whose unique key is free: returns their number and time."""

    def __call__(self, jobs: Sequence[NewJob], *, announce: bool) -> tuple[int, Micros]: ...


class NewJobQueries(RowQueries):
    """Statements that insert and announce jobs one after another (SQLite)."""

    def insert_each(self, jobs: Sequence[NewJob], *, announce: bool) -> tuple[int, Micros]:
        """Insert the jobs whose unique key is free. Return their number and the time of insert."""
        now = self.tx.now()
        rows = [job + (now, announce) for job in jobs]  # noqa: RUF005 - a third faster
        if len(rows) == 1:
            count = self.tx.run_many("insert_jobs", INSERT_FIELDS, rows)
            if count and announce:
                self.tx.run_many("write_queued_event", INSERT_FIELDS, rows)
            return count, now
        with self.tx.savepoint():
            count = self.tx.run_many("insert_jobs", INSERT_FIELDS, rows)
            if count and announce:
                self._announce_new(jobs if count == len(jobs) else self._stored(jobs), now)
        return count, now

    def _stored(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Return the jobs that were inserted. The unique keys of the others were held."""
        ids = self.tx.array_param([job.id for job in jobs])
        found = {row[0] for row in self.tx.rows("list_existing_ids", ids=ids)}
        return [job for job in jobs if job.id in found]

    def _announce_new(self, jobs: Sequence[NewJob], now: Micros) -> None:
        rows = []
        for job in jobs:
            due_at = job.due_at(now)
            rows.append((job.id, job.batch_id, job.owner, job.kind, job.queue, due_at, now))
        self._write_queued(rows)

    def _write_queued(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write job.queued events of the rows that `announce_jobs` returns."""
        events = []
        for job_id, batch_id, owner, kind, queue, run_at, at in rows:
            data = _queued_data(kind, queue, run_at)
            events.append(PendingEvent(at, _QUEUED, job_id, batch_id, owner, None, None, data))
        JobEventQueries(self.tx).write_pending(*bundle_events(events))

    def announce_ids(self, ids: Sequence[str]) -> int:
        """Write the missing `job.queued` events of these jobs."""
        if not ids:
            return 0
        rows = self.tx.rows("announce_jobs", ids=self.tx.array_param(ids))
        self._write_queued(rows)
        return len(rows)


class JobQueries(Queries):
    """Statements about jobs, in a transaction."""

    # --- Insert ---
    def insert_jobs(self, jobs: Sequence[NewJob], *, announce: bool) -> list[Inserted]:
        """Insert queued jobs. Waits only for transactions that insert the same unique keys.

        `announce` writes a `job.queued` event for each. In a caller's transaction upkeep does so
        later.
        """
        insert_rows: InsertRows = self._insert_set
        if isinstance(self.tx, RowTransaction):
            insert_rows = NewJobQueries(self.tx).insert_each
        if any(map(_unique_hash, jobs)):
            with self.tx.savepoint() if len(jobs) > 1 else nullcontext():
                return self._insert_unique(jobs, insert_rows, announce=announce)
        _, now = insert_rows(jobs, announce=announce)
        if any(map(_args, jobs)):
            self._write_args(jobs)
        return [Inserted(job.id, True, now) for job in jobs]

    def _insert_unique(
        self, jobs: Sequence[NewJob], insert_rows: InsertRows, *, announce: bool
    ) -> list[Inserted]:
        """Insert jobs, or find the holders of their unique keys."""
        results: dict[str, Inserted] = {}
        # All transactions insert keys in this order, so they may wait for each other but cannot
        # deadlock.
        remaining = sorted(jobs, key=lambda job: job.unique_hash or "")
        for _ in range(UNIQUE_ROUNDS_LIMIT):
            count, now = insert_rows(remaining, announce=announce)
            if count == len(remaining):
                results |= {job.id: Inserted(job.id, True, now) for job in remaining}
            else:
                results |= self._find_holders(remaining, now)
            remaining = [job for job in remaining if job.id not in results]
            if not remaining:
                self._write_args([job for job in jobs if results[job.id].fresh])
                return [results[job.id] for job in jobs]
        raise _unique_race(remaining[0].unique_key)

    def _find_holders(self, jobs: Sequence[NewJob], now: Micros) -> dict[str, Inserted]:
        """Return a result for each job that was inserted or whose unique key another job holds.

        A job without a result must be inserted again: the holder of its key is gone.
        """
        hashes = self.tx.array_param([job.unique_hash for job in jobs if job.unique_hash])
        found = self.tx.rows("find_unique_holders", hashes=hashes)
        holders = {unique_hash: holder for unique_hash, *holder in found}
        results = {}
        for job in jobs:
            if job.unique_hash is None:
                results[job.id] = Inserted(job.id, True, now)
            elif job.unique_hash in holders:
                result = self._result_of_holder(job, now, *holders[job.unique_hash])
                if result is not None:
                    results[job.id] = result
        return results

    def _result_of_holder(
        self, job: NewJob, now: Micros, holder: str, payload: str, until: Micros | None
    ) -> Inserted | None:
        if holder == job.id:
            return Inserted(job.id, True, now)
        if until is not None and until <= self.tx.now():
            self.tx.rows("release_unique_key", id=holder, unique_hash=job.unique_hash)
            return None
        if job.unique_exact and payload != job.payload:
            message = (
                f"unique key {job.unique_key!r} belongs to job {holder}, which has another payload"
            )
            raise UniqueMismatch(message)
        return Inserted(holder, fresh=False)

    def _write_args(self, jobs: Sequence[NewJob]) -> None:
        """Index the arguments of new jobs, for filters."""
        rows = []
        for job in jobs:
            for arg in job.args:
                rows.append(ArgRow(job.id, job.kind, *arg))
        if rows:
            self.tx.run_set("write_args", rows)

    def write_queued_events(self, events: Sequence[NewEvent]) -> None:
        """Write the `job.queued` events of jobs that this transaction inserted without one."""
        job_ids = [event.job_id for event in events if event.job_id is not None]
        self.tx.rows("mark_announced", ids=self.tx.array_param(job_ids))
        EventQueries(self.tx).write_events(events)

    # --- Insert a set of rows (PostgreSQL) ---
    def _insert_set(self, jobs: Sequence[NewJob], *, announce: bool) -> tuple[int, Micros]:
        """Insert the jobs whose unique key is free. Return their number and the time of insert."""
        notify = announce or self.tx.notify_callers
        channel = self.tx.channel if notify else None
        try:
            rows = self.tx.run_set("insert_jobs", jobs, announce=announce, channel=channel)
        except self.tx.serialization_failures as error:
            # Only in a caller's transaction: our own are READ COMMITTED.
            key = next((job.unique_key for job in jobs if job.unique_hash), None)
            raise _unique_race(key) from error
        count, now, *_ = rows[0] if rows else (0, None)
        return count, now or self.tx.now()

    # --- Events of jobs that were inserted without one ---
    def announce_jobs(self, limit: int) -> int:
        """Write the missing `job.queued` events of jobs inserted in callers' transactions."""
        if not isinstance(self.tx, RowTransaction):
            return len(self.tx.rows("announce_jobs", limit=limit))
        found = self.tx.rows("list_unannounced", limit=limit)
        return NewJobQueries(self.tx).announce_ids([row[0] for row in found])

    # --- Manual actions and upkeep ---
    def get_death(self, id_: str) -> dict[str, str | None]:
        """Return code, class and group of a dead job; None for others."""
        [row] = self.tx.rows("get_death", id=id_)
        return dict(zip(("died_code", "died_class", "died_group"), row, strict=True))

    def restore_discarded(self, id_: str, choices: str | None, finished_at: Micros | None) -> None:
        """Restore the choices and the end of a job whose discard is undone."""
        self.tx.rows("restore_discarded", id=id_, choices=choices, finished_at=finished_at)

    def move_job(self, move: Move) -> bool:
        """Change the state of a job outside of an attempt, by compare-and-set.

        False: the job has changed meanwhile. Raises UniqueTaken if another job holds its key.
        """
        # On PostgreSQL a taken key must not abort the transaction. Without a key is no conflict.
        may_abort = self.tx.dialect == SqlDialect.POSTGRES and move.unique_hash is not None
        try:
            with self.tx.savepoint() if may_abort else nullcontext():
                return self._move(move)
        except self.tx.unique_violations as error:
            if "unique" not in str(error):
                raise
            detail = self.tx.describe(error)
            message = f"another job holds the unique key of job {move.id} now ({detail})"
            raise UniqueTaken(message) from error

    def _move(self, move: Move) -> bool:
        moved = self.tx.rows("move_job", **move._asdict())
        if not moved:
            return False
        announced, kind, queue, owner, batch_id, run_at = moved[0]
        if not announced:
            # The job was inserted in a caller's transaction: its first event is still missing.
            data = {"kind": kind, "queue": queue, "run_at": run_at}
            event = NewEvent(
                EventType.JOB_QUEUED, job_id=move.id, batch_id=batch_id, owner=owner, data=data
            )
            self.write_queued_events([event])
        return True

    # --- Read ---
    def get_job(self, job_id: str) -> JobRow | None:
        """Read one job."""
        found = self.tx.rows("get_job", id=job_id)
        return JobRow._make(found[0]) if found else None

    def find_jobs(self, prefix: str, limit: int = 2) -> list[str]:
        """List ids that start with `prefix`."""
        return [
            row[0]
            for row in self.tx.rows("find_jobs", prefix=prefix, upper=prefix + "~", limit=limit)
        ]

    def find_jobs_by_end(self, end: str, limit: int) -> list[str]:
        """List ids that end with `end`, newest first."""
        return [row[0] for row in self.tx.rows("find_jobs_by_end", pattern=f"%{end}", limit=limit)]

    def list_owners(self, start: str, limit: int) -> list[str]:
        """List owners whose names begin with `start`, in order."""
        rows = self.tx.rows("list_owners", start=start, limit=limit)
        return [name for (name,) in rows if name.startswith(start)]

    def find_jobs_by_key(self, prefix: str, limit: int) -> list[str]:
        """List jobs whose unique key starts with `prefix`."""
        first = prefix[:INDEXED_KEY_LENGTH]
        bounds = {"first": first, "last": f"{first}\U0010ffff", "limit": limit}
        rows = self.tx.rows("find_jobs_by_key", prefix=prefix, **bounds)
        return [row[0] for row in rows]

    def get_kinds_and_queues(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return (kind, queue) of jobs."""
        found = self.tx.rows("get_kinds_and_queues", ids=self.tx.array_param(ids)) if ids else []
        return {job_id: (kind, queue) for job_id, kind, queue in found}

    def get_kinds_and_payloads(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return (kind, payload) of jobs."""
        found = self.tx.rows("get_kinds_and_payloads", ids=self.tx.array_param(ids)) if ids else []
        return {job_id: (kind, payload) for job_id, kind, payload in found}

    def lock_jobs(self, ids: Sequence[str]) -> list[JobRow]:
        """Lock and list jobs by id. Skip those that are locked."""
        if not ids:
            return []
        return [
            JobRow._make(row) for row in self.tx.rows("lock_jobs", ids=self.tx.array_param(ids))
        ]

    def list_attempts(self, job_id: str) -> list[AttemptRow]:
        """List the finished attempts of a job in order."""
        return [AttemptRow._make(row) for row in self.tx.rows("list_attempts", id=job_id)]

    def get_attempt_log(self, job_id: str, token: int | None) -> tuple[int, str, str] | None:
        """Return (token, records, stacks) of an attempt; None if nothing is stored.

        Without a token: of the last attempt that has a log.
        """
        found = self.tx.rows("get_attempt_log", id=job_id, token=token)
        return (found[0][0], found[0][1], found[0][2]) if found else None

    def list_attempt_logs(self, job_id: str) -> list[int]:
        """List the tokens of the attempts of a job that have a log."""
        return [row[0] for row in self.tx.rows("list_attempt_logs", id=job_id)]

    def get_latest_attempts(
        self, ids: Sequence[str], *, failed: bool = False
    ) -> dict[str, AttemptRow]:
        """Return the last finished attempt of each job that has one. `failed`: that has failed."""
        if not ids:
            return {}
        found = self.tx.rows("get_latest_attempts", ids=self.tx.array_param(ids), failed=failed)
        return {row[0]: AttemptRow._make(row) for row in found}

    def get_releases(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the release of the app that last ran each job."""
        if not ids:
            return {}
        return dict(self.tx.rows("get_releases", ids=self.tx.array_param(ids)))

    def request_cancel(self, job_id: str, token: int, reason: str) -> bool:
        """Request that a running attempt stops. False: this attempt is not running any more."""
        channel = self.tx.channel  # to notify the job's worker, where the database can
        requested = self.tx.rows(
            "request_cancel", id=job_id, token=token, reason=reason, channel=channel
        )
        return bool(requested)

    def find_unique_holder(self, unique_hash: str) -> str | None:
        """Return the job that holds a unique key. None: the key is free or its hold has expired."""
        for _, holder, _, until in self._holders(unique_hash):
            if until is None or until > self.tx.now():
                return str(holder)
        return None

    def release_expired_key(self, unique_hash: str) -> bool:
        """Release a unique key whose hold has expired. False: it is held or free."""
        for _, holder, _, until in self._holders(unique_hash):
            if until is not None and until <= self.tx.now():
                self.tx.rows("release_unique_key", id=holder, unique_hash=unique_hash)
                return True
        return False

    def _holders(self, unique_hash: str) -> list[tuple[Any, ...]]:
        """Return the row of the job that holds a unique key, if there is one."""
        return self.tx.rows("find_unique_holders", hashes=self.tx.array_param([unique_hash]))

    def find_key_holders(self, hashes: Sequence[str]) -> dict[str, str]:
        """Return the jobs that hold unique keys, by hash."""
        if not hashes:
            return {}
        rows = self.tx.rows("find_unique_holders", hashes=self.tx.array_param(hashes))
        return {row[0]: row[1] for row in rows}

    def list_due_deadlines(self, limit: int) -> list[JobRow]:
        """Lock and list waiting jobs whose deadline has passed. Skip locked rows."""
        return [JobRow._make(row) for row in self.tx.rows("list_due_deadlines", limit=limit)]

    def list_overdue_jobs(self, lane: str, before: Micros, limit: int) -> list[JobRow]:
        """Lock and list queued jobs of a lane that have been due since `before`."""
        return [
            JobRow._make(row)
            for row in self.tx.rows("list_overdue_jobs", lane=lane, before=before, limit=limit)
        ]

    def prune_jobs(
        self,
        state: str,
        before: Micros,
        limit: int,
        *,
        kind: str | None,
        except_kinds: Sequence[str],
    ) -> list[PrunedJobs]:
        """Delete at most `limit` finished jobs with all that belongs to them. Record the counts."""
        prunable = self.tx.rows(
            "list_prunable_jobs",
            state=state,
            before=before,
            limit=limit,
            kind=kind,
            except_kinds=self.tx.array_param(except_kinds),
        )
        return self.delete_pruned_jobs(prunable)

    def delete_pruned_jobs(self, prunable: Sequence[tuple[Any, ...]]) -> list[PrunedJobs]:
        """Delete jobs with all that belongs to them, and record how many of which kind."""
        if not prunable:
            return []
        ids = self.tx.array_param([row[0] for row in prunable])
        for statement in DELETE_JOBS:
            self.tx.rows(statement, ids=ids)
        # By id: jobs that ended at one time come in any order, and events must not depend on it.
        records = _summarise(sorted(prunable, key=lambda row: row[0]))
        at = self.tx.now()
        for record in records:
            self.tx.rows("record_pruned_jobs", at=at, **record._asdict())
        EventQueries(self.tx).write_events(
            NewEvent(EventType.JOB_PRUNED, owner=record.owner, data=record._asdict())
            for record in records
        )
        return records


def _unique_race(key: str | None) -> UniqueRace:
    """Return the error for a unique key whose holder this transaction cannot see."""
    return UniqueRace(
        f"unique key {key!r} is held by a job this transaction cannot see; "
        "enqueue in a READ COMMITTED transaction, or retry the whole transaction"
    )


@lru_cache(maxsize=64)  # the same for all jobs of a bulk enqueue
def _queued_data(kind: str, queue: str, run_at: Micros) -> str:
    """Return the data of a job.queued event as JSON."""
    return _encode({"kind": kind, "queue": queue, "run_at": run_at})


def _summarise(prunable: Sequence[tuple[Any, ...]]) -> list[PrunedJobs]:
    """Group jobs by kind, state, owner and code."""
    groups: defaultdict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for job_id, kind, state, owner, error in prunable:
        code = json.loads(error)["code"] if error else ""
        groups[kind, state, owner, code].append(job_id)
    return [
        PrunedJobs(*key, jobs=len(ids), first_id=min(ids), last_id=max(ids))
        for key, ids in groups.items()
    ]


# --- Search: jobs that match a filter, newest first ---
#
# A person who waits for a result gets it soon, however many jobs there are: a bounded search
# examines at most 50,000 jobs along the index that promises to pass the fewest, and returns where
# it stopped.

EXAMINED_LIMIT = 50_000
FIRST_EXAMINED = 2_000  # most pages are full after so many jobs
PAYLOAD_PAGE = 1_000


class BoundedPage(NamedTuple):
    """Page of a search that may have stopped early."""

    rows: list[JobRow]
    stopped: str | None  # jobs below this id were not examined


class BoundedCount(NamedTuple):
    """Count of a search that may have stopped early."""

    jobs: int
    stopped: str | None


class SearchQueries(Queries):
    """Statements that find and count jobs by a filter, in a transaction."""

    # --- Pages ---
    def list_jobs(self, where: Where, limit: int, before: str | None) -> list[JobRow]:
        """List matching jobs, newest first, however long it takes."""
        return self._search(where, limit, before or ABOVE_ALL_IDS, None).rows

    def list_jobs_bounded(self, where: Where, limit: int, before: str | None) -> BoundedPage:
        """List matching jobs, newest first. Examines at most EXAMINED_LIMIT jobs."""
        return self._search(where, limit, before or ABOVE_ALL_IDS, EXAMINED_LIMIT)

    def _search(
        self, where: Where, limit: int, before: str, examined_limit: int | None
    ) -> BoundedPage:
        """Try a short walk first, which usually fills the page, then the chosen plan."""
        where = _add_lower_bound(where)
        plan = self._choose_plan(where)
        first_plan = ALL_JOBS if plan == BY_STATE else plan
        page = self._search_with(where, first_plan, limit, before, FIRST_EXAMINED)
        if len(page.rows) >= limit or page.stopped is None:
            return page
        statement = "list_jobs" if plan.fields else "list_jobs_sparse"
        return self._search_with(where, plan, limit, before, examined_limit, statement)

    def _search_with(
        self,
        where: Where,
        plan: SearchPlan,
        limit: int,
        before: str,
        examined_limit: int | None,
        statement: str = "list_jobs",
    ) -> BoundedPage:
        conditions = build_conditions(where)
        end = self._find_end(conditions, plan, before, examined_limit)
        floor = end or _lower_bound(conditions)
        rows: list[JobRow] = []
        planned = follow_plan(conditions, plan)
        for page in self._pages(statement, planned, limit, before, floor):
            jobs = map(JobRow._make, page)
            rows += (job for job in jobs if _payload_matches(job.payload, conditions))
            if len(rows) >= limit:
                return BoundedPage(rows[:limit], None)
        return BoundedPage(rows, end)

    def _pages(
        self, statement: str, conditions: Conditions, limit: int, before: str, floor: str
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield pages of rows. More than one only if payloads must still be compared."""
        while True:
            page = self.tx.rows_matching(
                statement, conditions, before=before, floor=floor, limit=limit
            )
            yield page
            if len(page) < limit or not conditions.payload_checks:
                return
            before = page[-1][0]

    # --- Counts ---
    def count_jobs(self, where: Where, cap: int) -> int:
        """Count matching jobs up to `cap`, however long it takes."""
        return self._count(where, cap, None).jobs

    def count_jobs_bounded(self, where: Where, cap: int) -> BoundedCount:
        """Count matching jobs up to `cap`. Examines at most EXAMINED_LIMIT jobs."""
        return self._count(where, cap, EXAMINED_LIMIT)

    def count_jobs_by_state(self, cap: int) -> list[tuple[str, int]]:
        """Count the jobs of each state up to `cap`."""
        counts = []
        for state in State:
            counted = self.count_jobs_bounded({"state": state.value}, cap)
            counts.append((state.value, counted.jobs))
        return counts

    def _count(self, where: Where, cap: int, examined_limit: int | None) -> BoundedCount:
        where = _add_lower_bound(where)
        conditions = build_conditions(where)
        fields = expand_filter(where)
        plan = self._choose_plan(where)
        only_one_state = fields.keys() == {"state", "others"} and len(fields["state"]) == 1
        if plan == BY_STATE or only_one_state:
            return BoundedCount(self._count_states(where, fields["state"], cap), None)
        end = self._find_end(conditions, plan, ABOVE_ALL_IDS, examined_limit)
        floor = end or _lower_bound(conditions)
        count = self._count_range(follow_plan(conditions, plan), floor, cap)
        if count >= cap:
            return BoundedCount(count, None)
        return BoundedCount(count, end)

    def _count_states(self, where: Where, states: Sequence[str], cap: int) -> int:
        """Count jobs in states. Without an order, the database may use any index."""
        remaining = cap
        for state in states:
            conditions = build_conditions({**where, "state": state})
            planned = follow_plan(conditions, SearchPlan(("state",)))
            if state == State.QUEUED:
                planned = _compare_lane(planned)
            remaining -= self._count_unordered(planned, remaining)
        return cap - remaining

    def _count_unordered(self, conditions: Conditions, cap: int) -> int:
        return int(self.tx.rows_matching("count_jobs_unordered", conditions, cap=cap)[0][0])

    def _count_range(self, conditions: Conditions, floor: str, cap: int) -> int:
        if not conditions.payload_checks:
            rows = self.tx.rows_matching(
                "count_jobs", conditions, before=ABOVE_ALL_IDS, floor=floor, cap=cap
            )
            return int(rows[0][0])
        count = 0
        pages = self._pages("list_payloads", conditions, PAYLOAD_PAGE, ABOVE_ALL_IDS, floor)
        for page in pages:
            count += sum(_payload_matches(payload, conditions) for _, payload in page)
            if count >= cap:
                return cap
        return count

    # --- Plans ---
    def _choose_plan(self, where: Where) -> SearchPlan:
        plan = choose_plan(where)
        if plan == BY_STATE and not self._are_few(expand_filter(where)["state"]):
            return plan_without_state(where)
        return plan

    def _are_few(self, states: Sequence[str]) -> bool:
        """True if so few jobs are in these states that all of them can be gathered."""
        remaining = EXAMINED_LIMIT
        for state in states:
            conditions = Conditions((("state", (state,)),), {})
            remaining -= self._count_unordered(conditions, remaining)
        return remaining > 0

    def _find_end(
        self, conditions: Conditions, plan: SearchPlan, before: str, examined_limit: int | None
    ) -> str | None:
        """Return the id of the last job to examine. None: the plan does not pass so many."""
        if examined_limit is None or (plan.gather and plan.fields != ("indexed",)):
            return None
        statement = "find_indexed_page_end" if plan.gather else "find_page_end"
        found = self.tx.rows_matching(
            statement,
            leading_conditions(conditions, plan),
            before=before,
            low=_lower_bound(conditions),
            skip=examined_limit - 1,
        )
        return found[0][0] if len(found) > 1 else None

    # --- Arguments ---
    def write_args(self, rows: Sequence[ArgRow]) -> None:
        """Index arguments of jobs. Existing entries stay."""
        if rows:
            self.tx.run_set("write_args", rows)

    def delete_args(self, ids: Sequence[str]) -> None:
        """Remove jobs from the index of arguments."""
        if ids:
            self.tx.rows("delete_args", ids=self.tx.array_param(ids))


def _add_lower_bound(where: Where) -> Where:
    """Add the lowest possible id of jobs enqueued `since`, because ids contain their time."""
    since = where.get("since")
    if not isinstance(since, str):
        return where
    oldest = time.time_ns() // 1000 - int(since) - MAX_CLOCK_SKEW
    return {**where, "from": first_id(oldest // 1000)}


def _compare_lane(conditions: Conditions) -> Conditions:
    """Recognise Mulligan's own kinds by the lane, which is in the index of queued jobs."""
    shape = []
    for name, values in conditions.shape:
        field = "waiting_others" if name == "+others" else name
        shape.append((field, values))
    return conditions._replace(shape=tuple(shape))


def _lower_bound(conditions: Conditions) -> str:
    """Return an id below which no job matches."""
    return str(conditions.params.get("from_0", ""))


def _payload_matches(payload: str, conditions: Conditions) -> bool:
    """True if the payload has the expected text at each path."""
    if not conditions.payload_checks:
        return True
    value = json.loads(payload)
    return all(scalar_text(value, path) == text for path, text in conditions.payload_checks)
