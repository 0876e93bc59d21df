"""`app.failures`: dead jobs grouped by what they died of, and what people say about each group."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from mulligan.core.durations import ended_at, moment_of
from mulligan.core.errors import Moment, NotFound, Refused
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import AttemptRow, JobRow, MarkRow, Micros, State, to_micros
from mulligan.core.statistics import Deaths
from mulligan.failures.groups import BEYOND, EVERYBODY, ORDER, GroupState, folded, share, standing
from mulligan.jobs.filter import Filter, parse_filter
from mulligan.jobs.search import resolved
from mulligan.jobs.service import COUNT_MOST
from mulligan.storage.base import Store, Transaction
from mulligan.storage.search_queries import INDEXED, READ, Where

LIST_MOST = 500
NAMED = 5
LOOKED = 2000  # groups a list looks at, the newest
RECOVERY_LOOKED = 1000  # deaths, the newest
NOBODY = Deaths([], [], None, None)


@dataclass(frozen=True, slots=True)
class FailureSample:
    """The job of a group that died last."""

    job: str
    kind: str
    owner: str
    at: datetime
    code: str
    message: str  # the public one
    evidence: Mapping[str, Any] = field(default_factory=dict)
    private: Mapping[str, Any] | None = (
        None  # message, trace and so on; only where it was asked for
    )


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Dead jobs that died of one cause, at one moment. All numbers describe the same jobs."""

    fingerprint: str
    owner: str | None  # None: of all owners together
    state: GroupState
    count: int
    capped: bool  # there may be more: counting stops at 10,000, with the newest
    code: str  # that of most of them
    cls: str
    kinds: Mapping[str, int]
    codes: Mapping[str, int]
    first_seen: datetime | None
    last_seen: datetime | None
    hourly: tuple[int, ...]  # deaths in each of the last 24 hours, this one at the end
    daily: tuple[int, ...]  # in each of the last 14 days
    retried: int  # of the newest 1,000 deaths: retried by hand, and ended since
    recovered: int  # of those: succeeded
    until: datetime | None  # of muted
    note: str
    actor: str
    marked_at: datetime | None  # when somebody last said something
    resolved_at: datetime | None
    sample: FailureSample | None

    @property
    def message(self) -> str:
        return "" if self.sample is None else self.sample.message

    @property
    def recovered_share(self) -> float | None:
        """None: nobody has tried yet."""
        return share(self.recovered, self.retried)


class GroupList(list[FailureGroup]):
    """Groups, and whether there are `more` than were asked for. `cursor`: say it as `before` for those."""

    more: bool = False
    cursor: str | None = None


