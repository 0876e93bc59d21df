"""The run: page by page through the store, each page one moment of it, each job with what the files say of it.

Read-only, in bounded memory, and of a database in use: what is judged was read in one snapshot, the files before it.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mulligan.config import Settings, read_settings
from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import MulliganError
from mulligan.core.event import Event, EventType
from mulligan.doctor.verify.case import (
    ALL,
    CLIENTS,
    FOR_EVER,
    KEPT,
    WITNESS,
    ClosedPeriod,
    Findings,
    JobCase,
    Violation,
    World,
    case_of,
)
from mulligan.doctor.verify.clients import (
    check_calls,
    check_ghosts,
    check_missing,
    check_runs,
    ghost_of,
)
from mulligan.doctor.verify.completion import (
    check_alive,
    check_breakers,
    check_limits,
    check_outbox,
    check_received,
    check_streams,
    check_told,
    gather_message,
)
from mulligan.doctor.verify.job_history import JobReplay, check_row, check_worker
from mulligan.doctor.verify.records import Side
from mulligan.doctor.verify.shared import (
    check_batches,
    check_keys,
    check_schedules,
    events_of,
    gather,
)
from mulligan.guards.describe import CLOSED, OPENED
from mulligan.jobs.service import Jobs
from mulligan.manifest.declared import load_declared_limits, load_kinds
from mulligan.storage import Store, open_store
from mulligan.storage.base import Transaction
from mulligan.storage.history_queries import WholeJobRow
from mulligan.worker.liveness import worker_statuses

PAGE = 500
STORIES = 10  # violations that are told with the whole story of their job
FEW_SECONDS = (
    15.0  # beyond lease and sweep: how long after the faults something may still be on its way
)

Progress = Callable[[int], None]


@dataclass(frozen=True)
class VerifyReport:
    """What was looked at, and what was found."""

    jobs: int
    events: int
    calls: int
    lines: int
    unreadable: int
    checked: tuple[str, ...]  # the invariants that could be judged with what was given
    counts: Counter[str]
    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        return not self.counts

    def to_plain(self) -> dict[str, Any]:
        looked = {
            name: getattr(self, name) for name in ("jobs", "events", "calls", "lines", "unreadable")
        }
        return {
            "ok": self.ok,
            "looked_at": looked,
            "checked": list(self.checked),
            "counts": dict(self.counts),
            "violations": [one.to_plain() for one in self.violations],
        }


def verify(
    store: Store | str,
    *,
    clients: Iterable[str | Path] = (),
    witness: Iterable[str | Path] = (),
    settled: bool = False,
    slack: float | None = None,
    settings: Settings | None = None,
    progress: Progress = lambda _: None,
) -> VerifyReport:
    """Hold the histories against each other. `settled`: the faults have stopped, so what should end must have ended,
    up to `slack` seconds ago (else: lease, sweep and a little more).
    """
    known = settings or read_settings()
    if isinstance(store, str):
        opened = open_store(store, schema=known.schema_name)
        with contextlib.closing(opened):
            return verify(
                opened,
                clients=clients,
                witness=witness,
                settled=settled,
                slack=slack,
                settings=known,
                progress=progress,
            )
    if slack is None:
        slack = known.worker.lease + known.worker.sweep + FEW_SECONDS
    world = _world(store, round(slack * SECOND))
    with Side(clients, witness) as side:
        return _Checker(store, side, world, known, settled=settled).run(progress)


def _world(store: Store, slack: Micros) -> World:
    one_clock = store.facts().get("store") == "postgresql"
    with store.snapshot() as unit:
        kinds, gone = load_kinds(unit), unit.events_gone()
        seen = worker_statuses(unit)
        now = unit.now()
        limited = {(limit.scope, limit.key) for limit in unit.list_limits()} | load_declared_limits(
            unit, now
        ).keys()
        world = World(
            now=now,
            gone=gone,
            one_clock=one_clock,
            restored=False,
            workers={row.id: row for row in unit.list_workers(closed=True)},
            gates=unit.list_gates(),
            live_kinds=frozenset(
                kind for one in seen if one.is_live for kind in json.loads(one.row.kinds)
            ),
            limited=frozenset(
                limited | {(row.scope, row.key) for row in unit.read_claim_state().guards}
            ),
            timeouts={name: spec.timeout for name, spec in kinds.items()},
            slack=slack,
        )
    _history(store, world)
    return world


def _history(store: Store, world: World) -> None:
    """What happened to workers, gates and the whole database: few events, found by their types."""
    lost: dict[str, Event] = {}
    shut: dict[tuple[str, str], list[ClosedPeriod]] = {}
    types = [EventType.WORKER_LOST, EventType.DATABASE_RESTORED, *CLOSED, *OPENED]
    for event in events_of(
        store, [str(one.value if isinstance(one, EventType) else one) for one in types], world.gone
    ):
        if event.type == EventType.WORKER_LOST:
            lost[str(event.data.get("worker"))] = event
        elif event.type == EventType.DATABASE_RESTORED:
            world.restored = True
        else:
            _gate(event, shut)
    world.lost, world.closures = lost, shut


def _gate(event: Event, shut: dict[tuple[str, str], list[ClosedPeriod]]) -> None:
    scope = CLOSED.get(event.type) or OPENED[event.type]
    if (
        scope == "dependency"
    ):  # probes pass it, and a ramp follows: when it is closed to whom is its breaker's to say
        return
    found = shut.setdefault((scope, str(event.data.get(scope, ""))), [])
    if found and found[-1].last == FOR_EVER:
        found[-1] = found[-1]._replace(last=event.id)
    if event.type in CLOSED:
        until = event.data.get("until")
        found.append(
            ClosedPeriod(event.id, event.at, FOR_EVER, FOR_EVER if until is None else int(until))
        )


class _Checker:
    def __init__(
        self, store: Store, side: Side, world: World, settings: Settings, *, settled: bool
    ) -> None:
        self._store, self._side, self._world, self._settings = store, side, world, settings
        self._settled = settled
        self._findings = Findings()
        self._jobs = self._events = 0

    def run(self, progress: Progress) -> VerifyReport:
        self._side.begin()
        self._all_jobs(progress)
        self._side.gathered()
        self._whole()
        found = tuple(self._with_story(place, one) for place, one in enumerate(self._findings.kept))
        calls, lines = (
            next(self._side.ask(f"SELECT count(*) FROM {name}"))[0] for name in ("call", "witness")
        )
        return VerifyReport(
            jobs=self._jobs,
            events=self._events,
            calls=calls,
            lines=lines,
            unreadable=self._side.unreadable,
            checked=tuple(self._could_judge()),
            counts=self._findings.counts,
            violations=found,
        )

    def _could_judge(self) -> Iterable[str]:
        given = {CLIENTS: self._side.has_clients, WITNESS: self._side.has_witness}
        for one in ALL.values():
            if all(given.get(need, True) for need in one.needs) and (
                self._settled or not one.settled
            ):
                yield one.id

    # -- each job -----------------------------------------------------------------------------------
    def _all_jobs(self, progress: Progress) -> None:
        after = ""
        while True:
            with self._store.snapshot() as unit:
                page = unit.list_whole_jobs(after, PAGE)
                cases = self._cases(unit, page)
            for case in cases:
                self._check(case)
            self._jobs += len(page)
            progress(self._jobs)
            if len(page) < PAGE:
                return
            after = page[-1].job.id

    def _cases(self, unit: Transaction, page: Sequence[WholeJobRow]) -> list[JobCase]:
        ids = [whole.job.id for whole in page]
        events = _by_job(unit.list_events_of_jobs(ids))
        attempts, kept = (
            _by_job(unit.list_attempts_of_jobs(ids)),
            _by_job(unit.list_checkpoints(ids)),
        )
        calls, lines = self._side.calls_of(ids), self._side.witnesses_of(ids)
        self._events += sum(map(len, events.values()))
        gone = self._world.gone
        return [
            case_of(
                whole,
                events.get(job, ()),
                attempts.get(job, ()),
                kept.get(job, ()),
                calls.get(job, ()),
                lines.get(job, ()),
                gone,
            )
            for whole, job in zip(page, ids, strict=True)
        ]

    def _check(self, case: JobCase) -> None:
        life = JobReplay(case, self._world, self._findings).told()
        check_row(case, self._findings)
        if self._side.has_witness:
            check_runs(
                case, self._world, self._findings, watched=case.row.kind in self._side.kinds_seen
            )
        if self._side.has_clients:
            self._clients(case)
        if self._settled:
            check_alive(case, self._world, self._findings)
        gather(case, life, self._side)
        gather_message(case, self._side)

    def _clients(self, case: JobCase) -> None:
        check_calls(case, self._findings)
        if case.calls:
            self._side.put("seen", [(case.id,)])
        ghost = ghost_of(case, self._side)
        if (
            ghost is not None and case.row.created_at < self._world.now
        ):  # a later one's call may be in no file yet
            self._side.put("ghost", [ghost])

    # -- all of them together -----------------------------------------------------------------------
    def _whole(self) -> None:
        store, side, world, findings = self._store, self._side, self._world, self._findings
        for worker in world.workers.values():
            check_worker(worker, world, findings)
        check_keys(side, findings)
        check_schedules(store, world, side, findings)
        check_batches(store, world, side, findings, settled=self._settled)
        check_outbox(store, world, side, findings)
        with store.snapshot() as unit:
            check_limits(unit, world, findings)
            for line in unit.check_integrity():
                findings.add("D1", line)
        if side.has_clients:
            check_missing(store, side, findings)
            check_ghosts(side, findings)
            check_received(store, side, findings)
            check_streams(store, world, side, findings)
        if self._settled:
            check_breakers(world, findings)
            check_told(store, world, findings)

    def _with_story(self, place: int, found: Violation) -> Violation:
        if place >= STORIES or not found.subject:
            return found
        try:
            told = Jobs(lambda: self._store, self._settings).explain(found.subject)
        except MulliganError:
            return found
        return Violation(found.invariant, found.what, found.subject, found.evidence, str(told))


def _by_job(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.job_id, []).append(row)
    return found


__all__ = ["KEPT", "VerifyReport", "verify"]
