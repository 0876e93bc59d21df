"""The overview screen: what is broken now, and what is being done about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from mulligan.alerts.service import AlertStatus
from mulligan.core.durations import Micros
from mulligan.core.format import format_actor
from mulligan.core.job import COUNT_CAP, Job, State
from mulligan.failures.groups import GroupState
from mulligan.failures.service import FailureGroup
from mulligan.guards.gate_status import Dependency, KindStatus, Queue, list_impaired
from mulligan.http.dashboard.charts import WINDOWS, ColumnChart, load_outcomes
from mulligan.http.dashboard.failures import group_row
from mulligan.http.dashboard.history import operation_row
from mulligan.http.dashboard.queues import dependency_row, worker_row
from mulligan.http.dashboard.renderer import MenuEntry, Renderer, root_path, screen
from mulligan.http.dashboard.view_models import BADGES, format_count, job_list_row
from mulligan.http.services import VisitorServices
from mulligan.jobs.queries import SearchQueries
from mulligan.operations.service import Operation
from mulligan.worker.registry import WorkerStatus, worker_statuses

MAX_ALERTS = 2
MAX_GROUPS = 5
MAX_JOBS = 8
UNHANDLED_STATES = {GroupState.NEW, GroupState.OPEN, GroupState.REGRESSED}


class Issue(NamedTuple):
    """One thing that is broken now, in a sentence, with a link to it."""

    icon: str
    text: str
    link: str


class Snapshot(NamedTuple):
    """Everything the overview shows, read at about the same time."""

    now: Micros
    counts: dict[str, int]
    groups: list[FailureGroup]
    impaired: list[Dependency]
    held_kinds: list[KindStatus]
    paused_queues: list[Queue]
    workers: list[WorkerStatus]
    operations: list[Operation]
    alerts: list[AlertStatus]
    outcomes: ColumnChart
    parked: list[Job]
    running: list[Job]


class OverviewScreen:
    """The first screen after signing in."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/", MenuEntry("Now", 1, "overview", "Overview", "◉"))
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
    owner = services.owner
    groups = services.failures.groups(owner=owner, limit=MAX_GROUPS * 4)
    operations = services.operations.list(owner=owner, limit=20)
    alerts = services.alerts.list()
    with services.store.read() as tx:
        now = tx.now()
        counts = dict(SearchQueries(tx).count_jobs_by_state(COUNT_CAP))
        impaired = list_impaired(tx)
        workers = worker_statuses(tx)
        outcomes = load_outcomes(tx, now, WINDOWS[window])
    return Snapshot(
        now=now,
        counts=counts,
        groups=[group for group in groups if group.state in UNHANDLED_STATES][:MAX_GROUPS],
        impaired=impaired,
        held_kinds=[kind for kind in services.kinds.list() if kind.held],
        paused_queues=[queue for queue in services.queues.list() if queue.paused],
        workers=workers,
        operations=[operation for operation in operations if operation.under_way],
        alerts=[alert for alert in alerts if _is_urgent(alert)],
        outcomes=outcomes,
        parked=_newest_jobs(services, "state:parked"),
        running=_newest_jobs(services, "state:running"),
    )


def _is_urgent(alert: AlertStatus) -> bool:
    return alert.state == "firing" and alert.silenced_until is None


def _newest_jobs(services: VisitorServices, text: str) -> list[Job]:
    return list(
        services.jobs.list(text, limit=MAX_JOBS, owner=services.owner, private=services.private)
    )


def _context(snapshot: Snapshot, root: str) -> dict[str, Any]:
    now = snapshot.now
    return {
        "counts": [_count_tile(state, snapshot.counts[state], root) for state in State],
        "issues": list(_issues(snapshot, root)),
        "groups": [group_row(group, now, root) for group in snapshot.groups],
        "operations": [operation_row(operation, now) for operation in snapshot.operations],
        "dependencies": [dependency_row(dependency, now) for dependency in snapshot.impaired],
        "workers": [worker_row(worker, now) for worker in snapshot.workers],
        "parked": [job_list_row(job, now, root) for job in snapshot.parked],
        "running": [job_list_row(job, now, root) for job in snapshot.running],
        "parked_count": format_count(snapshot.counts[State.PARKED]),
        "running_count": format_count(snapshot.counts[State.RUNNING]),
        "outcomes": snapshot.outcomes,
        "empty": not any(snapshot.counts.values()),
    }


def _issues(snapshot: Snapshot, root: str) -> Iterator[Issue]:
    if not any(worker.is_live for worker in snapshot.workers):
        queued = snapshot.counts[State.QUEUED]
        waiting = f": {_waiting(queued)}" if queued else ""
        yield Issue("◌", f"No worker is live{waiting}", f"{root}/queues")
    for dependency in snapshot.impaired:
        if dependency.state == "open":
            text = f"{dependency.key} is down: {_waiting(dependency.held)} for it"
            yield Issue("⊗", text, f"{root}/dependencies")
    for kind in snapshot.held_kinds:
        text = f"Kind {kind.name} is held: {kind.reason or kind.message}"
        yield Issue("‖", text, f"{root}/queues")
    for queue in snapshot.paused_queues:
        text = f"Queue {queue.name} was paused by {format_actor(queue.actor)}"
        yield Issue("‖", f"{text}: {_waiting(queue.ready)}", f"{root}/queues")
    yield from _alert_issues(snapshot, root)
    for group in snapshot.groups:
        if group.state is GroupState.REGRESSED:
            text = f"Regressed after it was resolved: {group.message or group.code}"
            yield Issue("↺", text, f"{root}/failures/{quote(group.fingerprint)}")


def _alert_issues(snapshot: Snapshot, root: str) -> Iterator[Issue]:
    ranked = sorted(snapshot.alerts, key=lambda alert: alert.severity != "page")
    for alert in ranked[:MAX_ALERTS]:
        yield Issue("▲", alert.summary, f"{root}/alerts")
    more = len(ranked) - MAX_ALERTS
    if more > 0:
        yield Issue("▲", f"{more} more alert{'s' if more > 1 else ''}", f"{root}/alerts")


def _waiting(count: int) -> str:
    if count == 1:
        return "1 job waits"
    return f"{format_count(count) if count else 'no'} jobs wait"


def _count_tile(state: State, count: int, root: str) -> dict[str, Any]:
    link = f"{root}/jobs?{urlencode({'filter': f'state:{state}'})}"
    return {"badge": BADGES[state], "count": format_count(count), "none": not count, "link": link}
