"""Screens of failure groups: the inbox and one group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from fastapi import Request, Response

from mulligan.core.durations import Micros, to_micros
from mulligan.core.event import EventType
from mulligan.core.format import format_actor
from mulligan.core.ids import shorten_id
from mulligan.failures.group_reader import FailureGroup, FailureSample
from mulligan.failures.groups import (
    DAYS,
    HOUR,
    HOURS,
    STATE_LABELS,
    GroupState,
    count_arguments,
)
from mulligan.failures.queries import FailureQueries
from mulligan.failures.service import GroupList
from mulligan.guards.gate_status import KindStatus, list_guarded_kinds
from mulligan.http.dashboard.charts import (
    Bar,
    BarPart,
    ChartMark,
    bars,
    column_chart,
    release_marks,
)
from mulligan.http.dashboard.history import describe_operation, groups_of, operation_row
from mulligan.http.dashboard.renderer import MenuEntry, Renderer, root_path, screen
from mulligan.http.dashboard.view_models import (
    EXPORT_FORMATS,
    Badge,
    TimeLabel,
    evidence_items,
    export,
    export_links,
    filter_chips,
    format_count,
    job_list_rows,
    needs_no_quotes,
    optional_time_label,
    private_fields,
    time_label,
    trace_parts,
)
from mulligan.http.services import VisitorServices
from mulligan.storage.base import Transaction

MAX_GROUPS = 100
MEMBERS = 10  # newest jobs of a group, in its table
SAMPLES = 25  # jobs that can be looked at one after the other
BREAKDOWN = 500  # newest jobs whose arguments and workers are counted
ACTIVITY = 8  # newest entries
RECENT_OPERATIONS = 100  # among which those of a group are searched
RECENT_MARKS = 200
BADGES = {
    GroupState.REGRESSED: Badge("undo-2", "regressed", "bad"),
    GroupState.NEW: Badge("sparkles", "new", "bad"),
    GroupState.OPEN: Badge("circle", "ongoing", "warn"),
    GroupState.MUTED: Badge("ban", "muted", "calm"),
    GroupState.RESOLVED: Badge("check", "resolved", "good"),
    GroupState.RECOVERED: Badge("check", "recovered", "good"),
}


# Tabs of the inbox: which states each shows.
TABS: Mapping[str, frozenset[GroupState]] = {
    "open": frozenset({GroupState.REGRESSED, GroupState.NEW, GroupState.OPEN}),
    "recovered": frozenset({GroupState.RECOVERED}),
    "muted": frozenset({GroupState.MUTED}),
    "resolved": frozenset({GroupState.RESOLVED}),
}
TAB_TITLES = {"open": "Needs attention"}
# What can be done with the selected causes of a tab.
TAB_ACTIONS = {
    "open": (("retry", "Retry …"), ("mute", "Mute"), ("resolve", "Resolve")),
    "recovered": (("resolve", "Resolve"),),
    "muted": (("retry", "Retry …"), ("reopen", "Unmute"), ("resolve", "Resolve")),
    "resolved": (("reopen", "Reopen"),),
}
SORTS: Mapping[str, Callable[[FailureGroup], Any]] = {
    "jobs": lambda group: -(group.count + sum(group.held.values())),
    "owners": lambda group: -len(group.owners),
    "first": lambda group: _newest_first(group.first_seen),
    "last": lambda group: _newest_first(group.last_seen),
}
DEAD_JOB_ACTIONS = (("retry", "Retry"), ("discard", "Discard"))
HELD = Badge("pause", "held", "warn")
RETRYING = Badge("rotate-cw", "retrying", "busy")
NO_JOBS = Badge("circle", "no dead jobs", "calm")


class InboxTab(NamedTuple):
    """A tab of the inbox with the number of its causes."""

    name: str
    total: str
    link: str
    here: bool


class SortLink(NamedTuple):
    """Head of a column that sorts the inbox."""

    title: str
    link: str
    here: bool


class HeldKind(NamedTuple):
    """A kind that is held for a cause."""

    name: str
    link: str  # of its actions
    waiting: str
    trial: str  # one sentence about the job that was tried last
    trial_link: str
    may_try: bool
    has_worked: bool  # the tried job succeeded


class GroupRow(NamedTuple):
    """One failure group in a table."""

    fingerprint: str
    link: str
    badge: Badge
    title: str
    is_exception: bool  # the title is one, so the sentence for owners is shown apart
    message: str
    subject: str
    code: str
    held: list[HeldKind]
    total: str
    jobs: str  # link to the list of its jobs
    owners: str
    assignee: str
    bars: tuple[BarPart, ...]  # deaths of the last 24 hours
    bars_label: str
    first: TimeLabel | None
    last: TimeLabel | None
    recovered: str
    operation: dict[str, Any] | None  # the one that retries its jobs now


class ActivityEntry(NamedTuple):
    """One line of what happened to a group."""

    at: TimeLabel
    text: str
    link: str


class FailureScreens:
    """The inbox of failure groups and the page of one group."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/failures", MenuEntry("", 2, "failures", "Failures", "bug"))
    async def inbox(
        self,
        request: Request,
        filter: str = "",  # noqa: A002 - as in the URL
        tab: str = "open",
        sort: str = "",
        format: str = "",  # noqa: A002 - as in the URL
    ) -> Response:
        text = filter.strip()
        root = root_path(request)
        chosen = tab if tab in TABS else "open"
        address = InboxAddress(f"{root}/failures", chosen, text, sort if sort in SORTS else "")

        def load(services: VisitorServices) -> dict[str, Any]:
            groups = services.failures.groups(
                text,
                owner=services.owner,
                private=services.private,
                limit=MAX_GROUPS,
                history=True,
            )
            with services.store.read() as tx:
                now = tx.now()
                kinds = {kind.name: kind for kind in list_guarded_kinds(tx)}
            shown = [group for group in groups if _tab_of(group) == chosen]
            if address.sort:
                shown.sort(key=SORTS[address.sort])
            if format in EXPORT_FORMATS:
                return {"export": [_export_row(group) for group in shown]}
            operations = _active_operations(services, now, root) if shown else {}
            total = sum(group.count for group in shown)
            is_capped = groups.more or any(group.capped for group in shown)
            or_more = "+" if is_capped else ""
            return {
                "rows": [
                    group_row(group, now, root, operations.get(group.fingerprint), kinds)
                    for group in shown
                ],
                "more": groups.more,
                "total": f"{total:,}{or_more}",
                "tabs": _tabs(groups, address),
            }

        values = await self._renderer.read(request, load)
        if format in EXPORT_FORMATS:
            return export(values["export"], "failures", format)
        return self._renderer.page(
            request,
            "failures.html",
            "failures",
            group_filter=text,
            tab=chosen,
            back=str(address).removeprefix(root),
            export=export_links(str(address)),
            sorts=_sort_links(address),
            tab_actions=TAB_ACTIONS[chosen],
            chips=filter_chips(f"{root}/failures", text),
            **values,
        )

    @screen("/failures/{fingerprint}")
    async def group(self, request: Request, fingerprint: str, sample: int = 1) -> Response:
        root = root_path(request)

        def load(services: VisitorServices) -> dict[str, Any]:
            jobs = services.jobs.list(
                f"state:dead group:{fingerprint}", limit=SAMPLES, owner=services.owner
            )
            number = max(1, min(sample, len(jobs)))
            group = services.failures.get(
                fingerprint,
                owner=services.owner,
                private=services.visitor.may_see_private,
                sample=jobs[number - 1].id if jobs else None,
            )
            with services.store.read() as tx:
                now = tx.now()
                kinds = {kind.name: kind for kind in list_guarded_kinds(tx)}
                marks = _release_marks(tx, now) if services.owner is None else NO_MARKS
            operations = _active_operations(services, now, root)
            stepper = _stepper(number, len(jobs), f"{root}/failures/{quote(fingerprint)}")
            return {
                **_group_page(group, now, root, marks),
                "row": group_row(group, now, root, operations.get(fingerprint), kinds),
                "breakdown": _breakdown(services, group, root),
                "activity": _activity(services, group, kinds, now),
                "jobs": job_list_rows(services, jobs[:MEMBERS], now, root),
                "stepper": stepper,
                "bulk_actions": DEAD_JOB_ACTIONS,
            }

        values = await self._renderer.read(request, load)
        return self._renderer.page(request, "group.html", "failures", **values)


