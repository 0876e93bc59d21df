"""Uniqueness: one nullable hash with a unique index, cleared by the move that leaves the covered states."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from mulligan.core.durations import length
from mulligan.core.errors import ConfigError, Seconds
from mulligan.core.job import Micros, State

DEFAULT_COVER = (State.QUEUED, State.RUNNING, State.PARKED, State.SUCCEEDED)


@dataclass(frozen=True)
class Unique:
    """A second enqueue with the same key returns the first job, while that one is in a covered state.

    `by` names what makes the key: "owner", "queue", "payload" or "payload.field.field"; `for_` limits how long.
    """

    by: str | tuple[str, ...] = ("payload",)
    while_: str | tuple[str, ...] = DEFAULT_COVER
    for_: Seconds | None = None

    def __post_init__(self) -> None:
        by = (self.by,) if isinstance(self.by, str) else tuple(self.by)
        cover = (self.while_,) if isinstance(self.while_, str) else tuple(self.while_)
        for name in by:
            if name.split(".")[0] not in ("owner", "queue", "payload"):
                message = (
                    f"Unique(by={name!r}): a key is made of owner, queue, payload or payload.field"
                )
                raise ConfigError(message)
        for state in cover:
            if state not in list(State):
                message = f"Unique(while_={state!r}): no such state; one of {', '.join(State)}"
                raise ConfigError(message)
        object.__setattr__(self, "by", by)
        object.__setattr__(self, "while_", cover)

    @property
    def span(self) -> Micros | None:
        return None if self.for_ is None else length("for_", self.for_)

    @property
    def cover(self) -> str:
        return ",".join(str(State(state)) for state in self.while_)

    def key(self, owner: str, queue: str, payload: Any) -> str:
        whole = {"owner": owner, "queue": queue, "payload": payload}
        return json.dumps(
            [_at(whole, name) for name in self.by], sort_keys=True, separators=(",", ":")
        )


def unique_hash(owner: str, kind: str, key: str) -> str:
    return hashlib.sha256(
        f"{owner}\x00{kind}\x00{key}".encode("utf-8", "surrogatepass")
    ).hexdigest()[:40]


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
