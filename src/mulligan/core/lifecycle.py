"""Every legal move of a job, once. The docs print the diagram from this table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mulligan.core.attempt import Verb
from mulligan.core.errors import IllegalMove
from mulligan.core.event import EventType
from mulligan.core.job import State

TERMINAL = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})

MOVES: Mapping[tuple[Verb, State], State] = MappingProxyType(
    {
        (Verb.CLAIM, State.QUEUED): State.RUNNING,
        (Verb.SUCCEED, State.RUNNING): State.SUCCEEDED,
        (Verb.RETRY, State.RUNNING): State.QUEUED,
        (Verb.SNOOZE, State.RUNNING): State.QUEUED,
        (Verb.HOLD, State.RUNNING): State.QUEUED,
        (Verb.LOSE, State.RUNNING): State.QUEUED,
        (Verb.GIVE_BACK, State.RUNNING): State.QUEUED,
        (Verb.DIE, State.RUNNING): State.DEAD,
        (Verb.PARK, State.RUNNING): State.PARKED,
        (Verb.STOP, State.RUNNING): State.CANCELLED,
        (Verb.CANCEL, State.QUEUED): State.CANCELLED,
        (Verb.CANCEL, State.PARKED): State.CANCELLED,
        (Verb.EXPIRE, State.QUEUED): State.DEAD,
        (Verb.EXPIRE, State.PARKED): State.DEAD,
        (Verb.RELEASE, State.PARKED): State.QUEUED,
        (Verb.RETRY_BY_HAND, State.DEAD): State.QUEUED,
        (Verb.RETRY_BY_HAND, State.PARKED): State.QUEUED,
        (Verb.RETRY_BY_HAND, State.CANCELLED): State.QUEUED,
        (Verb.DISCARD, State.DEAD): State.CANCELLED,
        (Verb.DISCARD, State.PARKED): State.CANCELLED,
        (Verb.MOVE, State.QUEUED): State.QUEUED,
    }
)

_EVENTS: Mapping[Verb, EventType] = MappingProxyType(
    {
        Verb.CLAIM: EventType.JOB_STARTED,
        Verb.SUCCEED: EventType.JOB_SUCCEEDED,
        Verb.RETRY: EventType.JOB_RETRY_SCHEDULED,
        Verb.SNOOZE: EventType.JOB_SNOOZED,
        Verb.HOLD: EventType.JOB_SNOOZED,
        Verb.LOSE: EventType.JOB_LOST,
        Verb.GIVE_BACK: EventType.JOB_RELEASED,
        Verb.DIE: EventType.JOB_DIED,
        Verb.EXPIRE: EventType.JOB_DIED,
        Verb.PARK: EventType.JOB_PARKED,
        Verb.STOP: EventType.JOB_CANCELLED,
        Verb.CANCEL: EventType.JOB_CANCELLED,
        Verb.RELEASE: EventType.JOB_RELEASED,
        Verb.RETRY_BY_HAND: EventType.JOB_RETRIED,
        Verb.DISCARD: EventType.JOB_DISCARDED,
        Verb.MOVE: EventType.JOB_EDITED,
    }
)


def move(verb: Verb, state: State) -> State:
    """Where `verb` leads from `state`; refused with the moves that would be legal."""
    target = MOVES.get((verb, state))
    if target is None:
        raise IllegalMove(_refusal(verb, state))
    return target


def legal_from(state: State) -> tuple[Verb, ...]:
    return tuple(verb for verb, start in MOVES if start == state)


def event_for(verb: Verb) -> EventType:
    """What the history calls this move."""
    return _EVENTS[verb]


def _refusal(verb: Verb, state: State) -> str:
    legal = legal_from(state)
    if not legal:
        return f"cannot {verb}: the job is {state}, which is final"
    return f"cannot {verb}: the job is {state}; from there one can {', '.join(legal)}"


def diagram() -> str:
    """The table as a mermaid state diagram, verbs between the same two states on one arrow."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for (verb, start), end in MOVES.items():
        arrows.setdefault((start, end), []).append(verb)
    lines = [f"    {start} --> {end}: {', '.join(verbs)}" for (start, end), verbs in arrows.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {State.QUEUED}: enqueue", *lines])
