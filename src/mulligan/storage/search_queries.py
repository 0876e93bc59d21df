"""Verbs that find jobs by a filter, newest first: all of them, or no more than a look at so many allows.

Whoever waits for the answer gets it soon, however many jobs there are: a skim passes 50,000 jobs at most, along the
index that promises to pass the fewest, and says where it stopped.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import SECOND
from mulligan.core.ids import first_id
from mulligan.core.job import JobRow, State
from mulligan.core.json import index_value, payload_substrings, scalar_text

# Which jobs are meant: a filter made into conditions, and the way by which such jobs are come by.

Where = Mapping[str, str | tuple[str, ...]]
Shape = tuple[tuple[str, int | tuple[str, ...]], ...]

DEAD_ONLY_FIELDS = ("code", "class", "group")  # known of no other job
LITERAL_FIELDS = ("state", "phase")
ARGUMENT_PREFIX, INDEXED_PREFIX = (
    "arg.",
    "indexed.",
)  # how arguments begin: to be read in each payload, to be found by an index
STATES_INDEXED_BY_ID = (
    State.DEAD.value,
    State.PARKED.value,
    State.CANCELLED.value,
)  # each has an index of its own, by id
ABOVE_ALL_IDS = "~"  # above every id
_STATE_OF = {
    "held": "queued",
    "scheduled": "queued",
    "backing_off": "queued",
    "stopping": "running",
}


class Conditions(NamedTuple):
    shape: Shape  # field, and how many values; or the values themselves where they are written out
    params: dict[str, Any]
    payload_checks: tuple[
        tuple[str, str], ...
    ] = ()  # path and text of what must still be compared in the payload


class SearchPlan(NamedTuple):
    """How jobs are come by: newest first along an index that these fields lead; or gathered by them, then sorted."""

    fields: tuple[str, ...] = ()
    gather: bool = False


ALL_JOBS = SearchPlan()  # along all jobs
BY_STATE = SearchPlan(("state",), gather=True)


def build_conditions(where: Where) -> Conditions:
    """Any of state, phase, kind, queue, owner, batch_id, since (a length in microseconds), from, code, class, group.

    And `near`: jobs that a word was found for, each "id:…" or "group:…"; `begun`: enqueued since this moment; `until`:
    as it was at this moment; `arg.…` and `index_entries.…`: arguments.
    """
    fields = expand_filter(where)
    shape: list[tuple[str, int | tuple[str, ...]]] = []
    params: dict[str, Any] = {}
    for name, values in sorted(fields.items()):
        if name in LITERAL_FIELDS:
            shape.append((name, tuple(sorted(values))))
        elif name == "near":
            shape.append((name, tuple(value.partition(":")[0] for value in values)))
            params |= {
                f"near_{place}": value.partition(":")[2] for place, value in enumerate(values)
            }
        elif not name.startswith((ARGUMENT_PREFIX, INDEXED_PREFIX)):
            shape.append((name, len(values)))
            params |= {f"{name}_{place}": value for place, value in enumerate(values)}
    args, said, reads = _arguments(fields)
    return Conditions((*shape, *args), params | said, reads)


def expand_filter(where: Where) -> dict[str, tuple[str, ...]]:
    """What was asked, and what follows from it."""
    fields = {
        name: (said,) if isinstance(said, str) else tuple(said) for name, said in where.items()
    }
    if any(name in fields for name in DEAD_ONLY_FIELDS):
        fields["state"] = tuple({*fields.get("state", (State.DEAD.value,))} & {State.DEAD.value})
    if "phase" in fields and "state" not in fields:
        fields["state"] = tuple({_STATE_OF.get(phase, phase) for phase in fields["phase"]})
    if "kind" not in fields:
        fields["others"] = ()
    return fields


def _arguments(
    fields: Mapping[str, tuple[str, ...]],
) -> tuple[Shape, dict[str, Any], tuple[tuple[str, str], ...]]:
    shape: list[tuple[str, int | tuple[str, ...]]] = []
    params: dict[str, Any] = {}
    reads: list[tuple[str, str]] = []
    for place, name in enumerate(
        sorted(name for name in fields if name.startswith(INDEXED_PREFIX))
    ):
        shape.append(("indexed", (f"indexed_{place}",)))
        said = {"name": name.removeprefix(INDEXED_PREFIX), "value": index_value(fields[name][0])}
        params |= {f"indexed_{place}_{part}": value for part, value in said.items()}
    for place, name in enumerate(
        sorted(name for name in fields if name.startswith(ARGUMENT_PREFIX))
    ):
        path, text = name.removeprefix(ARGUMENT_PREFIX), fields[name][0]
        found = {
            f"arg_{place}_{at}": needle for at, needle in enumerate(payload_substrings(path, text))
        }
        shape.append(("arg", tuple(found)))
        params |= found
        reads.append((path, text))
    return tuple(shape), params, tuple(reads)


# --- Ways ---
def choose_plan(where: Where) -> SearchPlan:
    """The one that promises to pass the fewest jobs. BY_STATE only if few are in these states, which we cannot know."""
    fields = expand_filter(where)
    if "near" in fields:
        return SearchPlan(("near",), gather=True)
    if any(name.startswith(INDEXED_PREFIX) for name in fields):
        return SearchPlan(("indexed",), gather=True)
    for name in ("group", "code"):
        if name in fields:
            return (
                SearchPlan(("state", name))
                if len(fields[name]) == 1
                else SearchPlan((name,), gather=True)
            )
    if "batch_id" in fields:
        return SearchPlan(("batch_id",))
    states = fields.get("state", (State.SUCCEEDED.value,))
    if len(states) == 1 and states[0] in STATES_INDEXED_BY_ID:
        return SearchPlan(("state",))
    reads = any(name.startswith(ARGUMENT_PREFIX) for name in fields)
    return plan_without_state(where) if State.SUCCEEDED.value in states or reads else BY_STATE


def plan_without_state(where: Where) -> SearchPlan:
    """The way where states are of no help."""
    return SearchPlan(("owner",)) if where.get("owner") else ALL_JOBS


def follow_plan(asked: Conditions, way: SearchPlan) -> Conditions:
    """The same jobs, found on this way and no other: conditions that do not lead it are not offered to an index.

    `from` is left to whoever says where to stop.
    """
    parts = [
        part for part in asked.shape if part[0] != "from"
    ]  # of two lower bounds a database may take the wrong one
    led = tuple(_led(part, way, first=_first(asked.shape, part)) for part in parts)
    return asked._replace(shape=led + _owned(way))


def _led(part: tuple[str, Any], way: SearchPlan, *, first: bool) -> tuple[str, Any]:
    name, values = part
    if way.gather and name in way.fields and first:
        return f"in.{name}", values
    return (name if name in way.fields and not way.gather else f"+{name}"), values


def _first(shape: Shape, part: tuple[str, Any]) -> bool:
    return next(one for one in shape if one[0] == part[0]) == part


def leading_conditions(asked: Conditions, way: SearchPlan) -> Conditions:
    """Only what leads the way: which jobs are passed on it."""
    kept_parts = tuple(part for part in asked.shape if part[0] in {*way.fields, "from"})
    return asked._replace(shape=kept_parts + _owned(way), payload_checks=())


def _owned(way: SearchPlan) -> Shape:
    """Only those that have an owner are in the index of owners, and it must be told so."""
    return (("owned", ()),) if way.fields == ("owner",) else ()


# Verbs that find jobs by a filter, newest first: all of them, or no more than a look at so many allows.

EXAMINED_LIMIT = 50_000
FIRST_EXAMINED = 2_000  # most answers are full after so many
PAYLOAD_PAGE = 1_000
SKEW = 86_400 * SECOND  # by so much the clock of whoever made an id may differ from ours


class BoundedPage(NamedTuple):
    rows: list[JobRow]
    stopped: str | None  # there are more jobs before this one, and nobody has looked at them


class BoundedCount(NamedTuple):
    jobs: int
    stopped: str | None


class ArgRow(NamedTuple):
    """An argument by which a job is found."""

    job_id: str
    kind: str
    name: str
    value: str


class SearchQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def list_jobs(self, where: Where, limit: int, before: str | None) -> list[JobRow]:
        """Newest first, however long it takes."""

    @abstractmethod
    def list_jobs_bounded(self, where: Where, limit: int, before: str | None) -> BoundedPage:
        """The same, but at most 50,000 jobs are looked at."""

    @abstractmethod
    def count_jobs(self, where: Where, cap: int) -> int:
        """How many `list_jobs` would find in all, stopping at `cap`."""

    @abstractmethod
    def count_jobs_bounded(self, where: Where, cap: int) -> BoundedCount:
        """How many `list_jobs_bounded` would find, stopping at `cap`."""

    @abstractmethod
    def count_jobs_by_state(self, cap: int) -> list[tuple[str, int]]:
        """Jobs per state, each stopping at `cap`."""

    @abstractmethod
    def write_args(self, rows: Sequence[ArgRow]) -> None:
        """Index what jobs carry; what is indexed already stays."""

    @abstractmethod
    def delete_args(self, ids: Sequence[str]) -> None:
        """As if these jobs had never been indexed."""


class SqlSearchQueries(SearchQueries):
    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def rows_matching(
        self, statement: str, conditions: Conditions, /, **params: Any
    ) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def array_param(self, ids: Sequence[str]) -> Any: ...

    # --- Pages ---
    def list_jobs(self, where: Where, limit: int, before: str | None) -> list[JobRow]:
        return self._skimmed(where, limit, before or ABOVE_ALL_IDS, None).rows

    def list_jobs_bounded(self, where: Where, limit: int, before: str | None) -> BoundedPage:
        return self._skimmed(where, limit, before or ABOVE_ALL_IDS, EXAMINED_LIMIT)

    def _skimmed(self, given: Where, limit: int, before: str, examined: int | None) -> BoundedPage:
        where = _bounded(given)
        way = self._way(where)
        found = self._look(
            where, ALL_JOBS if way == BY_STATE else way, limit, before, FIRST_EXAMINED
        )
        if len(found.rows) >= limit or found.stopped is None:
            return found
        return self._look(
            where, way, limit, before, examined, "list_jobs" if way.fields else "list_jobs_sparse"
        )

    def _look(
        self,
        where: Where,
        way: SearchPlan,
        limit: int,
        before: str,
        examined: int | None,
        verb: str = "list_jobs",
    ) -> BoundedPage:
        asked = build_conditions(where)
        floor = self._floor(asked, way, before, examined)
        rows: list[JobRow] = []
        for found in self._pages(
            verb, follow_plan(asked, way), limit, before, floor or _low(asked)
        ):
            rows += (row for row in map(JobRow._make, found) if _reads(row.payload, asked))
            if len(rows) >= limit:
                return BoundedPage(rows[:limit], None)
        return BoundedPage(rows, floor)

    def _pages(
        self, verb: str, asked: Conditions, most: int, before: str, floor: str
    ) -> Iterator[list[tuple[Any, ...]]]:
        """More than one only where a payload must still be read."""
        while True:
            found = self.rows_matching(verb, asked, before=before, floor=floor, limit=most)
            yield found
            if len(found) < most or not asked.payload_checks:
                return
            before = found[-1][0]

    # --- Counts ---
    def count_jobs(self, where: Where, cap: int) -> int:
        return self._counted(where, cap, None).jobs

    def count_jobs_bounded(self, where: Where, cap: int) -> BoundedCount:
        return self._counted(where, cap, EXAMINED_LIMIT)

    def count_jobs_by_state(self, cap: int) -> list[tuple[str, int]]:
        return [
            (state.value, self.count_jobs_bounded({"state": state.value}, cap).jobs)
            for state in State
        ]

    def _counted(self, given: Where, cap: int, examined: int | None) -> BoundedCount:
        where = _bounded(given)
        asked, fields = build_conditions(where), expand_filter(where)
        way = self._way(where)
        if way == BY_STATE or (fields.keys() == {"state", "others"} and len(fields["state"]) == 1):
            return BoundedCount(self._among(where, fields["state"], cap), None)
        floor = self._floor(asked, way, ABOVE_ALL_IDS, examined)
        count = self._number(follow_plan(asked, way), floor or _low(asked), cap)
        return BoundedCount(count, None if count >= cap else floor)

    def _among(self, where: Where, states: Sequence[str], cap: int) -> int:
        """In no order: the first index of such jobs will do."""
        left = cap
        for state in states:
            asked = follow_plan(build_conditions({**where, "state": state}), SearchPlan(("state",)))
            left -= int(
                self.rows_matching(
                    "count_jobs_unordered",
                    _by_lane(asked) if state == State.QUEUED else asked,
                    cap=left,
                )[0][0]
            )
        return cap - left

    def _number(self, asked: Conditions, floor: str, cap: int) -> int:
        if not asked.payload_checks:
            return int(
                self.rows_matching("count_jobs", asked, before=ABOVE_ALL_IDS, floor=floor, cap=cap)[
                    0
                ][0]
            )
        count = 0
        for found in self._pages("list_payloads", asked, PAYLOAD_PAGE, ABOVE_ALL_IDS, floor):
            count += sum(_reads(payload, asked) for _, payload in found)
            if count >= cap:
                return cap
        return count

    # --- Ways ---
    def _way(self, where: Where) -> SearchPlan:
        way = choose_plan(where)
        if way != BY_STATE or self._are_few(expand_filter(where)["state"]):
            return way
        return plan_without_state(where)

    def _are_few(self, states: Sequence[str]) -> bool:
        """In these states, so that all of them can be gathered."""
        left = EXAMINED_LIMIT
        for state in states:
            left -= int(
                self.rows_matching(
                    "count_jobs_unordered", Conditions((("state", (state,)),), {}), cap=left
                )[0][0]
            )
        return left > 0

    def _floor(
        self, asked: Conditions, way: SearchPlan, before: str, examined: int | None
    ) -> str | None:
        """The last of so many jobs on this way, if there are more."""
        if examined is None or (way.gather and way.fields != ("indexed",)):
            return None
        verb = "find_indexed_page_end" if way.gather else "find_page_end"
        found = self.rows_matching(
            verb, leading_conditions(asked, way), before=before, low=_low(asked), skip=examined - 1
        )
        return found[0][0] if len(found) > 1 else None

    # --- Arguments ---
    def write_args(self, rows: Sequence[ArgRow]) -> None:
        for row in rows:
            self.rows("write_arg", **row._asdict())

    def delete_args(self, ids: Sequence[str]) -> None:
        if ids:
            self.rows("delete_args", ids=self.array_param(ids))


def _bounded(where: Where) -> Where:
    """Ids are made in the order of time: what was enqueued since then has none below this one."""
    since = where.get("since")
    if not isinstance(since, str):
        return where
    return {**where, "from": first_id((time.time_ns() // 1000 - int(since) - SKEW) // 1000)}


def _by_lane(asked: Conditions) -> Conditions:
    """Which are our own kinds is told by the lane."""
    return asked._replace(
        shape=tuple(
            ("waiting_others", said) if name == "+others" else (name, said)
            for name, said in asked.shape
        )
    )


def _low(asked: Conditions) -> str:
    """No job below it is meant."""
    return str(asked.params.get("from_0", ""))


def _reads(payload: str, asked: Conditions) -> bool:
    """Does it say, at each path, just this?"""
    if not asked.payload_checks:
        return True
    value = json.loads(payload)
    return all(scalar_text(value, path) == text for path, text in asked.payload_checks)
