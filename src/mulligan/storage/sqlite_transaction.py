"""One transaction on SQLite: the verbs that differ from PostgreSQL's."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby, repeat
from operator import attrgetter, itemgetter
from typing import Any

from mulligan.core.attempt import Lease
from mulligan.core.event import Event, EventType
from mulligan.core.job import SAID, Micros, NewJob, WorkerRow, in_columns
from mulligan.core.json import quick_dump
from mulligan.core.statistics import DeathCount, Deaths
from mulligan.storage.base import Around, Finished, Inserted, Move, RetriedAttempt, Settlement
from mulligan.storage.event_bundles import (
    Bundle,
    PendingEvent,
    Row,
    parted,
    parted_alike,
    parted_rows,
    parted_texts,
)
from mulligan.storage.failure_queries import of_the_dead
from mulligan.storage.rows import (
    arg_rows,
    beside,
    due,
    fit,
    insert_columns,
    insert_row,
    lane_of,
    taken,
)
from mulligan.storage.search_queries import ArgRow, Matching, Shape, Where, matching
from mulligan.storage.sql import load, numbered, numbered_lone, numbered_without
from mulligan.storage.sqlite_handle import CONSTRAINT, Handle
from mulligan.storage.stat_queries import StatRow
from mulligan.storage.transaction import SqlTransaction
from mulligan.storage.url import boot_id

PREFIX = "mulligan_"
OFFSET = f"SELECT value FROM {PREFIX}meta WHERE key = 'clock_offset'"
# The names of what is bound for many rows at once.
TOLD = ("now", "event", "id", "batch_id", "owner", "attempt", "token", "data")
SETTLE = (*Settlement._fields, "now")
FINISH = (*Finished._fields, "worker", "now")
FEW_ALIKE = 8  # with fewer of the same token and result, each has a statement of its own

_encode = quick_dump(", ", ": ")


class SqliteTransaction(SqlTransaction):
    retries_together = True  # one writer: whoever changes rows waits for nobody

    def __init__(self, handle: Handle, offset: Micros | None = None) -> None:
        self._handle = handle
        self._now = time.time_ns() // 1000 + (_offset(handle) if offset is None else offset)

    @classmethod
    def alone(cls, handle: Handle) -> SqliteTransaction:
        """For one that holds the lock of writers: if nobody has committed since this connection's last unit, the clock
        is where it was.
        """
        version = handle.version()
        if version is None or version != handle.seen:
            handle.seen, handle.offset = version, _offset(handle)
        return cls(handle, handle.offset)

    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._run(verb, {"now": self._now} | params)

    def found(self, verb: str, where: Where, /, **params: Any) -> list[tuple[Any, ...]]:
        return self.asked(verb, matching(where), **params)

    def asked(self, verb: str, asked: Matching, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._run(verb, {"now": self._now} | asked.params | params, asked.shape)

    def _run(self, verb: str, params: dict[str, Any], shape: Shape = ()) -> list[tuple[Any, ...]]:
        statement = load(verb, "sqlite", PREFIX, shape=shape)
        try:
            return self._handle.execute(statement, params)
        except UnicodeEncodeError:
            return self._handle.execute(
                statement, {name: fit(value) for name, value in params.items()}
            )

    def command(self, text: str) -> None:
        self._handle.execute(text)

    def group_deaths(
        self, names: Sequence[str], where: Where, now: Micros, hours: int, cap: int
    ) -> dict[str, Deaths]:
        ends = self.group_ends(names, where)
        asked = matching(of_the_dead(where))
        bounds = {"moment": now, "hours": hours, "cap": cap}
        return {
            name: _deaths(self.asked("group_deaths", asked, name=name, **bounds), *ends[name])
            for name in ends
        }

    def group_recovered(
        self, names: Sequence[str], owner: str | None, most: int
    ) -> dict[str, tuple[int, int]]:
        found = {
            name: self.rows("group_recovered", name=name, owner=owner, most=most)[0]
            for name in names
        }
        return {name: (row[0], row[1]) for name, row in found.items()}

    def ids(self, ids: Sequence[Any]) -> Any:
        return json.dumps(list(ids))

    def now(self) -> Micros:
        return self._now

    def mono(self) -> Micros:
        return time.monotonic_ns() // 1000

    def _many(self, verb: str, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> int:
        """One statement for many rows, all of them or none; how many rows of the table it changed."""
        statement, of_row = numbered(verb, PREFIX, names)
        return self._rows_of(statement, [*map(of_row, rows)])

    def _rows_of(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> int:
        try:
            if len(rows) <= 1:
                return self._handle.one(statement, rows[0]) if rows else 0
            with self.savepoint():
                return self._handle.many(statement, rows)
        except UnicodeEncodeError:
            return self._handle.many(statement, [tuple(map(fit, row)) for row in rows])

    def insert_free(self, jobs: Sequence[NewJob], *, announce: bool) -> Micros:
        if len(jobs) == 1:
            self._insert_lone(jobs[0], announce=announce)
            return self._now
        alike, blank, own = insert_columns(jobs)
        statement, names = numbered_without("insert_all", PREFIX, blank)
        values = {**alike, "announce": announce, "now": self._now}
        columns = [own.get(name) or repeat(values[name], len(jobs)) for name in names]
        self._rows_of(statement, [*zip(*columns, strict=True)])
        same = in_columns(jobs)
        if same is None or same.like.args:
            self._inserted([(job, due(job, self._now)) for job in jobs], announce=announce)
        elif announce:
            _, kind, queue, *_ = like = same.like
            said = _waits(kind, queue, due(like, self._now))
            told = PendingEvent(self._now, _QUEUED, "", like.batch_id, like.owner, None, None, said)
            self._write_told(*parted_alike(told, same.ids))
        return self._now

    def _insert_lone(self, job: NewJob, *, announce: bool) -> None:
        now = self._now
        statement, rest, tell, told = _lone(job.kind, job.queue, job[SAID], job.trace)
        self._row_of(statement, (job.id, job.payload, now, announce, *rest))
        if job.args:
            self.write_args([*map(ArgRow._make, arg_rows([job]))])
        if announce:
            self._row_of(
                tell,
                (
                    now,
                    _QUEUED,
                    job.id,
                    job.batch_id,
                    job.owner,
                    None,
                    None,
                    f"{told}{due(job, now)}}}",
                ),
            )

    def _row_of(self, statement: str, row: tuple[Any, ...]) -> None:
        try:
            self._handle.one(statement, row)
        except UnicodeEncodeError:
            self._handle.one(statement, tuple(map(fit, row)))

    def insert_new(self, jobs: Sequence[NewJob], *, announce: bool) -> dict[str, Inserted]:
        found = ((job, self.rows("insert", **_row(job), announce=announce)) for job in jobs)
        fresh = [(job, rows[0][1]) for job, rows in found if rows]
        self._inserted(fresh, announce=announce)
        return {
            job.id: Inserted(job.id, fresh=True, run_at=at, created_at=self._now)
            for job, at in fresh
        }

    def _inserted(self, fresh: Sequence[tuple[NewJob, Micros]], *, announce: bool) -> None:
        """What else is written of new jobs; each with the moment it is due."""
        args = arg_rows([job for job, _ in fresh])
        if args:
            self.write_args([*map(ArgRow._make, args)])
        if announce:
            self._announce(
                (job.id, job.batch_id, job.owner, job.kind, job.queue, run_at, self._now)
                for job, run_at in fresh
            )

    def _announce(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._tell(
            PendingEvent(
                at,
                EventType.JOB_QUEUED.value,
                job_id,
                batch_id,
                owner,
                None,
                None,
                _waits(kind, queue, run_at),
            )
            for job_id, batch_id, owner, kind, queue, run_at, at in rows
        )

    def _tell(self, told: Iterable[PendingEvent]) -> None:
        self._write_told(*parted([*told]))

    def _tell_of(self, what: str, rows: Sequence[Row], data: Callable[[Row], str]) -> None:
        self._write_told(*parted_rows(self._now, what, rows, data))

    def _write_told(self, alone: Sequence[PendingEvent], bundles: Sequence[Bundle]) -> None:
        if alone:
            self._many("settle_event", TOLD, alone)
        for bundle in bundles:
            self._run("event_bundle", bundle._asdict())

    def announce(self, limit: int) -> int:
        return self._announce_all(self.rows("silent", most=limit))

    def _announce_all(self, ids: Sequence[tuple[Any, ...]]) -> int:
        silent = self.rows("announce", ids=self.ids([row[0] for row in ids])) if ids else []
        self._announce(silent)
        return len(silent)

    def candidates(
        self, lanes: Sequence[tuple[str, int]], limit: int, *, each: int | None = None
    ) -> list[tuple[int, Micros, str, str]]:
        found: list[Any] = []
        for lane, priority in lanes:
            found += self.rows(
                "candidates", lane=lane, priority=priority, most=min(limit, each or limit)
            )
        return sorted(found)[:limit]

    def take_due(self, worker: str, lane: str, priority: int, limit: int) -> list[Lease]:
        if not self._may_take(worker):
            return []
        return self._taken(
            worker,
            self.rows("takeable_due", worker=worker, lane=lane, priority=priority, most=limit),
        )

    def take(self, worker: str, ids: Sequence[str], limit: int) -> list[Lease]:
        if not self._may_take(worker):
            return []
        found = {row[1]: row for row in self.rows("takeable", worker=worker, ids=self.ids(ids))}
        return self._taken(worker, [found[job_id] for job_id in ids if job_id in found][:limit])

    def _may_take(self, worker: str) -> bool:
        """A closed worker takes nothing."""
        return bool(self.rows("may_take", worker=worker))

    def _taken(self, worker: str, found: Sequence[tuple[Any, ...]]) -> list[Lease]:
        """Rows as they will be, as `as_taken` has them; nobody else writes between the look and this."""
        if not found:
            return []
        self.rows("take", worker=worker, places=self.ids([row[0] for row in found]))
        leases = [Lease._make(row[1:-1]) for row in found]
        self._announce_all([(row[1],) for row in found if not row[-1]])
        data = json.dumps({"worker": worker})
        self._tell_of(EventType.JOB_STARTED.value, leases, lambda _: data)
        return leases

    def settle_held(self, settlements: Sequence[Settlement]) -> set[tuple[str, int]]:
        held = settlements
        if not self._settle_all(settlements):
            held = [ending for ending in settlements if self._settle_all([ending])]
        for event, alike in groupby(held, key=attrgetter("event")):
            self._tell_of(event, [*alike], attrgetter("data"))
        return {(ending.id, ending.token) for ending in held}

    def _settle_all(self, settlements: Sequence[Settlement]) -> bool:
        return self._all_of(len(settlements), *self._settling(settlements))

    def _settling(self, settlements: Sequence[Settlement]) -> Iterator[Callable[[], int]]:
        """Two statements for all that end alike, else two for each."""
        alike: dict[tuple[Any, ...], list[Settlement]] = {}
        for row in settlements:
            alike.setdefault(_way(row), []).append(row)
        if len(alike) * FEW_ALIKE > len(settlements):
            rows = [(*row, self._now) for row in settlements]
            yield partial(self._many, "settle", SETTLE, rows)
            yield partial(self._many, "settle_attempt", SETTLE, rows)
            return
        sets = [
            rows[0]._asdict()
            | {"ids": self.ids([row.id for row in rows]), "own": json.dumps(dict(map(_own, rows)))}
            for rows in alike.values()
        ]
        yield lambda: sum([self._changed("settle_alike", **one) for one in sets])
        yield lambda: sum([self._changed("settle_attempt_alike", **one) for one in sets])

    def finish(self, worker: str, finished: Sequence[Finished]) -> set[tuple[str, int]]:
        if not self._all_of(len(finished), *self._finishing(worker, finished)):
            return set()
        self._tell_of(EventType.JOB_SUCCEEDED.value, finished, attrgetter("data"))
        return {(row.id, row.token) for row in finished}

    def _finishing(self, worker: str, finished: Sequence[Finished]) -> Iterator[Callable[[], int]]:
        """One statement for all of them where they are alike, else one for each; and as many for the attempts of those
        that did not succeed at once.
        """
        alike: dict[tuple[Any, ...], list[str]] = {}
        for row in finished:
            alike.setdefault(_at_once(row) if row.token == 1 else _again(row), []).append(row.id)
        at_once = sum([row.token == 1 for row in finished])
        if len(alike) * FEW_ALIKE > len(finished):
            rows = [(*row, worker, self._now) for row in finished]
            again = [row for row, ended in zip(rows, finished, strict=True) if ended.token > 1]
            yield partial(self._many, "finish", FINISH, rows)
            yield lambda: at_once + self._many("finish_attempt", FINISH, again)
            return
        sets = [
            dict(zip(_AGAIN, row, strict=False)) | {"worker": worker, "ids": self.ids(ids)}
            for row, ids in alike.items()
        ]
        yield lambda: sum([self._changed("finish_alike", **one) for one in sets])
        yield (
            lambda: (
                at_once
                + sum(
                    [
                        self._changed("finish_attempt_alike", **one)
                        for one in sets
                        if one["token"] != 1
                    ]
                )
            )
        )

    def retry(
        self, row: Settlement, around: Around, retried: Sequence[RetriedAttempt]
    ) -> set[tuple[str, int]]:
        if not self._all_of(
            len(retried), *self._retrying(row._asdict() | around._asdict(), retried)
        ):
            return set()
        told = PendingEvent(
            self._now, row.event, "", row.batch_id, row.owner, row.attempt, row.token, ""
        )
        before, between = around.news_before, around.news_between
        texts = [(one.id, f"{before}{one.took}{between}{one.waited}}}") for one in retried]
        self._write_told(*parted_texts(told, texts))
        return {(one.id, row.token) for one in retried}

    def _retrying(
        self, said: dict[str, Any], retried: Sequence[RetriedAttempt]
    ) -> Iterator[Callable[[], int]]:
        """One statement for all their jobs, and one for the attempts of each moment at which some of them began."""
        begun: dict[Micros, dict[str, str]] = {}
        for one in retried:
            begun.setdefault(one.started_at, {})[one.id] = one.said
        sets = [said | {"started_at": at, "own": json.dumps(own)} for at, own in begun.items()]
        yield partial(
            self._changed, "retry_alike", **said, ids=self.ids([one.id for one in retried])
        )
        yield lambda: sum([self._changed("retry_attempt_alike", **one) for one in sets])

    def _changed(self, verb: str, /, **params: Any) -> int:
        self.rows(verb, **params)
        return self._handle.changes()

    def _all_of(self, many: int, *steps: Callable[[], int]) -> bool:
        """Every step changes so many rows, or nothing is changed: False if the fence of one did not hold."""
        self.command("SAVEPOINT mulligan_all")
        held = all(step() == many for step in steps)
        if not held:
            self.command("ROLLBACK TO SAVEPOINT mulligan_all")
        self.command("RELEASE SAVEPOINT mulligan_all")
        return held

    def write_stats(self, rows: Sequence[StatRow]) -> None:
        for row in rows:
            self._run("write_stats", row._asdict())

    def move(self, move: Move) -> bool:
        try:
            return super().move(move)
        except CONSTRAINT as clash:
            if "unique_hash" not in str(clash):
                raise
            raise taken(move.id, str(clash)) from clash

    def expired(self, worker: WorkerRow) -> bool:
        gone_by = self.mono() - worker.renewed_mono
        if (
            worker.boot_id == boot_id() and gone_by >= 0
        ):  # a time that lies ahead is of another boot, whatever its name
            return gone_by > worker.lease
        return self._now - worker.renewed_at > worker.lease

    def events_after(self, cursor: int, limit: int) -> list[Event]:
        # One writer: ids are drawn in commit order.
        return self.events_among("events_between", cursor, 2**62, limit)

    def newest_event(self, above: int = -1) -> int:
        del above
        return int(self.rows("newest_event")[0][0])

    def event_lag(self) -> Micros:
        return 0

    def damage(self) -> list[str]:
        found = [str(row[0]) for row in self._handle.execute("PRAGMA quick_check(10)")]
        return [] if found == ["ok"] else found


def _offset(handle: Handle) -> Micros:
    shifted = handle.execute(OFFSET)
    return int(shifted[0][0]) if shifted else 0


_AGAIN = ("token", "result", "generation", "attempt", "started_at")
_at_once = attrgetter(*_AGAIN[:2])
_again = attrgetter(
    *_AGAIN
)  # of these attempts there are rows, which are the same but for their ids
_OWN = ("id", "private")  # as in settle_attempt_alike.sqlite.sql
_OF_ITS_ROW = ("generation", "attempt", "started_at")
_TOLD_OF = ("owner", "batch_id", "data")  # by its event alone
_own = itemgetter(*map(Settlement._fields.index, _OWN))
_apart = {*_OWN, *_OF_ITS_ROW, *_TOLD_OF}
_way = itemgetter(*[place for place, name in enumerate(Settlement._fields) if name not in _apart])


def _row(job: NewJob) -> dict[str, Any]:
    return insert_row(job, lane_of(job))._asdict()


@lru_cache(maxsize=64)  # of many at once it is the same text
def _waits(kind: str, queue: str, run_at: Micros) -> str:
    return f"{_waits_until(kind, queue)}{run_at}}}"


def _waits_until(kind: str, queue: str) -> str:
    """What is told of a job that waits, up to the moment it is due."""
    return _encode({"kind": kind, "queue": queue, "run_at": 0}).removesuffix("0}")


@lru_cache(maxsize=512)
def _lone(
    kind: str, queue: str, said: tuple[Any, ...], trace: str | None
) -> tuple[str, tuple[Any, ...], str, str]:
    """How one job is inserted of which this is said beside its id and payload, often the same as of the one before: the
    statement, what is bound behind what is its own; the statement for its event, and what that tells up to the moment
    the job is due.
    """
    alike, blank = beside(kind, queue, said, trace)
    statement, names = numbered_lone(
        "insert_all", PREFIX, blank, ("id", "payload", "now", "announce")
    )
    tell, _ = numbered("settle_event", PREFIX, TOLD)
    return statement, tuple(alike[name] for name in names), tell, _waits_until(kind, queue)


_QUEUED = EventType.JOB_QUEUED.value


def _deaths(rows: Sequence[tuple[Any, ...]], first: Micros, last: Micros) -> Deaths:
    counts = Counter(row[:3] for row in rows)
    hours = Counter(row[3] for row in rows)
    return Deaths(
        [DeathCount._make((*what, jobs)) for what, jobs in counts.items()],
        list(hours.items()),
        first,
        last,
    )
