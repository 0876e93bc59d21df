"""The verbs that read the same on both stores. What differs is in `sqlite.py` and `postgres.py`."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any

from mulligan.core.attempt import Lease
from mulligan.core.errors import UniqueMismatch
from mulligan.core.event import Event, EventType, NewEvent
from mulligan.core.job import (
    AttemptRow,
    Gate,
    Guarded,
    GuardRow,
    JobRow,
    Limit,
    LimitRow,
    Meter,
    Micros,
    NewJob,
    PreviousAttempts,
    State,
    WorkerRow,
)
from mulligan.storage import event_bundles as bundles
from mulligan.storage.access_queries import SqlAuditQueries, SqlKeyQueries, SqlSessionQueries
from mulligan.storage.base import (
    Inserted,
    Look,
    Move,
    Pruned,
    Refusal,
    Renewal,
    ScheduleRow,
    Settlement,
    Transaction,
)
from mulligan.storage.batch_queries import SqlBatchQueries
from mulligan.storage.failure_queries import SqlFailureQueries
from mulligan.storage.guard_queries import SqlGuardQueries
from mulligan.storage.history_queries import SqlHistoryQueries, SqlVerifyQueries
from mulligan.storage.notification_queries import SqlNotificationQueries
from mulligan.storage.operation_queries import SqlOperationQueries
from mulligan.storage.rows import due, event_params, keyed, unique_race
from mulligan.storage.search_queries import Matching, SqlSearchQueries, Where
from mulligan.storage.stat_queries import SqlAlertQueries, SqlStatQueries

MOST_LANES = 2000 * 19
UNIQUE_ROUNDS = 3


class SqlTransaction(
    SqlHistoryQueries,
    SqlGuardQueries,
    SqlFailureQueries,
    SqlBatchQueries,
    SqlAuditQueries,
    SqlOperationQueries,
    SqlKeyQueries,
    SqlSessionQueries,
    SqlSearchQueries,
    SqlNotificationQueries,
    SqlStatQueries,
    SqlAlertQueries,
    SqlVerifyQueries,
    Transaction,
):
    """A unit of work that speaks SQL through `rows`."""

    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """Run one verb's statement and return its rows."""

    @abstractmethod
    def found(self, verb: str, where: Where, /, **params: Any) -> list[tuple[Any, ...]]:
        """The same for a statement about the jobs of a filter."""

    @abstractmethod
    def asked(self, verb: str, asked: Matching, /, **params: Any) -> list[tuple[Any, ...]]:
        """The same for a filter that was made into conditions already."""

    @abstractmethod
    def ids(self, ids: Sequence[Any]) -> Any:
        """A list of ids, or of numbers, as this dialect passes it."""

    @abstractmethod
    def insert_new(self, jobs: Sequence[NewJob], *, announce: bool) -> dict[str, Inserted]:
        """Insert; the answers of those that met no twin."""

    @abstractmethod
    def command(self, text: str) -> None:
        """Run a statement that is no verb."""

    @abstractmethod
    def settle_held(self, settlements: Sequence[Settlement]) -> set[tuple[str, int]]:
        """Settle; (id, token) of those whose fence held."""

    @abstractmethod
    def mono(self) -> Micros:
        """CLOCK_MONOTONIC of this host."""

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        self.command("SAVEPOINT mulligan")
        try:
            yield
        except BaseException:
            self.command("ROLLBACK TO SAVEPOINT mulligan")
            raise
        self.command("RELEASE SAVEPOINT mulligan")

    # -- enqueue ----------------------------------------------------------------------------------
    def insert(self, jobs: Sequence[NewJob], *, announce: bool) -> list[Inserted]:
        if not keyed(jobs):
            now = self.insert_free(jobs, announce=announce)
            return [Inserted._make((job[0], True, due(job, now), now)) for job in jobs]
        with self.savepoint() if len(jobs) > 1 else nullcontext():
            return self._insert(jobs, announce=announce)

    def _insert(self, jobs: Sequence[NewJob], *, announce: bool) -> list[Inserted]:
        answers: dict[str, Inserted] = {}
        # Keys in one order for everybody: two who insert the same keys then wait for each other, never in a circle.
        waiting = sorted(jobs, key=lambda job: job.unique_hash or "")
        for _ in range(UNIQUE_ROUNDS):
            fresh = self.insert_new(waiting, announce=announce)
            answers |= fresh
            waiting = [
                job for job in waiting if job.id not in fresh and not self._twin(job, answers)
            ]
            if not waiting:
                return [answers[job.id] for job in jobs]
        raise unique_race(waiting[0].unique_key)

    def _twin(self, job: NewJob, answers: dict[str, Inserted]) -> bool:
        """Is there a holder of this job's key whose id is the answer? If not, insert again."""
        held = self.rows("unique_holder", unique_hash=job.unique_hash)
        if not held:
            return False
        holder, payload, until = held[0]
        if until is not None and until <= self.now():
            self.rows("unique_free", id=holder, unique_hash=job.unique_hash)
            return False
        if job.unique_exact and payload != job.payload:
            message = (
                f"unique key {job.unique_key!r} belongs to job {holder}, which has another payload"
            )
            raise UniqueMismatch(message)
        answers[job.id] = Inserted(holder, fresh=False)
        return True

    def announce_as(self, events: Sequence[NewEvent]) -> None:
        self.rows(
            "announced",
            ids=self.ids([event.job_id for event in events if event.job_id is not None]),
        )
        self.write_events(events)

    # -- claim ------------------------------------------------------------------------------------
    def look(self) -> Look:
        return self.looked(self.rows("look", lanes=MOST_LANES))

    @staticmethod
    def looked(rows: Iterable[Sequence[Any]]) -> Look:
        now, gates, lanes, guards = 0, [], [], []
        limits: dict[Guarded, tuple[Micros | None, Limit]] = {}
        for what, name, key, first, second, reason, actor in rows:
            if what == "lane":
                lanes.append((name, first, second))
            elif what == "gate":
                gates.append(Gate(name, key, first, second, reason, actor))
            elif what == "guard":
                guards.append(GuardRow(name, key, first, active=True, body=reason))
            elif what == "limit":
                limits[name, key] = (
                    second,
                    Limit(first, None if reason is None else float(reason)),
                )
            else:
                now = first
        lasting = {
            key: limit for key, (until, limit) in limits.items() if until is None or until > now
        }
        return Look(now, gates, lasting, lanes, guards)

    # -- limits -----------------------------------------------------------------------------------
    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def running(self) -> list[tuple[str, str, int]]:
        return [(row[0], row[1], row[2]) for row in self.rows("running")]

    def depth(self, lane: str, priority: int, now: Micros, cap: int) -> tuple[int, int]:
        due, later = self.rows("depth", lane=lane, priority=priority, moment=now, cap=cap)[0]
        return due, later

    def meters(self, keys: Sequence[Guarded]) -> dict[Guarded, tuple[Meter, Micros] | None]:
        return {key: self._meter(key) for key in sorted(keys)}

    def _meter(self, key: Guarded) -> tuple[Meter, Micros] | None:
        named = {"scope": key[0], "key": key[1]}
        found = self.rows("meter", **named)
        if not found and not self.rows("has_meter", **named):
            self.rows(
                "new_meter", **named, tokens=0.0, at=0
            )  # it has all the time in the world behind it
            found = self.rows("meter", **named)
        return (Meter(found[0][0], found[0][1]), found[0][2]) if found else None

    def spend(self, key: Guarded, left: Meter) -> None:
        self.rows("spend", scope=key[0], key=key[1], tokens=left.tokens, at=left.at)

    def limits(self) -> list[LimitRow]:
        return [LimitRow._make(row) for row in self.rows("limits")]

    def set_limit(self, row: LimitRow) -> None:
        self.rows("set_limit", **row._asdict())

    def clear_limit(self, key: Guarded) -> bool:
        return bool(self.rows("clear_limit", scope=key[0], key=key[1]))

    def claimed(self, worker: str) -> list[Lease]:
        return [Lease._make(row) for row in self.rows("claimed", worker=worker)]

    def memories(self, ids: Sequence[str]) -> dict[str, PreviousAttempts]:
        if not ids:
            return {}
        kept: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for job_id, name, value in self.rows("checkpoints", ids=self.ids(ids)):
            kept[job_id][name] = value
        failed = self._latest(ids, failed=True)
        return {
            job_id: PreviousAttempts(kept.get(job_id, {}), _previous(failed.get(job_id)))
            for job_id in ids
            if job_id in kept or job_id in failed
        }

    # -- while it runs ----------------------------------------------------------------------------
    def progress(self, worker: str, news: Sequence[tuple[str, int, float | None, str]]) -> None:
        for job_id, token, fraction, message in sorted(news):
            self.rows(
                "progress",
                id=job_id,
                worker=worker,
                token=token,
                progress=fraction,
                message=message,
            )

    def checkpoint(self, lease_id: str, worker: str, token: int, name: str, value: str) -> bool:
        fence = {"id": lease_id, "worker": worker, "token": token}
        if not self.rows("checkpoint", **fence, name=name, value=value):
            return False
        self.rows("got_ahead", **fence)
        return True

    # -- settle -----------------------------------------------------------------------------------
    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal]:
        held = self.settle_held(settlements)
        if len(held) == len(settlements):
            return []
        return [
            self._refusal(ending) for ending in settlements if (ending.id, ending.token) not in held
        ]

    def _refusal(self, ending: Settlement) -> Refusal:
        found = self.rows("refused", id=ending.id, token=ending.token, settled_by=ending.settled_by)
        if not found:
            return Refusal(ending.id, ending.token, "stale", None)
        state, worker, token, cancel_reason, written = found[0]
        if written:
            return Refusal(ending.id, ending.token, "settled", None)
        if (state, worker, token) == (State.RUNNING, ending.worker, ending.token):
            return Refusal(ending.id, ending.token, "cancel", cancel_reason)
        return Refusal(ending.id, ending.token, "stale", None)

    def gates(self) -> list[Gate]:
        return [Gate._make(row) for row in self.rows("gates")]

    def close_gate(self, gate: Gate) -> None:
        self.rows("close_gate", **gate._asdict())

    def open_gate(self, scope: str, key: str) -> bool:
        return bool(self.rows("open_gate", scope=scope, key=key))

    def write_events(self, events: Iterable[NewEvent]) -> None:
        for event in events:
            self.rows("event", **event_params(event))

    # -- by hand and by upkeep ----------------------------------------------------------------------
    def move(self, move: Move) -> bool:
        moved = self.rows("move", **move._asdict())
        if moved and not moved[0][0]:
            self._begin_story(move.id, *moved[0][1:])
        return bool(moved)

    def _begin_story(
        self, job_id: str, kind: str, queue: str, owner: str, batch_id: str | None, run_at: Micros
    ) -> None:
        """Inserted in a caller's transaction, and moved before anybody has told of it: that comes first in the log."""
        news = {"kind": kind, "queue": queue, "run_at": run_at}
        self.announce_as(
            [
                NewEvent(
                    EventType.JOB_QUEUED, job_id=job_id, batch_id=batch_id, owner=owner, data=news
                )
            ]
        )

    def request_cancel(self, job_id: str, token: int, reason: str) -> bool:
        return bool(self.rows("request_cancel", id=job_id, token=token, reason=reason))

    def due_deadlines(self, limit: int) -> list[JobRow]:
        return [JobRow._make(row) for row in self.rows("due_deadlines", most=limit)]

    def waiting(self, lane: str, before: Micros, limit: int) -> list[JobRow]:
        return [
            JobRow._make(row) for row in self.rows("waiting", lane=lane, before=before, most=limit)
        ]

    def prune(
        self,
        state: str,
        before: Micros,
        limit: int,
        *,
        kind: str | None,
        except_kinds: Sequence[str],
    ) -> list[Pruned]:
        doomed = self.rows(
            "prunable",
            state=state,
            before=before,
            most=limit,
            kind=kind,
            except_kinds=self.ids(except_kinds),
        )
        return self.remove(doomed)

    def remove(self, doomed: Sequence[tuple[Any, ...]]) -> list[Pruned]:
        """Jobs with all that belongs to them, leaving a summary record."""
        if not doomed:
            return []
        ids = self.ids([row[0] for row in doomed])
        for verb in ("prune_attempt", "prune_checkpoint", "prune_arg", "prune_job"):
            self.rows(verb, ids=ids)
        records = _summary(doomed)
        at = self.now()
        for record in records:
            self.rows("pruned", at=at, **record._asdict())
        self.write_events(
            NewEvent(EventType.JOB_PRUNED, owner=record.owner, data=record._asdict())
            for record in records
        )
        return records

    def prune_records(self, before: Micros) -> None:
        self.rows("prune_records", before=before)

    # -- workers ----------------------------------------------------------------------------------
    def open_worker(self, worker: WorkerRow) -> Micros:
        if self.rows("open_worker", **worker._asdict()):
            news = {"worker": worker.id, "host": worker.host, "pid": worker.pid}
            self.write_events([NewEvent(EventType.WORKER_STARTED, data=news)])
        return self.now()

    def renew(self, worker: str, *, draining: bool) -> Renewal:
        held = self.rows("renew", id=worker, mono=self.mono(), draining=draining)
        return Renewal(bool(held), self.now(), self.cancels(worker), held[0][0] if held else None)

    def cancels(self, worker: str) -> list[tuple[str, int, str]]:
        return [(row[0], row[1], row[2]) for row in self.rows("cancels", worker=worker)]

    def request_drain(self, worker: str, reason: str) -> bool:
        return bool(self.rows("request_drain", id=worker, reason=reason))

    def busy(self) -> dict[str, int]:
        return {row[0]: row[1] for row in self.rows("busy")}

    def close_worker(self, worker: str, reason: str, *, seen: Micros | None) -> bool:
        return bool(self.rows("close_worker", id=worker, reason=reason, seen=seen))

    def workers(self, *, closed: bool) -> list[WorkerRow]:
        return [WorkerRow._make(row) for row in self.rows("workers", closed=closed)]

    def orphans(self, limit: int) -> list[Lease]:
        return [Lease._make(row) for row in self.rows("orphans", most=limit)]

    def lift_tokens(self, by: int) -> int:
        return len(self.rows("lift_tokens", by=by))

    def forget_workers(self, before: Micros) -> int:
        return len(self.rows("forget_workers", before=before))

    # -- manifests --------------------------------------------------------------------------------
    def store_manifest(self, manifest_id: str, app: str, release: str, body: str) -> None:
        self.rows("store_manifest", id=manifest_id, app=app, release=release, body=body)

    def manifests(self) -> list[tuple[str, str, str, str, Micros]]:
        return [(row[0], row[1], row[2], row[3], row[4]) for row in self.rows("manifests")]

    # -- schedules --------------------------------------------------------------------------------
    def schedules(self) -> list[ScheduleRow]:
        return [ScheduleRow._make(row) for row in self.rows("schedules")]

    def declare_schedule(self, name: str, cron: str, timezone: str) -> ScheduleRow | None:
        begun = self.rows("declare_schedule", name=name, cron=cron, timezone=timezone)
        return ScheduleRow._make(begun[0]) if begun else None

    def advance_schedule(self, row: ScheduleRow, *, seen: Micros) -> bool:
        moved = {"name": row.name, "cron": row.cron, "timezone": row.timezone, "cursor": row.cursor}
        return bool(self.rows("advance_schedule", **moved, seen=seen))

    def pause_schedule(self, name: str, until: Micros | None, actor: str, reason: str) -> bool:
        return bool(self.rows("pause_schedule", name=name, until=until, actor=actor, reason=reason))

    def resume_schedule(self, row: ScheduleRow, cursor: Micros) -> bool:
        return bool(self.rows("resume_schedule", name=row.name, seen=row.cursor, cursor=cursor))

    def name_schedules(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            self.rows("name_schedule", name=name)

    def take_slots(self, schedule: str, jobs: Mapping[Micros, str]) -> set[Micros]:
        fresh = (
            self.rows("take_slot", schedule=schedule, slot=slot, job_id=jobs[slot])
            for slot in sorted(jobs)
        )
        return {rows[0][0] for rows in fresh if rows}

    def last_slots(self) -> dict[str, tuple[Micros, str]]:
        return {name: (slot, job_id) for name, slot, job_id in self.rows("last_slots")}

    def prune_slots(self, before: Micros, limit: int) -> int:
        return len(self.rows("prune_slots", before=before, most=limit))

    def end_schedules(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            self.rows("end_schedule", name=name)

    def forget_schedules(self, before: Micros) -> int:
        return len(self.rows("forget_schedules", before=before))

    # -- read -------------------------------------------------------------------------------------
    def get(self, job_id: str) -> JobRow | None:
        found = self.rows("get", id=job_id)
        return JobRow._make(found[0]) if found else None

    def find(self, prefix: str, limit: int = 2) -> list[str]:
        return [row[0] for row in self.rows("find", prefix=prefix, beyond=prefix + "~", most=limit)]

    def attempts(self, job_id: str) -> list[AttemptRow]:
        return [AttemptRow._make(row) for row in self.rows("attempts", id=job_id)]

    def latest_attempts(self, ids: Sequence[str]) -> dict[str, AttemptRow]:
        return self._latest(ids, failed=False) if ids else {}

    def _latest(self, ids: Sequence[str], *, failed: bool) -> dict[str, AttemptRow]:
        found = self.rows("latest_attempts", ids=self.ids(ids), failed=failed)
        return {row[0]: AttemptRow._make(row) for row in found}

    def story(self, job_id: str) -> list[Event]:
        return self.stories([job_id])

    def events_among(
        self, verb: str, cursor: int, top: int, limit: int, /, **params: Any
    ) -> list[Event]:
        span = {"cursor": cursor, "top": top, "beyond": top + bundles.MOST}
        return [
            *islice(
                bundles.events_in(self.rows(verb, **span, most=limit, **params), cursor, top), limit
            )
        ]


def _previous(attempt: AttemptRow | None) -> dict[str, Any] | None:
    if attempt is None:
        return None
    return {
        "code": attempt.code,
        "class": attempt.cls,
        "attempt": attempt.attempt,
        "generation": attempt.generation,
        "message": attempt.public,
        "evidence": json.loads(attempt.evidence or "{}"),
    }


def _summary(doomed: Sequence[tuple[Any, ...]]) -> list[Pruned]:
    """One record per (kind, state, owner, code) of what a step deleted."""
    groups: defaultdict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for job_id, kind, state, owner, error in doomed:
        groups[kind, state, owner, json.loads(error)["code"] if error else ""].append(job_id)
    return [
        Pruned(*key, jobs=len(ids), first_id=min(ids), last_id=max(ids))
        for key, ids in groups.items()
    ]
