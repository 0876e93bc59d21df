"""The overview screen: what is broken now, since when, what waits for it, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from mulligan.alerts.service import AlertStatus
from mulligan.app.status import Rate, SystemStatus, describe_waiting, find_problems, read_status
from mulligan.core.durations import Micros, to_micros
from mulligan.core.format import format_actor, format_elapsed, one_line
from mulligan.core.job import Job, State
from mulligan.failures.group_reader import FailureGroup
from mulligan.failures.groups import GroupState
from mulligan.guards.gate_status import Dependency, KindStatus, Queue
from mulligan.http.dashboard.charts import WINDOWS, ColumnChart, load_outcomes
from mulligan.http.dashboard.dependencies import name_dependency, next_change
from mulligan.http.dashboard.failures import group_row
from mulligan.http.dashboard.history import operation_row
from mulligan.http.dashboard.notifications import alert_link
from mulligan.http.dashboard.queues import format_per_minute
from mulligan.http.dashboard.renderer import MenuEntry, Renderer, root_path, screen
from mulligan.http.dashboard.view_models import format_count, job_list_row
from mulligan.http.services import VisitorServices

MAX_JOBS = 8
MAX_CARDS = 4  # the others are behind "3 more"
MAX_DETAIL = 120  # characters of a failure's message on a card


class CardAction(NamedTuple):
    """A button of a card: a form that is sent, or a link."""

    title: str
    path: str
    is_form: bool = False
    fields: tuple[tuple[str, str], ...] = ()  # of the form


class Card(NamedTuple):
    """One thing that is broken now: what, how much waits for it, since when, and what to do."""

    tone: str
    icon: str
    name: str
    text: str
    detail: str = ""  # message of a failure
    age: str = ""
    actions: tuple[CardAction, ...] = ()
    hint: str = ""  # command that repairs it


class Tile(NamedTuple):
    """A number with its meaning."""

    title: str
    number: str
    note: str
    link: str
    tone: str = ""


class Snapshot(NamedTuple):
    """Everything the overview shows, read at about the same time."""

    status: SystemStatus
    measures: dict[str, str]  # of the alert rules, by name
    outcomes: ColumnChart
    parked: list[tuple[Job, str]]  # with their titles


class OverviewScreen:
    """The first screen after signing in."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/", MenuEntry("", 1, "overview", "Overview", "layout-dashboard", shared=True))
    async def show(self, request: Request, filter: str = "", window: str = "1h") -> Response:  # noqa: A002 - as in the URL
        root = root_path(request)
        if filter.strip():
            return RedirectResponse(f"{root}/jobs?{urlencode({'filter': filter})}", 303)
        visitor = await self._renderer.visitor(request)
        if visitor.owner is not None:  # the overview shows all owners
            return RedirectResponse(f"{root}/failures", 303)
        chosen = window if window in WINDOWS else "1h"
        snapshot = await self._renderer.read(
            request, lambda services: _load(services, chosen), shared=True
        )
        windows = [(name, f"{root}/?window={name}", name == chosen) for name in WINDOWS]
        return self._renderer.page(
            request,
            "overview.html",
            "overview",
            window=chosen,
            windows=windows,
            window_label=WINDOWS[chosen].label,
            **_context(snapshot, root),
        )


def _load(services: VisitorServices, window: str) -> Snapshot:
    status = read_status(services, services.owner)
    with services.store.read() as tx:
        outcomes = load_outcomes(tx, status.now, WINDOWS[window])
    rules = services.alerts.rules() if status.alerts else []
    measures = {rule.name: rule.measure for rule in rules}
    return Snapshot(status, measures, outcomes, _newest_jobs(services, "state:parked"))


def _newest_jobs(services: VisitorServices, text: str) -> list[tuple[Job, str]]:
    jobs = services.jobs.list(text, limit=MAX_JOBS, owner=services.owner, private=services.private)
    return list(zip(jobs, services.jobs.titles(jobs), strict=True))


def _context(snapshot: Snapshot, root: str) -> dict[str, Any]:
    status = snapshot.status
    now = status.now
    cards = _cards(status, snapshot.measures)
    recovering = [one for one in status.impaired if one.state == "ramping"]
    return {
        "cards": cards[:MAX_CARDS],
        "more_cards": cards[MAX_CARDS:],
        "tiles": _tiles(status),
        "groups": [group_row(group, now, root) for group in status.groups],
        "operations": [operation_row(operation, now) for operation in status.operations],
        "recovering": [name_dependency(one.key) for one in recovering],
        "parked": [job_list_row(*pair, now, root) for pair in snapshot.parked],
        "parked_count": format_count(status.counts[State.PARKED]),
        "outcomes": snapshot.outcomes,
        "empty": not any(status.counts.values()),
        "all_clear": not cards and bool(status.live_workers),
    }