# --- The inbox ---


class InboxAddress(NamedTuple):
    """Address of the inbox: its tab, filter and order."""

    path: str
    tab: str
    filter: str
    sort: str

    def __str__(self) -> str:
        query = {"tab": self.tab, "filter": self.filter, "sort": self.sort}
        return f"{self.path}?{urlencode({name: value for name, value in query.items() if value})}"


def _export_row(group: FailureGroup) -> dict[str, Any]:
    return {
        "fingerprint": group.fingerprint,
        "state": "held" if group.held else group.state.value,
        "title": group.title,
        "subject": group.subject,
        "code": group.code,
        "jobs": group.count,
        "waiting": sum(group.held.values()),
        "owners": len(group.owners),
        "first": "" if group.first_seen is None else group.first_seen.isoformat(),
        "last": "" if group.last_seen is None else group.last_seen.isoformat(),
    }


def _newest_first(at: datetime | None) -> float:
    return 0.0 if at is None else -at.timestamp()


def _tab_of(group: FailureGroup) -> str:
    """Return the tab of a group. A cause without jobs and without a mark is in none."""
    if group.held:
        return "open"
    if group.state is GroupState.OPEN and not group.count and not group.retrying:
        return ""
    return next(name for name, states in TABS.items() if group.state in states)


def _tabs(groups: GroupList, address: InboxAddress) -> list[InboxTab]:
    or_more = "+" if groups.more else ""
    tabs = []
    for name in TABS:
        count = sum(_tab_of(group) == name for group in groups)
        link = str(address._replace(tab=name))
        title = TAB_TITLES.get(name, name.capitalize())
        tabs.append(InboxTab(title, f"{count}{or_more}", link, name == address.tab))
    return tabs


