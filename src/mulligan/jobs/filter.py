"""Parse the filter language that finds jobs.

Example: `state:dead kind:render code:GW_5XX group:v2-… owner:acme since:2h arg.clip:7 "moov atom"`.

All parts must match. Several values of one field (`state:dead,parked`) match any of them. Quoted
terms search failure groups, ids and unique keys, never payloads. `arg.` compares one argument.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable

from mulligan.core.attempt import Cls
from mulligan.core.durations import SECOND
from mulligan.core.errors import Refused
from mulligan.core.job import State
from mulligan.jobs.conditions import ARGUMENT_PREFIX, DEAD_ONLY_FIELDS

Filter = dict[str, str | tuple[str, ...]]

FIELDS = {
    "state": "state",
    "phase": "phase",
    "kind": "kind",
    "queue": "queue",
    "owner": "owner",
    "batch": "batch_id",
    "since": "since",
    "code": "code",
    "class": "class",
    "group": "group",
}
ARGUMENT_PATH = re.compile(r"[\w-]+(?:\.[\w-]+)*")
MAX_PATH_LENGTH = 100
MULTI_VALUE_FIELDS = frozenset({"state", "phase", "kind", "queue", "code", "class", "group"})
MAX_VALUES = 20
MAX_SEARCH_TERMS = 5
MAX_ARGUMENTS = 5
PHASES = (
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
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
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
    if name in known and value not in list(known[name]):
        raise Refused(f"filter {name}:{value}: no such {name}; one of {', '.join(known[name])}")
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
    if sum(name.startswith(ARGUMENT_PREFIX) for name in found) > MAX_ARGUMENTS:
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


def is_argument_path(text: str) -> bool:
    """Return whether a text may name an argument, such as `address.city`."""
    return len(text) <= MAX_PATH_LENGTH and ARGUMENT_PATH.fullmatch(text) is not None


def parse_seconds(text: str) -> float | None:
    """Return the seconds of `30`, `30s`, `5m`, `2h` or `1d`; None for anything else."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(s|m|min|h|d|)", text.strip())
    return None if found is None else float(found[1]) * _UNITS[found[2]]