class Failures:
    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._open = store
        self._actor = actor

    # -- read -------------------------------------------------------------------------------------
    def groups(
        self,
        filter: str = "",  # noqa: A002 - CONTRACT's name
        *,
        owner: str | None = None,
        limit: int = 100,
        before: str | None = None,
        private: bool = True,
    ) -> GroupList:
        """Those in which a job died last; of them those that need somebody first, then the largest.

        `owner`: of their jobs only, with what they have said. `before`: the `cursor` of the page above. `private`: may
        words in quotes find what only the private half says?
        """
        if not 1 <= limit <= LIST_MOST:
            message = f"limit must be from 1 to {LIST_MOST}, not {limit}"
            raise Refused(message)
        asked = _of_the_dead(parse_filter(filter), owner)
        with self._open().read() as unit:
            return _list(unit, asked, owner, limit, before, private=private)

    def get(
        self, fingerprint: str, *, owner: str | None = None, private: bool = False
    ) -> FailureGroup:
        """`private`: with message and trace of the sample, which are not for owners."""
        with self._open().read() as unit:
            return self._found(unit, fingerprint, owner, private=private)

    def resolve_name(self, prefix: str, *, owner: str | None = None) -> str:
        """A whole fingerprint, from as many of its first characters as make it unique."""
        with self._open().read() as unit:
            known = {name for name, _ in unit.group_names(owner, LOOKED)} | set(
                unit.marks(_scope(owner))
            )
        found = sorted(name for name in known if name.startswith(prefix)) if prefix else []
        if prefix in known or len(found) == 1:
            return prefix if prefix in known else found[0]
        if found:
            more = ", …" if len(found) > NAMED else ""
            message = f"{prefix!r} begins more than one group: {', '.join(found[:NAMED])}{more}; give more of it"
            raise NotFound(message)
        return prefix

    @staticmethod
    def _found(
        unit: Transaction, fingerprint: str, owner: str | None, *, private: bool = False
    ) -> FailureGroup:
        where: dict[str, str] = {"group": fingerprint} | ({} if owner is None else {"owner": owner})
        mark = unit.mark(_scope(owner), fingerprint)
        picture = _Picture(unit, [fingerprint], where, owner, unit.now())
        group = picture.group(fingerprint, mark, private=private)
        if (
            group.count
            or group.marked_at is not None
            or unit.group_known(fingerprint, owner, RECOVERY_LOOKED)
        ):
            return group
        message = f"no failure group {fingerprint!r}: no job is dead of it, and nobody has said anything about it"
        raise NotFound(message)

    # -- by hand ----------------------------------------------------------------------------------
    def mute(
        self,
        fingerprint: str,
        *,
        until: Moment | None = None,
        reason: str = "",
        owner: str | None = None,
    ) -> FailureGroup:
        """Known, and not worth a look until then (without `until`: until `unmute`)."""
        return self._say(fingerprint, owner, "muted", reason, until)

    def unmute(
        self, fingerprint: str, *, reason: str = "", owner: str | None = None
    ) -> FailureGroup:
        """A group that is not muted stays as it is."""
        return self._say(fingerprint, owner, "open", reason, unless=GroupState.MUTED)

    def resolve(
        self, fingerprint: str, *, note: str = "", owner: str | None = None
    ) -> FailureGroup:
        """The cause is gone. If a job dies of it from now on, the group has regressed."""
        return self._say(fingerprint, owner, "resolved", note)

    def reopen(
        self, fingerprint: str, *, reason: str = "", owner: str | None = None
    ) -> FailureGroup:
        """Neither muted nor resolved any more."""
        return self._say(fingerprint, owner, "open", reason)

    def _say(
        self,
        fingerprint: str,
        owner: str | None,
        state: str,
        note: str,
        until: Moment | None = None,
        *,
        unless: GroupState | None = None,
    ) -> FailureGroup:
        with self._open().begin() as unit:
            before = self._found(unit, fingerprint, owner)
            if unless is not None and before.state is not unless:
                return before
            now = unit.now()
            end = ended_at("until", until, now)
            resolved_at = now if state == "resolved" else None
            mark = MarkRow(
                fingerprint, _scope(owner), state, end, note, self._actor, now, resolved_at
            )
            unit.write_mark(mark)
            after = self._found(unit, fingerprint, owner)
            self._tell(unit, mark, before, after)
            return after

    def _tell(
        self, unit: Transaction, mark: MarkRow, before: FailureGroup, after: FailureGroup
    ) -> None:
        news: dict[str, Any] = {
            "fingerprint": mark.fingerprint,
            "code": after.code,
            "until": mark.until,
            "note": mark.note,
            "reason": mark.note,
            "before": _said(before),
            "after": _said(after),
        }
        said = {name: value for name, value in news.items() if value not in (None, "")}
        unit.write_events(
            [NewEvent(_EVENTS[mark.state], owner=after.owner or "", actor=self._actor, data=said)]
        )


def _said(group: FailureGroup) -> dict[str, Any]:
    until = None if group.until is None else to_micros(group.until)
    return {"state": group.state.value, "until": until, "note": group.note}


_EVENTS = {
    "muted": EventType.FAILURE_MUTED,
    "resolved": EventType.FAILURE_RESOLVED,
    "open": EventType.FAILURE_REOPENED,
}


