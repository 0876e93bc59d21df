"""Statements that find jobs by a filter, newest first, with or without a bound on the work.

A person who waits for a result gets it soon, however many jobs there are: a bounded search examines
at most 50,000 jobs along the index that promises to pass the fewest, and returns where it stopped.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.core.ids import MAX_CLOCK_SKEW, first_id
from mulligan.core.job import JobRow, State
from mulligan.core.json import index_value, payload_substrings, scalar_text

# --- Conditions of a filter ---

Where = Mapping[str, str | tuple[str, ...]]  # field → value, or any of several values
# Field → number of values, or the values themselves if they are part of the statement's text.
Shape = tuple[tuple[str, int | tuple[str, ...]], ...]

DEAD_ONLY_FIELDS = ("code", "class", "group")  # fields that only dead jobs have
LITERAL_FIELDS = ("state", "phase")  # fields whose values are part of the statement's text
ARGUMENT_PREFIX = "arg."  # argument to compare in the payload
INDEXED_PREFIX = "indexed."  # argument to find by the index of arguments
# States that each have an index of their own, by id.
STATES_INDEXED_BY_ID = (State.DEAD.value, State.PARKED.value, State.CANCELLED.value)
ABOVE_ALL_IDS = "~"
_STATE_OF_PHASE = {
    "held": "queued",
    "scheduled": "queued",
    "backing_off": "queued",
    "stopping": "running",
}


class Conditions(NamedTuple):
    """SQL conditions of a filter."""

    shape: Shape
    params: dict[str, Any]
    # (path, text) of arguments that must still be compared in the decoded payload.
    payload_checks: tuple[tuple[str, str], ...] = ()


def build_conditions(where: Where) -> Conditions:
    """Build conditions from a filter.

    Fields: state, phase, kind, queue, owner, batch_id, since (a duration), from, code, class,
    group, `near` (search results, "id:…" or "group:…"), `begun` (enqueued since a time), `until`
    (unchanged since a time), `arg.…` and `indexed.…` (arguments).
    """
    fields = expand_filter(where)
    shape: list[tuple[str, int | tuple[str, ...]]] = []
    params: dict[str, Any] = {}
    for name, values in sorted(fields.items()):
        if name in LITERAL_FIELDS:
            shape.append((name, tuple(sorted(values))))
        elif name == "near":
            pairs = [value.partition(":") for value in values]
            shape.append((name, tuple(kind for kind, _, _ in pairs)))
            params |= {f"near_{place}": text for place, (_, _, text) in enumerate(pairs)}
        elif not name.startswith((ARGUMENT_PREFIX, INDEXED_PREFIX)):
            shape.append((name, len(values)))
            params |= {f"{name}_{place}": value for place, value in enumerate(values)}
    arguments = _argument_conditions(fields)
    return Conditions(
        (*shape, *arguments.shape), params | arguments.params, arguments.payload_checks
    )


def expand_filter(where: Where) -> dict[str, tuple[str, ...]]:
    """Return all values as tuples, with the fields that follow from others."""
    fields = {}
    for name, value in where.items():
        fields[name] = (value,) if isinstance(value, str) else tuple(value)
    if any(name in fields for name in DEAD_ONLY_FIELDS):
        dead = State.DEAD.value
        fields["state"] = (dead,) if dead in fields.get("state", (dead,)) else ()
    if "phase" in fields and "state" not in fields:
        states = {_STATE_OF_PHASE.get(phase, phase) for phase in fields["phase"]}
        fields["state"] = tuple(states)
    if "kind" not in fields:
        fields["others"] = ()  # all kinds but Mulligan's own
    return fields


def _argument_conditions(fields: Mapping[str, tuple[str, ...]]) -> Conditions:
    shape: list[tuple[str, int | tuple[str, ...]]] = []
    params: dict[str, Any] = {}
    checks: list[tuple[str, str]] = []
    for place, name in enumerate(_names_with(fields, INDEXED_PREFIX)):
        parameter = f"indexed_{place}"
        shape.append(("indexed", (parameter,)))
        params[f"{parameter}_name"] = name.removeprefix(INDEXED_PREFIX)
        params[f"{parameter}_value"] = index_value(fields[name][0])
    for place, name in enumerate(_names_with(fields, ARGUMENT_PREFIX)):
        path = name.removeprefix(ARGUMENT_PREFIX)
        text = fields[name][0]
        substrings = payload_substrings(path, text)
        found = {f"arg_{place}_{number}": part for number, part in enumerate(substrings)}
        shape.append(("arg", tuple(found)))
        params |= found
        checks.append((path, text))
    return Conditions(tuple(shape), params, tuple(checks))


def _names_with(fields: Mapping[str, Any], prefix: str) -> list[str]:
    return sorted(name for name in fields if name.startswith(prefix))


# --- Plans: which index a search follows ---


class SearchPlan(NamedTuple):
    """Walk an index that starts with these fields, newest first; or gather ids by them and sort."""

    fields: tuple[str, ...] = ()
    gather: bool = False


ALL_JOBS = SearchPlan()
BY_STATE = SearchPlan(("state",), gather=True)


def choose_plan(where: Where) -> SearchPlan:
    """Return the plan that promises to pass the fewest jobs.

    BY_STATE is good only if few jobs are in these states; the caller must count them.
    """
    fields = expand_filter(where)
    if "near" in fields:
        return SearchPlan(("near",), gather=True)
    if _names_with(fields, INDEXED_PREFIX):
        return SearchPlan(("indexed",), gather=True)
    for name in ("group", "code"):
        if name in fields:
            one_value = len(fields[name]) == 1
            return SearchPlan(("state", name)) if one_value else SearchPlan((name,), gather=True)
    if "batch_id" in fields:
        return SearchPlan(("batch_id",))
    states = fields.get("state", (State.SUCCEEDED.value,))
    if len(states) == 1 and states[0] in STATES_INDEXED_BY_ID:
        return SearchPlan(("state",))
    if State.SUCCEEDED.value in states or _names_with(fields, ARGUMENT_PREFIX):
        return plan_without_state(where)
    return BY_STATE


def plan_without_state(where: Where) -> SearchPlan:
    """Return the plan if the states of the filter are too common."""
    return SearchPlan(("owner",)) if where.get("owner") else ALL_JOBS


def follow_plan(conditions: Conditions, plan: SearchPlan) -> Conditions:
    """Make the database follow a plan: hide all other conditions from its indexes.

    `from` is dropped; the caller passes the lower bound. With two lower bounds a database may use
    the wrong one.
    """
    parts = [part for part in conditions.shape if part[0] != "from"]
    shape = tuple(_plan_part(part, plan, conditions.shape) for part in parts)
    return conditions._replace(shape=shape + _owner_condition(plan))


def _plan_part(part: tuple[str, Any], plan: SearchPlan, shape: Shape) -> tuple[str, Any]:
    name, values = part
    if name not in plan.fields:
        return f"+{name}", values
    if not plan.gather:
        return name, values
    is_first = next(one for one in shape if one[0] == name) == part
    return (f"in.{name}" if is_first else f"+{name}"), values


def leading_conditions(conditions: Conditions, plan: SearchPlan) -> Conditions:
    """Return only the conditions that the plan's index answers: the jobs that it passes."""
    leading = tuple(part for part in conditions.shape if part[0] in {*plan.fields, "from"})
    return conditions._replace(shape=leading + _owner_condition(plan), payload_checks=())