# --- Cards ---


def _cards(status: SystemStatus, measures: Mapping[str, str]) -> list[Card]:
    """Return what is broken, the worst first, then the alerts that this has caused.

    Causes have their own table; a card is only for those that regressed.
    """
    now = status.now
    dependencies = {one.key: one for one in status.impaired}
    kinds = {one.name: one for one in status.held_kinds}
    queues = {one.name: one for one in status.queues}
    groups = {one.fingerprint: one for one in status.groups}
    cards = []
    for problem in find_problems(status):
        if problem.what == "workers":
            cards.append(_no_worker_card(status))
        elif problem.what == "dependency":
            cards.append(_dependency_card(dependencies[problem.name], now))
        elif problem.what == "kind":
            cards.append(_kind_card(kinds[problem.name], now))
        elif problem.what == "queue":
            cards.append(_queue_card(queues[problem.name]))
        elif problem.what == "cause" and groups[problem.name].state is GroupState.REGRESSED:
            cards.append(_regressed_card(groups[problem.name], now))
    for alert in status.alerts:
        cards.append(_alert_card(alert, measures.get(alert.rule, ""), now))
    return cards


def _no_worker_card(status: SystemStatus) -> Card:
    waiting = describe_waiting(status.counts[State.QUEUED])
    text = f"is live · {waiting}"
    return Card("bad", "server", "No worker", text, hint="mulligan worker APP")


def _dependency_card(dependency: Dependency, now: Micros) -> Card:
    key = quote(dependency.key, safe="")
    age = _age(dependency.since, now)
    next_step = next_change(dependency, now)
    return Card(
        "bad",
        "unplug",
        name_dependency(dependency.key),
        f"is down · {describe_waiting(dependency.held)}",
        one_line(dependency.reason, MAX_DETAIL),
        ", ".join(part for part in (age, next_step) if part),
        (
            CardAction("Probe now", f"/dependencies/{key}/probe", is_form=True),
            CardAction("Details", f"/dependencies/{key}"),
        ),
    )


def _kind_card(kind: KindStatus, now: Micros) -> Card:
    name = quote(kind.name, safe="")
    text = f"is held · {describe_waiting(kind.held_jobs)}"
    actions = [
        CardAction("Try one", f"/kinds/{name}/try", is_form=True),
        CardAction("Release", f"/kinds/{name}/release", is_form=True),
    ]
    if kind.fingerprint:
        text = f"is held: its jobs failed in a row · {describe_waiting(kind.held_jobs)}"
        actions.insert(0, CardAction("Show cause", f"/failures/{quote(kind.fingerprint)}"))
    if kind.trial:
        text += f" · trial: {kind.trial_result}"
    detail = one_line(kind.message or kind.reason, MAX_DETAIL)
    return Card("warn", "pause", kind.name, text, detail, _age(kind.since, now), tuple(actions))


def _queue_card(queue: Queue) -> Card:
    name = quote(queue.name, safe="")
    text = f"is paused by {format_actor(queue.actor)} · {describe_waiting(queue.held_jobs)}"
    resume = CardAction("Resume", f"/queues/{name}/resume", is_form=True)
    detail = one_line(queue.reason, MAX_DETAIL)
    return Card("warn", "pause", f"Queue {queue.name}", text, detail, actions=(resume,))


def _alert_card(alert: AlertStatus, measure: str, now: Micros) -> Card:
    tone = "bad" if alert.severity == "page" else "warn"
    age = _age(alert.since, now)
    link = alert_link(alert, measure)
    if measure == "release_worse":
        kind = str(alert.evidence["kind"])
        text = alert.summary.removeprefix(kind)
        return Card(tone, "tag", kind, text, age=age, actions=_release_actions(alert, link))
    show = CardAction("Show", link)
    return Card(tone, "bell", "", alert.summary, age=age, actions=(show,))


