"""Check what several jobs share: unique keys (U1), slots of schedules (C1), batches (B1 to B3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from mulligan.batches.queries import BatchQueries, BatchRow
from mulligan.batches.rules import UNFINISHED, BatchCounts, compute_outcome, count_members
from mulligan.core.durations import Micros
from mulligan.core.event import Event, EventType
from mulligan.doctor.verify.case import (
    FOREVER,
    Findings,
    JobCase,
    VerifyContext,
    format_events,
)
from mulligan.doctor.verify.job_history import JobReplay
from mulligan.doctor.verify.queries import VerifyQueries
from mulligan.doctor.verify.records import RecordIndex
from mulligan.events.queries import EventQueries
from mulligan.jobs.queries import JobQueries
from mulligan.manifest.declared import load_manifest
from mulligan.manifest.queries import ManifestQueries
from mulligan.manifest.specs import Manifest
from mulligan.schedules.chore import load_timezone
from mulligan.schedules.queries import ScheduleQueries, ScheduleRow
from mulligan.schedules.rules import check_cron, slots_between
from mulligan.storage.base import Store, Transaction

PAGE_SIZE = 200
MAX_SLOTS = 100_000
UNFINISHED_STATES = frozenset(state.value for state in UNFINISHED)
OUTCOMES = {
    EventType.BATCH_READY: "ready",
    EventType.BATCH_PARTIAL: "partial",
    EventType.BATCH_FAILED: "failed",
}


def collect_facts(case: JobCase, replay: JobReplay, records: RecordIndex) -> None:
    """Store the facts about one job that are checked after all jobs were read."""
    row = case.row
    if (
        row.unique_key is not None
        and case.whole.unique_until is None
        and case.is_complete
        and row.generation == 1
    ):
        covered_states = frozenset((row.unique_cover or "").split(","))
        name = f"{row.owner}\n{row.kind}\n{row.unique_key}"
        periods = replay.periods_in(covered_states)
        records.insert("key_holder", [(name, row.id, *period) for period in periods])
    if row.batch_id is not None and case.is_complete:
        first_period = next(replay.periods_in(UNFINISHED_STATES), None)
        if first_period is not None:
            records.insert("member", [(row.batch_id, row.id, *first_period)])
    records.insert("slot_job", list(_slots_of_job(case)))


def _slots_of_job(case: JobCase) -> Iterator[tuple[str, Micros, str]]:
    for event in case.events:
        data = event.data
        if event.type == EventType.JOB_QUEUED and "schedule" in data and "slot_at" in data:
            yield str(data["schedule"]), int(data["slot_at"]), case.id


def iter_events(
    store: Store, types: Sequence[str], after: int, upto: int | None = None
) -> Iterator[Event]:
    """Yield the events of these types, page by page, up to the newest one at the start."""
    if upto is None:
        with store.snapshot() as tx:
            upto = EventQueries(tx).newest_event()
    while True:
        with store.snapshot() as tx:
            page = EventQueries(tx).list_events_of_types(types, after, upto, PAGE_SIZE)
        yield from page
        if len(page) < PAGE_SIZE:
            return
        after = page[-1].id


# --- Unique keys: U1 ---

OVERLAPPING_HOLDERS = """
SELECT a.name, a.job, b.job, a.since, a.until, b.since FROM key_holder AS a
JOIN key_holder AS b
ON b.name = a.name AND b.job <> a.job AND b.since >= a.since AND b.since < a.until
"""


def check_keys(records: RecordIndex, findings: Findings) -> None:
    """Report unique keys that two jobs held at the same time."""
    for name, first, second, since, until, second_since in records.query(OVERLAPPING_HOLDERS):
        owner, kind, key = name.split("\n", 2)
        holder = f"kind {kind} and owner {owner}" if owner else f"kind {kind}"
        end = "now" if until == FOREVER else f"event #{until}"
        findings.add(
            "U1",
            f"key {key!r} of {holder} was held by {first} and {second} at the same time",
            second,
            store=[
                f"{first}: from event #{since} to {end}",
                f"{second}: from event #{second_since}",
            ],
        )


# --- Schedules: C1 ---

SLOTS_WITH_SEVERAL_JOBS = """
SELECT schedule, slot, min(job), max(job), count(DISTINCT job) AS jobs FROM slot_job
GROUP BY 1, 2 HAVING jobs > 1
"""


def check_schedules(
    store: Store, context: VerifyContext, records: RecordIndex, findings: Findings
) -> None:
    """Report slots with two jobs, and slots without a job that were not skipped."""
    for schedule, slot, first, last, count in records.query(SLOTS_WITH_SEVERAL_JOBS):
        what = f"slot {slot} of schedule {schedule} has {count} jobs, such as {first} and {last}"
        findings.add("C1", what, last)
    with store.snapshot() as tx:
        rows = {row.name: row for row in ScheduleQueries(tx).list_schedules()}
        manifests = [
            load_manifest(tx, stored.id) for stored in ManifestQueries(tx).list_manifests()
        ]
    unchanged = _find_unchanged(manifests, rows)
    slots_before: dict[str, Micros] = {}
    for schedule, slot, job in _iter_slots(store):
        before = slots_before.get(schedule)
        if slot > 0 and job and schedule in unchanged and before is not None:
            _check_gap(store, context, rows[schedule], before, slot, findings)
        slots_before[schedule] = slot


def _iter_slots(store: Store) -> Iterator[tuple[str, Micros, str]]:
    after: tuple[str, Micros] = ("", 0)
    while True:
        with store.snapshot() as tx:
            page = VerifyQueries(tx).list_slots(after, PAGE_SIZE)
        yield from page
        if len(page) < PAGE_SIZE:
            return
        after = page[-1][:2]


def _find_unchanged(manifests: Iterable[Manifest], rows: Mapping[str, ScheduleRow]) -> set[str]:
    """Return the schedules whose times are the same in every stored manifest."""
    declared: dict[str, set[tuple[str, str]]] = {}
    for manifest in manifests:
        for name, spec in manifest.schedules.items():
            declared.setdefault(name, set()).add((check_cron(spec.cron), spec.timezone))
    return {
        name
        for name, row in rows.items()
        if declared.get(name) == {(check_cron(row.cron), row.timezone)}
    }


def _check_gap(
    store: Store,
    context: VerifyContext,
    row: ScheduleRow,
    before: Micros,
    slot: Micros,
    findings: Findings,
) -> None:
    """Check that every slot between two slots with jobs was skipped."""
    missing = []
    for at in slots_between(check_cron(row.cron), load_timezone(row.timezone), before, slot - 1):
        missing.append(at)
        if len(missing) > MAX_SLOTS:
            return
    if not missing:
        return
    skipped = _skipped_ranges(store, context, row.name)
    for at in missing:
        if not any(first <= at <= last for first, last in skipped):
            what = f"slot {at} of schedule {row.name} has no job, and no event says it was skipped"
            findings.add("C1", what, row.name)


def _skipped_ranges(store: Store, context: VerifyContext, name: str) -> list[tuple[Micros, Micros]]:
    """Return the ranges of skipped slots: skipped, paused, or before the first event in the log."""
    ranges: list[tuple[Micros, Micros]] = []
    paused_at: Micros | None = None
    types = (EventType.SCHEDULE_SKIPPED, EventType.SCHEDULE_PAUSED, EventType.SCHEDULE_RESUMED)
    for event in iter_events(store, [one.value for one in types], context.pruned_upto):
        if event.data.get("schedule") != name:
            continue
        if event.type == EventType.SCHEDULE_SKIPPED:
            ranges.append((int(event.data["first"]), int(event.data["last"])))
        elif event.type == EventType.SCHEDULE_PAUSED:
            paused_at = event.at
        else:
            ranges.append((paused_at or 0, event.at))
            paused_at = None
    if context.pruned_upto:
        ranges.append((0, _log_start(store, context.pruned_upto)))
    if paused_at is not None:
        ranges.append((paused_at, FOREVER))
    return ranges


def _log_start(store: Store, pruned_upto: int) -> Micros:
    """Return the time of the first event that was not pruned."""
    with store.snapshot() as tx:
        for event in EventQueries(tx).list_events_after(pruned_upto, 1):
            return event.at
        return tx.now()


# --- Batches: B1 to B3 ---

MEMBERS_UNFINISHED_AT = "SELECT job FROM member WHERE batch = ? AND since < ? AND until > ?"


def check_batches(
    store: Store, context: VerifyContext, records: RecordIndex, findings: Findings, *, settled: bool
) -> None:
    """Check every batch that retention is not removing."""
    after = ""
    while True:
        with store.snapshot() as tx:
            page = VerifyQueries(tx).list_batches_by_id(after, PAGE_SIZE)
            for row in page:
                if not row.being_pruned:
                    check = _BatchCheck.load(tx, row, context, records, findings)
                    check.run(settled=settled)
        if len(page) < PAGE_SIZE:
            return
        after = page[-1].id


@dataclass(frozen=True)
class _BatchCheck:
    """One batch with its events and the counts of its members."""

    tx: Transaction
    row: BatchRow
    context: VerifyContext
    records: RecordIndex
    findings: Findings
    events: Sequence[Event]
    completions: Sequence[Event]
    counts: BatchCounts

    @classmethod
    def load(
        cls,
        tx: Transaction,
        row: BatchRow,
        context: VerifyContext,
        records: RecordIndex,
        findings: Findings,
    ) -> _BatchCheck:
        events = [
            event
            for event in BatchQueries(tx).list_batch_events(row.id)
            if event.id > context.pruned_upto
        ]
        completions = [event for event in events if event.type in OUTCOMES]
        members = BatchQueries(tx).count_batch_members([row.id])
        counts = count_members((state, must, count) for _, state, must, count in members)
        return cls(tx, row, context, records, findings, events, completions, counts)

    def run(self, *, settled: bool) -> None:
        self._check_once()
        for completion in self.completions:
            self._check_members_finished(completion)
            self._check_on_complete(completion)
            self._check_outcome(completion)
        if self.row.outcome is not None:
            self._check_counts()
        elif settled:
            self._check_completed()

    def _report(self, invariant: str, what: str, events: Sequence[Event] | None = None) -> None:
        evidence = self.events if events is None else events
        self.findings.add(invariant, what, self.row.id, store=format_events(evidence))

    def _check_once(self) -> None:
        """B2: one completion per generation, after the batch was sealed."""
        completions = self.completions
        generations = [completion.data.get("generation") for completion in completions]
        for generation in set(generations):
            if generations.count(generation) > 1:
                self._report("B2", f"generation {generation} completed more than once", completions)
        if not completions:
            return
        if self.row.sealed_at is None:
            self._report("B2", "it has completed, but is not sealed", completions)
        seals = [event.id for event in self.events if event.type == EventType.BATCH_SEALED]
        if seals and seals[0] > completions[0].id:
            self._report("B2", "it completed before it was sealed")

    def _check_members_finished(self, completion: Event) -> None:
        """B2: no member was unfinished when the batch completed."""
        at = completion.id
        unfinished = list(self.records.query(MEMBERS_UNFINISHED_AT, self.row.id, at, at))
        if unfinished:
            what = (
                f"it completed while {len(unfinished)} of its members were unfinished, "
                f"such as {unfinished[0][0]}"
            )
            self._report("B2", what, [completion])

    def _check_on_complete(self, completion: Event) -> None:
        """B2: the job that follows a completed batch exists, or was removed by retention."""
        job_id = completion.data.get("on_complete")
        if not job_id:
            return
        if JobQueries(self.tx).get_job(str(job_id)) is None and not VerifyQueries(
            self.tx
        ).find_prune_records(str(job_id)):
            self._report("B2", f"its on_complete job {job_id} does not exist", [completion])

    def _check_outcome(self, completion: Event) -> None:
        """B3: the outcome follows from the counts in the same event."""
        names = [one.name for one in fields(BatchCounts)]
        if not all(name in completion.data for name in names):
            return
        counts = BatchCounts(**{name: int(completion.data[name]) for name in names})
        expected = compute_outcome(counts, self.row.tolerance).value
        outcome = OUTCOMES[EventType(completion.type)]
        if outcome != expected:
            what = f"its outcome is {outcome}, but its members make it {expected}"
            self._report("B3", what, [completion])

    def _check_completed(self) -> None:
        """B2: a sealed batch without unfinished members has completed."""
        sealed_at = self.row.sealed_at
        if sealed_at is None or self.counts.unfinished:
            return
        if sealed_at < self.context.now - self.context.slack:
            self._report("B2", "it is sealed and no member is unfinished, but it has no outcome")

    def _check_counts(self) -> None:
        """B1, B2: the counts of the last completion match the members."""
        row = self.row
        counts = self.counts
        if counts.unfinished:
            what = f"it is {row.outcome}, but {counts.unfinished} of its members are unfinished"
            self._report("B2", what)
        for completion in reversed(self.completions):
            if completion.data.get("generation") == row.generation:
                self._check_event_counts(completion)
                return

    def _check_event_counts(self, completion: Event) -> None:
        succeeded = completion.data.get("succeeded")
        if succeeded is None:
            return
        total = completion.data.get("total")
        if (succeeded, total) != (self.counts.succeeded, self.counts.total):
            what = (
                f"its event has {succeeded} of {total} succeeded, "
                f"its members are {self.counts.succeeded} of {self.counts.total}"
            )
            self._report("B1", what)
