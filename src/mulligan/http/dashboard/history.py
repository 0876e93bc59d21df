"""Screens of operations, events and the audit log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request, Response

from mulligan.core.durations import SECOND, Micros, to_micros
from mulligan.core.event import Event
from mulligan.core.format import format_actor, format_duration, format_rate
from mulligan.core.ids import shorten_id
from mulligan.events.queries import EventQueries
from mulligan.events.service import build_event_filter, build_owner_filter
from mulligan.failures.queries import FailureQueries
from mulligan.http.dashboard.charts import BarPart, stacked_bar
from mulligan.http.dashboard.renderer import MenuEntry, Renderer, check_filter, root_path, screen
from mulligan.http.dashboard.view_models import (
    Badge,
    choice_chips,
    event_changes,
    event_row,
    filter_chips,
    optional_time_label,
    split_filter,
    time_label,
)
from mulligan.http.services import VisitorServices
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.view import Titles
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.operations.rules import ItemCounts
from mulligan.operations.service import Item, Operation
from mulligan.storage.base import Transaction

PAGE = 50
ITEMS = 100
AUDIT_READ = 1000  # events for one page; a bulk action writes one for each job
MAX_FOLDED = 100  # jobs listed in the row of a bulk action
BULK_GAP = 60 * SECOND  # between two jobs of one bulk action
AUDIT_TYPES = ("job.*", "queue.*", "kind.*", "dependency.*", "operation.*", "alert.*", "key.*")
EVENT_CHUNK = 500  # events read at once
MAX_EVENTS_READ = 5_000  # for one page
EventId = Annotated[int, Query(ge=0, le=2**60)]
EVENT_TYPE_CHOICES = (
    "job.*",
    "job.died",
    "job.parked",
    "batch.*",
    "dependency.*",
    "queue.*",
    "operation.*",
    "worker.*",
    "alert.*",
)
OPERATION_BADGES = {
    "gathering": Badge("ellipsis", "gathering", "busy"),
    "running": Badge("play", "running", "busy"),
    "paused": Badge("pause", "paused", "warn"),
    "stopped": Badge("square", "stopped", "bad"),
    "aborted": Badge("ban", "aborted", "calm"),
    "finished": Badge("check", "finished", "good"),
}
ITEM_TONES = {
    "recovered": "good",
    "done": "good",
    "same": "bad",
    "other": "warn",
    "refused": "calm",
    "skipped": "calm",
    "sent": "busy",
    "waiting": "waiting",
}


class HistoryScreens:
    """The screens of operations, events and the audit log."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/operations", MenuEntry("", 7, "operations", "Operations", "list-checks"))
    async def operations(self, request: Request, before: str = "") -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            operations = services.operations.list(
                owner=services.owner, limit=PAGE + 1, before=before or None
            )
            with services.store.read() as tx:
                now = tx.now()
            older = ""
            if len(operations) > PAGE:
                older = urlencode({"before": operations[PAGE - 1].id})
            shown = operations[:PAGE]
            causes = cause_titles(services, [one.filter for one in shown])
            return {"rows": [operation_row(one, now, causes) for one in shown], "older": older}

        values = await self._renderer.read(request, load)
        return self._renderer.page(request, "operations.html", "operations", **values)

    @screen("/operations/{operation}")
    async def operation(self, request: Request, operation: str) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            found = services.operations.get(operation, owner=services.owner)
            items = services.operations.items(operation, limit=ITEMS)
            with services.store.read() as tx:
                now = tx.now()
                titles = _item_titles(tx, items)
            steps = [
                (number, _bar(counts), _summary(counts))
                for number, counts in enumerate(found.steps, 1)
            ]
            return {
                "row": operation_row(found, now, cause_titles(services, [found.filter])),
                "operation": found,
                "steps": steps,
                "items": [_item(item, *titles.get(item.job, ("", ""))) for item in items],
            }

        values = await self._renderer.read(request, load)
        return self._renderer.page(request, "operation.html", "operations", **values)

    @screen("/events", MenuEntry("More", 7, "events", "Events", "activity", shared=True))
    async def events(self, request: Request, before: EventId = 0, filter: str = "") -> Response:  # noqa: A002 - as in the URL
        text = check_filter(filter)
        path = f"{root_path(request)}/events"
        matches = _event_filter(text)

        def load(services: VisitorServices) -> dict[str, Any]:
            events, last = _read_backwards(services, before, matches)
            older = urlencode({"before": last, "filter": text}) if last > 1 else ""
            with services.store.read() as tx:
                now = tx.now()
            rows = [event_row(event, now) for event in events]
            kinds = {row["job"]: row["kind"] for row in rows if row["kind"]}
            for row in rows:
                row["kind"] = row["kind"] or kinds.get(row["job"], "")
            return {"rows": rows, "older": older}

        values = await self._renderer.read(request, load, shared=True)
        values["types"] = choice_chips(path, text, "type", EVENT_TYPE_CHOICES)
        values["chips"] = filter_chips(path, text)
        return self._renderer.page(
            request, "events.html", "events", event_filter=text, before=before, **values
        )

    @screen("/audit", MenuEntry("More", 8, "audit", "Audit", "history"))
    async def audit(
        self,
        request: Request,
        before: EventId = 0,
        actor: str = "",
        job: str = "",
        type: str = "",  # noqa: A002 - as in the URL
    ) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            events = services.events.list(
                actor=actor or None,
                type=type or (),
                job=job or None,
                owner=services.owner,
                limit=AUDIT_READ,
                before=before or None,
            )
            with services.store.read() as tx:
                now = tx.now()
            folded = fold_events(events)
            older = ""
            if len(folded) > PAGE or len(events) == AUDIT_READ:
                last = folded[:PAGE][-1][-1].id
                older = urlencode({"before": last, "actor": actor, "job": job, "type": type})
            names = _key_names(services)
            rows = [_audit_row(group, names, now) for group in folded[:PAGE]]
            return {"rows": rows, "older": older}

        values = await self._renderer.read(request, load)
        return self._renderer.page(
            request,
            "audit.html",
            "audit",
            actor=actor,
            job=job,
            type=type,
            types=AUDIT_TYPES,
            **values,
        )


