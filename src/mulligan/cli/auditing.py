"""How `mulligan events list` prints who did what: for people, for pipes, for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.cli.database import desk, say, typed
from mulligan.cli.output import cell, chosen, event_record, show_rows
from mulligan.engine.audit import Events
from mulligan.event import Event
from mulligan.job import to_datetime
from mulligan.policy.phrase import moment

COLUMNS = ("id", "at", "actor", "type", "what", "reason", "change")
WHAT = ("schedule", "queue", "dependency", "worker", "kind", "fingerprint", "operation", "batch", "key")
_UNSAID: tuple[Any, ...] = (None, "", {}, [])


def show_deeds(said: dict[str, Any], database: str | None, output: str | None) -> None:
    limit = said["limit"]
    with desk(database) as at:
        job = None if said["job"] is None else at.jobs.resolve(said["job"])
        asked = {name: said[name] for name in ("actor", "since", "until", "owner", "limit")}
        found = Events(lambda: at.store).list(**asked, type=said["types"], job=job, before=said["cursor"])
    form = chosen(output)
    records = [event_record(event) if form in {"json", "jsonl"} else _row(event) for event in found]
    show_rows(records, COLUMNS if form == "tsv" else COLUMNS[1:], output, empty="nobody did anything that matches")
    if len(found) == limit:
        say(f"there may be more: {typed('events', 'list', '--cursor', str(found[-1].id), database=database)}")


def _row(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "at": moment(event.at),
        "actor": event.actor,
        "type": event.type,
        "what": what_of(event),
        "reason": event.data.get("reason", ""),
        "change": change_of(event.data),
    }


def what_of(event: Event) -> str:
    """The job it was done to, or the name of what else."""
    named = (str(event.data[name]) for name in WHAT if event.data.get(name))
    return event.job_id or next(named, "")


def change_of(data: Mapping[str, Any]) -> str:
    """`state: dead → queued, queue: default → big`: what is different, and only that."""
    before, after = _facts(data.get("before")), _facts(data.get("after"))
    parts = [(name, before.get(name), after.get(name)) for name in dict.fromkeys((*before, *after))]
    parts += [(name, one.get("before"), one.get("after")) for name, one in (data.get("changes") or {}).items()]
    return ", ".join(f"{name}: {_value(name, old)} → {_value(name, new)}" for name, old, new in parts if old != new)


def _facts(value: Any) -> Mapping[str, Any]:
    return (
        {name: one for name, one in value.items() if name not in {"actor", "reason"}}
        if isinstance(value, Mapping)
        else {}
    )


def _value(name: str, value: Any) -> str:
    if value in _UNSAID:
        return "unset"
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith(("until", "_at")):
        return f"{to_datetime(value):%Y-%m-%d %H:%M:%S}"
    return cell(value)
