"""Check what an operation is asked to do, freeze its filter, and preview its effect."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

from mulligan.core.attempt import Verb
from mulligan.core.durations import Micros
from mulligan.core.errors import ConfigError, IllegalMove, Refused
from mulligan.core.format import format_time
from mulligan.core.job import ALL_OWNERS, State, unique_hash
from mulligan.core.lifecycle import MOVES
from mulligan.failures.groups import NO_RETRIES
from mulligan.failures.queries import FailureQueries
from mulligan.guards.operator_limits import check_rate
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.filter import (
    ARGUMENT_PREFIX,
    DEAD_ONLY_FIELDS,
    INDEXED_PREFIX,
    Filter,
    Where,
    parse_filter,
)
from mulligan.jobs.preconditions import check_overrides, named_queues
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.repair import require_reason
from mulligan.jobs.search import resolve_filter
from mulligan.jobs.service import DEFAULT_COUNT_CAP
from mulligan.jobs.view import load_limit_state
from mulligan.jobs.why import derive_phase
from mulligan.manifest.arguments import to_json
from mulligan.manifest.specs import check_user_name
from mulligan.operations.queries import MatchedJobs, OperationQueries
from mulligan.operations.rules import (
    CANARY_STEPS,
    SINGLE_STEP,
    Action,
    Steps,
    check_steps,
    check_stop_if,
    max_items,
    plan_steps,
)
from mulligan.retries.policy import Policy
from mulligan.storage.base import Transaction
from mulligan.worker.queries import WorkerQueries
from mulligan.worker.settlement import frees_unique_key

VERBS: Mapping[Action, Verb] = {
    Action.RETRY: Verb.RETRY_BY_HAND,
    Action.CANCEL: Verb.CANCEL,
    Action.DISCARD: Verb.DISCARD,
    Action.RELEASE: Verb.RELEASE,
    Action.MOVE: Verb.MOVE,
}
# States that an action applies to if the filter names none. A retry leaves out cancelled jobs.
DEFAULT_STATES: Mapping[Action, tuple[State, ...]] = {
    Action.RETRY: (State.DEAD,),
    Action.CANCEL: (State.PARKED, State.QUEUED, State.RUNNING),
    Action.DISCARD: (State.DEAD,),
    Action.RELEASE: (State.PARKED,),
    Action.MOVE: (State.QUEUED,),
}
DEFAULT_RATES: Mapping[Action, float] = {
    Action.RETRY: 20.0,
    Action.RELEASE: 20.0,
    Action.CANCEL: 1000.0,
    Action.DISCARD: 1000.0,
    Action.MOVE: 1000.0,
}
PHASE_STATES = {
    "waiting": State.QUEUED,
    "scheduled": State.QUEUED,
    "backing_off": State.QUEUED,
    "held": State.QUEUED,
    "stopping": State.RUNNING,
}
MAX_KEY_LENGTH = 200


class CheckedOperation(NamedTuple):
    """A request for an operation whose options are all valid."""

    action: Action
    text: str  # the filter as written
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
        return ALL_OWNERS if self.owner is None else self.owner

    @property
    def queues(self) -> set[str]:
        """Queues that the operation would move jobs to."""
        names = named_queues(self.params.get("overrides"))
        if "queue" in self.params:
            names.add(self.params["queue"])
        return names

    @property
    def digest(self) -> str:
        """Hash of everything that the operation does; equal requests have equal digests."""
        content = [
            self.action,
            self.filter,
            self.steps,
            self.rate,
            self.stop_if,
            self.owner,
            self.params,
        ]
        text = json.dumps(content, sort_keys=True, default=list)
        return hashlib.sha256(text.encode()).hexdigest()[:40]


def check_request(  # noqa: PLR0913 - the options of `start`
    action: str,
    filter: str,  # noqa: A002 - public name
    *,
    steps: Sequence[int | str] | None,
    rate: float | str | None,
    stop_if: float,
    owner: str | None,
    reason: str,
    key: str | None,
    params: Mapping[str, Any],
) -> CheckedOperation:
    """Check all options of an operation."""
    checked_action = check_action(action)
    return CheckedOperation(
        checked_action,
        str(filter).strip(),
        _check_filter(checked_action, filter, owner),
        _resolve_steps(checked_action, steps),
        _resolve_rate(checked_action, rate),
        check_stop_if(stop_if),
        owner,
        _check_reason(checked_action, reason),
        _check_key(key),
        _check_params(checked_action, params),
    )


def _resolve_steps(action: Action, steps: Sequence[int | str] | None) -> Steps:
    if steps is not None:
        return check_steps(steps)
    return CANARY_STEPS if action is Action.RETRY else SINGLE_STEP


def _resolve_rate(action: Action, rate: float | str | None) -> float:
    if rate is None:
        return DEFAULT_RATES[action]
    return check_rate(rate) or DEFAULT_RATES[action]


def check_action(action: str) -> Action:
    """Return the action of this name."""
    if action not in list(Action):
        raise Refused(f"unknown action {action!r}; one of {', '.join(Action)}")
    return Action(action)


def _check_filter(action: Action, text: Any, owner: str | None) -> Filter:
    if not isinstance(text, str) or not text.strip():
        raise Refused(
            f'an operation needs a filter, such as "{_EXAMPLES[action]}"; '
            "without one it would affect every job"
        )
    found = parse_filter(text)
    if owner is not None and found.get("owner", owner) != owner:
        raise Refused(
            f"the filter says owner:{found['owner']}, but only jobs of {owner!r} are allowed"
        )
    checked: Filter = {**found, "state": _allowed_states(action, found)}
    if owner is not None:
        checked["owner"] = owner
    return checked


_EXAMPLES = {
    Action.RETRY: "state:dead code:GW_5XX",
    Action.CANCEL: "state:queued kind:render",
    Action.DISCARD: "state:dead since:7d kind:render",
    Action.RELEASE: "state:parked kind:render",
    Action.MOVE: "state:queued kind:render",
}


def _allowed_states(action: Action, found: Filter) -> tuple[str, ...]:
    """Return the states in the filter that the action applies to; there must be at least one."""
    legal = {state for verb, state in MOVES if verb is VERBS[action]}
    if action is Action.CANCEL:
        legal.add(State.RUNNING)
    requested = _requested_states(found)
    if requested is None:
        requested = set(DEFAULT_STATES[action])
    allowed = requested & legal
    if not allowed:
        finds = ", ".join(sorted(requested)) or "in no possible state"
        raise IllegalMove(
            f"{action} applies to jobs that are {_join_states(legal)}; "
            f"this filter finds jobs that are {finds}"
        )
    return tuple(sorted(str(state) for state in allowed))


def _requested_states(found: Filter) -> set[State] | None:
    """Return the states that the filter's fields allow together; None if it names none."""
    states = {State(state) for state in _as_tuple(found.get("state", ()))}
    phases = set()
    for phase in _as_tuple(found.get("phase", ())):
        phases.add(PHASE_STATES.get(phase) or State(phase))
    if any(field in found for field in DEAD_ONLY_FIELDS):
        phases = phases & {State.DEAD} if phases else {State.DEAD}
    if states and phases:
        return states & phases
    return states or phases or None


