"""One transaction on PostgreSQL: the verbs that differ from SQLite's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any, Protocol

import psycopg
from psycopg import errors as pg

from mulligan.core.attempt import Lease
from mulligan.core.event import Event
from mulligan.core.job import Micros, NewJob, WorkerRow
from mulligan.core.statistics import DeathCount, Deaths
from mulligan.storage.base import (
    Around,
    ClaimMark,
    Finished,
    Inserted,
    Look,
    Move,
    RetriedAttempt,
    Settlement,
    Transaction,
    UnlimitedLanes,
)
from mulligan.storage.failure_queries import of_the_dead
from mulligan.storage.foreign import Postgres
from mulligan.storage.rows import (
    BLANKS,
    OF_ONE,
    Again,
    ClaimCandidate,
    Done,
    Lying,
    Own,
    arg_rows,
    array,
    fit,
    insert_columns,
    taken,
    unique_race,
)
from mulligan.storage.search_queries import Matching, Where, matching
from mulligan.storage.sql import load
from mulligan.storage.stat_queries import StatRow
from mulligan.storage.transaction import MOST_LANES, SqlTransaction

# What a worker asks of PostgreSQL all day, asked for nobody while its app is still being loaded: what a connection

NOBODY = ""
TIMES = 2  # until the driver prepares it
MANY = 10  # are written as thousands would be


def rehearse(unit: Transaction) -> None:
    now = unit.now()
    names = [
        str(number) for number in range(MANY)
    ]  # nobody's: what lies where they are said to lie is left alone
    returned = [
        Finished(name, 1, 1, 1, now, "null", "", None, name, f"(0,{name})") for name in names
    ]
    failed = [RetriedAttempt(name, f"(0,{name})", now, "", 0, 0) for name in names]
    for _ in range(TIMES):
        unit.look_and_take(NOBODY, UnlimitedLanes((), now, now), 1)
        unit.take_on(NOBODY, ClaimMark("", 0, now, now, now), 1)
        unit.take_due(NOBODY, "", 0, 1)
        unit.finish_alone(NOBODY, returned)
        unit.retry_alone(_one_that_failed(now), Around("", "", "", "", ""), failed)


def _one_that_failed(now: int) -> Settlement:
    """Values as they are: a statement is prepared for their types."""
    return Settlement(
        id="",
        worker=NOBODY,
        token=1,
        saw_cancel=False,
        state="queued",
        run_at=now,
        failures=1,
        losses=0,
        snoozes=0,
        alone=False,
        result=None,
        error=None,
        choices=None,
        reason="",
        finished=False,
        free_key=False,
        cost=0.0,
        generation=1,
        attempt=1,
        settled_by=NOBODY,
        started_at=now,
        ended="failed",
        verb="retry",
        code="",
        cls="",
        rule="",
        public="",
        evidence="{}",
        private="",
        fingerprint="",
        event="",
        owner="",
        batch_id=None,
        data="",
        counts="{}",
        judged="{}",
    )


# One transaction on PostgreSQL: the verbs that differ from SQLite's.

LOOK = 7  # columns of a look; those of a lease follow
LARGE = 10  # rows of a set that are worth a plan of their own
SLOW = 0.05  # seconds for a statement whose plan was kept: it may be from a day when the table was empty
EACH = 0.0001  # seconds more for each row of a set
TOLD = frozenset(
    {"kind", "queue", "owner", "batch_id", "delay", "at"}
)  # columns of an insert that its event tells


class PooledConnection(psycopg.Connection[Any]):
    used = 0.0  # when it last did what it was asked

    @cached_property
    def kept(self) -> psycopg.Cursor[Any]:
        """A cursor that is used again and again: it knows already how to write what it is given. For short answers,
        since it holds the last one.
        """
        return self.cursor()


class StoreContext(Protocol):
    """Attributes of the store that its units of work need."""

    prefix: str  # of table names: the quoted schema and a dot
    channel: str  # of NOTIFY
    notify_callers: bool

    def plan_anew(self, connection: Postgres) -> None: ...


class PostgresTransaction(SqlTransaction):
    overask = 3

    def __init__(self, connection: Postgres, store: StoreContext, *, alone: bool = False) -> None:
        """`alone`: each statement is a transaction."""
        self._connection = connection
        self._store = store
        self._alone = alone

    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._run(verb, params)

    def found(self, verb: str, where: Where, /, **params: Any) -> list[tuple[Any, ...]]:
        return self.asked(verb, matching(where), **params)

    def asked(self, verb: str, asked: Matching, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._run(verb, asked.params | params, shape=asked.shape)

    def _run(
        self,
        verb: str,
        params: dict[str, Any],
        *,
        prepare: bool | None = None,
        kept: bool = False,
        many: int = 0,
        **form: Any,
    ) -> list[tuple[Any, ...]]:
        """`kept`: by the cursor that is kept, if there is one; `form`: of the statement, as `load` takes it."""
        statement = load(verb, "postgres", self._store.prefix, **form)
        to = (
            self._connection.kept
            if kept and isinstance(self._connection, PooledConnection)
            else self._connection
        )
        began = time.monotonic()
        try:
            cursor = to.execute(statement, params, prepare=prepare)
        except (UnicodeEncodeError, psycopg.DataError) as error:
            if getattr(error, "sqlstate", None):  # the server's word, not the driver's
                raise
            fitting = {name: fit(value) for name, value in params.items()}
            cursor = self._connection.execute(statement, fitting, prepare=prepare)
        if prepare is None and time.monotonic() - began > SLOW + many * EACH:
            self._store.plan_anew(self._connection)
        return cursor.fetchall() if _has_rows(cursor) else []

    def command(self, text: str) -> None:
        self._connection.execute(text)

    def _set(self, verb: str, rows: Sequence[Any], **params: Any) -> list[tuple[Any, ...]]:
        """Run a verb on a set of rows, one array per column; in a large set a column in which all are the same as that
        one value.
        """
        return self._columns(verb, type(rows[0])._make(zip(*rows, strict=True))._asdict(), **params)

    def _columns(
        self, verb: str, columns: Mapping[str, Sequence[Any]], **params: Any
    ) -> list[tuple[Any, ...]]:
        many = len(next(iter(columns.values())))
        if many == 1:
            return self._run(
                verb, {name: column[0] for name, column in columns.items()} | params, lone=True
            )
        if many < LARGE:
            return self._run(
                verb, {name: array(column) for name, column in columns.items()} | params
            )
        same = frozenset(
            name for name, column in columns.items() if column.count(column[0]) == many
        )
        said = {
            name: column[0] if name in same else array(column) for name, column in columns.items()
        }
        return self._run(verb, said | params, many=many, same=same)

    def ids(self, ids: Sequence[Any]) -> Any:
        return array(ids)

    def group_deaths(
        self, names: Sequence[str], where: Where, now: Micros, hours: int, cap: int
    ) -> dict[str, Deaths]:
        ends = self.group_ends(names, where)
        bounds = {"moment": now, "hours": hours, "cap": cap}
        rows = self.found("group_deaths", of_the_dead(where), names=self.ids(list(ends)), **bounds)
        found = {name: Deaths([], [], *ends[name]) for name in ends}
        for name, kind, code, cls, ago, jobs in rows:
            if ago is None:
                found[name].counts.append(DeathCount(kind, code, cls, jobs))
            else:
                found[name].hours.append((ago, jobs))
        return found

    def group_recovered(
        self, names: Sequence[str], owner: str | None, most: int
    ) -> dict[str, tuple[int, int]]:
        rows = self.rows("group_recovered", names=self.ids(names), owner=owner, most=most)
        return {name: (retried, recovered) for name, retried, recovered in rows}

    def now(self) -> Micros:
        return int(self.rows("now")[0][0])

    def mono(self) -> Micros:
        return time.monotonic_ns() // 1000

    def insert_free(self, jobs: Sequence[NewJob], *, announce: bool) -> Micros:
        return int(self._inserted(jobs, announce=announce, free=True)[0][2])

    def insert_new(self, jobs: Sequence[NewJob], *, announce: bool) -> dict[str, Inserted]:
        found = self._inserted(jobs, announce=announce, free=False)
        return {
            row[0]: Inserted(row[0], fresh=True, run_at=row[1], created_at=row[2]) for row in found
        }

    def _inserted(
        self, jobs: Sequence[NewJob], *, announce: bool, free: bool
    ) -> list[tuple[Any, ...]]:
        """Where nothing can stand in the way, one row of the answer tells all."""
        channel = self._store.channel if announce or self._store.notify_callers else None
        said = {
            "announce": announce,
            "channel": channel,
            "answers": 1 if free else None,
            **_indexed(jobs),
        }
        insert = self._insert_one if len(jobs) == 1 else self._insert_set
        try:
            return insert(jobs, said, free=free, alone=self._alone)
        except (
            pg.SerializationFailure
        ) as unseen:  # only in a caller's transaction: ours are READ COMMITTED
            raise unique_race(
                next((job.unique_key for job in jobs if job.unique_hash), None)
            ) from unseen

    def _insert_one(
        self, jobs: Sequence[NewJob], said: dict[str, Any], **form: Any
    ) -> list[tuple[Any, ...]]:
        alike, blank, _ = insert_columns(jobs)
        verb = "insert_indexed" if "arg_jobs" in said else "insert_one"
        return self._run(verb, alike | said, kept=True, lone=True, blank=blank, **form)

    def _insert_set(
        self, jobs: Sequence[NewJob], said: dict[str, Any], **form: Any
    ) -> list[tuple[Any, ...]]:
        alike, blank, own = insert_columns(jobs)
        verb = "insert_indexed" if "arg_jobs" in said else "insert"
        arrays = {name: array(column) for name, column in own.items()}
        if len(jobs) >= LARGE:
            form |= {"same": frozenset(alike), "blank": blank}
            verb = (
                "insert_alike"
                if form["free"] and verb == "insert" and not own.keys() & TOLD
                else verb
            )
            return self._run(verb, alike | arrays | said, many=len(jobs), **form)
        every = alike | {
            name: BLANKS[name] for name in blank
        }  # one statement for all small sets, which is kept
        filled = {name: array([value] * len(jobs)) for name, value in every.items()}
        return self._run(verb, filled | arrays | said, **form)

    def announce(self, limit: int) -> int:
        return len(self.rows("announce", most=limit))

    def look_and_take(
        self, worker: str, plain: UnlimitedLanes, limit: int
    ) -> tuple[Look, list[Lease]]:
        found = self._run("look_and_take", _plainly(worker, plain, limit), many=limit)
        leases = [Lease._make(row[LOOK:]) for row in found if row[0] == "lease"]
        return self.looked(row[:LOOK] for row in found[len(leases) :]), leases

    def look_and_take_one(self, worker: str, plain: UnlimitedLanes) -> tuple[Look, list[Lease]]:
        asked = _plainly(worker, plain, 1)
        first, *rest = self._run(
            "look_and_take_one", asked, kept=True, lone=True, alone=self._alone
        )
        if first[0] != "lease":
            return self.looked(row[:LOOK] for row in (first, *rest)), []
        look, (_, lane, _, priority, after, *_) = self.looked(row[:LOOK] for row in rest), first
        others = [waits for waits in look.lanes if waits[:2] != (lane, priority)]
        lanes = others if after is None else [*others, (lane, priority, after)]
        return look._replace(lanes=lanes), [Lease._make(first[LOOK:])]

    def take_on(self, worker: str, mark: ClaimMark, limit: int) -> list[Lease]:
        rows = self._run("take_on", mark._asdict() | {"worker": worker, "most": limit}, many=limit)
        return [Lease._make(row) for row in rows]

    def candidates(
        self, lanes: Sequence[tuple[str, int]], limit: int, *, each: int | None = None
    ) -> list[tuple[int, Micros, str, str]]:
        if not lanes:
            return []
        if len(lanes) == 1:
            (lane, priority), *_ = lanes
            return self._candidates(
                "candidates", lane=lane, priority=priority, most=min(limit, each or limit)
            )
        keys, priorities = map(array, zip(*lanes, strict=True))
        return self._candidates(
            "candidates_of_many", lanes=keys, priorities=priorities, most=limit, each=each or limit
        )

    def _candidates(self, verb: str, **params: Any) -> list[tuple[int, Micros, str, str]]:
        return [(row[0], row[1], row[2], row[3]) for row in self.rows(verb, **params)]

    @contextmanager
    def together(self) -> Iterator[None]:
        connection = self._connection
        if not isinstance(connection, psycopg.Connection) or not connection.autocommit:
            yield
            return
        with connection.transaction():
            yield

    def take(self, worker: str, ids: Sequence[str], limit: int) -> list[Lease]:
        if not ids:
            return []
        order = {job_id: place for place, job_id in enumerate(ids)}
        found = self._set("take", [*map(ClaimCandidate, ids)], worker=worker, most=limit)
        return sorted(map(Lease._make, found), key=lambda lease: order[lease.id])

    def take_due(self, worker: str, lane: str, priority: int, limit: int) -> list[Lease]:
        params = {"worker": worker, "lane": lane, "priority": priority, "most": limit}
        found = self._run("take_due", params, many=limit)
        return [Lease._make(row) for row in found]

    def settle_held(self, settlements: Sequence[Settlement]) -> set[tuple[str, int]]:
        if not settlements:
            return set()
        columns = Settlement._make(zip(*settlements, strict=True))._asdict()
        own = {
            name: column
            for name, column in columns.items()
            if column.count(column[0]) < len(settlements)
        }
        if len(settlements) < LARGE or not OF_ONE.issuperset(own):
            return {(row[0], row[1]) for row in self._columns("settle", columns)}
        said = settlements[0]._asdict() | {name: array(columns[name]) for name in Own._fields}
        return {(row[0], row[1]) for row in self._run("settle_alike", said, many=len(settlements))}

    def finish(self, worker: str, finished: Sequence[Finished]) -> set[tuple[str, int]]:
        return self._finished("finish", Done, worker, finished)

    def finish_alone(self, worker: str, finished: Sequence[Finished]) -> set[tuple[str, int]]:
        return self._finished("finish_alone", Lying, worker, finished)

    def retry_alone(
        self, row: Settlement, around: Around, retried: Sequence[RetriedAttempt]
    ) -> set[tuple[str, int]]:
        columns: Any = RetriedAttempt._make(zip(*retried, strict=True))
        own = {name: array(getattr(columns, name)) for name in Again._fields}
        found = self._run("retry_alone", row._asdict() | around._asdict() | own, many=len(retried))
        return {(row[0], row[1]) for row in found}

    def _finished(
        self, verb: str, of: type[Done | Lying], worker: str, finished: Sequence[Finished]
    ) -> set[tuple[str, int]]:
        columns: Any = Finished._make(zip(*finished, strict=True))
        found = self._columns(
            verb, {name: getattr(columns, name) for name in of._fields}, worker=worker
        )
        return {(row[0], row[1]) for row in found}

    def write_stats(self, rows: Sequence[StatRow]) -> None:
        self._set("write_stats", rows)

    def move(self, move: Move) -> bool:
        try:
            # One taken key must not abort its neighbours; without a key nothing can be taken.
            with nullcontext() if move.unique_hash is None else self.savepoint():
                return super().move(move)
        except pg.UniqueViolation as clash:
            raise taken(move.id, str(clash.diag.message_detail)) from clash

    def request_cancel(self, job_id: str, token: int, reason: str) -> bool:
        return bool(
            self.rows(
                "request_cancel", id=job_id, token=token, reason=reason, channel=self._store.channel
            )
        )

    def expired(self, worker: WorkerRow) -> bool:
        return self.now() - worker.renewed_at > worker.lease

    def events_after(self, cursor: int, limit: int) -> list[Event]:
        return self.events_among("events_between", cursor, self.newest_event(), limit)

    def newest_event(self, above: int = -1) -> int:
        # The order matters: what the sequence has given out is read before the marks of those still writing.
        top: int = self.rows("event_top")[0][0]
        if top <= above:
            return top
        floor: int | None = self.rows("event_floor")[0][0]
        return top if floor is None else min(top, floor)

    def event_lag(self) -> Micros:
        return int(self.rows("event_lag")[0][0])


def _plainly(worker: str, plain: UnlimitedLanes, most: int) -> dict[str, Any]:
    known = {"plain": array(plain.lanes), "since": plain.since, "until": plain.until}
    return known | {"worker": worker, "most": most, "lanes": MOST_LANES}


def _indexed(jobs: Sequence[NewJob]) -> dict[str, str]:
    """What jobs are found by, one array per column; nothing where no kind has declared any."""
    rows = arg_rows(jobs)
    if not rows:
        return {}
    ids, _, names, values = map(array, zip(*rows, strict=True))
    return {"arg_jobs": ids, "arg_names": names, "arg_values": values}


def _has_rows(cursor: Any) -> bool:
    """A driver's own result knows; `description` would describe every column first."""
    result = getattr(cursor, "pgresult", None)
    return bool(cursor.description) if result is None else result.nfields > 0
