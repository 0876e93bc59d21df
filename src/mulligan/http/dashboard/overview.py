"""The first screen: is anything broken now, what is broken, what is being done about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from mulligan.alerts.service import AlertStatus
from mulligan.core.format import who
from mulligan.core.job import Micros, State
from mulligan.failures.groups import GroupState
from mulligan.failures.service import FailureGroup
from mulligan.guards.dependencies import Dependency, not_closed
from mulligan.guards.gates import KindStatus, Queue
from mulligan.http.dashboard import failures
from mulligan.http.dashboard import history as records
from mulligan.http.dashboard import queues as machinery
from mulligan.http.dashboard.charts import WINDOWS, ColumnChart, outcomes
from mulligan.http.dashboard.renderer import COUNT_CAP, Renderer, Shown, root_of
from mulligan.http.dashboard.view_models import BADGES, row_of
from mulligan.http.services import CallerServices
from mulligan.operations.service import Operation
from mulligan.worker.liveness import WorkerStatus, workers_seen

ALERTS = 2
GROUPS = 5
ROWS = 8
NEEDS_SOMEBODY = {GroupState.NEW, GroupState.OPEN, GroupState.REGRESSED}


class Trouble(NamedTuple):
    """One thing that is broken now, in a sentence, and where to look."""

    icon: str
    words: str
    link: str


class Picture(NamedTuple):
    """All of it, at about one moment."""

    now: Micros
    counts: dict[str, int]
    groups: list[FailureGroup]
    down: list[Dependency]
    kinds: list[KindStatus]
    queues: list[Queue]
    workers: list[WorkerStatus]
    operations: list[Operation]
    alerts: list[AlertStatus]
    outcomes: ColumnChart
    parked: list[Shown]
    running: list[Shown]


class OverviewScreen:
    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def show(self, request: Request, filter: str = "", window: str = "1h") -> Response:  # noqa: A002 - as in the URL
        root, chosen = root_of(request), window if window in WINDOWS else "1h"
        if filter.strip():
            return RedirectResponse(f"{root}/jobs?{urlencode({'filter': filter})}", 303)
        if (await self._house.visitor(request)).owner is not None:
            return RedirectResponse(
                f"{root}/failures", 303
            )  # what is on this screen is of all owners
        found = await self._house.ask(request, lambda desk: _look(desk, chosen), shared=True)
        values: dict[str, Any] = {
            "counts": [_count(state, found.counts[state], root) for state in State],
            "troubles": list(_troubles(found, root)),
            "groups": [failures.row(group, found.now, root) for group in found.groups],
            "operations": [records.operation_row(one, found.now) for one in found.operations],
            "dependencies": [machinery.dependency_row(one, found.now) for one in found.down],
            "workers": [machinery.worker_row(one, found.now) for one in found.workers],
            "parked": [row_of(one, found.now, root_of(request)) for one in found.parked],
            "running": [row_of(one, found.now, root_of(request)) for one in found.running],
            "many": {
                state.value: _many(found.counts[state]) for state in (State.PARKED, State.RUNNING)
            },
            "outcomes": found.outcomes,
            "window": chosen,
            "windows": [(name, f"{root}/?window={name}", name == chosen) for name in WINDOWS],
            "each": WINDOWS[chosen].words,
            "empty": not any(found.counts.values()),
        }
        return self._house.page(request, "overview.html", "overview", **values)


def _look(desk: CallerServices, window: str) -> Picture:
    groups = [
        group
        for group in desk.failures.groups(owner=desk.owner, limit=GROUPS * 4)
        if group.state in NEEDS_SOMEBODY
    ]
    kinds = [kind for kind in desk.kinds.list() if kind.held]
    queues = [queue for queue in desk.queues.list() if queue.paused]
    operations = [one for one in desk.operations.list(owner=desk.owner, limit=20) if one.under_way]
    with desk.store.read() as unit:
        now, counts, down = unit.now(), dict(unit.counts(COUNT_CAP)), not_closed(unit)
        workers = workers_seen(unit)
        ended = outcomes(unit, now, WINDOWS[window])
    alerts = [
        one for one in desk.alerts.list() if one.state == "firing" and one.silenced_until is None
    ]
    parked = _some(desk, "state:parked")
    running = _some(desk, "state:running")
    return Picture(
        now,
        counts,
        groups[:GROUPS],
        down,
        kinds,
        queues,
        workers,
        operations,
        alerts,
        ended,
        parked,
        running,
    )


def _some(desk: CallerServices, filter: str) -> list[Shown]:  # noqa: A002 - as everywhere
    return [
        Shown(job, "")
        for job in desk.jobs.list(filter, limit=ROWS, owner=desk.owner, private=desk.private)
    ]


def _troubles(found: Picture, root: str) -> Iterator[Trouble]:
    waits = found.counts[State.QUEUED]
    if not any(seen.living for seen in found.workers):
        yield Trouble(
            "◌", f"No worker is live{f': {_wait(waits)}' if waits else ''}", f"{root}/queues"
        )
    for one in found.down:
        if one.state == "open":
            yield Trouble(
                "⊗", f"{one.key} is down: {_wait(one.held)} for it", f"{root}/dependencies"
            )
    for kind in found.kinds:
        yield Trouble(
            "‖", f"Kind {kind.name} is held: {kind.reason or kind.message}", f"{root}/queues"
        )
    for queue in found.queues:
        yield Trouble(
            "‖",
            f"Queue {queue.name} was paused by {who(queue.actor)}: {_wait(queue.ready)}",
            f"{root}/queues",
        )
    urgent = sorted(found.alerts, key=lambda alert: alert.severity != "page")
    for alert in urgent[:ALERTS]:
        yield Trouble("▲", alert.summary, f"{root}/alerts")
    if len(urgent) > ALERTS:
        yield Trouble(
            "▲",
            f"{len(urgent) - ALERTS} more alert{'s' if len(urgent) > ALERTS + 1 else ''}",
            f"{root}/alerts",
        )
    for group in found.groups:
        if group.state is GroupState.REGRESSED:
            link = f"{root}/failures/{quote(group.fingerprint)}"
            yield Trouble(
                "↺", f"It was resolved, and it is back: {group.message or group.code}", link
            )


def _wait(count: int) -> str:
    return "1 job waits" if count == 1 else f"{_many(count) if count else 'no'} jobs wait"


def _many(count: int) -> str:
    return f"{COUNT_CAP:,}+" if count >= COUNT_CAP else f"{count:,}"


def _count(state: State, count: int, root: str) -> dict[str, Any]:
    link = f"{root}/jobs?{urlencode({'filter': f'state:{state}'})}"
    return {"badge": BADGES[state], "count": _many(count), "none": not count, "link": link}
