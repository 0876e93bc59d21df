"""SQL conditions of job filters, and plans: which index a search follows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

from mulligan.core.job import State
from mulligan.core.json import index_value, payload_substrings
from mulligan.storage.statements import SqlDialect, expand_rows

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

    def text(self, dialect: str) -> str:
        """Return the conditions as SQL, joined by AND."""
        return _conditions_text(self.shape, dialect)


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


# --- Conditions as SQL ---


@lru_cache(maxsize=4096)  # filters have many shapes
def _conditions_text(shape: Shape, dialect: str) -> str:
    conditions = [_condition(field, values, dialect) for field, values in shape]
    return "\n  AND ".join(conditions) or "1 = 1"


@cache
def _conditions() -> dict[str, str]:
    """Read the SQL of each filter field."""
    text = expand_rows("filter_conditions", SqlDialect.SQLITE)  # equal in both dialects
    pairs = (line.partition(": ") for line in text.splitlines())
    return {name: condition for name, _, condition in pairs}


def _condition(name: str, values: int | tuple[str, ...], dialect: str) -> str:
    """Return the condition that a field has one of the values. Without values it is false.

    The prefix `+` keeps SQLite from using an index. The prefix `in.` selects the ids in a subquery.
    """
    field = name.removeprefix("+")
    lines = [line.replace("?", value) for line, value in _condition_lines(field, values, dialect)]
    if name.startswith("in.") and lines:
        union = "\nUNION ALL ".join(lines)
        return f"id IN ({union})" if dialect == SqlDialect.SQLITE else f"id = ANY (ARRAY({union}))"
    text = f"({' OR '.join(lines)})" if lines else "1 = 0"
    no_index = name != field and dialect == SqlDialect.SQLITE
    return text.replace("{+}", "+" if no_index else "")


def _condition_lines(
    field: str, values: int | tuple[str, ...], dialect: str
) -> list[tuple[str, str]]:
    """Return the condition of each value, and the text that replaces its `?`."""
    known = _conditions()
    bare = field.removeprefix("in.")
    if field in {"others", "waiting_others", "owned"}:
        return [(known[field], "")]
    if isinstance(values, int):
        return [(known[field], f":{bare}_{place}") for place in range(values)]
    if bare == "phase":
        return [(known[f"phase.{value}"], "") for value in values]
    if bare == "near":
        return [(known[f"{field}.{value}"], f":near_{place}") for place, value in enumerate(values)]
    if bare == "state":
        return [(known[field] + _FINISHED.get(value, ""), f"'{State(value)}'") for value in values]
    line = known[f"{field}.{dialect}"] if field == "arg" else known[field]
    return [(line, f":{value}") for value in values]


# True for every succeeded job. It lets the planner count them in the index of finished jobs.
_FINISHED = {State.SUCCEEDED.value: " AND finished_at IS NOT NULL"}


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