def fold_events(events: Sequence[Event]) -> list[list[Event]]:
    """Group neighbouring events that one bulk action wrote, one for each job."""
    groups: list[list[Event]] = []
    for event in events:
        if groups and _is_one_action(groups[-1][-1], event):
            groups[-1].append(event)
        else:
            groups.append([event])
    return groups


def _is_one_action(newer: Event, older: Event) -> bool:
    if newer.job_id is None or older.job_id is None:
        return False
    is_same_act = (newer.type, newer.actor) == (older.type, older.actor)
    has_one_reason = newer.data.get("reason") == older.data.get("reason")
    return is_same_act and has_one_reason and newer.at - older.at <= BULK_GAP


def _key_names(services: VisitorServices) -> dict[str, str]:
    """Return the names of keys by their actor, for people who may see staff actions."""
    if services.owner is not None:
        return {}
    return {f"key:{key.id}": f"{key.name} (API key)" for key in services.keys.list() if key.name}


def _event_filter(text: str) -> Callable[[Event], bool]:
    """Return a test for events. Internal jobs are left out unless the filter names them."""
    matches = build_event_filter(text)
    if SYSTEM_PREFIX in text:
        return matches
    is_public = build_owner_filter(None)
    return lambda event: matches(event) and is_public(event)


def _read_backwards(
    services: VisitorServices, before: int, matches: Callable[[Event], bool]
) -> tuple[list[Event], int]:
    """Return a page of matching events, newest first, and the id to continue before."""
    found: list[Event] = []
    with services.store.read() as tx:
        top = before - 1 if before else EventQueries(tx).newest_event()
        lowest = max(0, top - MAX_EVENTS_READ)
        while top > lowest and len(found) < PAGE:
            start = max(lowest, top - EVENT_CHUNK)
            chunk = [
                event
                for event in EventQueries(tx).list_events_after(start, EVENT_CHUNK)
                if event.id <= top
            ]
            found += [event for event in reversed(chunk) if matches(event)]
            top = start
    if len(found) >= PAGE:
        return found[:PAGE], found[PAGE - 1].id
    return found, top + 1


def groups_of(text: str) -> list[str]:
    """Return the failure groups that a filter names."""
    parts = [part for part in split_filter(text) if part.startswith("group:")]
    return [name for part in parts for name in part.removeprefix("group:").split(",")]


def cause_titles(services: VisitorServices, filters: Iterable[str]) -> dict[str, str]:
    """Return what operators call the causes that filters name."""
    names = {name for text in filters for name in groups_of(text)}
    if not names or services.owner is not None:
        return {}
    with services.store.read() as tx:
        causes = FailureQueries(tx).get_causes(sorted(names))
    return {name: cause.exception or cause.code for name, cause in causes.items()}


def _item_titles(tx: Transaction, items: Sequence[Item]) -> dict[str, tuple[str, str]]:
    """Return kind and title of the jobs of an operation, as far as they still exist."""
    titles = Titles.load(tx)
    found = JobQueries(tx).get_kinds_and_payloads([item.job for item in items])
    return {
        job_id: (kind, titles.of(kind, json.loads(payload)))
        for job_id, (kind, payload) in found.items()
    }


# How the parts of a filter are read aloud.
_FILTER_WORDS = {
    "kind": "of kind {}",
    "queue": "in queue {}",
    "owner": "of {}",
    "code": "with {}",
    "class": "of class {}",
    "since": "of the last {}",
    "batch": "of batch {}",
}