def _sort_links(address: InboxAddress) -> dict[str, SortLink]:
    links = {}
    for name in SORTS:
        is_here = address.sort == name
        link = address._replace(sort="" if is_here else name)
        links[name] = SortLink(name.capitalize(), str(link), is_here)
    return links


def _active_operations(
    services: VisitorServices, now: Micros, root: str
) -> dict[str, dict[str, Any]]:
    """Return the operation that retries the jobs of each group now."""
    found: dict[str, dict[str, Any]] = {}
    for operation in services.operations.list(owner=services.owner, limit=RECENT_OPERATIONS):
        if operation.under_way and operation.action == "retry":
            row = {**operation_row(operation, now), "link": f"{root}/operations/{operation.id}"}
            for fingerprint in groups_of(operation.filter):
                found.setdefault(fingerprint, row)
    return found


def _stepper(number: int, count: int, path: str) -> dict[str, Any]:
    """Return the position among the samples, with the links to its neighbours."""
    newer = f"{path}?sample={number - 1}" if number > 1 else ""
    older = f"{path}?sample={number + 1}" if number < count else ""
    return {"number": number, "count": count, "newer": newer, "older": older}


def group_row(
    group: FailureGroup,
    now: Micros,
    root: str,
    operation: dict[str, Any] | None = None,
    kinds: Mapping[str, KindStatus] = MappingProxyType({}),
) -> GroupRow:
    """Build the row of a failure group for a table.

    `operation`: the one that retries its jobs now. `kinds`: held kinds, with their trials.
    """
    or_more = "+" if group.capped else ""
    total = sum(group.held.values()) or group.count
    return GroupRow(
        fingerprint=group.fingerprint,
        link=f"{root}/failures/{quote(group.fingerprint)}",
        badge=_badge(group),
        title=group.title,
        is_exception=bool(group.exception),
        message=group.message,
        subject=group.subject,
        code=group.code,
        held=[_held_kind(*held, kinds, now, root) for held in group.held.items()],
        total=f"{total:,}{or_more}",
        jobs=_members_link(group, root),
        owners=_name_owners(list(group.owners)),
        assignee=group.assignee,
        bars=_hour_bars(group.hourly),
        bars_label=f"{sum(group.hourly):,} deaths, at most {max(group.hourly):,} in an hour",
        first=optional_time_label(group.first_seen, now),
        last=optional_time_label(group.last_seen, now),
        recovered=_recovered(group),
        operation=operation,
    )


def _held_kind(
    name: str, waiting: int, kinds: Mapping[str, KindStatus], now: Micros, root: str
) -> HeldKind:
    kind = kinds.get(name)
    trial = ""
    result = ""
    if kind is not None and kind.trial_at is not None:
        result = kind.trial_result
        ago = time_label(to_micros(kind.trial_at), now).ago
        trial = f"Tried one {ago}: {TRIAL_SENTENCES.get(result, f'it failed again ({result})')}"
    return HeldKind(
        name=name,
        link=f"{root}/kinds/{quote(name, safe='')}",
        waiting=format_count(waiting),
        trial=trial,
        trial_link=f"{root}/jobs/{kind.trial}" if kind is not None else "",
        may_try=bool(waiting) and result not in {"waiting", "running"},
        has_worked=result == "succeeded",
    )


TRIAL_SENTENCES = {
    "waiting": "it waits for a worker",
    "running": "it is running",
    "succeeded": "it succeeded",
    "not run": "it did not run",
}


def _members_link(group: FailureGroup, root: str) -> str:
    if not group.held:
        return _jobs_link(root, group.fingerprint)
    text = f"phase:held kind:{','.join(group.held)}"
    return f"{root}/jobs?{urlencode({'filter': text})}"


