"""The inbox of failures, and one group of them: the one cause behind 412 dead jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from fastapi import Request, Response

from mulligan.core.format import who
from mulligan.core.job import Micros, to_micros
from mulligan.failures.groups import GroupState
from mulligan.failures.service import FailureGroup, FailureSample
from mulligan.http.dashboard.charts import Spark, bars, columns, spark
from mulligan.http.dashboard.renderer import Renderer, Shown, root_of
from mulligan.http.dashboard.view_models import Badge, Moment, at_moment, removable, row_of
from mulligan.http.services import CallerServices

SHOWN = 100  # groups
PRIVATE = ("message", "detail", "stderr", "trace")
MEMBERS = 25  # newest jobs of a group
BADGES = {
    GroupState.REGRESSED: Badge("↺", "regressed", "bad"),
    GroupState.NEW: Badge("★", "new", "bad"),
    GroupState.OPEN: Badge("○", "open", "warn"),
    GroupState.MUTED: Badge("⊘", "muted", "calm"),
    GroupState.RESOLVED: Badge("✓", "resolved", "good"),
}


class GroupRow(NamedTuple):
    fingerprint: str
    link: str
    badge: Badge
    title: str
    code: str
    kinds: str
    many: str
    jobs: str  # where these are listed
    spark: Spark
    first: Moment | None
    last: Moment | None
    recovered: str


class FailureScreens:
    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def inbox(self, request: Request, filter: str = "") -> Response:  # noqa: A002 - as in the URL
        words = filter.strip()

        def look(desk: CallerServices) -> tuple[Micros, list[FailureGroup], bool]:
            groups = desk.failures.groups(
                words, owner=desk.owner, private=desk.private, limit=SHOWN
            )
            with desk.store.read() as unit:
                return unit.now(), list(groups), groups.more

        now, groups, more = await self._house.ask(request, look)
        root = root_of(request)
        rows = [row(group, now, root) for group in groups]
        total = sum(group.count for group in groups)
        capped = more or any(group.capped for group in groups)
        values: dict[str, Any] = {
            "rows": rows,
            "words": words,
            "chosen": removable(f"{root}/failures", words),
            "more": more,
            "total": f"{total:,}{'+' if capped else ''}",
        }
        return self._house.page(request, "failures.html", "failures", **values)

    async def group(self, request: Request, fingerprint: str) -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            group = desk.failures.get(fingerprint, owner=desk.owner, private=desk.visitor.private)
            jobs = desk.jobs.list(
                f"state:dead group:{fingerprint}", limit=MEMBERS, owner=desk.owner
            )
            with desk.store.read() as unit:
                now = unit.now()
            root = root_of(request)
            return _page(group, now, root) | {
                "jobs": [row_of(Shown(job, ""), now, root_of(request)) for job in jobs]
            }

        return self._house.page(
            request, "group.html", "failures", **await self._house.ask(request, look)
        )


def row(group: FailureGroup, now: Micros, root: str) -> GroupRow:
    return GroupRow(
        fingerprint=group.fingerprint,
        link=f"{root}/failures/{quote(group.fingerprint)}",
        badge=BADGES[group.state],
        title=group.message or group.code,
        code=group.code,
        kinds=_kinds(group.kinds),
        many=f"{group.count:,}{'+' if group.capped else ''}",
        jobs=_jobs(root, group.fingerprint),
        spark=spark(group.hourly, "an hour"),
        first=_at(group.first_seen, now),
        last=_at(group.last_seen, now),
        recovered=_recovered(group),
    )


def _page(group: FailureGroup, now: Micros, root: str) -> dict[str, Any]:
    days = _steps(group.daily, "d ago", "today")
    hours = _steps(group.hourly, "h ago", "this hour")
    return {
        "group": group,
        "row": row(group, now, root),
        "hours": columns(hours, ("dead",)),
        "days": columns(days, ("dead",)),
        "kinds": bars(
            group.kinds,
            {kind: _jobs(root, group.fingerprint, f"kind:{kind}") for kind in group.kinds},
        ),
        "codes": bars(group.codes),
        "said": _said(group, now),
        "sample": None if group.sample is None else _sample(group.sample, now, root),
        "retry_one": f"mulligan failures retry {group.fingerprint} --steps 1",
        "retry_all": f"mulligan failures retry {group.fingerprint}",
    }


def _steps(counts: Sequence[int], ago: str, last: str) -> list[tuple[str, Mapping[str, int]]]:
    back = len(counts) - 1
    return [
        (f"{back - place} {ago}" if place < back else last, {"dead": count})
        for place, count in enumerate(counts)
    ]


def _sample(sample: FailureSample, now: Micros, root: str) -> dict[str, Any]:
    private = sample.private or {}
    return {
        "job": sample.job,
        "link": f"{root}/jobs/{sample.job}",
        "at": at_moment(to_micros(sample.at), now),
        "evidence": [(name, str(value)) for name, value in sample.evidence.items()],
        "private": [(name, str(private[name])) for name in PRIVATE if private.get(name)],
    }


def _said(group: FailureGroup, now: Micros) -> str:
    """What people have said about it, in one sentence."""
    if group.marked_at is None:
        return ""
    until = (
        f", until {at_moment(to_micros(group.until), now).ago}" if group.until is not None else ""
    )
    note = f": {group.note}" if group.note else ""
    return f"{group.state.value} {at_moment(to_micros(group.marked_at), now).ago} by {who(group.actor)}{until}{note}"


def _kinds(kinds: Mapping[str, int]) -> str:
    names = list(kinds)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _recovered(group: FailureGroup) -> str:
    share = group.recovered_share
    return (
        "" if share is None else f"{group.recovered} of {group.retried} retried by hand recovered"
    )


def _jobs(root: str, fingerprint: str, more: str = "") -> str:
    return f"{root}/jobs?{urlencode({'filter': f'state:dead group:{fingerprint} {more}'.strip()})}"


def _at(at: datetime | None, now: Micros) -> Moment | None:
    return None if at is None else at_moment(to_micros(at), now)
