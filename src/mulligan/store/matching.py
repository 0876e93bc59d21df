"""Which jobs are meant: a filter made into conditions. Only those that were asked for are in the statement, and states
are written out in it, so that an index of just such jobs can answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.job import State

Where = Mapping[str, str | tuple[str, ...]]
Shape = tuple[tuple[str, int | tuple[str, ...]], ...]

OF_THE_DEAD = ("code", "class", "group")  # known of no other job
WRITTEN_OUT = ("state", "phase")


class Matching(NamedTuple):
    shape: Shape  # field, and how many values; or the values themselves where they are written out
    params: dict[str, Any]


def matching(where: Where) -> Matching:
    """Any of state, phase, kind, queue, owner, batch_id, since (a length in microseconds), code, class, group.

    And `near`: jobs that a word was found for, each "id:…" or "group:…"; `begun`: enqueued since this moment; `until`:
    as it was at this moment.
    """
    fields = {name: (said,) if isinstance(said, str) else tuple(said) for name, said in where.items()}
    if any(name in fields for name in OF_THE_DEAD):
        fields["state"] = tuple({*fields.get("state", (State.DEAD.value,))} & {State.DEAD.value})
    if "kind" not in fields:
        fields["others"] = ()
    shape: list[tuple[str, int | tuple[str, ...]]] = []
    params: dict[str, Any] = {}
    for name, values in sorted(fields.items()):
        if name in WRITTEN_OUT:
            shape.append((name, tuple(sorted(values))))
            continue
        kinds = tuple(value.partition(":")[0] for value in values)
        shape.append((name, kinds if name == "near" else len(values)))
        said = [value.partition(":")[2] for value in values] if name == "near" else values
        params |= {f"{name}_{place}": value for place, value in enumerate(said)}
    return Matching(tuple(shape), params)