def _name_owners(owners: Sequence[str]) -> str:
    """Name the first owner and the number of others: "acme +11"."""
    if not owners:
        return ""
    first = owners[0] or "no owner"
    return first if len(owners) == 1 else f"{first} +{len(owners) - 1}"


def _hour_bars(hourly: Sequence[int]) -> tuple[BarPart, ...]:
    """Draw one bar per hour, 100 wide in total. `width` is the height of a bar."""
    peak = max(hourly)
    step = 100 / len(hourly)
    return tuple(
        BarPart(round(place * step, 2), round(max(8.0, 100 * deaths / peak), 1), "dead", "")
        for place, deaths in enumerate(hourly)
        if deaths
    )


def _badge(group: FailureGroup) -> Badge:
    if group.held:
        return HELD
    if group.state is GroupState.RECOVERED:
        words = f"recovered {group.recovered:,} of {group.retried:,}"
        return BADGES[group.state]._replace(word=words)
    if group.state is GroupState.NEW and group.suspect is not None:
        return BADGES[group.state]._replace(word=f"new in {group.suspect.release}")
    if group.state is GroupState.OPEN and group.retrying and not group.count:
        return RETRYING
    if group.state is GroupState.OPEN and not group.count:
        return NO_JOBS
    return BADGES[group.state]


# --- The page of a group ---


class GroupMarks(NamedTuple):
    """Starts of releases in the charts of a group."""

    hours: Sequence[ChartMark] = ()
    days: Sequence[ChartMark] = ()


NO_MARKS = GroupMarks()


def _release_marks(tx: Transaction, now: Micros) -> GroupMarks:
    this_hour = now // HOUR * HOUR
    return GroupMarks(
        release_marks(tx, this_hour - (HOURS - 1) * HOUR, HOUR),
        release_marks(tx, this_hour + HOUR - DAYS * 24 * HOUR, 24 * HOUR),
    )


def _group_page(group: FailureGroup, now: Micros, root: str, marks: GroupMarks) -> dict[str, Any]:
    sample = None if group.sample is None else _sample(group.sample, group.title, now, root)
    return {
        "group": group,
        "hours": column_chart(_steps(group.hourly, "h ago", "this hour"), ("dead",), marks.hours),
        "days": column_chart(_steps(group.daily, "d ago", "today"), ("dead",), marks.days),
        "dead": f"{group.count:,}+" if group.capped else f"{group.count:,}",
        "dead_link": _jobs_link(root, group.fingerprint),
        "owner_count": f"{len(group.owners):,}",
        "mark": _mark(group, now),
        "suspect": "" if group.suspect is None else group.suspect.sentence,
        "suspect_link": _suspect_link(group, root),
        "sample": sample,
        "retry_command": f"mulligan failures retry {group.fingerprint}",
    }


def _suspect_link(group: FailureGroup, root: str) -> str:
    return "" if group.suspect is None else f"{root}/releases?release={group.suspect.release}"


def _breakdown(
    services: VisitorServices, group: FailureGroup, root: str
) -> list[tuple[str, tuple[Bar, ...]]]:
    """Return how the dead jobs are spread. Only unscoped visitors see workers and releases."""
    parts = {
        "Kind": _bars(group, root, "kind", group.kinds),
        "Owner": _bars(group, root, "owner", group.owners),
        "Code": _bars(group, root, "code", group.codes) if len(group.codes) > 1 else (),
    }
    if group.count:
        where = {} if services.owner is None else {"owner": services.owner}
        with services.store.read() as tx:
            members = FailureQueries(tx).list_group_members(group.fingerprint, where, BREAKDOWN)
        if services.owner is None:
            parts["Release"] = bars(_deaths_by_release(group))
            parts["Worker"] = bars(Counter(shorten_id(one.worker) for one in members if one.worker))
        for name, counts in count_arguments(one.payload for one in members).items():
            parts[f"Argument {name}"] = bars(counts, limit=5)
    return [(title, shapes) for title, shapes in parts.items() if shapes]


def _deaths_by_release(group: FailureGroup) -> dict[str, int]:
    """Return the deaths by release, also of jobs that are no longer dead."""
    return {row.release: row.deaths for row in group.releases if row.deaths}


def _bars(group: FailureGroup, root: str, field: str, counts: Mapping[str, int]) -> tuple[Bar, ...]:
    """Draw counts by a field of the filter, each with a link to its jobs."""
    links = {
        name: _jobs_link(root, group.fingerprint, f"{field}:{name}")
        for name in counts
        if needs_no_quotes(name)
    }
    named = {name or "no owner": count for name, count in counts.items()}
    return bars(named, links)


