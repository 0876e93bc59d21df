"""Who hears which events: `type:job.died,batch.* owner:acme batch:… job:… kind:… code:GW_5XX class:transient`.

All words must match; of several values of one word (`type:job.died,job.parked`) any. The same words on the command
line and over HTTP.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from mulligan.engine.audit import types_of
from mulligan.engine.kinds import OURS
from mulligan.errors import Refused
from mulligan.event import Event

Wanted = Callable[[Event], bool]

FIELDS: Mapping[str, Callable[[Event], Any]] = {
    "type": lambda event: event.type,
    "job": lambda event: event.job_id,
    "owner": lambda event: event.owner,
    "batch": lambda event: event.batch_id,
    "actor": lambda event: event.actor,
    "kind": lambda event: event.data.get("kind"),
    "queue": lambda event: event.data.get("queue"),
    "code": lambda event: event.data.get("code"),
    "class": lambda event: event.data.get("class"),
}
MOST_VALUES = 50
REMEMBERED = 1000


def wants(words: str, types: Sequence[str] = (), job: str | None = None) -> Wanted:
    """A function that tells whether an event is wanted; words nobody knows are refused."""
    said = parsed(words)
    named = frozenset(types_of(types)) | frozenset(said.pop("type", ()))
    if job is not None:
        said["job"] = (job,)

    def wanted(event: Event) -> bool:
        return (not named or event.type in named) and all(
            FIELDS[name](event) in values for name, values in said.items()
        )

    return wanted


def parsed(words: str) -> dict[str, tuple[str, ...]]:
    """By field, any of which values; `job.*` stands for all of these types."""
    if not words.isprintable():
        raise Refused(f"filter {words!r} holds characters that cannot be printed")
    try:
        parts = [word.partition(":") for word in shlex.split(words)]
    except ValueError as error:
        raise Refused(f"filter {words!r}: {error}") from None
    said: dict[str, tuple[str, ...]] = {}
    for name, colon, value in parts:
        if not colon or name not in FIELDS:
            raise Refused(f"filter {words!r}: {_no_such(name)}")
        if name in said:
            raise Refused(f"filter {name}: is given twice; several values are one part: {name}:a,b")
        said[name] = _values(name, value)
    return said


def _values(name: str, text: str) -> tuple[str, ...]:
    values = tuple(dict.fromkeys(text.split(",")))
    if len(values) > MOST_VALUES:
        raise Refused(f"filter {name}: has {len(values)} values; {MOST_VALUES} at most")
    return types_of(values) if name == "type" else values


def _no_such(name: str) -> str:
    near = difflib.get_close_matches(name, FIELDS, n=1)
    return f"no field {name!r}; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(FIELDS)}")


# -- whose ------------------------------------------------------------------------------------------
@lru_cache(maxsize=REMEMBERED)
def hears(owner: str | None, words: str) -> Wanted:
    """Both. Whoever asks the same gets the same function, so that who hands events on to many asks it once."""
    mine, wanted = concerns(owner), wants(words)

    def heard(event: Event) -> bool:
        return mine(event) and wanted(event)

    return heard


@lru_cache(maxsize=REMEMBERED)
def concerns(owner: str | None) -> Wanted:
    """What this owner may hear of; None: of everybody. What Mulligan does for itself is for nobody."""

    def wanted(event: Event) -> bool:
        return owner in (None, event.owner) and not is_ours(event)

    return wanted


def is_ours(event: Event) -> bool:
    """Of a job of Mulligan's own: a delivery, a probe."""
    return str(event.data.get("kind", "")).startswith(OURS)
