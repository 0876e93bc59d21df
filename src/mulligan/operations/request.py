"""What is asked of an operation, all of it checked before anything is written: action, filter, steps, rate."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from mulligan.core.attempt import Verb
from mulligan.core.errors import ConfigError, IllegalMove, Refused
from mulligan.core.format import moment
from mulligan.core.job import Micros, State
from mulligan.core.lifecycle import MOVES
from mulligan.core.unique import unique_hash
from mulligan.failures.groups import EVERYBODY
from mulligan.guards.gates import checked_rate
from mulligan.jobs import preconditions as amend
from mulligan.jobs import repair as recover
from mulligan.jobs.filter import Filter, parse_filter
from mulligan.jobs.search import resolved
from mulligan.jobs.service import COUNT_MOST
from mulligan.jobs.view import traffic_now
from mulligan.jobs.why import phase
from mulligan.manifest.arguments import to_json
from mulligan.manifest.specs import free_name
from mulligan.operations.rules import (
    AT_ONCE,
    CAREFUL,
    Action,
    Steps,
    bound,
    checked_share,
    checked_steps,
    planned,
)
from mulligan.retries.policy import Policy
from mulligan.storage.base import Transaction
from mulligan.storage.operation_queries import Matched
from mulligan.storage.search_queries import INDEXED, OF_THE_DEAD, READ, Where
from mulligan.worker.settlement import frees_key
from mulligan.worker.upkeep import live_kinds

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
STATE_OF = {
    "scheduled": State.QUEUED,
    "backing_off": State.QUEUED,
    "held": State.QUEUED,
    "stopping": State.RUNNING,
}
LONGEST_KEY = 200


class CheckedOperation(NamedTuple):
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
        said = [
            self.action,
            self.filter,
            self.steps,
            self.rate,
            self.stop_if,
            self.owner,
            self.params,
        ]
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=list).encode()).hexdigest()[
            :40
        ]


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
) -> CheckedOperation:
    known = checked_action(action)
    return CheckedOperation(
        known,
        str(filter).strip(),
        _meant(known, filter, owner),
        checked_steps(steps)
        if steps is not None
        else CAREFUL
        if known is Action.RETRY
        else AT_ONCE,
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
        raise Refused(
            f'an operation needs a filter, such as "{_EXAMPLES[action]}"; none would mean every job there is'
        )
    found = parse_filter(text)
    if owner is not None and found.get("owner", owner) != owner:
        raise Refused(
            f"the filter asks for owner:{found['owner']}, and only jobs of {owner!r} may be meant"
        )
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
        raise IllegalMove(
            f"{action} is for jobs that are {_list(legal)}; this filter finds those that are {said}"
        )
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
def fixed(unit: Transaction, wish: CheckedOperation, now: Micros) -> dict[str, Any]:
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
    return {
        name: tuple(said) if isinstance(said, list) else said
        for name, said in json.loads(text).items()
    }


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


# What an operation would do, before anybody does it: how many jobs, of what, at what price, with what chance.

GROUPS_ASKED = 50  # the largest
PLACES_ASKED = 50  # (queue, kind, what it uses): the largest
DEATHS_LOOKED = 1000
COSTS_LOOKED = 10_000
KEYS_LOOKED = 1000
NAMED = 3


class PastRetries(NamedTuple):
    """What became of others that died of this and were retried by hand."""

    group: str
    code: str
    jobs: int  # of this operation
    retried: int
    recovered: int
    of: str  # "group", or "code": its other groups speak for it; "": nobody has tried yet


class Obstacle(NamedTuple):
    """Something that would keep jobs waiting, or refuse them."""

    jobs: int
    why: str


@dataclass(frozen=True, slots=True)
class OperationPreview:
    """Nothing was changed. All numbers describe the same jobs, the first 10,000 if there are more."""

    action: str
    filter: str
    fixed: str  # what it means at this moment
    count: int
    capped: bool  # there may be more
    steps: tuple[int, ...]  # how many each would take
    codes: Mapping[str, int]
    kinds: Mapping[str, int]
    owners: Mapping[str, int]
    states: Mapping[str, int]
    cost: float  # so far
    estimated_cost: float  # of one more attempt each, by the mean of their kinds
    chances: tuple[PastRetries, ...]
    held: tuple[Obstacle, ...]  # what would wait, as things are
    refused: tuple[Obstacle, ...]  # as far as it can be known

    @property
    def retried(self) -> int:
        return sum(chance.retried for chance in _distinct(self.chances))

    @property
    def recovered(self) -> int:
        return sum(chance.recovered for chance in _distinct(self.chances))

    @property
    def chance(self) -> float | None:
        """The share that recovered when somebody retried others of these causes. None: nobody has tried yet."""
        known = [one for one in self.chances if one.retried]
        jobs = sum(one.jobs for one in known)
        return sum(one.jobs * one.recovered / one.retried for one in known) / jobs if jobs else None


def _distinct(chances: Iterable[PastRetries]) -> list[PastRetries]:
    return [chance for chance in chances if chance.of == "group"]


def preview(unit: Transaction, wish: CheckedOperation) -> OperationPreview:
    now = unit.now()
    where = fixed(unit, wish, now)
    found = unit.operation_preview(where, min(COUNT_MOST, bound(wish.steps) or COUNT_MOST))
    count = sum(row.jobs for row in found)
    retry = wish.action is Action.RETRY
    return OperationPreview(
        action=wish.action.value,
        filter=wish.text,
        fixed=fixed_words(where),
        count=count,
        capped=count >= COUNT_MOST,
        steps=tuple(tally.size for tally in planned(wish.steps, count)),
        codes=_counted((row.code or "", row.jobs) for row in found if row.code),
        kinds=_counted((row.kind, row.jobs) for row in found),
        owners=_counted((row.owner, row.jobs) for row in found),
        states=_counted((row.state, row.jobs) for row in found),
        cost=sum(row.cost for row in found),
        estimated_cost=_estimated(unit, found) if retry or wish.action is Action.RELEASE else 0.0,
        chances=tuple(_chances(unit, found, wish.owner)) if retry else (),
        held=tuple(_held(unit, found, now))
        if wish.action in {Action.RETRY, Action.RELEASE}
        else (),
        refused=tuple(_taken(unit, where) if retry else _there(found, wish.params.get("queue"))),
    )


def _counted(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for name, jobs in pairs:
        counts[name] += jobs
    return dict(counts.most_common())


def _estimated(unit: Transaction, found: Sequence[Matched]) -> float:
    """By kind: the mean of the newest jobs' attempts; of a kind that is not among them, of these jobs' own."""
    newest = unit.operation_costs(COSTS_LOOKED)
    total = 0.0
    for kind in {row.kind for row in found}:
        rows = [row for row in found if row.kind == kind]
        own = sum(row.cost for row in rows), sum(row.claims for row in rows)
        cost, claims = newest[kind] if newest.get(kind, (0.0, 0))[1] else own
        total += sum(row.jobs for row in rows) * (cost / claims if claims else 0.0)
    return total


def _chances(unit: Transaction, found: Sequence[Matched], owner: str | None) -> list[PastRetries]:
    jobs = _counted((row.group, row.jobs) for row in found if row.group)
    codes = {row.group: row.code or "" for row in found if row.group}
    asked = list(jobs)[:GROUPS_ASKED]
    again = unit.group_recovered(asked, owner, DEATHS_LOOKED)
    known = {name: again.get(name, (0, 0)) for name in asked}
    of_code: Counter[tuple[str, str]] = Counter()
    for name, (retried, recovered) in known.items():
        of_code[codes[name], "retried"] += retried
        of_code[codes[name], "recovered"] += recovered
    chances = []
    for name, (retried, recovered) in known.items():
        code = codes[name]
        if retried:
            chances.append(PastRetries(name, code, jobs[name], retried, recovered, "group"))
        else:
            tried = of_code[code, "retried"], of_code[code, "recovered"]
            chances.append(PastRetries(name, code, jobs[name], *tried, "code" if tried[0] else ""))
    return chances


def _held(unit: Transaction, found: Sequence[Matched], now: Micros) -> list[Obstacle]:
    """What stands in the way of a job that would be due now, by what its like would say."""
    places = _counted(((f"{row.queue}|{row.kind}|{row.uses}"), row.jobs) for row in found)
    samples = {f"{row.queue}|{row.kind}|{row.uses}": row.sample for row in found}
    gates, known, traffic = unit.gates(), live_kinds(unit), traffic_now(unit, now)
    why: Counter[str] = Counter()
    for place, jobs in list(places.items())[:PLACES_ASKED]:
        row = unit.get(samples[place])
        if row is not None:
            stage, words = phase(
                row._replace(state=State.QUEUED, run_at=now), gates, now, known, traffic
            )
            why[words] += jobs if stage != "ready" else 0
    return [Obstacle(jobs, words) for words, jobs in why.most_common() if jobs]


def _there(found: Sequence[Matched], queue: str | None) -> list[Obstacle]:
    """Who is asked to move to where they are."""
    jobs = sum(row.jobs for row in found if row.queue == queue)
    return [Obstacle(jobs, f"in queue {queue} already")] if jobs else []


def _taken(unit: Transaction, where: Where) -> list[Obstacle]:
    """Whose unique key another job holds by now."""
    keyed = [
        one
        for one in unit.keyed_jobs(where, KEYS_LOOKED)
        if not frees_key(one.unique_cover, State.QUEUED)
    ]
    hashes = {unique_hash(one.owner, one.kind, one.unique_key): one.id for one in keyed}
    holders = unit.key_holders(list(hashes))
    if not holders:
        return []
    named = ", ".join(hashes[one] for one in list(holders)[:NAMED])
    more = ", …" if len(holders) > NAMED else ""
    return [
        Obstacle(
            len(holders), f"another job holds their unique key now [UNIQUE_TAKEN]: {named}{more}"
        )
    ]
