"""One filter language: `state:dead kind:render code:GW_5XX group:v2-… owner:acme since:2h arg.clip:7 "moov atom"`.

All parts must match; of several values of one field (`state:dead,parked`) any. Words in quotes search what failure
groups say, ids and unique keys, never payloads; `arg.` compares one argument, whole.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable

from mulligan.core.attempt import Cls
from mulligan.core.errors import Refused
from mulligan.core.job import SECOND, State
from mulligan.storage.search_queries import OF_THE_DEAD, READ

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
PATH = re.compile(r"[\w-]+(?:\.[\w-]+)*")  # of an argument
LONGEST_PATH = 100
SEVERAL = frozenset({"state", "phase", "kind", "queue", "code", "class", "group"})
MOST_VALUES = 20
MOST_WORDS = 5
MOST_ARGUMENTS = 5
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
OF_THE_MOMENT = ("ready", "limited", "over_budget", "no_worker")
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_TOKEN = re.compile(r"""(?:[^\s"']+|"[^"]*"|'[^']*')+""")


def parse_filter(text: str) -> Filter:
    """What `Unit.page` understands, and `words` to look up; anything else is refused with the nearest right word."""
    if not text.isprintable():
        message = f"filter {text!r} holds characters that cannot be printed"
        raise Refused(message)
    found: Filter = {}
    words: list[str] = []
    for word, quoted in _tokens(text):
        name, colon, value = word.partition(":")
        if quoted and not (colon and _is_field(name)):
            words.append(word)
            continue
        _known(word, name, colon)
        field = FIELDS.get(name, name)
        if field in found:
            raise Refused(_twice(name))
        found[field] = _values(name, value)
    if words:
        found["words"] = _searched(words)
    _agree(found)
    return found


def _tokens(text: str) -> Iterable[tuple[str, bool]]:
    """Each part as it is meant, and whether it begins with a quote."""
    try:
        parts = shlex.split(text)
    except ValueError as error:
        message = f"filter {text!r}: {error}"
        raise Refused(message) from None
    raw = _TOKEN.findall(text)
    alike = len(raw) == len(parts)
    return [(part, alike and raw[place][0] in "\"'") for place, part in enumerate(parts)]


def _known(word: str, name: str, colon: str) -> None:
    if colon and _is_field(name):
        return
    if name.startswith(READ):
        message = f"filter {word!r} is not arg.name:value; write arg.customer:42, or arg.address.city:Rome for one inside"
        raise Refused(message)
    near = difflib.get_close_matches(name, FIELDS, n=1)
    hint = f"did you mean {near[0]}:?" if near else f"fields: {', '.join(FIELDS)}"
    quotes = "" if colon else f'; to search for a word, quote it: "{word}"'
    message = f"filter {word!r} is not field:value; {hint}{quotes}"
    raise Refused(message)


def _is_field(name: str) -> bool:
    return name in FIELDS or (name.startswith(READ) and is_path(name.removeprefix(READ)))


def _twice(name: str) -> str:
    if name in SEVERAL:
        return f"filter {name}: is given twice; several values are one part: {name}:a,b"
    return f"filter {name}: is given twice, and a job has only one; leave one of them out"


def _values(name: str, text: str) -> str | tuple[str, ...]:
    if name == "since":
        return str(round(_since(text) * SECOND))
    if name not in SEVERAL:
        return text
    values = tuple(dict.fromkeys(text.split(",")))
    if len(values) > MOST_VALUES:
        message = f"filter {name}: has {len(values)} values; {MOST_VALUES} at most"
        raise Refused(message)
    for value in values:
        _check(name, value)
    if "" in values and name not in {"kind", "queue"}:
        message = f"filter {name}:{text}: a value is missing"
        raise Refused(message)
    return values[0] if len(values) == 1 else values


def _check(name: str, value: str) -> None:
    known: dict[str, Iterable[str]] = {
        "state": State,
        "class": Cls,
        "phase": (*PHASES, *OF_THE_MOMENT),
    }
    if name in known and value not in list(known[name]):
        message = f"filter {name}:{value}: no such {name}; one of {', '.join(known[name])}"
        raise Refused(message)
    if name == "phase" and value in OF_THE_MOMENT:
        message = (
            f"filter phase:{value}: whether a due job is {value} depends on the workers and limits of the moment and "
            f"cannot be searched; write state:queued and read the phase of each. Possible: {', '.join(PHASES)}"
        )
        raise Refused(message)


def _searched(words: list[str]) -> tuple[str, ...]:
    if len(words) > MOST_WORDS:
        message = f"filter: {len(words)} quoted words; {MOST_WORDS} at most"
        raise Refused(message)
    if any(not word.strip() for word in words):
        message = "filter: the quotes are empty; write what to search for"
        raise Refused(message)
    return tuple(words)


def _agree(found: Filter) -> None:
    """What is known of dead jobs only finds no others."""
    if sum(name.startswith(READ) for name in found) > MOST_ARGUMENTS:
        message = f"filter: {MOST_ARGUMENTS} arguments at most"
        raise Refused(message)
    field = next((name for name in OF_THE_DEAD if name in found), None)
    states = found.get("state", "dead")
    if field is not None and State.DEAD.value not in (
        (states,) if isinstance(states, str) else states
    ):
        said = states if isinstance(states, str) else ",".join(states)
        message = f"filter {field}: finds what jobs died of, and state:{said} are not dead; leave one of them out"
        raise Refused(message)


def _since(text: str) -> float:
    """How long ago, in seconds."""
    length = seconds(text)
    if length is None:
        message = f"filter since:{text}: no length of time; write since:30s, since:5m, since:2h or since:1d"
        raise Refused(message)
    return length


def is_path(text: str) -> bool:
    """May an argument be named so?"""
    return len(text) <= LONGEST_PATH and PATH.fullmatch(text) is not None


def seconds(text: str) -> float | None:
    """`30`, `30s`, `5m`, `2h`, `1d`; None: nothing of the kind."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(s|m|min|h|d|)", text.strip())
    return None if found is None else float(found[1]) * _UNITS[found[2]]
