"""Screens of dependencies: the list, and one dependency with its last 24 hours."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import Request, Response

from mulligan.core.durations import SECOND, Micros, to_micros
from mulligan.core.errors import NotFound
from mulligan.core.event import Event, EventType
from mulligan.core.format import (
    format_actor,
    format_duration,
    format_elapsed,
    format_rate,
    one_line,
)
from mulligan.core.ids import shorten_id
from mulligan.core.job import AttemptRow, Job, split_uses
from mulligan.core.statistics import FAILED_OUTCOMES
from mulligan.events.queries import MINUTE, AuditFilter, EventQueries, StatQueries
from mulligan.failures.queries import FailureQueries
from mulligan.guards.gate_status import Dependency
from mulligan.guards.observer import DependencyObserver
from mulligan.guards.state import BreakerConfig
from mulligan.http.dashboard.charts import (
    ChartMark,
    ColumnChart,
    column_chart,
    release_marks,
    time_step,
)
from mulligan.http.dashboard.queues import changed_by
from mulligan.http.dashboard.renderer import MenuEntry, Renderer, root_path, screen
from mulligan.http.dashboard.view_models import (
    DOWN,
    RECOVERING,
    Badge,
    format_count,
    job_list_rows,
    optional_time_label,
    time_label,
)
from mulligan.http.services import VisitorServices
from mulligan.manifest.declared import load_active_manifests, load_kinds, merge_breaker_configs
from mulligan.manifest.specs import ENDPOINT_PREFIX
from mulligan.storage.base import Transaction

UP = Badge("plug-zap", "up", "good")
BREAKER_BADGES = {"open": DOWN, "ramping": RECOVERING}
BREAKER_MODES = {"hold": "jobs wait", "fail_fast": "jobs fail at once"}
DAY_MINUTES = 24 * 60
CALL_MINUTES = 60
MAX_EVENTS = 10_000  # that are searched for changes of one dependency
MAX_CHANGES = 20
MAX_JOBS = 8
MAX_SAMPLES = 50  # jobs among which the last failed call is looked for
MAX_ANSWER = 500  # characters
CHANGES = {
    EventType.DEPENDENCY_OPENED: "down",
    EventType.DEPENDENCY_PROBING: "probed",
    EventType.DEPENDENCY_CLOSED: "up",
    EventType.DEPENDENCY_CHANGED: "limits changed",
}


class DependencyScreens:
    """The list of dependencies, and the page of each."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen(
        "/dependencies", MenuEntry("", 5, "dependencies", "Dependencies", "unplug", shared=True)
    )
    async def dependencies(self, request: Request) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            dependencies = services.dependencies.list()
            with services.store.read() as tx:
                now = tx.now()
                kinds = _kinds_by_dependency(tx)
                strips = _load_strips(tx, dependencies, now)
            ranked = sorted(dependencies, key=lambda one: (one.state == "closed", one.key))
            rows = [
                {
                    **dependency_row(one, now),
                    "kinds": kinds.get(one.key, ""),
                    "strip": strips[one.key],
                }
                for one in ranked
            ]
            return {"rows": rows}

        values = await self._renderer.read(request, load, shared=True)
        return self._renderer.page(request, "dependencies.html", "dependencies", **values)

    @screen("/dependencies/{key}")
    async def dependency(self, request: Request, key: str) -> Response:
        root = root_path(request)

        def load(services: VisitorServices) -> dict[str, Any]:
            known = {one.key: one for one in services.dependencies.list()}
            if key not in known:
                message = f"unknown dependency {key!r:.80}"
                raise NotFound(message)
            return _load_page(services, known[key], root)

        values = await self._renderer.read(request, load, shared=True)
        return self._renderer.page(request, "dependency.html", "dependencies", **values)


def _load_page(services: VisitorServices, dependency: Dependency, root: str) -> dict[str, Any]:
    key = dependency.key
    with services.store.read() as tx:
        now = tx.now()
        kinds = _kinds_by_dependency(tx).get(key, "")
        config = _load_config(tx, key)
        strip = _load_strips(tx, [dependency], now)[key]
        calls = _load_calls(tx, key, now)
        changes = _load_changes(tx, key)
    held: list[Job] = []
    answer = None
    if kinds:
        held = services.jobs.list(f"kind:{kinds} phase:held", limit=MAX_JOBS)
        answer = _find_last_answer(services, kinds, now)
    return {
        "row": {**dependency_row(dependency, now), "kinds": kinds, "strip": strip},
        "kinds": [name for name in kinds.split(",") if name],
        "threshold": _describe_threshold(config),
        "calls": calls,
        "answer": answer,
        "changes": [_change_row(event, now) for event in changes],
        "held_jobs": job_list_rows(services, held, now, root),
    }


def _kinds_by_dependency(tx: Transaction) -> dict[str, str]:
    """Return the kinds that use each dependency, joined with commas as in a filter."""
    kinds: dict[str, list[str]] = {}
    for name, spec in load_kinds(tx).items():
        for key in split_uses(spec.uses):
            kinds.setdefault(key, []).append(name)
    return {key: ",".join(names) for key, names in kinds.items()}