# -- the picture ------------------------------------------------------------------------------------
def _of_the_dead(asked: Filter, owner: str | None) -> Filter:
    states = asked.get("state", State.DEAD.value)
    if states != State.DEAD.value or asked.get("phase", State.DEAD.value) != State.DEAD.value:
        message = "groups are made of dead jobs; leave state: and phase: out of the filter"
        raise Refused(message)
    if owner is not None and asked.get("owner", owner) != owner:
        message = (
            f"the filter asks for owner:{asked['owner']}, and only jobs of {owner!r} are looked at"
        )
        raise Refused(message)
    return {**asked, "state": State.DEAD.value} | ({} if owner is None else {"owner": owner})


def _list(
    unit: Transaction,
    asked: Filter,
    scope: str | None,
    limit: int,
    before: str | None,
    *,
    private: bool,
) -> GroupList:
    where = resolved(unit, asked, scope, private=private)
    _must_be_indexed(where)
    owner = where.get("owner")
    assert owner is None or isinstance(owner, str)  # noqa: S101 - a filter has one
    found = GroupList()
    ordered = _names(unit, where, owner)
    found.more = "group" not in where and len(ordered) >= LOOKED
    places = dict(_after(ordered, before))
    for group in _pictured(unit, list(places), where, owner, limit + 1):
        if len(found) == limit:
            found.more, found.cursor = True, _place(places, found[-1].fingerprint)
            break
        found.append(group)
    found.sort(key=lambda group: (ORDER.index(group.state), -group.count, group.fingerprint))
    return found


def _must_be_indexed(where: Where) -> None:
    """A group is counted by its indexes alone, and no payload is read."""
    unread = next((name for name in where if name.startswith(READ)), None)
    if unread is not None:
        path = unread.removeprefix(READ)
        message = (
            f'filter {unread}: groups are found by indexed arguments only; declare @app.job(index=("{path}",)), or ask '
            "for the jobs themselves with the same filter"
        )
        raise Refused(message)


def _names(unit: Transaction, where: Where, owner: str | None) -> list[tuple[str, Micros]]:
    """With their last deaths, the newest first; those the filter names, if it does, each as good as another."""
    named = where.get("group")
    if named is not None:
        return [(name, 0) for name in sorted([named] if isinstance(named, str) else named)]
    if any(name.startswith(INDEXED) for name in where):
        return unit.group_names_found(where, LOOKED)
    return unit.group_names(owner, LOOKED)


def _after(ordered: list[tuple[str, Micros]], before: str | None) -> list[tuple[str, Micros]]:
    """What comes behind that place, whether the group that had it is still there or not."""
    if before is None:
        return ordered
    last, _, name = before.partition(" ")
    if not last.isdecimal():
        message = f"before {before!r:.80} is no cursor of such a list"
        raise Refused(message)
    return [one for one in ordered if (-one[1], one[0]) > (-int(last), name)]


def _place(places: Mapping[str, Micros], name: str) -> str:
    return f"{places[name]} {name}"


def _pictured(
    unit: Transaction, names: list[str], where: Where, owner: str | None, step: int
) -> Iterator[FailureGroup]:
    """Those that have a job the filter finds; asked of so many at a time."""
    marks, now = unit.marks(_scope(owner)), unit.now()
    for start in range(0, len(names), step):
        some = names[start : start + step]
        picture = _Picture(unit, some, where, owner, now)
        yield from (picture.group(name, marks.get(name)) for name in some if name in picture.deaths)


