"""Which jobs are meant: a filter made into conditions, and the way by which such jobs are come by.

Only conditions that were asked for are in the statement, and states are written out in it, so that an index of just
such jobs can answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.argument import kept, needles
from mulligan.job import State

Where = Mapping[str, str | tuple[str, ...]]
Shape = tuple[tuple[str, int | tuple[str, ...]], ...]

OF_THE_DEAD = ("code", "class", "group")  # known of no other job
WRITTEN_OUT = ("state", "phase")
READ, INDEXED = "arg.", "indexed."  # how arguments begin: to be read in each payload, to be found by an index
IN_ORDER = (State.DEAD.value, State.PARKED.value, State.CANCELLED.value)  # each has an index of its own, by id
LAST = "~"  # above every id
_STATE_OF = {"held": "queued", "scheduled": "queued", "backing_off": "queued", "stopping": "running"}


class Matching(NamedTuple):
    shape: Shape  # field, and how many values; or the values themselves where they are written out
    params: dict[str, Any]
    reads: tuple[tuple[str, str], ...] = ()  # path and text of what must still be compared in the payload


class Way(NamedTuple):
    """How jobs are come by: newest first along an index that these fields lead; or gathered by them, then sorted."""

    fields: tuple[str, ...] = ()
    gather: bool = False


WALK = Way()  # along all jobs
BY_STATE = Way(("state",), gather=True)


def matching(where: Where) -> Matching:
    """Any of state, phase, kind, queue, owner, batch_id, since (a length in microseconds), from, code, class, group.

    And `near`: jobs that a word was found for, each "id:…" or "group:…"; `begun`: enqueued since this moment; `until`:
    as it was at this moment; `arg.…` and `indexed.…`: arguments.
    """
    fields = fields_of(where)
    shape: list[tuple[str, int | tuple[str, ...]]] = []
    params: dict[str, Any] = {}
    for name, values in sorted(fields.items()):
        if name in WRITTEN_OUT:
            shape.append((name, tuple(sorted(values))))
        elif name == "near":
            shape.append((name, tuple(value.partition(":")[0] for value in values)))
            params |= {f"near_{place}": value.partition(":")[2] for place, value in enumerate(values)}
        elif not name.startswith((READ, INDEXED)):
            shape.append((name, len(values)))
            params |= {f"{name}_{place}": value for place, value in enumerate(values)}
    args, said, reads = _arguments(fields)
    return Matching((*shape, *args), params | said, reads)


def fields_of(where: Where) -> dict[str, tuple[str, ...]]:
    """What was asked, and what follows from it."""
    fields = {name: (said,) if isinstance(said, str) else tuple(said) for name, said in where.items()}
    if any(name in fields for name in OF_THE_DEAD):
        fields["state"] = tuple({*fields.get("state", (State.DEAD.value,))} & {State.DEAD.value})
    if "phase" in fields and "state" not in fields:
        fields["state"] = tuple({_STATE_OF.get(phase, phase) for phase in fields["phase"]})
    if "kind" not in fields:
        fields["others"] = ()
    return fields


def _arguments(fields: Mapping[str, tuple[str, ...]]) -> tuple[Shape, dict[str, Any], tuple[tuple[str, str], ...]]:
    shape: list[tuple[str, int | tuple[str, ...]]] = []
    params: dict[str, Any] = {}
    reads: list[tuple[str, str]] = []
    for place, name in enumerate(sorted(name for name in fields if name.startswith(INDEXED))):
        shape.append(("indexed", (f"indexed_{place}",)))
        said = {"name": name.removeprefix(INDEXED), "value": kept(fields[name][0])}
        params |= {f"indexed_{place}_{part}": value for part, value in said.items()}
    for place, name in enumerate(sorted(name for name in fields if name.startswith(READ))):
        path, text = name.removeprefix(READ), fields[name][0]
        found = {f"arg_{place}_{at}": needle for at, needle in enumerate(needles(path, text))}
        shape.append(("arg", tuple(found)))
        params |= found
        reads.append((path, text))
    return tuple(shape), params, tuple(reads)


# -- ways -------------------------------------------------------------------------------------------
def way_of(where: Where) -> Way:
    """The one that promises to pass the fewest jobs. BY_STATE only if few are in these states, which we cannot know."""
    fields = fields_of(where)
    if "near" in fields:
        return Way(("near",), gather=True)
    if any(name.startswith(INDEXED) for name in fields):
        return Way(("indexed",), gather=True)
    for name in ("group", "code"):
        if name in fields:
            return Way(("state", name)) if len(fields[name]) == 1 else Way((name,), gather=True)
    if "batch_id" in fields:
        return Way(("batch_id",))
    states = fields.get("state", (State.SUCCEEDED.value,))
    if len(states) == 1 and states[0] in IN_ORDER:
        return Way(("state",))
    reads = any(name.startswith(READ) for name in fields)
    return otherwise(where) if State.SUCCEEDED.value in states or reads else BY_STATE


def otherwise(where: Where) -> Way:
    """The way where states are of no help."""
    return Way(("owner",)) if where.get("owner") else WALK


def along(asked: Matching, way: Way) -> Matching:
    """The same jobs, found on this way and no other: conditions that do not lead it are not offered to an index.

    `from` is left to whoever says where to stop.
    """
    parts = [part for part in asked.shape if part[0] != "from"]  # of two lower bounds a database may take the wrong one
    led = tuple(_led(part, way, first=_first(asked.shape, part)) for part in parts)
    return asked._replace(shape=led + _owned(way))


def _led(part: tuple[str, Any], way: Way, *, first: bool) -> tuple[str, Any]:
    name, values = part
    if way.gather and name in way.fields and first:
        return f"in.{name}", values
    return (name if name in way.fields and not way.gather else f"+{name}"), values


def _first(shape: Shape, part: tuple[str, Any]) -> bool:
    return next(one for one in shape if one[0] == part[0]) == part


def leading(asked: Matching, way: Way) -> Matching:
    """Only what leads the way: which jobs are passed on it."""
    kept_parts = tuple(part for part in asked.shape if part[0] in {*way.fields, "from"})
    return asked._replace(shape=kept_parts + _owned(way), reads=())


def _owned(way: Way) -> Shape:
    """Only those that have an owner are in the index of owners, and it must be told so."""
    return (("owned", ()),) if way.fields == ("owner",) else ()