def _owner_condition(plan: SearchPlan) -> Shape:
    """Return the condition of the partial index of owners, which the planner must see."""
    return (("owned", ()),) if plan.fields == ("owner",) else ()


# --- Search ---

EXAMINED_LIMIT = 50_000
FIRST_EXAMINED = 2_000  # most pages are full after so many jobs
PAYLOAD_PAGE = 1_000


class BoundedPage(NamedTuple):
    """Page of a search that may have stopped early."""

    rows: list[JobRow]
    stopped: str | None  # jobs below this id were not examined


class BoundedCount(NamedTuple):
    """Count of a search that may have stopped early."""

    jobs: int
    stopped: str | None


class ArgRow(NamedTuple):
    """Indexed argument of a job."""

    job_id: str
    kind: str
    name: str
    value: str


class SearchQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def list_jobs(self, where: Where, limit: int, before: str | None) -> list[JobRow]:
        """List matching jobs, newest first, however long it takes."""

    @abstractmethod
    def list_jobs_bounded(self, where: Where, limit: int, before: str | None) -> BoundedPage:
        """List matching jobs, newest first. Examines at most EXAMINED_LIMIT jobs."""

    @abstractmethod
    def count_jobs(self, where: Where, cap: int) -> int:
        """Count matching jobs up to `cap`, however long it takes."""

    @abstractmethod
    def count_jobs_bounded(self, where: Where, cap: int) -> BoundedCount:
        """Count matching jobs up to `cap`. Examines at most EXAMINED_LIMIT jobs."""

    @abstractmethod
    def count_jobs_by_state(self, cap: int) -> list[tuple[str, int]]:
        """Count the jobs of each state up to `cap`."""

    @abstractmethod
    def write_args(self, rows: Sequence[ArgRow]) -> None:
        """Index arguments of jobs. Existing entries stay."""

    @abstractmethod
    def delete_args(self, ids: Sequence[str]) -> None:
        """Remove jobs from the index of arguments."""