class _Picture:
    """Some groups at one moment, one question each for all of them."""

    def __init__(
        self, unit: Transaction, names: list[str], where: Where, owner: str | None, now: Micros
    ) -> None:
        self._unit, self._owner, self._now = unit, owner, now
        self.deaths = unit.group_deaths(names, where, now, BEYOND, COUNT_MOST)
        self._samples = unit.group_samples(list(self.deaths), where)
        self._recovered = unit.group_recovered(names, owner, RECOVERY_LOOKED)

    def group(self, name: str, mark: MarkRow | None, *, private: bool = False) -> FailureGroup:
        members = folded(self.deaths.get(name, NOBODY))
        state = standing(mark, members.first, members.last, self._now)
        retried, recovered = self._recovered.get(name, (0, 0))
        return FailureGroup(
            fingerprint=name,
            owner=self._owner,
            state=state,
            count=members.count,
            capped=members.count >= COUNT_MOST,
            code=_main(members.codes),
            cls=_main(members.classes),
            kinds=members.kinds,
            codes=members.codes,
            first_seen=moment_of(members.first),
            last_seen=moment_of(members.last),
            hourly=members.hourly,
            daily=members.daily,
            retried=retried,
            recovered=recovered,
            until=moment_of(mark.until) if mark is not None and state is GroupState.MUTED else None,
            note="" if mark is None else mark.note,
            actor="" if mark is None else mark.actor,
            marked_at=None if mark is None else moment_of(mark.at),
            resolved_at=None if mark is None else moment_of(mark.resolved_at),
            sample=self._sample(name, private=private),
        )

    def _sample(self, name: str, *, private: bool) -> FailureSample | None:
        row = self._samples.get(name)
        if row is None:
            return None
        return _sample(row, _attempt(self._unit, row) if private else None, private=private)


def _attempt(unit: Transaction, row: JobRow) -> AttemptRow | None:
    """The one it died with; a deadline that passed while it waited has none."""
    attempt = unit.latest_attempts([row.id]).get(row.id)
    return attempt if attempt is not None and attempt.verb == "die" else None


def _sample(row: JobRow, attempt: AttemptRow | None, *, private: bool) -> FailureSample:
    error = json.loads(row.error or "{}")
    return FailureSample(
        job=row.id,
        kind=row.kind,
        owner=row.owner,
        at=_moment(row.finished_at),
        code=str(error.get("code", "")),
        message=str(error.get("message", "")),
        evidence={
            name: value
            for name, value in error.items()
            if name not in {"code", "class", "message", "rule"}
        },
        private=None
        if not private
        else json.loads((attempt.private if attempt is not None else None) or "{}"),
    )


def _moment(at: Micros | None) -> datetime:
    found = moment_of(at or 0)
    assert found is not None  # noqa: S101 - a dead job has ended
    return found


def _main(counted: Mapping[str, int]) -> str:
    return next(iter(counted), "")


def _scope(owner: str | None) -> str:
    return EVERYBODY if owner is None else owner


class AsyncFailures:
    """The same, awaitable: each call on a thread."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures

    async def groups(
        self,
        filter: str = "",  # noqa: A002
        *,
        owner: str | None = None,
        limit: int = 100,
        before: str | None = None,
        private: bool = True,
    ) -> GroupList:
        said: dict[str, Any] = {
            "owner": owner,
            "limit": limit,
            "before": before,
            "private": private,
        }
        return await asyncio.to_thread(partial(self._failures.groups, filter, **said))

    async def get(
        self, fingerprint: str, *, owner: str | None = None, private: bool = False
    ) -> FailureGroup:
        return await asyncio.to_thread(
            self._failures.get, fingerprint, owner=owner, private=private
        )

    async def mute(
        self,
        fingerprint: str,
        *,
        until: Moment | None = None,
        reason: str = "",
        owner: str | None = None,
    ) -> FailureGroup:
        return await asyncio.to_thread(
            self._failures.mute, fingerprint, until=until, reason=reason, owner=owner
        )

    async def unmute(
        self, fingerprint: str, *, reason: str = "", owner: str | None = None
    ) -> FailureGroup:
        return await asyncio.to_thread(
            self._failures.unmute, fingerprint, reason=reason, owner=owner
        )

    async def resolve(
        self, fingerprint: str, *, note: str = "", owner: str | None = None
    ) -> FailureGroup:
        return await asyncio.to_thread(self._failures.resolve, fingerprint, note=note, owner=owner)

    async def reopen(
        self, fingerprint: str, *, reason: str = "", owner: str | None = None
    ) -> FailureGroup:
        return await asyncio.to_thread(
            self._failures.reopen, fingerprint, reason=reason, owner=owner
        )
