"""Statements about schedules and their slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mulligan.core.durations import Micros
from mulligan.storage.base import Queries


class ScheduleRow(NamedTuple):
    """Stored state of a schedule. Its definition is in the manifest."""

    name: str
    cron: str
    timezone: str
    cursor: Micros  # every slot up to here has been handled
    declared_at: Micros  # when a manifest in use last declared it, to the day
    paused_at: Micros | None = None
    paused_until: Micros | None = None  # None: until it is resumed
    pause_reason: str = ""
    paused_by: str = ""


class ScheduleRun(NamedTuple):
    """A past slot of a schedule and its job."""

    slot: Micros
    job_id: str
    state: str | None  # None: the job was pruned
    started_at: Micros | None
    finished_at: Micros | None


class ScheduleQueries(Queries):
    """Statements about schedules, in a transaction."""

    def list_schedules(self) -> list[ScheduleRow]:
        """List all schedules."""
        return self.list_rows(ScheduleRow, "list_schedules")

    def declare_schedule(self, name: str, cron: str, timezone: str) -> ScheduleRow | None:
        """Insert a schedule that starts now. None: it exists."""
        return self.first_row(
            ScheduleRow, "declare_schedule", name=name, cron=cron, timezone=timezone
        )

    def advance_schedule(self, row: ScheduleRow, *, from_cursor: Micros) -> bool:
        """Move the cursor of a schedule by compare-and-set on `from_cursor`.

        False: another worker has moved it or has locked the schedule.
        """
        updated = self.tx.rows(
            "advance_schedule",
            name=row.name,
            cron=row.cron,
            timezone=row.timezone,
            cursor=row.cursor,
            from_cursor=from_cursor,
        )
        return bool(updated)

    def pause_schedule(self, name: str, until: Micros | None, actor: str, reason: str) -> bool:
        """Pause a schedule: its slots get no jobs. False: it does not exist."""
        return bool(
            self.tx.rows("pause_schedule", name=name, until=until, actor=actor, reason=reason)
        )

    def resume_schedule(self, row: ScheduleRow, cursor: Micros) -> bool:
        """Resume a schedule at a cursor. False: it was not paused, or has changed meanwhile."""
        return bool(
            self.tx.rows("resume_schedule", name=row.name, from_cursor=row.cursor, cursor=cursor)
        )

    def touch_schedules(self, names: Iterable[str]) -> None:
        """Record that a manifest in use still declares these schedules."""
        for name in sorted(names):
            self.tx.rows("touch_schedule", name=name)

    def claim_slots(self, schedule: str, jobs: Mapping[Micros, str]) -> set[Micros]:
        """Assign a job to each slot that has none. Return these slots."""
        claimed = set()
        for slot in sorted(jobs):
            if self.tx.rows("claim_slot", schedule=schedule, slot=slot, job_id=jobs[slot]):
                claimed.add(slot)
        return claimed

    def list_recent_runs(self, name: str, limit: int) -> list[ScheduleRun]:
        """List the newest runs of a schedule, newest first."""
        return self.list_rows(ScheduleRun, "list_recent_runs", name=name, limit=limit)

    def get_last_slots(self) -> dict[str, tuple[Micros, str]]:
        """Return the newest past slot of each schedule, and its job."""
        return {name: (slot, job_id) for name, slot, job_id in self.tx.rows("get_last_slots")}