def _as_tuple(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _join_states(states: set[State]) -> str:
    *first, last = sorted(states)
    return f"{', '.join(first)} or {last}" if first else str(last)


def _check_reason(action: Action, reason: str) -> str:
    if action is Action.DISCARD:
        require_reason(reason)
    return reason


def _check_key(key: str | None) -> str | None:
    if key is None:
        return None
    if not key.strip() or not key.isprintable() or len(key) > MAX_KEY_LENGTH:
        raise Refused(f"key must be 1 to {MAX_KEY_LENGTH} printable characters, not {key!r:.80}")
    return key


def _check_params(action: Action, params: Mapping[str, Any]) -> dict[str, Any]:
    checked = {name: value for name, value in params.items() if value is not None}
    for name, allowed_action in _PARAM_ACTIONS.items():
        if name in checked and action is not allowed_action:
            raise Refused(f"{name}: only for {allowed_action}, not for {action}")
    if action is Action.MOVE and "queue" not in checked:
        raise Refused('move needs the queue to move to: queue="slow"')
    if "queue" in checked:
        try:
            check_user_name("queue", checked["queue"])
        except ConfigError as error:
            raise Refused(str(error)) from None
    if "overrides" in checked:
        overrides = checked["overrides"]
        check_overrides(overrides)
        stored = {name: _as_json_value(value) for name, value in overrides.items()}
        checked["overrides"] = json.loads(to_json(stored, "overrides"))
    return checked


def _as_json_value(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Policy):
        return json.loads(value.to_json())
    return value


_PARAM_ACTIONS = {"queue": Action.MOVE, "choice": Action.RELEASE, "overrides": Action.RETRY}


# --- Frozen filter ---
def freeze_filter(tx: Transaction, request: CheckedOperation, now: Micros) -> dict[str, Any]:
    """Resolve the filter to what it means now. The operation uses this until its end."""
    where: dict[str, Any] = dict(resolve_filter(tx, request.filter, request.owner))
    for name in where:
        if name.startswith(ARGUMENT_PREFIX):
            raise Refused(
                f"{name}: operations can use only indexed arguments. "
                "Declare the index: @app.job(index=…)"
            )
    since = where.pop("since", None)
    if since is not None:
        where["begun"] = str(now - int(since))
    return {**where, "until": str(now)}


def load_frozen_filter(text: str) -> Where:
    """Parse a stored frozen filter."""
    where: dict[str, Any] = {}
    for name, value in json.loads(text).items():
        where[name] = tuple(value) if isinstance(value, list) else value
    return where


def describe_frozen_filter(where: Where) -> str:
    """Return a frozen filter as people read it."""
    parts = []
    for name, value in where.items():
        if name not in {"begun", "until", "near"}:
            field = "batch" if name == "batch_id" else name
            field = field.replace(INDEXED_PREFIX, ARGUMENT_PREFIX, 1)
            parts.append(f"{field}:{','.join(_as_tuple(value))}")
    if "near" in where:
        matches = " or ".join(_as_tuple(where["near"]))
        parts.append(f"({matches or 'nothing'})")
    if "begun" in where:
        begun = int(str(where["begun"]))
        parts.append(f"enqueued since {format_time(begun)}")
    until = int(str(where["until"]))
    return f"{' '.join(parts)}, as of {format_time(until)}"


# --- Preview ---
MAX_GROUPS = 50  # the largest groups
MAX_LANES = 50  # the largest combinations of queue, kind and dependencies
MAX_DEATHS_READ = 1000
MAX_COSTS_READ = 10_000
MAX_KEYS_READ = 1000
MAX_JOBS_NAMED = 3


class PastRetries(NamedTuple):
    """How earlier manual retries of jobs in the same failure group ended."""

    group: str
    code: str
    jobs: int  # in this operation
    retried: int
    recovered: int
    of: str  # source of the numbers: "group", "code" (other groups of the code), "" for none


class Obstacle(NamedTuple):
    """Something that would delay jobs or refuse them."""

    jobs: int
    why: str


@dataclass(frozen=True, slots=True)
class OperationPreview:
    """Effect that an operation would have, counted over the first 10,000 matching jobs."""

    action: str
    filter: str
    fixed: str  # what the filter means now
    count: int
    capped: bool  # True: there may be more
    steps: tuple[int, ...]  # jobs per step
    codes: Mapping[str, int]
    kinds: Mapping[str, int]
    owners: Mapping[str, int]
    states: Mapping[str, int]
    cost: float  # so far
    estimated_cost: float  # one more attempt each, at the mean cost of their kinds
    chances: tuple[PastRetries, ...]
    held: tuple[Obstacle, ...]  # jobs that would have to wait now
    refused: tuple[Obstacle, ...]  # jobs that would be refused, as far as known

    @property
    def retried(self) -> int:
        return sum(chance.retried for chance in self.chances if chance.of == "group")

    @property
    def recovered(self) -> int:
        return sum(chance.recovered for chance in self.chances if chance.of == "group")

    @property
    def chance(self) -> float | None:
        """Share of jobs that recovered in earlier manual retries; None if there were none."""
        known = [chance for chance in self.chances if chance.retried]
        jobs = sum(chance.jobs for chance in known)
        if not jobs:
            return None
        expected = sum(chance.jobs * chance.recovered / chance.retried for chance in known)
        return expected / jobs


def preview_operation(tx: Transaction, request: CheckedOperation) -> OperationPreview:
    """Return what an operation would do, without writing."""
    now = tx.now()
    where = freeze_filter(tx, request, now)
    limit = max_items(request.steps) or DEFAULT_COUNT_CAP
    found = OperationQueries(tx).preview_operation(where, min(DEFAULT_COUNT_CAP, limit))
    codes: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    owners: Counter[str] = Counter()
    states: Counter[str] = Counter()
    for row in found:
        if row.code:
            codes[row.code] += row.jobs
        kinds[row.kind] += row.jobs
        owners[row.owner] += row.jobs
        states[row.state] += row.jobs
    count = kinds.total()
    preview = OperationPreview(
        action=request.action.value,
        filter=request.text,
        fixed=describe_frozen_filter(where),
        count=count,
        capped=count >= DEFAULT_COUNT_CAP,
        steps=tuple(step.size for step in plan_steps(request.steps, count)),
        codes=dict(codes.most_common()),
        kinds=dict(kinds.most_common()),
        owners=dict(owners.most_common()),
        states=dict(states.most_common()),
        cost=sum(row.cost for row in found),
        estimated_cost=0.0,
        chances=(),
        held=(),
        refused=(),
    )
    if request.action in {Action.RETRY, Action.RELEASE}:
        cost = _estimate_cost(tx, found)
        preview = replace(preview, estimated_cost=cost, held=_find_delays(tx, found, now))
    if request.action is Action.RETRY:
        chances = _past_retries(tx, found, request.owner)
        return replace(preview, chances=chances, refused=_find_taken_keys(tx, where))
    return replace(preview, refused=_already_in_queue(found, request.params.get("queue")))


def _sum_jobs(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sum up jobs by name, most first."""
    counts: Counter[str] = Counter()
    for name, jobs in pairs:
        counts[name] += jobs
    return dict(counts.most_common())


def _estimate_cost(tx: Transaction, found: Sequence[MatchedJobs]) -> float:
    """Estimate the cost of one more attempt of each job.

    Uses the mean cost of the kind's newest attempts, or of these jobs if there are none.
    """
    newest = OperationQueries(tx).sum_costs_by_kind(MAX_COSTS_READ)
    total = 0.0
    for kind in {row.kind for row in found}:
        rows = [row for row in found if row.kind == kind]
        cost, attempts = newest.get(kind, (0.0, 0))
        if not attempts:
            cost = sum(row.cost for row in rows)
            attempts = sum(row.claims for row in rows)
        if attempts:
            total += sum(row.jobs for row in rows) * cost / attempts
    return total


def _past_retries(
    tx: Transaction, found: Sequence[MatchedJobs], owner: str | None
) -> tuple[PastRetries, ...]:
    """Return how earlier retries of the largest groups ended.

    A group without retries borrows the numbers of other groups with its code.
    """
    jobs = _sum_jobs((row.group, row.jobs) for row in found if row.group)
    codes = {row.group: row.code or "" for row in found if row.group}
    groups = list(jobs)[:MAX_GROUPS]
    results = FailureQueries(tx).count_group_retries(groups, owner, MAX_DEATHS_READ)
    retried_by_code: Counter[str] = Counter()
    recovered_by_code: Counter[str] = Counter()
    for group, retries in results.items():
        retried_by_code[codes[group]] += retries.ended
        recovered_by_code[codes[group]] += retries.recovered
    chances = []
    for group in groups:
        code = codes[group]
        retried, recovered = results.get(group, NO_RETRIES)[:2]
        source = "group"
        if not retried:
            retried = retried_by_code[code]
            recovered = recovered_by_code[code]
            source = "code" if retried else ""
        chances.append(PastRetries(group, code, jobs[group], retried, recovered, source))
    return tuple(chances)


def _find_delays(
    tx: Transaction, found: Sequence[MatchedJobs], now: Micros
) -> tuple[Obstacle, ...]:
    """Return what would delay these jobs if they were due now, judged by one sample per lane."""
    jobs: Counter[str] = Counter()
    samples: dict[str, str] = {}
    for matched in found:
        lane = f"{matched.queue}|{matched.kind}|{matched.uses}"
        jobs[lane] += matched.jobs
        samples[lane] = matched.sample
    gates = GuardQueries(tx).list_gates()
    known_kinds = WorkerQueries(tx).live_kinds()
    limit_state = load_limit_state(tx, now)
    delayed: Counter[str] = Counter()
    for lane, count in jobs.most_common(MAX_LANES):
        row = JobQueries(tx).get_job(samples[lane])
        if row is not None:
            due_now = row._replace(state=State.QUEUED, run_at=now)
            phase = derive_phase(due_now, gates, now, known_kinds, limit_state)
            if phase.name != "ready":
                delayed[phase.why] += count
    return tuple(Obstacle(count, why) for why, count in delayed.most_common())


def _already_in_queue(found: Sequence[MatchedJobs], queue: str | None) -> tuple[Obstacle, ...]:
    jobs = sum(row.jobs for row in found if row.queue == queue)
    return (Obstacle(jobs, f"already in queue {queue}"),) if jobs else ()


def _find_taken_keys(tx: Transaction, where: Where) -> tuple[Obstacle, ...]:
    """Return the jobs whose unique key another job holds now."""
    job_ids = {}
    for row in OperationQueries(tx).list_released_keys(where, MAX_KEYS_READ):
        if not frees_unique_key(row.unique_cover, State.QUEUED):
            job_ids[unique_hash(row.owner, row.kind, row.unique_key)] = row.id
    taken = JobQueries(tx).find_key_holders(list(job_ids))
    if not taken:
        return ()
    names = ", ".join(job_ids[key] for key in list(taken)[:MAX_JOBS_NAMED])
    if len(taken) > MAX_JOBS_NAMED:
        names += ", …"
    return (Obstacle(len(taken), f"another job holds their unique key [UNIQUE_TAKEN]: {names}"),)