class SqlSearchQueries(SearchQueries):
    """SearchQueries in SQL."""

    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def rows_matching(
        self, statement: str, conditions: Conditions, /, **params: Any
    ) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def array_param(self, values: Sequence[str]) -> Any: ...

    # --- Pages ---
    def list_jobs(self, where: Where, limit: int, before: str | None) -> list[JobRow]:
        return self._search(where, limit, before or ABOVE_ALL_IDS, None).rows

    def list_jobs_bounded(self, where: Where, limit: int, before: str | None) -> BoundedPage:
        return self._search(where, limit, before or ABOVE_ALL_IDS, EXAMINED_LIMIT)

    def _search(
        self, where: Where, limit: int, before: str, examined_limit: int | None
    ) -> BoundedPage:
        """Try a short walk first, which usually fills the page, then the chosen plan."""
        where = _add_lower_bound(where)
        plan = self._choose_plan(where)
        first_plan = ALL_JOBS if plan == BY_STATE else plan
        page = self._search_with(where, first_plan, limit, before, FIRST_EXAMINED)
        if len(page.rows) >= limit or page.stopped is None:
            return page
        statement = "list_jobs" if plan.fields else "list_jobs_sparse"
        return self._search_with(where, plan, limit, before, examined_limit, statement)

    def _search_with(
        self,
        where: Where,
        plan: SearchPlan,
        limit: int,
        before: str,
        examined_limit: int | None,
        statement: str = "list_jobs",
    ) -> BoundedPage:
        conditions = build_conditions(where)
        end = self._find_end(conditions, plan, before, examined_limit)
        floor = end or _lower_bound(conditions)
        rows: list[JobRow] = []
        planned = follow_plan(conditions, plan)
        for page in self._pages(statement, planned, limit, before, floor):
            jobs = map(JobRow._make, page)
            rows += (job for job in jobs if _payload_matches(job.payload, conditions))
            if len(rows) >= limit:
                return BoundedPage(rows[:limit], None)
        return BoundedPage(rows, end)

    def _pages(
        self, statement: str, conditions: Conditions, limit: int, before: str, floor: str
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield pages of rows. More than one only if payloads must still be compared."""
        while True:
            page = self.rows_matching(
                statement, conditions, before=before, floor=floor, limit=limit
            )
            yield page
            if len(page) < limit or not conditions.payload_checks:
                return
            before = page[-1][0]

    # --- Counts ---
    def count_jobs(self, where: Where, cap: int) -> int:
        return self._count(where, cap, None).jobs

    def count_jobs_bounded(self, where: Where, cap: int) -> BoundedCount:
        return self._count(where, cap, EXAMINED_LIMIT)

    def count_jobs_by_state(self, cap: int) -> list[tuple[str, int]]:
        counts = []
        for state in State:
            counted = self.count_jobs_bounded({"state": state.value}, cap)
            counts.append((state.value, counted.jobs))
        return counts

    def _count(self, where: Where, cap: int, examined_limit: int | None) -> BoundedCount:
        where = _add_lower_bound(where)
        conditions = build_conditions(where)
        fields = expand_filter(where)
        plan = self._choose_plan(where)
        only_one_state = fields.keys() == {"state", "others"} and len(fields["state"]) == 1
        if plan == BY_STATE or only_one_state:
            return BoundedCount(self._count_states(where, fields["state"], cap), None)
        end = self._find_end(conditions, plan, ABOVE_ALL_IDS, examined_limit)
        floor = end or _lower_bound(conditions)
        count = self._count_range(follow_plan(conditions, plan), floor, cap)
        return BoundedCount(count, None if count >= cap else end)

    def _count_states(self, where: Where, states: Sequence[str], cap: int) -> int:
        """Count jobs in states. Without an order, the database may use any index."""
        remaining = cap
        for state in states:
            conditions = build_conditions({**where, "state": state})
            planned = follow_plan(conditions, SearchPlan(("state",)))
            if state == State.QUEUED:
                planned = _compare_lane(planned)
            remaining -= self._count_unordered(planned, remaining)
        return cap - remaining

    def _count_unordered(self, conditions: Conditions, cap: int) -> int:
        return int(self.rows_matching("count_jobs_unordered", conditions, cap=cap)[0][0])

    def _count_range(self, conditions: Conditions, floor: str, cap: int) -> int:
        if not conditions.payload_checks:
            rows = self.rows_matching(
                "count_jobs", conditions, before=ABOVE_ALL_IDS, floor=floor, cap=cap
            )
            return int(rows[0][0])
        count = 0
        pages = self._pages("list_payloads", conditions, PAYLOAD_PAGE, ABOVE_ALL_IDS, floor)
        for page in pages:
            count += sum(_payload_matches(payload, conditions) for _, payload in page)
            if count >= cap:
                return cap
        return count

    # --- Plans ---
    def _choose_plan(self, where: Where) -> SearchPlan:
        plan = choose_plan(where)
        if plan == BY_STATE and not self._are_few(expand_filter(where)["state"]):
            return plan_without_state(where)
        return plan

    def _are_few(self, states: Sequence[str]) -> bool:
        """True if so few jobs are in these states that all of them can be gathered."""
        remaining = EXAMINED_LIMIT
        for state in states:
            conditions = Conditions((("state", (state,)),), {})
            remaining -= self._count_unordered(conditions, remaining)
        return remaining > 0

    def _find_end(
        self, conditions: Conditions, plan: SearchPlan, before: str, examined_limit: int | None
    ) -> str | None:
        """Return the id of the last job to examine. None: the plan does not pass so many."""
        if examined_limit is None or (plan.gather and plan.fields != ("indexed",)):
            return None
        statement = "find_indexed_page_end" if plan.gather else "find_page_end"
        found = self.rows_matching(
            statement,
            leading_conditions(conditions, plan),
            before=before,
            low=_lower_bound(conditions),
            skip=examined_limit - 1,
        )
        return found[0][0] if len(found) > 1 else None

    # --- Arguments ---
    def delete_args(self, ids: Sequence[str]) -> None:
        if ids:
            self.rows("delete_args", ids=self.array_param(ids))


def _add_lower_bound(where: Where) -> Where:
    """Add the lowest possible id of jobs enqueued `since`, because ids contain their time."""
    since = where.get("since")
    if not isinstance(since, str):
        return where
    oldest = time.time_ns() // 1000 - int(since) - MAX_CLOCK_SKEW
    return {**where, "from": first_id(oldest // 1000)}


def _compare_lane(conditions: Conditions) -> Conditions:
    """Recognise Mulligan's own kinds by the lane, which is in the index of queued jobs."""
    shape = tuple(
        ("waiting_others", values) if name == "+others" else (name, values)
        for name, values in conditions.shape
    )
    return conditions._replace(shape=shape)


def _lower_bound(conditions: Conditions) -> str:
    """Return an id below which no job matches."""
    return str(conditions.params.get("from_0", ""))


def _payload_matches(payload: str, conditions: Conditions) -> bool:
    """True if the payload has the expected text at each path."""
    if not conditions.payload_checks:
        return True
    value = json.loads(payload)
    return all(scalar_text(value, path) == text for path, text in conditions.payload_checks)
