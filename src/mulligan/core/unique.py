"""Unique jobs: a second enqueue with the same key returns the first job.

The key is stored as a hash in a nullable column with a unique index. The transition out of the
covered states clears it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from mulligan.core.durations import Micros, check_duration
from mulligan.core.errors import ConfigError, Duration
from mulligan.core.job import State

DEFAULT_COVER = (State.QUEUED, State.RUNNING, State.PARKED, State.SUCCEEDED)


@dataclass(frozen=True)
class Unique:
    """Return an existing job instead of enqueuing a second one with the same key.

    `by` names the parts of the key: "owner", "queue", "payload" or "payload.field.field".
    `while_` lists the states in which the first job reserves its key, `for_` limits how long.
    """

    by: str | tuple[str, ...] = ("payload",)
    while_: str | tuple[str, ...] = DEFAULT_COVER
    for_: Duration | None = None

    def __post_init__(self) -> None:
        by = (self.by,) if isinstance(self.by, str) else tuple(self.by)
        cover = (self.while_,) if isinstance(self.while_, str) else tuple(self.while_)
        for name in by:
            if name.split(".")[0] not in ("owner", "queue", "payload"):
                message = (
                    f"Unique(by={name!r}): unknown part. "
                    "Use owner, queue, payload or payload.field."
                )
                raise ConfigError(message)
        for state in cover:
            if state not in list(State):
                message = f"Unique(while_={state!r}): unknown state. Use {', '.join(State)}."
                raise ConfigError(message)
        object.__setattr__(self, "by", by)
        object.__setattr__(self, "while_", cover)

    @property
    def period(self) -> Micros | None:
        """How long the key is reserved. None: while the job is in a covered state."""
        return None if self.for_ is None else check_duration("for_", self.for_)

    @property
    def covered_states(self) -> str:
        """States in which the key is reserved, comma separated, as stored."""
        return ",".join(str(State(state)) for state in self.while_)

    def key(self, owner: str, queue: str, payload: Any) -> str:
        """Build the key of a job: JSON of the values that `by` names."""
        source = {"owner": owner, "queue": queue, "payload": payload}
        parts = [_value_at(source, path) for path in self.by]
        return json.dumps(parts, sort_keys=True, separators=(",", ":"))


def unique_hash(owner: str, kind: str, key: str) -> str:
    """Hash a key. Owners and kinds have separate keys."""
    text = f"{owner}\x00{kind}\x00{key}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _value_at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
