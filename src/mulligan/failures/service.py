"""`app.failures`: dead jobs grouped by cause, and the marks that people set on the groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from mulligan.core.durations import Micros, resolve_end, to_micros
from mulligan.core.errors import DurationOrTime, NotFound, Refused
from mulligan.core.event import EventType, NewEvent
from mulligan.core.format import check_text
from mulligan.core.job import ALL_OWNERS, FailureGroupRow, State
from mulligan.events.queries import EventQueries
from mulligan.failures.group_reader import (
    MAX_RECOVERIES,
    FailureGroup,
    GroupReader,
    add_releases,
    held_since,
    selects_whole_groups,
)
from mulligan.failures.groups import (
    STATE_ORDER,
    GroupState,
)
from mulligan.failures.queries import FailureQueries
from mulligan.guards.gate_status import list_guarded_kinds
from mulligan.jobs.filter import ARGUMENT_PREFIX, INDEXED_PREFIX, Filter, Where, parse_filter
from mulligan.jobs.search import resolve_filter
from mulligan.releases.queries import ReleaseQueries
from mulligan.storage.base import Store, Transaction

MAX_LIST = 500
_MAX_CANDIDATES = 5  # fingerprints that an error lists
MAX_GROUPS = 2000  # a list reads the newest groups


class GroupList(list[FailureGroup]):
    """One page of groups. If there are `more`, pass `cursor` as `before` to get the next page."""

    more: bool = False
    cursor: str | None = None


class Failures:
    """`app.failures`: read failure groups, and mute, resolve or reopen them."""

    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._open = store
        self._actor = actor

    # --- Read ---

    def groups(
        self,
        filter: str = "",  # noqa: A002 - public name
        *,
        owner: str | None = None,
        limit: int = 100,
        before: str | None = None,
        private: bool = True,
        history: bool = False,
    ) -> GroupList:
        """List the groups with the newest deaths, those that need attention first.

        Without a filter the list includes causes for which a kind is held.

        - `owner`: only jobs of this owner, with the owner's marks.
        - `before`: the `cursor` of the previous page.
        - `private`: return the exceptions, and let quoted words search the private part too.
        - `history`: include causes without a dead job, such as recovered ones.
        """
        if not 1 <= limit <= MAX_LIST:
            message = f"limit must be between 1 and {MAX_LIST}, not {limit}"
            raise Refused(message)
        dead_jobs = _restrict_to_dead(parse_filter(filter), owner)
        with self._open().read() as tx:
            query = _GroupQuery(dead_jobs, owner, limit, before, private, history)
            return _list_groups(tx, query)

    def get(
        self,
        fingerprint: str,
        *,
        owner: str | None = None,
        private: bool = False,
        sample: str | None = None,
    ) -> FailureGroup:
        """Return one group.

        - `private`: include the exception, and message and trace of the sample; not for owners.
        - `sample`: id of the dead job to show, instead of the last one.
        """
        with self._open().read() as tx:
            return self._get_group(tx, fingerprint, owner, private=private, sample=sample)

    def complete_fingerprint(self, prefix: str, *, owner: str | None = None) -> str:
        """Return the fingerprint that begins with `prefix`."""
        with self._open().read() as tx:
            known = {name for name, _ in FailureQueries(tx).list_groups(owner, MAX_GROUPS)}
            known.update(FailureQueries(tx).list_group_states(_scope(owner)))
            if owner is None:
                known.update(name for name, _ in FailureQueries(tx).list_causes(MAX_GROUPS))
                known.update(kind.fingerprint for kind in list_guarded_kinds(tx))
        if not prefix or prefix in known:
            return prefix
        candidates = sorted(name for name in known if name.startswith(prefix))
        if len(candidates) > 1:
            listed = ", ".join(candidates[:_MAX_CANDIDATES])
            more = ", …" if len(candidates) > _MAX_CANDIDATES else ""
            message = (
                f"{prefix!r} begins more than one group: {listed}{more}. Type more characters."
            )
            raise NotFound(message)
        if not candidates:
            raise NotFound(f"no group of failures begins with {prefix!r}")
        return candidates[0]

    @staticmethod
    def _get_group(
        tx: Transaction,
        fingerprint: str,
        owner: str | None,
        *,
        private: bool = False,
        sample: str | None = None,
    ) -> FailureGroup:
        where: dict[str, str] = {"group": fingerprint}
        if owner is not None:
            where["owner"] = owner
        mark = FailureQueries(tx).get_group_state(_scope(owner), fingerprint)
        reader = GroupReader(tx, [fingerprint], where, owner, private=private)
        group = reader.read(fingerprint, mark)
        if (
            group.count
            or group.deaths
            or group.held
            or group.marked_at is not None
            or FailureQueries(tx).is_known_group(fingerprint, owner, MAX_RECOVERIES)
        ):
            group = replace(group, sample=reader.read_sample(fingerprint, sample, private=private))
            return add_releases(tx, group, reader.past(fingerprint))
        message = (
            f"unknown failure group {fingerprint!r}: it has no dead job and was never marked."
            ' Run "mulligan failures list" to see the groups.'
        )
        raise NotFound(message)

    # --- Mark ---

    def mute(
        self,
        fingerprint: str,
        *,
        until: DurationOrTime | None = None,
        reason: str = "",
        owner: str | None = None,
    ) -> FailureGroup:
        """Hide a known cause until `until`; without it, until `unmute`."""
        return self._mark(fingerprint, owner, "muted", reason, until)

    def unmute(
        self, fingerprint: str, *, reason: str = "", owner: str | None = None
    ) -> FailureGroup:
        """End a mute. A group that is not muted stays as it is."""
        return self._mark(fingerprint, owner, "open", reason, only_if=GroupState.MUTED)

    def resolve(
        self,
        fingerprint: str,
        *,
        in_release: str = "",
        note: str = "",
        owner: str | None = None,
    ) -> FailureGroup:
        """Record that the cause is fixed. If a job dies of it later, the group has regressed.

        - `in_release`: the release that has the fix, or "next" for the first one that is seen from
          now on. Deaths under older releases are no regression.
        """
        return self._mark(fingerprint, owner, "resolved", note, in_release=in_release)

    def reopen(
        self, fingerprint: str, *, reason: str = "", owner: str | None = None
    ) -> FailureGroup:
        """Set a muted or resolved group back to open."""
        return self._mark(fingerprint, owner, "open", reason)

    def assign(
        self, fingerprint: str, person: str, *, reason: str = "", owner: str | None = None
    ) -> FailureGroup:
        """Name the person who works on a cause; "" for nobody. Its other marks stay."""
        person = check_text("person", person)
        with self._open().begin() as tx:
            before = self._get_group(tx, fingerprint, owner)
            now = tx.now()
            mark = FailureQueries(tx).get_group_state(_scope(owner), fingerprint)
            if mark is None:
                mark = FailureGroupRow(
                    fingerprint, _scope(owner), "open", None, "", self._actor, now, None
                )
            FailureQueries(tx).write_group_state(mark._replace(assignee=person))
            after = self._get_group(tx, fingerprint, owner)
            data = {
                "fingerprint": fingerprint,
                "code": after.code,
                "reason": reason,
                "before": {**_mark_data(before), "assignee": before.assignee},
                "after": {**_mark_data(after), "assignee": person},
            }
            event = NewEvent(
                EventType.FAILURE_ASSIGNED, owner=after.owner or "", actor=self._actor, data=data
            )
            EventQueries(tx).write_events([event])
            return after

    def _mark(
        self,
        fingerprint: str,
        owner: str | None,
        state: str,
        note: str,
        until: DurationOrTime | None = None,
        *,
        only_if: GroupState | None = None,
        in_release: str = "",
    ) -> FailureGroup:
        with self._open().begin() as tx:
            if in_release:
                _check_release(tx, in_release)
            before = self._get_group(tx, fingerprint, owner)
            if only_if is not None and before.state is not only_if:
                return before
            now = tx.now()
            end = resolve_end("until", until, now)
            resolved_at = now if state == "resolved" else None
            known = FailureQueries(tx).get_group_state(_scope(owner), fingerprint)
            mark = FailureGroupRow(
                fingerprint,
                _scope(owner),
                state,
                end,
                note,
                self._actor,
                now,
                resolved_at,
                in_release,
                assignee="" if known is None else known.assignee,
            )
            FailureQueries(tx).write_group_state(mark)
            after = self._get_group(tx, fingerprint, owner)
            self._write_event(tx, mark, before, after)
            return after

    def _write_event(
        self, tx: Transaction, mark: FailureGroupRow, before: FailureGroup, after: FailureGroup
    ) -> None:
        data: dict[str, Any] = {
            "fingerprint": mark.fingerprint,
            "code": after.code,
            "until": mark.until,
            "note": mark.note,
            "reason": mark.note,
            "in_release": mark.in_release,
            "before": _mark_data(before),
            "after": _mark_data(after),
        }
        data = {name: value for name, value in data.items() if value not in (None, "")}
        owner = after.owner or ""
        EventQueries(tx).write_events(
            [NewEvent(_EVENTS[mark.state], owner=owner, actor=self._actor, data=data)]
        )


def _check_release(tx: Transaction, name: str) -> None:
    """Refuse a mark that could never end: without releases no death counts as a regression."""
    if not ReleaseQueries(tx).list_releases(limit=1):
        message = (
            f"in_release={name!r}: no worker has reported a release yet."
            " Set MULLIGAN_RELEASE for the workers, or resolve without a release."
        )
        raise Refused(message)


def _mark_data(group: FailureGroup) -> dict[str, Any]:
    until = None if group.until is None else to_micros(group.until)
    return {"state": group.state.value, "until": until, "note": group.note}


_EVENTS = {
    "muted": EventType.FAILURE_MUTED,
    "resolved": EventType.FAILURE_RESOLVED,
    "open": EventType.FAILURE_REOPENED,
}


# --- Lists ---


def _restrict_to_dead(filter_: Filter, owner: str | None) -> Filter:
    """Add the state and the owner to a filter. Refuse one that contradicts them."""
    dead = State.DEAD.value
    if filter_.get("state", dead) != dead or filter_.get("phase", dead) != dead:
        message = "groups are made of dead jobs. Remove state: and phase: from the filter."
        raise Refused(message)
    if owner is not None and filter_.get("owner", owner) != owner:
        message = f"filter owner:{filter_['owner']} does not match the owner {owner!r}"
        raise Refused(message)
    restricted = {**filter_, "state": dead}
    if owner is not None:
        restricted["owner"] = owner
    return restricted


class _GroupQuery(NamedTuple):
    """Arguments of `groups`, checked."""

    filter: Filter
    scope: str | None
    limit: int
    before: str | None
    private: bool
    history: bool


def _list_groups(tx: Transaction, query: _GroupQuery) -> GroupList:
    where = resolve_filter(tx, query.filter, query.scope, private=query.private)
    _refuse_unindexed(where)
    owner = where.get("owner")
    assert owner is None or isinstance(owner, str)  # noqa: S101 - a filter has one owner
    last_deaths = _list_fingerprints(tx, where, owner, history=query.history)
    page = GroupList()
    page.more = "group" not in where and len(last_deaths) >= MAX_GROUPS
    remaining = dict(_after_cursor(last_deaths, query.before))
    for group in _read_groups(tx, list(remaining), where, owner, query):
        if len(page) == query.limit:
            page.more = True
            page.cursor = _cursor(remaining, page[-1].fingerprint)
            break
        page.append(group)
    page.sort(key=_urgency)
    return page


def _urgency(group: FailureGroup) -> tuple[bool, int, int, str]:
    """Sort key of a list: held causes first, then by state and number of jobs."""
    return (
        not group.held,
        STATE_ORDER.index(group.state),
        -group.count,
        group.fingerprint,
    )


def _refuse_unindexed(where: Where) -> None:
    """Refuse a filter on an argument without index: groups are counted without reading payloads."""
    unindexed = next((name for name in where if name.startswith(ARGUMENT_PREFIX)), None)
    if unindexed is not None:
        path = unindexed.removeprefix(ARGUMENT_PREFIX)
        message = (
            f"filter {unindexed}: failure groups can be filtered by indexed arguments only."
            f' Declare @app.job(index=("{path}",)), or list the jobs with the same filter.'
        )
        raise Refused(message)


def _list_fingerprints(
    tx: Transaction, where: Where, owner: str | None, *, history: bool
) -> list[tuple[str, Micros]]:
    """Return (fingerprint, last death), the newest first.

    Groups that the filter names have no order; their times are 0.
    """
    named = where.get("group")
    if named is not None:
        return [(name, 0) for name in sorted([named] if isinstance(named, str) else named)]
    if any(name.startswith(INDEXED_PREFIX) for name in where):
        return FailureQueries(tx).list_groups_matching(where, MAX_GROUPS)
    last_deaths = dict(FailureQueries(tx).list_groups(owner, MAX_GROUPS))
    if selects_whole_groups(where):
        if history:
            past = FailureQueries(tx).list_causes(MAX_GROUPS)
            last_deaths = {**dict(past), **last_deaths}
        for kind in list_guarded_kinds(tx):
            last_deaths.setdefault(kind.fingerprint, held_since(kind))
    newest = sorted(last_deaths.items(), key=lambda pair: (-pair[1], pair[0]))
    return newest[:MAX_GROUPS]


def _after_cursor(
    last_deaths: list[tuple[str, Micros]], cursor: str | None
) -> list[tuple[str, Micros]]:
    """Return what follows the cursor, even if the group at the cursor has disappeared."""
    if cursor is None:
        return last_deaths
    last, _, name = cursor.partition(" ")
    if not last.isdecimal():
        message = f"invalid cursor {cursor!r:.80}. Use the cursor of the previous page."
        raise Refused(message)
    position = (-int(last), name)
    return [entry for entry in last_deaths if (-entry[1], entry[0]) > position]


def _cursor(last_deaths: Mapping[str, Micros], name: str) -> str:
    return f"{last_deaths[name]} {name}"


def _read_groups(
    tx: Transaction, names: list[str], where: Where, owner: str | None, query: _GroupQuery
) -> Iterator[FailureGroup]:
    """Yield the groups with a job that the filter matches, reading a page of groups at a time."""
    marks = FailureQueries(tx).list_group_states(_scope(owner))
    step = query.limit + 1
    for start in range(0, len(names), step):
        some = names[start : start + step]
        reader = GroupReader(tx, some, where, owner, private=query.private)
        for name in some:
            if name in reader.deaths or reader.is_held(name) or query.history:
                yield reader.read(name, marks.get(name))


def _scope(owner: str | None) -> str:
    return ALL_OWNERS if owner is None else owner