def _release_actions(alert: AlertStatus, link: str) -> tuple[CardAction, ...]:
    """Return the actions for a kind that fails more under a release: look, and hold it there."""
    show = CardAction("Show release", link)
    if alert.action:  # the alert has held it already
        return (show,)
    release = str(alert.evidence["release"])
    path = f"/releases/{quote(release, safe='')}/hold"
    fields = (("kind", str(alert.evidence["kind"])),)
    return (show, CardAction(f"Hold in {release}", path, is_form=True, fields=fields))


def _regressed_card(group: FailureGroup, now: Micros) -> Card:
    noun = "job" if group.count == 1 else "jobs"
    show = CardAction("Show cause", f"/failures/{quote(group.fingerprint)}")
    return Card(
        "bad",
        "undo-2",
        one_line(group.title, MAX_DETAIL),
        f"has regressed after its repair · {group.count:,} dead {noun}",
        age=_age(group.last_seen, now, "last "),
        actions=(show,),
    )


def _age(since: datetime | None, now: Micros, words: str = "for ") -> str:
    return "" if since is None else f"{words}{format_elapsed(to_micros(since), now)}"


# --- Tiles ---


def _tiles(status: SystemStatus) -> list[Tile]:
    return [
        _failing_tile(status),
        _retrying_tile(status),
        _held_tile(status),
        _waiting_tile(status),
        _places_tile(status),
        _done_tile(status),
    ]


def _failing_tile(status: SystemStatus) -> Tile:
    rate = status.deaths
    note = "as usual"
    tone = ""
    if not rate.current:
        note = "no deaths in 5 min"
    elif rate.usual is None:
        note = "deaths, last 5 min"
    elif not rate.usual:
        note, tone = "usually none", "bad"
    elif rate.current >= 2 * rate.usual:
        note, tone = f"{_times(rate)} usual", "bad"
    return Tile("Failing now", f"{format_per_minute(rate.current)} / min", note, "/failures", tone)


def _times(rate: Rate) -> str:
    ratio = rate.ratio or 0.0
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.1f}×"


def _retrying_tile(status: SystemStatus) -> Tile:
    note = "due now" if status.retrying else "none"
    if status.next_retry is not None:
        note = f"next in {format_elapsed(status.now, to_micros(status.next_retry))}"
    link = "/jobs?filter=phase:backing_off"
    return Tile("Retrying", format_count(status.retrying), note, link)


def _held_tile(status: SystemStatus) -> Tile:
    held_by = [
        (one.held, f"{name_dependency(one.key)} down")
        for one in status.impaired
        if one.state == "open"
    ]
    held_by += [(one.held_jobs, f"{one.name} held") for one in status.held_kinds]
    held_by += [(one.held_jobs, f"queue {one.name} paused") for one in status.paused_queues]
    note = "nothing is held"
    if status.held and held_by:
        note = max(held_by)[1]
    tone = "warn" if status.held else ""
    return Tile("Held", format_count(status.held), note, "/jobs?filter=phase:held", tone)


def _waiting_tile(status: SystemStatus) -> Tile:
    note = "ready to run"
    if status.oldest is not None:
        note = f"oldest {format_elapsed(to_micros(status.oldest), status.now)}"
    return Tile("Waiting", format_count(status.ready), note, "/jobs?filter=state:queued")


def _places_tile(status: SystemStatus) -> Tile:
    if not status.live_workers:
        return Tile("Workers", "0", "no worker is live", "/queues#workers", "bad")
    by_kind: Counter[str] = Counter()
    for group in status.running:
        by_kind[group.kind] += group.jobs
    note = "idle"
    if by_kind:
        kind, jobs = by_kind.most_common(1)[0]
        note = f"{kind} holds {min(jobs, status.taken_places):,}"
    tone = "warn" if status.taken_places >= status.places and status.ready else ""
    number = f"{status.taken_places:,} of {status.places:,}"
    return Tile("Places taken", number, note, "/queues#workers", tone)


def _done_tile(status: SystemStatus) -> Tile:
    rate = status.successes
    note = "last 5 min"
    if rate.ratio is not None:
        change = round(100 * (rate.ratio - 1))
        note = "as usual"
        if rate.ratio >= MANY_TIMES:
            note = f"{_times(rate)} usual"
        elif abs(change) >= MIN_CHANGE:
            note = f"{'▲' if change > 0 else '▼'} {abs(change):,} % against usual"
    return Tile(
        "Done", f"{format_per_minute(rate.current)} / min", note, "/jobs?filter=state:succeeded"
    )


MIN_CHANGE = 5  # percent
MANY_TIMES = 3  # from here on a multiple says more than a percentage
