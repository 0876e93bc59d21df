"""The filter language that finds jobs: parse a filter, build its SQL conditions, plan the search.

Example: `state:dead kind:render code:GW_5XX group:v2-… owner:acme since:2h arg.clip:7 "moov atom"`.

All parts must match. Several values of one field (`state:dead,parked`) match any of them. Quoted
terms search failure groups, ids and unique keys, never payloads. `arg.` compares one argument.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, NamedTuple

from mulligan.core.attempt import Cls
from mulligan.core.durations import SECOND, parse_seconds, to_micros
from mulligan.core.errors import Refused
from mulligan.core.job import State
from mulligan.core.json import index_value, payload_substrings
from mulligan.storage.statements import SqlDialect, expand_rows

Filter = dict[str, str | tuple[str, ...]]

FIELDS = {
    "state": "state",
    "phase": "phase",
    "kind": "kind",
    "queue": "queue",
    "owner": "owner",
    "batch": "batch_id",
    "since": "since",
    "ended": "ended",
    "code": "code",
    "class": "class",
    "group": "group",
    "step": "step",
}
ARGUMENT_PATH = re.compile(r"[\w-]+(?:\.[\w-]+)*")
MAX_PATH_LENGTH = 100
MULTI_VALUE_FIELDS = frozenset(
    {"state", "phase", "kind", "queue", "code", "class", "group", "step"}
)
MAX_VALUES = 20
MAX_SEARCH_TERMS = 5
MAX_ARGUMENTS = 5
PHASES = (
    "waiting",
    "scheduled",
    "backing_off",
    "held",
    "running",
    "stopping",
    "parked",
    "succeeded",
    "dead",
    "cancelled",
)
UNSEARCHABLE_PHASES = ("ready", "limited", "over_budget", "no_worker")
_TOKEN = re.compile(r"""(?:[^\s"']+|"[^"]*"|'[^']*')+""")


def parse_filter(text: str) -> Filter:
    """Return field → value, with quoted terms under `terms`. Refuse unknown fields with a hint."""
    if not text.isprintable():
        raise Refused(f"filter {text!r} contains unprintable characters")
    found: Filter = {}
    terms: list[str] = []
    for part, is_quoted in _split_parts(text):
        name, colon, value = part.partition(":")
        if is_quoted and not (colon and _is_field(name)):
            terms.append(part)
            continue
        _check_field(part, name, colon)
        field = FIELDS.get(name, name)
        if field in found:
            raise Refused(_describe_duplicate(name))
        found[field] = _parse_value(name, value)
    if terms:
        found["terms"] = _check_terms(terms)
    _check_combination(found)
    return found


def _split_parts(text: str) -> Iterable[tuple[str, bool]]:
    """Return each part without its quotes, and whether it began with a quote."""
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise Refused(f"filter {text!r}: {error}") from None
    raw = _TOKEN.findall(text)
    if len(raw) != len(parts):
        return [(part, False) for part in parts]
    return [(part, token[0] in "\"'") for part, token in zip(parts, raw, strict=True)]


def _check_field(part: str, name: str, colon: str) -> None:
    if colon and _is_field(name):
        return
    if name.startswith(ARGUMENT_PREFIX):
        raise Refused(
            f"filter {part!r} is not arg.name:value. "
            "Write arg.customer:42, or arg.address.city:Rome for a nested argument."
        )
    similar = difflib.get_close_matches(name, FIELDS, n=1)
    if not colon and part in {*State}:
        raise Refused(f"filter {part!r} is not field:value; did you mean state:{part}?")
    hint = f"did you mean {similar[0]}:?" if similar else f"fields: {', '.join(FIELDS)}"
    if not colon:
        hint += f'; to search for a term, quote it: "{part}"'
    raise Refused(f"filter {part!r} is not field:value; {hint}")


def _is_field(name: str) -> bool:
    return name in FIELDS or (
        name.startswith(ARGUMENT_PREFIX) and is_argument_path(name.removeprefix(ARGUMENT_PREFIX))
    )


def _describe_duplicate(name: str) -> str:
    if name in MULTI_VALUE_FIELDS:
        return f"filter {name}: appears twice. Write several values as {name}:a,b"
    return f"filter {name}: appears twice, but a job has only one. Remove one of them."


def _parse_value(name: str, text: str) -> str | tuple[str, ...]:
    if name == "since":
        return str(round(_parse_since(text) * SECOND))
    if name == "ended":
        return _parse_period(text)
    if name not in MULTI_VALUE_FIELDS:
        return text
    values = tuple(dict.fromkeys(text.split(",")))
    if len(values) > MAX_VALUES:
        raise Refused(f"filter {name}: has {len(values)} values; at most {MAX_VALUES} are allowed")
    for value in values:
        _check_value(name, value)
    if "" in values and name not in {"kind", "queue"}:
        raise Refused(f"filter {name}:{text}: a value is missing")
    return values[0] if len(values) == 1 else values


def _check_value(name: str, value: str) -> None:
    known: dict[str, Iterable[str]] = {
        "state": State,
        "class": Cls,
        "phase": (*PHASES, *UNSEARCHABLE_PHASES),
    }
    possible = list(known.get(name, [value]))
    if value not in possible:
        similar = difflib.get_close_matches(value, possible, n=1)
        hint = f". Did you mean {similar[0]}?" if similar else ""
        raise Refused(f"filter {name}:{value}: no such {name}; one of {', '.join(possible)}{hint}")
    if name == "phase" and value in UNSEARCHABLE_PHASES:
        raise Refused(
            f"filter phase:{value} cannot be searched: it depends on current workers and limits. "
            f"Use state:queued and read the phase of each job. Possible: {', '.join(PHASES)}"
        )


def _check_terms(terms: list[str]) -> tuple[str, ...]:
    if len(terms) > MAX_SEARCH_TERMS:
        raise Refused(f"filter: {len(terms)} quoted terms; at most {MAX_SEARCH_TERMS} are allowed")
    if any(not term.strip() for term in terms):
        raise Refused("filter: a quoted term is empty. Write what to search for.")
    return tuple(terms)


def _check_combination(found: Filter) -> None:
    """Refuse too many arguments, and fields of dead jobs together with other states."""
    if len(_names_with(found, ARGUMENT_PREFIX)) > MAX_ARGUMENTS:
        raise Refused(f"filter: at most {MAX_ARGUMENTS} arguments are allowed")
    field = next((name for name in DEAD_ONLY_FIELDS if name in found), None)
    states = found.get("state", "dead")
    if isinstance(states, str):
        states = (states,)
    if field is not None and State.DEAD.value not in states:
        raise Refused(
            f"filter {field}: matches only dead jobs, but state:{','.join(states)} "
            "excludes them. Remove one of the two."
        )


def _parse_since(text: str) -> float:
    """Return how long ago, in seconds."""
    length = parse_seconds(text)
    if length is None:
        raise Refused(
            f"filter since:{text}: not a duration. Write since:30s, since:5m, since:2h or since:1d"
        )
    return length


def _parse_period(text: str) -> str:
    """Return the first and the last time of a period in microseconds: "1700000000000000..…"."""
    start, dots, end = text.partition("..")
    try:
        first = to_micros(datetime.fromisoformat(f"{start}+00:00"))
        last = to_micros(datetime.fromisoformat(f"{end}+00:00"))
    except ValueError:
        first = last = 0
    if not dots or first >= last:
        raise Refused(
            f"filter ended:{text}: not a period. "
            "Write two UTC times: ended:2026-11-18T14:02..2026-11-18T14:03"
        )
    return f"{first}..{last}"


def is_argument_path(text: str) -> bool:
    """Return whether a text may name an argument, such as `address.city`."""
    return len(text) <= MAX_PATH_LENGTH and ARGUMENT_PATH.fullmatch(text) is not None


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
    "waiting": "queued",
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

    Fields: state, phase, kind, queue, owner, batch_id, since (a duration), ended (a period), from,
    code, class, group, step, `near` (search results, "id:…" or "group:…"), `begun` (enqueued since
    a time), `until` (unchanged since a time), `arg.…` and `indexed.…` (arguments).
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
        may_be_dead = "state" not in fields or dead in fields["state"]
        fields["state"] = (dead,) if may_be_dead else ()
    if "phase" in fields and "state" not in fields:
        states = {_STATE_OF_PHASE.get(phase, phase) for phase in fields["phase"]}
        fields["state"] = tuple(states)
    if "ended" in fields:
        start, _, end = fields.pop("ended")[0].partition("..")
        fields |= {"ended_from": (start,), "ended_before": (end,)}
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
    if not lines:
        return "1 = 0"
    if name.startswith("in."):
        union = "\nUNION ALL ".join(lines)
        if dialect == SqlDialect.SQLITE:
            return f"id IN ({union})"
        return f"id = ANY (ARRAY({union}))"
    no_index = name != field and dialect == SqlDialect.SQLITE
    prefix = "+" if no_index else ""
    text = " OR ".join(lines).replace("{+}", prefix)
    return f"({text})"


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
    lines = []
    if bare == "near":
        for place, value in enumerate(values):
            lines.append((known[f"{field}.{value}"], f":near_{place}"))
        return lines
    if bare == "state":
        for value in values:
            lines.append((known[field] + _FINISHED.get(value, ""), f"'{State(value)}'"))
        return lines
    if field == "arg":
        field = f"arg.{dialect}"
    return [(known[field], f":{value}") for value in values]


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
    if "ended_from" in fields:
        return SearchPlan(("ended_from",), gather=True)
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
    first_part = next(one for one in shape if one[0] == name)
    if part == first_part:
        return f"in.{name}", values
    return f"+{name}", values


def leading_conditions(conditions: Conditions, plan: SearchPlan) -> Conditions:
    """Return only the conditions that the plan's index answers: the jobs that it passes."""
    names = {*plan.fields, "from"}
    leading = tuple(part for part in conditions.shape if part[0] in names)
    return conditions._replace(shape=leading + _owner_condition(plan), payload_checks=())


def _owner_condition(plan: SearchPlan) -> Shape:
    """Return the condition of the partial index of owners, which the planner must see."""
    return (("owned", ()),) if plan.fields == ("owner",) else ()
