"""Legal transitions of a job, as one table. The diagram in the docs is generated from it."""

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
        (Verb.WAIT, State.RUNNING): State.QUEUED,
        (Verb.HOLD, State.RUNNING): State.QUEUED,
        (Verb.LOSE, State.RUNNING): State.QUEUED,
        (Verb.GIVE_BACK, State.RUNNING): State.QUEUED,
        (Verb.DIE, State.RUNNING): State.DEAD,
        (Verb.PARK, State.RUNNING): State.PARKED,
        (Verb.STOP, State.RUNNING): State.CANCELLED,
        (Verb.UNDO, State.RUNNING): State.QUEUED,
        (Verb.UNDO, State.QUEUED): State.QUEUED,
        (Verb.UNDO, State.PARKED): State.QUEUED,
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
        (Verb.UNDISCARD, State.CANCELLED): State.DEAD,
        (Verb.UNDISCARD_PARKED, State.CANCELLED): State.PARKED,
        (Verb.MOVE, State.QUEUED): State.QUEUED,
    }
)

EVENTS: Mapping[Verb, EventType] = MappingProxyType(
    {
        Verb.CLAIM: EventType.JOB_STARTED,
        Verb.SUCCEED: EventType.JOB_SUCCEEDED,
        Verb.RETRY: EventType.JOB_RETRY_SCHEDULED,
        Verb.SNOOZE: EventType.JOB_SNOOZED,
        Verb.WAIT: EventType.JOB_WAITING,
        Verb.HOLD: EventType.JOB_SNOOZED,
        Verb.LOSE: EventType.JOB_LOST,
        Verb.GIVE_BACK: EventType.JOB_RELEASED,
        Verb.DIE: EventType.JOB_DIED,
        Verb.EXPIRE: EventType.JOB_DIED,
        Verb.PARK: EventType.JOB_PARKED,
        Verb.STOP: EventType.JOB_CANCELLED,
        Verb.UNDO: EventType.JOB_UNDOING,
        Verb.CANCEL: EventType.JOB_CANCELLED,
        Verb.RELEASE: EventType.JOB_RELEASED,
        Verb.RETRY_BY_HAND: EventType.JOB_RETRIED,
        Verb.DISCARD: EventType.JOB_DISCARDED,
        Verb.UNDISCARD: EventType.JOB_UNDISCARDED,
        Verb.UNDISCARD_PARKED: EventType.JOB_UNDISCARDED,
        Verb.MOVE: EventType.JOB_EDITED,
    }
)


def next_state(verb: Verb, state: State) -> State:
    """Return the state that `verb` leads to. Raise IllegalMove with the legal verbs otherwise."""
    target = MOVES.get((verb, state))
    if target is None:
        raise IllegalMove(_refusal(verb, state))
    return target


def legal_verbs(state: State) -> tuple[Verb, ...]:
    """Return the verbs that are legal from a state."""
    return tuple(verb for verb, start in MOVES if start == state)


# What a person can do to a job; the other verbs are moves of the engine.
_COMMANDS: Mapping[Verb, str] = MappingProxyType(
    {
        Verb.RETRY_BY_HAND: "retry",
        Verb.CANCEL: "cancel",
        Verb.RELEASE: "release",
        Verb.DISCARD: "discard",
        Verb.MOVE: "move to another queue",
    }
)


def _refusal(verb: Verb, state: State) -> str:
    command = _COMMANDS.get(verb, verb)
    possible = [_COMMANDS[legal] for legal in legal_verbs(state) if legal in _COMMANDS]
    if state is State.RUNNING:
        possible = ["cancel"]  # asks its code to stop
    if not possible:
        return f"cannot {command}: the job is {state}, which is final"
    return f"cannot {command}: the job is {state}. Possible now: {', '.join(possible)}."


def diagram() -> str:
    """Render the table as a mermaid state diagram, one arrow per pair of states."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for (verb, start), end in MOVES.items():
        arrows.setdefault((start, end), []).append(verb)
    lines = ["stateDiagram-v2", f"    [*] --> {State.QUEUED}: enqueue"]
    for (start, end), verbs in arrows.items():
        lines.append(f"    {start} --> {end}: {', '.join(verbs)}")
    return "\n".join(lines)
