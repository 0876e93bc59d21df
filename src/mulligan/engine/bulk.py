"""What is asked of an operation, all of it checked before anything is written: action, filter, steps, rate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from mulligan.core.attempt import Verb
from mulligan.engine import amend, recover
from mulligan.engine.arguments import to_json
from mulligan.engine.filters import Filter, parse_filter
from mulligan.engine.kinds import free_name
from mulligan.engine.limiting import checked_rate
from mulligan.engine.searching import resolved
from mulligan.errors import ConfigError, IllegalMove, Refused
from mulligan.job import Micros, State
from mulligan.policy.groups import EVERYBODY
from mulligan.policy.lifecycle import MOVES
from mulligan.policy.operation import AT_ONCE, CAREFUL, Action, Steps, checked_share, checked_steps
from mulligan.policy.phrase import moment
from mulligan.policy.retry import Policy
from mulligan.store.base import Unit
from mulligan.store.matching import INDEXED, OF_THE_DEAD, READ, Where

VERBS: Mapping[Action, Verb] = {
    Action.RETRY: Verb.RETRY_BY_HAND,
    Action.CANCEL: Verb.CANCEL,
    Action.DISCARD: Verb.DISCARD,
    Action.RELEASE: Verb.RELEASE,
    Action.MOVE: Verb.MOVE,
}
# Which jobs are meant where the filter does not say: of a retry not those that somebody has cancelled.
MEANT: Mapping[Action, tuple[State, ...]] = {
    Action.RETRY: (State.DEAD,),
    Action.CANCEL: (State.PARKED, State.QUEUED, State.RUNNING),
    Action.DISCARD: (State.DEAD,),
    Action.RELEASE: (State.PARKED,),
    Action.MOVE: (State.QUEUED,),
}
RATE: Mapping[Action, float] = {
    Action.RETRY: 20.0,
    Action.RELEASE: 20.0,
    Action.CANCEL: 1000.0,
    Action.DISCARD: 1000.0,
    Action.MOVE: 1000.0,
}
STATE_OF = {"scheduled": State.QUEUED, "backing_off": State.QUEUED, "held": State.QUEUED, "stopping": State.RUNNING}
LONGEST_KEY = 200


class Asked(NamedTuple):
    """A wish that can be granted."""

    action: Action
    text: str  # the filter as it was given
    filter: Filter
    steps: Steps
    rate: float
    stop_if: float
    owner: str | None
    reason: str
    key: str | None
    params: Mapping[str, Any]

    @property
    def scope(self) -> str:
        return EVERYBODY if self.owner is None else self.owner

    @property
    def digest(self) -> str:
        """Two wishes with the same one are the same wish."""
        said = [self.action, self.filter, self.steps, self.rate, self.stop_if, self.owner, self.params]
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=list).encode()).hexdigest()[:40]


def asked(  # noqa: PLR0913 - as many as `start` has
    action: str,
    filter: str,  # noqa: A002 - CONTRACT's name
    *,
    steps: Sequence[int | str] | None,
    rate: float | str | None,
    stop_if: float,
    owner: str | None,
    reason: str,
    key: str | None,
    params: Mapping[str, Any],
) -> Asked:
    known = checked_action(action)
    return Asked(
        known,
        str(filter).strip(),
        _meant(known, filter, owner),
        checked_steps(steps) if steps is not None else CAREFUL if known is Action.RETRY else AT_ONCE,
        RATE[known] if rate is None else checked_rate(rate) or RATE[known],
        checked_share(stop_if),
        owner,
        _reason(known, reason),
        _key(key),
        _params(known, params),
    )


def checked_action(action: str) -> Action:
    if action not in list(Action):
        raise Refused(f"no action {action!r}; one of {', '.join(Action)}")
    return Action(action)


def _meant(action: Action, text: Any, owner: str | None) -> Filter:
    if not isinstance(text, str) or not text.strip():
        raise Refused(f'an operation needs a filter, such as "{_EXAMPLES[action]}"; none would mean every job there is')
    found = parse_filter(text)
    if owner is not None and found.get("owner", owner) != owner:
        raise Refused(f"the filter asks for owner:{found['owner']}, and only jobs of {owner!r} may be meant")
    states = _states(action, found)
    return {**found, "state": states} | ({} if owner is None else {"owner": owner})


_EXAMPLES = {
    Action.RETRY: "state:dead code:GW_5XX",
    Action.CANCEL: "state:queued kind:render",
    Action.DISCARD: "state:dead since:7d kind:render",
    Action.RELEASE: "state:parked kind:render",
    Action.MOVE: "state:queued kind:render",
}


def _states(action: Action, found: Filter) -> tuple[str, ...]:
    """Of those the filter names the ones from which this action leads anywhere; there must be one."""
    legal = {start for verb, start in MOVES if verb is VERBS[action]}
    if action is Action.CANCEL:
        legal.add(State.RUNNING)
    named = {State(state) for state in _values(found.get("state", ()))}
    phases = {STATE_OF.get(phase) or State(phase) for phase in _values(found.get("phase", ()))}
    if any(field in found for field in OF_THE_DEAD):
        phases = phases & {State.DEAD} if phases else {State.DEAD}
    asked_for = named & phases if named and phases else named or phases or {*MEANT[action]}
    if not asked_for & legal:
        said = ", ".join(sorted(asked_for)) or "no job at once"
        raise IllegalMove(f"{action} is for jobs that are {_list(legal)}; this filter finds those that are {said}")
    return tuple(sorted(str(state) for state in asked_for & legal))


def _values(said: str | tuple[str, ...]) -> tuple[str, ...]:
    return (said,) if isinstance(said, str) else said


def _list(states: set[State]) -> str:
    *first, last = sorted(states)
    return f"{', '.join(first)} or {last}" if first else str(last)


def _reason(action: Action, reason: str) -> str:
    if action is Action.DISCARD:
        recover.must_say_why(reason)
    return reason


def _key(key: str | None) -> str | None:
    if key is not None and not (key.strip() and key.isprintable() and len(key) <= LONGEST_KEY):
        raise Refused(f"key: 1 to {LONGEST_KEY} printable characters, not {key!r:.80}")
    return key


def _params(action: Action, params: Mapping[str, Any]) -> dict[str, Any]:
    said = {name: value for name, value in params.items() if value is not None}
    for name, own in _OWN.items():
        if name in said and action is not own:
            raise Refused(f"{name}: is for {own} alone, not for {action}")
    if action is Action.MOVE and "queue" not in said:
        raise Refused('move needs the queue to move to: queue="slow"')
    if "queue" in said:
        try:
            free_name("queue", said["queue"])
        except ConfigError as wrong:
            raise Refused(str(wrong)) from None
    if "overrides" in said:
        amend.checked(said["overrides"])
        said["overrides"] = json.loads(to_json(_plain(said["overrides"]), "overrides"))
    return said


def _plain(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """As they are stored."""
    return {
        name: value.total_seconds()
        if isinstance(value, timedelta)
        else json.loads(value.to_json())
        if isinstance(value, Policy)
        else value
        for name, value in overrides.items()
    }


_OWN = {"queue": Action.MOVE, "choice": Action.RELEASE, "overrides": Action.RETRY}


# -- fixed for good ---------------------------------------------------------------------------------
def fixed(unit: Unit, wish: Asked, now: Micros) -> dict[str, Any]:
    """What the filter means at this moment, and will mean for as long as the operation lasts."""
    where: dict[str, Any] = dict(resolved(unit, wish.filter, wish.owner))
    read = next((name for name in where if name.startswith(READ)), None)
    if read is not None:
        message = f"{read}: only arguments that a kind has an index for can say which jobs are meant: @app.job(index=…)"
        raise Refused(message)
    since = where.pop("since", None)
    if since is not None:
        where["begun"] = str(now - int(since))
    return {**where, "until": str(now)}


def where_of(text: str) -> Where:
    return {name: tuple(said) if isinstance(said, list) else said for name, said in json.loads(text).items()}


def fixed_words(where: Where) -> str:
    """As people read it."""
    names = {"batch_id": "batch"}
    parts = [
        f"{names.get(name, name).replace(INDEXED, READ, 1)}:{','.join(_values(said))}"
        for name, said in where.items()
        if name not in {"begun", "until", "near"}
    ]
    if "near" in where:
        parts.append(f"({' or '.join(_values(where['near'])) or 'nothing'})")
    if "begun" in where:
        parts.append(f"enqueued since {moment(int(str(where['begun'])))}")
    return f"{' '.join(parts)}, as of {moment(int(str(where['until'])))}"
