"""Rules of durable steps: what an attempt records, and what that means for its job. Pure."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, NamedTuple


class StepKind(StrEnum):
    """Kinds of rows in the table `step`."""

    STEP = "step"
    UNDO = "undo"
    CHECKPOINT = "checkpoint"
    SLEEP = "sleep"
    WAIT = "wait"
    CALL = "call"  # of child jobs


class StepState(StrEnum):
    """State of a step."""

    WAITING = "waiting"  # for what ends a wait without a slot
    RUNNING = "running"  # marked before its call; without a result it is in doubt
    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"
    FORGOTTEN = "forgotten"  # by a person: it runs again


class StepRecord(NamedTuple):
    """A row that an attempt asks its worker to save."""

    name: str
    kind: str
    state: str
    number: int
    value: str | None = None
    detail: str = "{}"
    took: int = 0  # microseconds


class ClosedGate(NamedTuple):
    """A dependency that is down."""

    key: str
    reason: str


AUTO_UNDO = '"auto":true'  # in the detail of a step: its undo runs by itself


def read_detail(text: str) -> dict[str, Any]:
    """Read the column `detail`."""
    detail: dict[str, Any] = json.loads(text)
    return detail