def describe_target(
    action: str, count: str, text: str, causes: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Say what an operation does: "Retry 412 dead jobs: KeyError: 'AT'"."""
    states: list[str] = []
    words: list[str] = []
    others: list[str] = []
    for part in split_filter(text):
        name, _, value = part.partition(":")
        if name in {"state", "phase"}:
            states.append(value.replace(",", " or ").replace("_", " "))
        elif name in _FILTER_WORDS:
            words.append(_FILTER_WORDS[name].format(value.replace(",", ", ")))
        elif name != "group":
            others.append(part)
    noun = "job" if count == "1" else "jobs"
    sentence = " ".join([action.capitalize(), count, *states, noun, *words])
    if others:
        sentence += f" that match {' '.join(others)}"
    titles = [causes.get(name, name) for name in groups_of(text)]
    return f"{sentence}: {'; '.join(titles)}" if titles else sentence


def operation_row(
    operation: Operation, now: Micros, causes: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Build the row of an operation for a table. `causes`: titles of failure groups."""
    ended = operation.counts.ended
    total = operation.total
    share = 100 * ended / total if total else 0.0
    return {
        "id": operation.id,
        "action": operation.action,
        "filter": operation.filter,
        "title": describe_target(
            operation.action, f"{operation.total:,}", operation.filter, causes
        ),
        "badge": OPERATION_BADGES[operation.state],
        "by": format_actor(operation.actor),
        "reason": operation.reason,
        "bar": _bar(operation.counts),
        "summary": f"{ended:,} of {total:,}: {_summary(operation.counts)}",
        "note": "" if operation.state == "finished" else operation.note,
        "rate": format_rate(operation.rate),
        "pace": _pace(operation, now),
        "share": round(share, 1),
        "started": time_label(to_micros(operation.created_at), now),
        "ended": optional_time_label(operation.finished_at, now),
    }


DONE_VERBS = {
    "retry": "retried",
    "cancel": "cancelled",
    "discard": "discarded",
    "release": "released",
    "move": "moved",
}


def describe_operation(operation: Operation) -> str:
    """Say what an operation did: "retried 412 jobs: 411 recovered, 1 failed again"."""
    touched = operation.total - operation.untouched
    jobs = "1 job" if touched == 1 else f"{touched:,} jobs"
    text = f"{DONE_VERBS[operation.action]} {jobs}"
    if operation.counts.ended:
        text += f": {_summary(operation.counts)}"
    return f"{text} ({operation.state})" if operation.state in {"stopped", "aborted"} else text


def _pace(operation: Operation, now: Micros) -> str:
    """Describe how fast the jobs end and how long the rest will take."""
    ended = operation.counts.ended
    if not operation.under_way or operation.started_at is None or not ended:
        return ""
    elapsed = max(1.0, (now - to_micros(operation.started_at)) / SECOND)
    text = f"{format_rate(ended / elapsed)} so far"
    left = (operation.total - ended) * elapsed / ended
    if left >= 1:
        text += f", about {format_duration(round(left))} left"
    return text


def _bar(counts: ItemCounts) -> tuple[BarPart, ...]:
    return stacked_bar(
        [(outcome, tone, getattr(counts, outcome)) for outcome, tone in ITEM_TONES.items()]
    )


OUTCOME_WORDS = {
    "same": "failed again",
    "other": "failed with another cause",
    "sent": "running",
}


def _summary(counts: ItemCounts) -> str:
    parts = []
    for outcome in ITEM_TONES:
        count = getattr(counts, outcome)
        if count:
            parts.append(f"{count:,} {OUTCOME_WORDS.get(outcome, outcome)}")
    return ", ".join(parts) or "none yet"


def _item(item: Item, kind: str, title: str) -> dict[str, Any]:
    outcome = item.outcome or item.state
    return {
        "job": item.job,
        "kind": kind or item.job,
        "title": title,
        "result": OUTCOME_WORDS.get(outcome, outcome),
        "step": item.step,
        "was": item.was,
        "code": item.code or "",
        "state": item.state,
        "outcome": item.outcome or "",
        "why": item.why,
        "tone": ITEM_TONES.get(item.outcome or item.state, "calm"),
    }


def _audit_row(group: Sequence[Event], names: Mapping[str, str], now: Micros) -> dict[str, Any]:
    """Build the row of one action, which may have changed many jobs."""
    event = group[0]
    return {
        **event_row(event, now),
        "by": names.get(event.actor or "") or format_actor(event.actor or ""),
        "changes": event_changes(event.data) if len(group) == 1 else [],
        "jobs": [(one.job_id, shorten_id(one.job_id or "")) for one in group[:MAX_FOLDED]],
        "count": len(group),
        "operation": event.data.get("operation", ""),
    }
