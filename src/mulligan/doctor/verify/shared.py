"""What several jobs have in common: unique keys, slots of schedules, batches. U1, C1, B1 to B3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields

from mulligan.batches.rules import UNFINISHED, BatchCounts, compute_outcome, count_members
from mulligan.core.durations import Micros
from mulligan.core.event import Event, EventType
from mulligan.doctor.verify.case import FOR_EVER, Findings, JobCase, World, event_line
from mulligan.doctor.verify.job_history import JobReplay
from mulligan.doctor.verify.records import Side
from mulligan.manifest.specs import Manifest
from mulligan.schedules.chore import load_timezone
from mulligan.schedules.rules import check_cron, slots_between
from mulligan.storage.base import BatchRow, ScheduleRow, Store, Transaction

PAGE = 200
MOST_SLOTS = 100_000
WAITING = frozenset(state.value for state in UNFINISHED)
OUTCOMES = {
    EventType.BATCH_READY: "ready",
    EventType.BATCH_PARTIAL: "partial",
    EventType.BATCH_FAILED: "failed",
}


# -- keys ---------------------------------------------------------------------------------------------
def gather(case: JobCase, life: JobReplay, side: Side) -> None:
    """Put down what is judged once all jobs were seen."""
    row = case.row
    covered = frozenset((row.unique_cover or "").split(","))
    if (
        row.unique_key is not None
        and case.whole.unique_until is None
        and case.complete
        and row.generation == 1
    ):
        name = f"{row.owner}\n{row.kind}\n{row.unique_key}"
        side.put("keyed", [(name, row.id, *span) for span in life.spans(covered)])
    if row.batch_id is not None and case.complete:
        side.put(
            "member", [(row.batch_id, row.id, *span) for span in list(life.spans(WAITING))[:1]]
        )
    side.put("slotted", list(_slots_told(case)))


def _slots_told(case: JobCase) -> Iterator[tuple[str, Micros, str]]:
    for event in case.events:
        if (
            event.type == EventType.JOB_QUEUED
            and "schedule" in event.data
            and "slot_at" in event.data
        ):
            yield str(event.data["schedule"]), int(event.data["slot_at"]), case.id


def check_keys(side: Side, findings: Findings) -> None:
    sql = (
        "SELECT a.hash, a.job, b.job, a.since, a.until, b.since FROM keyed AS a JOIN keyed AS b "
        "ON b.hash = a.hash AND b.job <> a.job AND b.since >= a.since AND b.since < a.until"
    )
    for name, first, second, since, until, other in side.ask(sql):
        owner, kind, key = name.split("\n", 2)
        whose = f" of {owner}" if owner else ""
        lines = [
            f"{first}: from event #{since} to {'now' if until == FOR_EVER else f'#{until}'}",
            f"{second}: from #{other}",
        ]
        findings.add(
            "U1",
            f"key {key!r} of {kind}{whose} is held by {first} and {second} at once",
            second,
            store=lines,
        )


# -- schedules ----------------------------------------------------------------------------------------
def check_schedules(store: Store, world: World, side: Side, findings: Findings) -> None:
    sql = "SELECT schedule, slot, min(job), max(job), count(DISTINCT job) AS n FROM slotted GROUP BY 1, 2 HAVING n > 1"
    for schedule, slot, first, last, n in side.ask(sql):
        findings.add(
            "C1", f"slot {slot} of schedule {schedule} has {n} jobs: {first}, {last}", last
        )
    with store.snapshot() as unit:
        rows = {row.name: row for row in unit.list_schedules()}
        steady = _steady(
            [Manifest.from_json(body) for _, _, _, body, _ in unit.list_manifests()], rows
        )
    last_seen: dict[str, Micros] = {}
    for schedule, slot, job in _all_slots(store):
        with_job = slot > 0 and job
        if with_job:
            _between(
                store,
                world,
                rows.get(schedule) if schedule in steady else None,
                last_seen.get(schedule),
                slot,
                findings,
            )
        last_seen[schedule] = slot


def _all_slots(store: Store) -> Iterator[tuple[str, Micros, str]]:
    after: tuple[str, Micros] = ("", 0)
    while True:
        with store.snapshot() as unit:
            page = unit.list_slots(after, PAGE)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1][:2]


def _steady(manifests: Iterable[Manifest], rows: Mapping[str, ScheduleRow]) -> set[str]:
    """Those whose times were never declared otherwise, as far as anybody remembers."""
    said: dict[str, set[tuple[str, str]]] = {}
    for manifest in manifests:
        for name, spec in manifest.schedules.items():
            said.setdefault(name, set()).add((check_cron(spec.cron), spec.timezone))
    return {
        name
        for name, row in rows.items()
        if said.get(name) == {(check_cron(row.cron), row.timezone)}
    }


def _between(
    store: Store,
    world: World,
    row: ScheduleRow | None,
    before: Micros | None,
    slot: Micros,
    findings: Findings,
) -> None:
    """Slots between two that have a job: each was skipped, and that was told."""
    if row is None or before is None:
        return
    missing = []
    for at in slots_between(check_cron(row.cron), load_timezone(row.timezone), before, slot - 1):
        missing.append(at)
        if len(missing) > MOST_SLOTS:
            return
    if not missing:
        return
    told = _skipped(store, world, row.name)
    for at in missing:
        if not any(first <= at <= last for first, last in told):
            findings.add(
                "C1",
                f"slot {at} of schedule {row.name} has no job, and nothing says that it was skipped",
                row.name,
            )


def _skipped(store: Store, world: World, name: str) -> list[tuple[Micros, Micros]]:
    """Ranges that were skipped or passed over while it was paused; what is gone from the log is forgiven."""
    found: list[tuple[Micros, Micros]] = []
    paused: Micros | None = None
    types = [EventType.SCHEDULE_SKIPPED, EventType.SCHEDULE_PAUSED, EventType.SCHEDULE_RESUMED]
    for event in events_of(store, [one.value for one in types], world.gone):
        if event.data.get("schedule") != name:
            continue
        if event.type == EventType.SCHEDULE_SKIPPED:
            found.append((int(event.data["first"]), int(event.data["last"])))
        elif event.type == EventType.SCHEDULE_PAUSED:
            paused = event.at
        else:
            found.append((paused or 0, event.at))
            paused = None
    if world.gone:
        found.append((0, _log_begins(store, world.gone)))
    if paused is not None:
        found.append((paused, FOR_EVER))
    return found


def _log_begins(store: Store, gone: int) -> Micros:
    with store.snapshot() as unit:
        first = unit.list_events_after(gone, 1)
        return first[0].at if first else unit.now()


def events_of(
    store: Store, types: Sequence[str], after: int, upto: int | None = None
) -> Iterator[Event]:
    """Those of some types, page by page, up to what is there now."""
    with store.snapshot() as unit:
        top = unit.newest_event() if upto is None else upto
    while True:
        with store.snapshot() as unit:
            page = unit.list_events_of_types(types, after, top, PAGE)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].id


# -- batches ------------------------------------------------------------------------------------------
def check_batches(
    store: Store, world: World, side: Side, findings: Findings, *, settled: bool
) -> None:
    after = ""
    while True:
        with store.snapshot() as unit:
            page = unit.list_batches_by_id(after, PAGE)
            for row in page:
                if not row.leaving:
                    _check_batch(unit, row, world, side, findings, settled=settled)
        if len(page) < PAGE:
            return
        after = page[-1].id


def _check_batch(
    unit: Transaction, row: BatchRow, world: World, side: Side, findings: Findings, *, settled: bool
) -> None:
    story = [event for event in unit.list_batch_events(row.id) if event.id > world.gone]
    counts = count_members(
        (state, must, n) for _, state, must, n in unit.count_batch_members([row.id])
    )
    ends = [event for event in story if event.type in OUTCOMES]

    def broken(invariant: str, what: str, events: Sequence[Event] = story) -> None:
        findings.add(invariant, what, row.id, store=[event_line(event) for event in events[-6:]])

    _once(row, story, ends, broken)
    for end in ends:
        _when(end, row, unit, side, broken)
        _figures(end, row, broken)
    if row.outcome is None:
        if (
            settled
            and row.sealed_at is not None
            and not counts.unfinished
            and row.sealed_at < world.now - world.slack
        ):
            broken("B2", "it is sealed and no member is unfinished, and it has no outcome")
        return
    if counts.unfinished:
        broken("B2", f"it is {row.outcome}, and {counts.unfinished} of its members are unfinished")
    last = next(
        (end for end in reversed(ends) if end.data.get("generation") == row.generation), None
    )
    if last is not None and last.data.get("succeeded") is not None:
        said, there = (
            (last.data["succeeded"], last.data.get("total")),
            (counts.succeeded, counts.total),
        )
        if said != there:
            broken(
                "B1",
                f"it told of {said[0]} succeeded of {said[1]}, and there are {there[0]} of {there[1]}",
            )


def _once(
    row: BatchRow, story: Sequence[Event], ends: Sequence[Event], broken: Callable[..., None]
) -> None:
    generations = [end.data.get("generation") for end in ends]
    for generation in {one for one in generations if generations.count(one) > 1}:
        broken("B2", f"generation {generation} came to an outcome more than once", ends)
    if ends and row.sealed_at is None:
        broken("B2", "it has come to an outcome and is not sealed", ends)
    sealed = next((event.id for event in story if event.type == EventType.BATCH_SEALED), None)
    if ends and sealed is not None and sealed > ends[0].id:
        broken("B2", "it came to an outcome before it was sealed", story)


def _when(
    end: Event, row: BatchRow, unit: Transaction, side: Side, broken: Callable[..., None]
) -> None:
    late = list(
        side.ask(
            "SELECT job FROM member WHERE batch = ? AND since < ? AND until > ?",
            row.id,
            end.id,
            end.id,
        )
    )
    if late:
        broken(
            "B2",
            f"it came to an outcome while {len(late)} of its members had not ended, such as {late[0][0]}",
            [end],
        )
    follows = end.data.get("on_complete")
    if follows and unit.get_job(str(follows)) is None and not unit.find_prune_records(str(follows)):
        broken("B2", f"its on_complete {follows} does not exist", [end])


def _figures(end: Event, row: BatchRow, broken: Callable[..., None]) -> None:
    names = [one.name for one in fields(BatchCounts)]
    if not all(name in end.data for name in names):
        return
    counts = BatchCounts(**{name: int(end.data[name]) for name in names})
    outcome = compute_outcome(counts, row.tolerance).value
    if outcome != OUTCOMES[EventType(end.type)]:
        broken(
            "B3",
            f"it told of {OUTCOMES[EventType(end.type)]}, and its members make it {outcome}",
            [end],
        )
