"""Screens of failure groups: the inbox and one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from fastapi import Request, Response

from mulligan.core.durations import Micros, to_micros
from mulligan.core.format import format_actor
from mulligan.failures.groups import GroupState
from mulligan.failures.service import FailureGroup, FailureSample
from mulligan.http.dashboard.charts import Sparkline, bars, column_chart, sparkline
from mulligan.http.dashboard.renderer import MenuEntry, Renderer, root_path, screen
from mulligan.http.dashboard.view_models import (
    Badge,
    TimeLabel,
    filter_chips,
    job_list_row,
    optional_time_label,
    private_fields,
    time_label,
)
from mulligan.http.services import VisitorServices

MAX_GROUPS = 100
MEMBERS = 25  # newest jobs of a group
BADGES = {
    GroupState.REGRESSED: Badge("↺", "regressed", "bad"),
    GroupState.NEW: Badge("★", "new", "bad"),
    GroupState.OPEN: Badge("○", "open", "warn"),
    GroupState.MUTED: Badge("⊘", "muted", "calm"),
    GroupState.RESOLVED: Badge("✓", "resolved", "good"),
}


class GroupRow(NamedTuple):
    """One failure group in a table."""

    fingerprint: str
    link: str
    badge: Badge
    title: str
    code: str
    kinds: str
    total: str
    jobs: str  # link to the list of its jobs
    spark: Sparkline
    first: TimeLabel | None
    last: TimeLabel | None
    recovered: str


class FailureScreens:
    """The inbox of failure groups and the page of one group."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/failures", MenuEntry("Now", 2, "failures", "Failures", "✕"))
    async def inbox(self, request: Request, filter: str = "") -> Response:  # noqa: A002 - as in the URL
        text = filter.strip()
        root = root_path(request)

        def load(services: VisitorServices) -> dict[str, Any]:
            groups = services.failures.groups(
                text, owner=services.owner, private=services.private, limit=MAX_GROUPS
            )
            with services.store.read() as tx:
                now = tx.now()
            total = sum(group.count for group in groups)
            is_capped = groups.more or any(group.capped for group in groups)
            return {
                "rows": [group_row(group, now, root) for group in groups],
                "more": groups.more,
                "total": f"{total:,}{'+' if is_capped else ''}",
            }

        values = await self._renderer.read(request, load)
        chips = filter_chips(f"{root}/failures", text)
        return self._renderer.page(
            request, "failures.html", "failures", group_filter=text, chips=chips, **values
        )

    @screen("/failures/{fingerprint}")
    async def group(self, request: Request, fingerprint: str) -> Response:
        root = root_path(request)

        def load(services: VisitorServices) -> dict[str, Any]:
            group = services.failures.get(
                fingerprint, owner=services.owner, private=services.visitor.may_see_private
            )
            jobs = services.jobs.list(
                f"state:dead group:{fingerprint}", limit=MEMBERS, owner=services.owner
            )
            with services.store.read() as tx:
                now = tx.now()
            rows = [job_list_row(job, now, root) for job in jobs]
            return {**_group_page(group, now, root), "jobs": rows}

        values = await self._renderer.read(request, load)
        return self._renderer.page(request, "group.html", "failures", **values)


def group_row(group: FailureGroup, now: Micros, root: str) -> GroupRow:
    """Build the row of a failure group for a table."""
    return GroupRow(
        fingerprint=group.fingerprint,
        link=f"{root}/failures/{quote(group.fingerprint)}",
        badge=BADGES[group.state],
        title=group.message or group.code,
        code=group.code,
        kinds=_kinds(group.kinds),
        total=f"{group.count:,}{'+' if group.capped else ''}",
        jobs=_jobs_link(root, group.fingerprint),
        spark=sparkline(group.hourly, "an hour"),
        first=optional_time_label(group.first_seen, now),
        last=optional_time_label(group.last_seen, now),
        recovered=_recovered(group),
    )


def _group_page(group: FailureGroup, now: Micros, root: str) -> dict[str, Any]:
    links = {kind: _jobs_link(root, group.fingerprint, f"kind:{kind}") for kind in group.kinds}
    return {
        "group": group,
        "row": group_row(group, now, root),
        "hours": column_chart(_steps(group.hourly, "h ago", "this hour"), ("dead",)),
        "days": column_chart(_steps(group.daily, "d ago", "today"), ("dead",)),
        "kinds": bars(group.kinds, links),
        "codes": bars(group.codes),
        "mark": _mark(group, now),
        "sample": None if group.sample is None else _sample(group.sample, now, root),
        "retry_command": f"mulligan failures retry {group.fingerprint}",
    }


def _steps(counts: Sequence[int], ago: str, last: str) -> list[tuple[str, Mapping[str, int]]]:
    steps: list[tuple[str, Mapping[str, int]]] = []
    for index, count in enumerate(counts):
        distance = len(counts) - 1 - index
        steps.append((f"{distance} {ago}" if distance else last, {"dead": count}))
    return steps


def _sample(sample: FailureSample, now: Micros, root: str) -> dict[str, Any]:
    return {
        "job": sample.job,
        "link": f"{root}/jobs/{sample.job}",
        "at": time_label(to_micros(sample.at), now),
        "evidence": [(name, str(value)) for name, value in sample.evidence.items()],
        "private": private_fields(sample.private or {}),
    }


def _mark(group: FailureGroup, now: Micros) -> str:
    """Describe who muted or resolved a group, in one sentence."""
    if group.marked_at is None:
        return ""
    when = time_label(to_micros(group.marked_at), now).ago
    sentence = f"{group.state.value} {when} by {format_actor(group.actor)}"
    if group.until is not None:
        sentence += f", ends {time_label(to_micros(group.until), now).ago}"
    if group.note:
        sentence += f": {group.note}"
    return sentence


def _kinds(kinds: Mapping[str, int]) -> str:
    names = list(kinds)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _recovered(group: FailureGroup) -> str:
    if group.recovered_share is None:
        return ""
    return f"{group.recovered} of {group.retried} manual retries recovered"


def _jobs_link(root: str, fingerprint: str, condition: str = "") -> str:
    text = f"state:dead group:{fingerprint} {condition}".strip()
    return f"{root}/jobs?{urlencode({'filter': text})}"