# --- Dependencies ---


def dependency_row(dependency: Dependency, now: Micros) -> dict[str, Any]:
    """Build the row of a dependency for a table."""
    calls = dependency.calls
    share = 0.0
    failed = "no recent calls"
    if calls:
        share = dependency.failed / calls
        failed = f"{dependency.failed:,} of {calls:,} failed"
    budget = "" if dependency.tokens is None else f"{dependency.tokens:.0f}"
    return {
        "key": dependency.key,
        "name": name_dependency(dependency.key),
        "link": f"/dependencies/{quote(dependency.key, safe='')}",
        "badge": BREAKER_BADGES.get(dependency.state, UP),
        "is_down": dependency.state == "open",
        "since": optional_time_label(dependency.since, now),
        "reason": _breaker_reason(dependency),
        "held": format_count(dependency.held),
        "running": format_count(dependency.running),
        "failed": failed,
        "share": round(share * 100, 1),
        "mode": BREAKER_MODES[dependency.mode],
        "limits": _dependency_limits(dependency),
        "budget": budget,
        "next": next_change(dependency, now),
        "set_manually": dependency.set_by_hand,
        "effects": _action_effects(dependency),
    }


def _breaker_reason(dependency: Dependency) -> str:
    if dependency.state == "ramping":
        return f"limited to {format_rate(dependency.rate or 0.0)} while it recovers"
    if dependency.state == "open":
        return changed_by(dependency.actor, dependency.reason)
    return ""


def _action_effects(dependency: Dependency) -> dict[str, str]:
    """Describe what each action would do, next to its button."""
    effect = "wait" if dependency.mode == "hold" else "fail at once with the breaker's code"
    held = format_count(dependency.held)
    return {
        "open": f"New jobs that use it {effect}. Running jobs continue. No probes are sent.",
        "close": f"The {held} waiting jobs start, slowly at first. "
        "If calls fail, the breaker opens again.",
        "probe": "One job or the probe function runs now. The others wait for its result.",
    }


def _dependency_limits(dependency: Dependency) -> str:
    limits = []
    if dependency.concurrency is not None:
        limits.append(f"{dependency.concurrency} at once")
    if dependency.rate is not None:
        limits.append(format_rate(dependency.rate))
    if dependency.reduced:
        limits.append("reduced after rate limit responses")
    if dependency.set_by_hand:
        limits.append("set manually")
    return ", ".join(limits)


def name_dependency(key: str) -> str:
    """Return a dependency's name for people: an endpoint of notifications has a long key."""
    if not key.startswith(ENDPOINT_PREFIX):
        return key
    channel, _, name = key.removeprefix(ENDPOINT_PREFIX).partition(".")
    return f"{channel} endpoint {name[:6]}"


def next_change(dependency: Dependency, now: Micros) -> str:
    """Describe what an open breaker does next."""
    if dependency.probing:
        return "probe running"
    at = dependency.probe_at or dependency.until
    if at is None or dependency.state != "open":
        return ""
    event = "next probe" if dependency.probe_at else "up again"
    if to_micros(at) <= now:
        return f"{event} now"
    return f"{event} in {format_elapsed(now, to_micros(at))}"


# --- The last 24 hours ---


class StripPart(NamedTuple):
    """A time in which a dependency was up or down, in percent of the last 24 hours."""

    x: float
    width: float
    tone: str
    label: str


def _load_strips(
    tx: Transaction, dependencies: Sequence[Dependency], now: Micros
) -> dict[str, tuple[StripPart, ...]]:
    """Return the last 24 hours of each dependency, from the counts of each minute."""
    newest = now // MINUTE
    start = newest - DAY_MINUTES
    found: defaultdict[str, dict[int, set[str]]] = defaultdict(dict)
    for row in StatQueries(tx).list_stats(["breakers"], start * MINUTE):
        labels = json.loads(row.labels)
        if labels["to"] in {"open", "closed"}:
            found[labels["dependency"]].setdefault(row.minute, set()).add(labels["to"])
    marks = draw_strip_marks(release_marks(tx, start * MINUTE, MINUTE), DAY_MINUTES)
    return {
        one.key: (*draw_strip(found[one.key], one.state, start, newest), *marks)
        for one in dependencies
    }


def draw_strip_marks(marks: Iterable[ChartMark], minutes: int) -> tuple[StripPart, ...]:
    """Draw where releases began, in a strip of so many minutes."""
    places = [(min(100 * mark.step / minutes, 100 - MIN_STRIP), mark.label) for mark in marks]
    return tuple(StripPart(round(x, 2), MIN_STRIP, "mark", f"release {name}") for x, name in places)