def _activity(
    services: VisitorServices,
    group: FailureGroup,
    kinds: Mapping[str, KindStatus],
    now: Micros,
) -> list[ActivityEntry]:
    """Return what people did to a group and what came of it, newest first."""
    entries = [*_mark_entries(services, group), *_operation_entries(services, group)]
    if group.first_seen is not None:
        entries.append((to_micros(group.first_seen), "first death", ""))
    for kind in (kinds[name] for name in group.held if name in kinds):
        if kind.since is not None:
            text = f"{format_actor(kind.actor)} held {kind.name}"
            entries.append((to_micros(kind.since), text, ""))
    entries.sort(reverse=True)
    return [ActivityEntry(time_label(at, now), text, link) for at, text, link in entries[:ACTIVITY]]


_MARKS = {
    EventType.FAILURE_MUTED: "muted it",
    EventType.FAILURE_RESOLVED: "resolved it",
    EventType.FAILURE_REOPENED: "reopened it",
    EventType.FAILURE_ASSIGNED: "assigned it",
    EventType.FAILURE_REGRESSED: "saw it again",
    EventType.JOB_TRIED: "tried one job of {}",
    EventType.KIND_RELEASED: "released {}",
}


def _mark_entries(
    services: VisitorServices, group: FailureGroup
) -> Iterator[tuple[Micros, str, str]]:
    kinds = {*group.kinds, *group.held}
    for event in services.events.list(
        type=[str(name) for name in _MARKS], owner=services.owner, limit=RECENT_MARKS
    ):
        data = event.data
        if data.get("fingerprint") != group.fingerprint and data.get("kind") not in kinds:
            continue
        text = f"{format_actor(event.actor)} {_MARKS[EventType(event.type)]}"
        text = text.format(data.get("kind", ""))
        reason = f": {data['reason']}" if data.get("reason") else ""
        link = f"/jobs/{event.job_id}" if event.job_id else ""
        yield event.at, f"{text}{reason}", link


def _operation_entries(
    services: VisitorServices, group: FailureGroup
) -> Iterator[tuple[Micros, str, str]]:
    for operation in services.operations.list(owner=services.owner, limit=RECENT_OPERATIONS):
        if group.fingerprint in groups_of(operation.filter):
            summary = describe_operation(operation)
            text = f"{format_actor(operation.actor)} {summary}"
            yield to_micros(operation.created_at), text, f"/operations/{operation.id}"


def _steps(counts: Sequence[int], ago: str, last: str) -> list[tuple[str, Mapping[str, int]]]:
    steps: list[tuple[str, Mapping[str, int]]] = []
    for index, count in enumerate(counts):
        distance = len(counts) - 1 - index
        label = f"{distance} {ago}" if distance else last
        steps.append((label, {"dead": count}))
    return steps


def _sample(sample: FailureSample, title: str, now: Micros, root: str) -> dict[str, Any]:
    return {
        "job": sample.job,
        "name": shorten_id(sample.job),
        "link": f"{root}/jobs/{sample.job}",
        "at": time_label(to_micros(sample.at), now),
        "evidence": evidence_items(sample.evidence),
        "private": _private_texts(sample.private or {}, title),
        "trace": trace_parts(sample.private or {}),
        "trace_text": str((sample.private or {}).get("trace") or ""),
    }


def _private_texts(private: Mapping[str, Any], title: str) -> list[tuple[str, str]]:
    """Return the private part without the trace and without a message that the title repeats."""
    return [
        (name, text)
        for name, text in private_fields(private)
        if name != "trace" and not title.endswith(text)
    ]


def _mark(group: FailureGroup, now: Micros) -> str:
    """Describe who muted or resolved a group, in one sentence."""
    if group.marked_at is None:
        return ""
    when = time_label(to_micros(group.marked_at), now).ago
    sentence = f"{STATE_LABELS[group.state]} {when} by {format_actor(group.actor)}"
    if group.until is not None:
        sentence += f", ends {time_label(to_micros(group.until), now).ago}"
    if group.in_release:
        sentence += f", fixed in release {group.in_release}"
    if group.note:
        sentence += f": {group.note}"
    return sentence


def _recovered(group: FailureGroup) -> str:
    if group.recovered_share is None:
        return ""
    return f"{group.recovered:,} of {group.retried:,} manual retries recovered"


def _jobs_link(root: str, fingerprint: str, condition: str = "") -> str:
    text = f"state:dead group:{fingerprint} {condition}".strip()
    return f"{root}/jobs?{urlencode({'filter': text})}"
