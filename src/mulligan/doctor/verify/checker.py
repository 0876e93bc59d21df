"""Run all checks: read the database page by page and compare each job with the recorded files.

Reads only, in bounded memory, and works on a database in use: each page is one snapshot, and the
files are read before it.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mulligan.config import Settings, read_settings
from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import MulliganError
from mulligan.core.event import Event, EventType
from mulligan.doctor.verify.case import (
    CLIENTS,
    FOREVER,
    INVARIANTS,
    WITNESS,
    ClosedPeriod,
    Findings,
    JobCase,
    VerifyContext,
    Violation,
    build_case,
)
from mulligan.doctor.verify.clients import (
    check_calls,
    check_handlers,
    check_missing,
    check_unrequested,
    find_unrequested,
)
from mulligan.doctor.verify.completion import (
    check_breakers,
    check_dispatch,
    check_limits,
    check_liveness,
    check_messages,
    check_received,
    check_streams,
    collect_delivery,
)
from mulligan.doctor.verify.job_history import JobReplay, check_row, check_worker
from mulligan.doctor.verify.queries import VerifyQueries, WholeJobRow
from mulligan.doctor.verify.records import RecordIndex
from mulligan.doctor.verify.shared import (
    check_batches,
    check_keys,
    check_schedules,
    collect_facts,
    iter_events,
)
from mulligan.events.queries import EventQueries
from mulligan.guards.describe import CLOSED, OPENED
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.service import Jobs
from mulligan.manifest.declared import load_declared_limits, load_kinds
from mulligan.storage import Store, open_store
from mulligan.storage.base import Transaction
from mulligan.worker.queries import WorkerQueries
from mulligan.worker.service import worker_statuses

PAGE_SIZE = 500
MAX_STORIES = 10  # violations that are reported with the whole story of their job
EXTRA_SLACK_SECONDS = 15.0  # added to lease and sweep: the default of `slack`

Progress = Callable[[int], None]
ClosuresByGate = dict[tuple[str, str], list[ClosedPeriod]]


@dataclass(frozen=True)
class VerifyReport:
    """Result of a verification: how much was read, and what is wrong."""

    jobs: int
    events: int
    calls: int
    lines: int
    unreadable: int
    checked: tuple[str, ...]  # ids of the invariants that could be checked with these files
    counts: Counter[str]
    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        return not self.counts

    def to_dict(self) -> dict[str, Any]:
        looked_at = {
            "jobs": self.jobs,
            "events": self.events,
            "calls": self.calls,
            "lines": self.lines,
            "unreadable": self.unreadable,
        }
        return {
            "ok": self.ok,
            "looked_at": looked_at,
            "checked": list(self.checked),
            "counts": dict(self.counts),
            "violations": [violation.to_dict() for violation in self.violations],
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
    """Check the invariants of a database against its history and the recorded files.

    `settled`: the faults have stopped, so jobs that should have ended must have ended, up to
    `slack` seconds ago. The default slack is lease, sweep and 15 seconds.
    """
    known_settings = settings or read_settings()
    if isinstance(store, str):
        opened = open_store(store, schema=known_settings.schema_name)
        with contextlib.closing(opened):
            return verify(
                opened,
                clients=clients,
                witness=witness,
                settled=settled,
                slack=slack,
                settings=known_settings,
                progress=progress,
            )
    if slack is None:
        worker = known_settings.worker
        slack = worker.lease + worker.sweep + EXTRA_SLACK_SECONDS
    context = _load_context(store, round(slack * SECOND))
    with RecordIndex(clients, witness) as records:
        checker = _Checker(store, records, context, known_settings, settled=settled)
        return checker.run(progress)


# --- Facts about the whole database ---


def _load_context(store: Store, slack: Micros) -> VerifyContext:
    single_clock = store.facts().get("store") == "postgresql"
    with store.snapshot() as tx:
        now = tx.now()
        context = VerifyContext(
            now=now,
            pruned_upto=EventQueries(tx).pruned_event_id(),
            single_clock=single_clock,
            restored=False,
            workers={row.id: row for row in WorkerQueries(tx).list_workers(closed=True)},
            gates=GuardQueries(tx).list_gates(),
            live_kinds=_load_live_kinds(tx),
            limited=_load_limited(tx, now),
            timeouts={name: spec.timeout for name, spec in load_kinds(tx).items()},
            slack=slack,
        )
    _load_history(store, context)
    return context


def _load_live_kinds(tx: Transaction) -> frozenset[str]:
    kinds: set[str] = set()
    for status in worker_statuses(tx):
        if status.is_live:
            kinds.update(json.loads(status.row.kinds))
    return frozenset(kinds)


def _load_limited(tx: Transaction, now: Micros) -> frozenset[tuple[str, str]]:
    """Return the queues and dependencies that limit how many jobs may start."""
    limited = {(limit.scope, limit.key) for limit in GuardQueries(tx).list_limits()}
    limited.update(load_declared_limits(tx, now))
    limited.update((row.scope, row.key) for row in GuardQueries(tx).read_claim_state().guards)
    return frozenset(limited)


def _load_history(store: Store, context: VerifyContext) -> None:
    """Read the few events about workers, gates and restores into the context."""
    lost_workers: dict[str, Event] = {}
    closures: ClosuresByGate = {}
    types = [EventType.WORKER_LOST, EventType.DATABASE_RESTORED, *CLOSED, *OPENED]
    for event in iter_events(store, [str(one) for one in types], context.pruned_upto):
        if event.type == EventType.WORKER_LOST:
            lost_workers[str(event.data.get("worker"))] = event
        elif event.type == EventType.DATABASE_RESTORED:
            context.restored = True
        else:
            _add_gate_event(event, closures)
    context.lost_workers = lost_workers
    context.closures = closures


def _add_gate_event(event: Event, closures: ClosuresByGate) -> None:
    scope = CLOSED.get(event.type) or OPENED[event.type]
    # Not for dependencies: probes may pass a closed one, and a ramp follows.
    if scope == "dependency":
        return
    periods = closures.setdefault((scope, str(event.data.get(scope, ""))), [])
    if periods and periods[-1].last == FOREVER:
        periods[-1] = periods[-1]._replace(last=event.id)
    if event.type in CLOSED:
        until = event.data.get("until")
        closed_until = FOREVER if until is None else int(until)
        periods.append(ClosedPeriod(event.id, event.at, FOREVER, closed_until))


# --- The checker ---


class _Checker:
    """One run over all jobs of a database."""

    def __init__(
        self,
        store: Store,
        records: RecordIndex,
        context: VerifyContext,
        settings: Settings,
        *,
        settled: bool,
    ) -> None:
        self._store = store
        self._records = records
        self._context = context
        self._settings = settings
        self._settled = settled
        self._findings = Findings()
        self._job_count = 0
        self._event_count = 0

    def run(self, progress: Progress) -> VerifyReport:
        self._records.begin_collecting()
        self._check_all_jobs(progress)
        self._records.finish_collecting()
        self._check_across_jobs()
        return VerifyReport(
            jobs=self._job_count,
            events=self._event_count,
            calls=self._records.count("call"),
            lines=self._records.count("witness"),
            unreadable=self._records.unreadable,
            checked=tuple(self._checked_invariants()),
            counts=self._findings.counts,
            violations=tuple(self._violations_with_stories()),
        )

    def _checked_invariants(self) -> Iterable[str]:
        missing = set()
        if not self._records.has_clients:
            missing.add(CLIENTS)
        if not self._records.has_witness:
            missing.add(WITNESS)
        for invariant in INVARIANTS.values():
            if missing.isdisjoint(invariant.needs) and (self._settled or not invariant.settled):
                yield invariant.id

    # --- Each job ---
    def _check_all_jobs(self, progress: Progress) -> None:
        after = ""
        while True:
            with self._store.snapshot() as tx:
                page = VerifyQueries(tx).list_whole_jobs(after, PAGE_SIZE)
                cases = self._load_cases(tx, page)
            for case in cases:
                self._check_job(case)
            self._job_count += len(page)
            progress(self._job_count)
            if len(page) < PAGE_SIZE:
                return
            after = page[-1].job.id

    def _load_cases(self, tx: Transaction, page: Sequence[WholeJobRow]) -> list[JobCase]:
        ids = [whole.job.id for whole in page]
        events = _group_by_job(EventQueries(tx).list_events_of_jobs(ids))
        attempts = _group_by_job(VerifyQueries(tx).list_attempts_of_jobs(ids))
        checkpoints = _group_by_job(VerifyQueries(tx).list_checkpoints(ids))
        calls = self._records.calls_of(ids)
        witness_lines = self._records.witness_lines_of(ids)
        self._event_count += sum(map(len, events.values()))
        return [
            build_case(
                whole,
                events.get(job_id, ()),
                attempts.get(job_id, ()),
                checkpoints.get(job_id, ()),
                calls.get(job_id, ()),
                witness_lines.get(job_id, ()),
                self._context.pruned_upto,
            )
            for whole, job_id in zip(page, ids, strict=True)
        ]

    def _check_job(self, case: JobCase) -> None:
        replay = JobReplay(case, self._context, self._findings).replay()
        check_row(case, self._findings)
        if self._records.has_witness:
            is_witnessed = case.row.kind in self._records.witnessed_kinds
            check_handlers(case, self._context, self._findings, is_witnessed=is_witnessed)
        if self._records.has_clients:
            self._check_clients(case)
        if self._settled:
            check_liveness(case, self._context, self._findings)
        collect_facts(case, replay, self._records)
        collect_delivery(case, self._records)

    def _check_clients(self, case: JobCase) -> None:
        check_calls(case, self._findings)
        if case.calls:
            self._records.insert("existing", [(case.id,)])
        # The call of a job created after the files were read may be in no file yet.
        if case.row.created_at >= self._context.now:
            return
        unrequested = find_unrequested(case, self._records)
        if unrequested is not None:
            self._records.insert("unrequested", [unrequested])

    # --- All jobs together ---
    def _check_across_jobs(self) -> None:
        store = self._store
        records = self._records
        context = self._context
        findings = self._findings
        for worker in context.workers.values():
            check_worker(worker, context, findings)
        check_keys(records, findings)
        check_schedules(store, context, records, findings)
        check_batches(store, context, records, findings, settled=self._settled)
        check_messages(store, context, records, findings)
        with store.snapshot() as tx:
            check_limits(tx, context, findings)
            for line in tx.check_integrity():
                findings.add("D1", line)
        if records.has_clients:
            check_missing(store, records, findings)
            check_unrequested(records, findings)
            check_received(store, records, findings)
            check_streams(store, context, records, findings)
        if self._settled:
            check_breakers(context, findings)
            check_dispatch(store, context, findings)

    def _violations_with_stories(self) -> Iterable[Violation]:
        for number, violation in enumerate(self._findings.reported):
            if number < MAX_STORIES and violation.subject:
                yield self._add_story(violation)
            else:
                yield violation

    def _add_story(self, violation: Violation) -> Violation:
        try:
            story = Jobs(lambda: self._store, lambda: self._settings).explain(violation.subject)
        except MulliganError:  # the subject is no job
            return violation
        return replace(violation, story=str(story))


def _group_by_job(rows: Iterable[Any]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for row in rows:
        groups.setdefault(row.job_id, []).append(row)
    return groups