def draw_strip(
    changes: Mapping[int, set[str]], state: str, start: int, end: int
) -> tuple[StripPart, ...]:
    """Draw the times in which a dependency was down, above one in which it was up.

    `changes` are the minutes in which its breaker was opened or closed, or both. `state` is its
    state at the end; without a change it has had this state all the time.
    """
    minutes = sorted(changes)
    down_since = start if state == "open" else None
    if minutes:
        down_since = start if changes[minutes[0]] == {"closed"} else None
    outages = []
    for minute in minutes:
        if "open" in changes[minute] and down_since is None:
            down_since = minute
            if "closed" in changes[minute] and (minute, state) != (minutes[-1], "open"):
                outages.append((minute, minute))
                down_since = None
        elif changes[minute] == {"closed"} and down_since is not None:
            outages.append((down_since, minute))
            down_since = None
    if down_since is not None:
        outages.append((down_since, end))
    scale = 100 / max(1, end - start)
    parts = [StripPart(0.0, 100.0, "good", "up")]
    for first, last in outages:
        width = max(MIN_STRIP, (last - first) * scale)
        x = min((first - start) * scale, 100 - width)
        label = f"down for {format_duration(max(1, last - first) * 60)}"
        parts.append(StripPart(round(x, 2), round(width, 2), "bad", label))
    return tuple(parts)


MIN_STRIP = 0.4  # percent: a short outage stays visible


# --- Calls, answers and changes ---


def _load_config(tx: Transaction, key: str) -> BreakerConfig:
    manifests = load_active_manifests(tx, tx.now())
    observer = DependencyObserver(declared_elsewhere=merge_breaker_configs(manifests))
    return observer.config_for(key)


def _describe_threshold(config: BreakerConfig) -> str:
    window = format_duration(config.window / SECOND)
    share = f"{config.open_at * 100:.0f} %"
    pause = format_duration(config.cool_down / SECOND)
    return (
        f"It counts as down when {share} of at least {config.min_calls} calls within {window} "
        f"fail. The first probe follows after {pause}."
    )


def _load_calls(tx: Transaction, key: str, now: Micros) -> ColumnChart:
    """Chart the calls of the last hour: attempts of jobs that use the dependency."""
    first = now // MINUTE - CALL_MINUTES + 1
    counts: list[Counter[str]] = [Counter() for _ in range(CALL_MINUTES)]
    for row in StatQueries(tx).list_stats(["calls"], first * MINUTE):
        labels = json.loads(row.labels)
        if labels["dependency"] == key and row.minute - first < CALL_MINUTES:
            tone = "failed" if labels["outcome"] in FAILED_OUTCOMES else "answered"
            counts[row.minute - first][tone] += row.n
    steps = [time_step(first + place, 1, now, one) for place, one in enumerate(counts)]
    marks = release_marks(tx, first * MINUTE, MINUTE)
    return column_chart(steps, ("answered", "failed"), marks)


def _find_last_answer(services: VisitorServices, kinds: str, now: Micros) -> dict[str, Any] | None:
    """Return the last failed attempt among the newest jobs that wait or died."""
    jobs = services.jobs.list(f"kind:{kinds} state:queued,dead", limit=MAX_SAMPLES)
    by_id = {job.id: job for job in jobs if job.error is not None}
    if not by_id:
        return None
    with services.store.read() as tx:
        attempts = FailureQueries(tx).list_attempts_of_deaths(list(by_id))
    failed = [attempt for attempt in attempts if attempt.code]
    if not failed:
        return None
    last = max(failed, key=lambda attempt: attempt.ended_at)
    return {
        "text": _answer_text(last, private=services.private),
        "code": last.code,
        "at": time_label(last.ended_at, now),
        "job": last.job_id,
        "short": shorten_id(last.job_id),
        "kind": by_id[last.job_id].kind,
    }


def _answer_text(attempt: AttemptRow, *, private: bool) -> str:
    """Return what the dependency answered: the exception for operators, else the public text."""
    message = ""
    if private and attempt.private:
        message = one_line(str(json.loads(attempt.private).get("message", "")), MAX_ANSWER)
    return message or attempt.public or attempt.code or ""


def _load_changes(tx: Transaction, key: str) -> list[Event]:
    """List the newest changes and probes of a dependency, newest first."""
    events = EventQueries(tx)
    types = [str(one) for one in CHANGES]
    top = events.newest_event()
    recent = events.list_events_of_types(types, max(0, top - MAX_EVENTS), top, MAX_EVENTS)
    manual = events.list_audit_events(AuditFilter(), tuple(types), 5 * MAX_CHANGES)
    found = {}  # an event may be in both lists
    for event in (*recent, *manual):
        if event.data.get("dependency") == key:
            found[event.id] = event
    newest_first = sorted(found, reverse=True)
    return [found[event_id] for event_id in newest_first[:MAX_CHANGES]]


def _change_row(event: Event, now: Micros) -> dict[str, Any]:
    data = event.data
    return {
        "at": time_label(event.at, now),
        "what": CHANGES[EventType(event.type)],
        "by": format_actor(event.actor),
        "reason": one_line(str(data.get("reason") or data.get("kind") or ""), 300),
        "job": event.job_id or "",
        "short": shorten_id(event.job_id or ""),
    }
