"""Checks before a manual retry, and the overrides it may apply to a job.

Everything is checked before anything is written. Each refusal has its own error code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from shlex import quote
from typing import Any, NamedTuple

from pydantic import ValidationError

from mulligan.batches import completion
from mulligan.core import lifecycle
from mulligan.core.attempt import Verb
from mulligan.core.durations import SECOND, Micros, to_datetime
from mulligan.core.errors import (
    ConfigError,
    DependencyOpen,
    IllegalMove,
    MulliganError,
    OverrideRefused,
    PayloadRefused,
    RetryLimited,
    RetryRefused,
    UniqueTaken,
)
from mulligan.core.format import format_time, one_line
from mulligan.core.job import (
    JobRow,
    Lane,
    Limit,
    State,
    Unique,
    parse_job_settings,
    split_uses,
    unique_hash,
)
from mulligan.core.json import index_entries
from mulligan.failures.redact import scrub_public
from mulligan.guards.limits import next_start_at, owner_share, parse_rate_parts, refill_bucket
from mulligan.guards.observer import DependencyObserver
from mulligan.guards.queries import GuardQueries
from mulligan.guards.state import load_guard
from mulligan.jobs.options import (
    check_max_retries,
    check_priority,
    check_timeout,
    expand_uses,
    format_uses,
)
from mulligan.jobs.queries import JobQueries
from mulligan.manifest.arguments import refusal_message, to_json
from mulligan.manifest.declared import (
    load_active_manifests,
    load_kinds,
    load_queues,
    merge_breaker_configs,
)
from mulligan.manifest.schema import check_payload
from mulligan.manifest.specs import Handler, KindSpec, QueueSpec, check_user_name, fill_defaults
from mulligan.manifest.versions import decode_payload, upcast_payload
from mulligan.retries.policy import Policy, encode_policy
from mulligan.steps.repair import NO_STEP_CHANGES, StepChanges, check_step_changes
from mulligan.storage.base import Transaction
from mulligan.worker.settlement import frees_unique_key

MAX_SHOWN_LENGTH = 300  # characters of a payload value in an event
REDACTED = "[redacted]"
SECRET_NAME = re.compile(
    r"passw|passphrase|secret|token|(?:api|private)_?key|credential|auth|pwd|session", re.IGNORECASE
)


class KindInfo(NamedTuple):
    """Spec and handler of a kind. The handler is known only where the app is loaded."""

    spec: KindSpec | None
    handler: Handler | None
    queues: Mapping[str, QueueSpec]
    max_payload: int  # bytes of JSON


NON_COLUMN_FIELDS = frozenset({"args", "changes", "steps"})
STEP_OVERRIDES = ("from_step", "steps")


class JobOverrides(NamedTuple):
    """New values of a job's columns (None: unchanged) and the changes to report."""

    queue: str | None = None
    lane: str | None = None
    priority: int | None = None
    timeout: int | None = None
    policy: str | None = None
    max_retries: int | None = None
    payload: str | None = None
    version: int | None = None  # of this payload
    uses: str | None = None
    unique_key: str | None = None
    args: tuple[tuple[str, str], ...] | None = None  # indexed arguments
    changes: Mapping[str, Mapping[str, Any]] = {}  # field name → before, after
    steps: StepChanges = NO_STEP_CHANGES

    @property
    def columns(self) -> dict[str, Any]:
        """Return the changed columns by name."""
        return {
            name: value
            for name, value in self._asdict().items()
            if name not in NON_COLUMN_FIELDS and value is not None
        }


UNCHANGED = JobOverrides()


def load_kind_info(
    tx: Transaction, row: JobRow, handlers: Mapping[str, Handler], max_payload: int
) -> KindInfo:
    """Return what is known about the kind of a job."""
    handler = handlers.get(row.kind)
    spec = load_kinds(tx).get(row.kind) if handler is None else handler.spec
    return KindInfo(spec, handler, load_queues(tx, tx.now()), max_payload)


def check_overrides(overrides: Any) -> Mapping[str, Any]:
    """Check names and values of overrides, regardless of the job they are for."""
    _check_mapping("overrides", overrides or {})
    requested = dict(overrides or {})
    unknown = sorted(requested.keys() - _CHECKS.keys() - {"payload", *STEP_OVERRIDES})
    if unknown:
        possible = ", ".join([*_CHECKS, "payload", *STEP_OVERRIDES])
        raise OverrideRefused(f"cannot override {', '.join(unknown)}. Possible: {possible}")
    checked: dict[str, Any] = {}
    if any(name in requested for name in STEP_OVERRIDES):
        named = [requested.pop(name, None) for name in STEP_OVERRIDES]
        checked["steps"] = check_step_changes(*named)
    for name, value in requested.items():
        checked[name] = value if name == "payload" else _check_value(name, value)
    return checked


def named_queues(overrides: Mapping[str, Any] | None) -> set[str]:
    """Return the queues that overrides name, also in the escalation steps of a policy."""
    checked = check_overrides(overrides)
    names = {checked["queue"]} if "queue" in checked else set()
    if "policy" in checked:
        names |= Policy.from_json(checked["policy"]).queues
    return names


def apply_overrides(
    row: JobRow, overrides: Mapping[str, Any] | None, kind: KindInfo
) -> JobOverrides:
    """Check overrides against a job and return its new columns.

    May call functions of the app, so it must not run inside a transaction.
    """
    columns = dict(check_overrides(overrides))
    payload_fields = columns.pop("payload", None)
    change = UNCHANGED._replace(**columns)
    if payload_fields:
        change = _edit_payload(row, payload_fields, kind, change)
    # An escalation step may have moved the job; a retry returns it to its original queue.
    home = parse_job_settings(row.settings).get("home")
    change = _update_unique_key(row, change, home or row.queue, kind)
    if change.queue or change.uses is not None or home:
        change = change._replace(queue=change.queue or home)
        change = change._replace(lane=_lane_key(row, change, kind.queues))
    return change._replace(changes=_describe_changes(row, change))


def return_to_home_queue(tx: Transaction, row: JobRow) -> JobOverrides:
    """Return the overrides that undo the queue change of an escalation step, and nothing else."""
    if not parse_job_settings(row.settings).get("home"):
        return UNCHANGED
    return apply_overrides(row, None, load_kind_info(tx, row, {}, 0))


# --- Values ---
def _check_policy(value: Any) -> str | None:
    try:
        policy = Policy.from_dict(value) if isinstance(value, Mapping) else value
        return encode_policy(policy)
    except ValidationError as errors:
        parts = []
        for error in errors.errors():
            field = ".".join(map(str, error["loc"]))
            parts.append(f"{field}: {error['msg']}")
        raise OverrideRefused("; ".join(parts)) from None


def _check_queue(value: Any) -> str:
    return check_user_name("queue", value)


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "max_retries": check_max_retries,
    "queue": _check_queue,
    "priority": check_priority,
    "timeout": check_timeout,
    "policy": _check_policy,
}


def _check_value(name: str, value: Any) -> Any:
    if value is None:
        raise OverrideRefused(
            f"override {name} is None. Leave it out to keep the value that the job has."
        )
    try:
        return _CHECKS[name](value)
    except (MulliganError, ConfigError) as error:
        raise OverrideRefused(f"override {name}: {error}") from None


def _check_mapping(what: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise OverrideRefused(f"{what} must map names to values, not {value!r:.80}")


# --- Payload ---
def _edit_payload(row: JobRow, fields: Any, kind: KindInfo, change: JobOverrides) -> JobOverrides:
    _check_mapping("the payload's overrides", fields)
    _check_editable(row.kind, fields, kind.spec)
    payload = {**_current_payload(row, kind), **fields}
    if kind.handler is not None:
        payload = kind.handler.arguments.encode(payload)
    else:
        _check_stored_schema(row.kind, payload, kind.spec)
    text = to_json(payload, f"the payload of {row.kind}")
    if len(text) > kind.max_payload:
        raise PayloadRefused(
            f"the payload of {row.kind} would be {len(text):,} bytes of JSON; "
            f"the limit is {kind.max_payload:,}"
        )
    args = None
    if kind.spec is not None and kind.spec.index:
        args = index_entries(payload, kind.spec.index)
    version = None if kind.spec is None else kind.spec.version
    uses = _changed_uses(row, payload, kind)
    return change._replace(payload=text, version=version, uses=uses, args=args)


def _current_payload(row: JobRow, kind: KindInfo) -> dict[str, Any]:
    """Return the payload in the version of its kind. Only the app can upcast an older one."""
    payload: dict[str, Any] = json.loads(row.payload)
    if kind.spec is None or row.version == kind.spec.version:
        return payload
    if kind.handler is None:
        raise OverrideRefused(
            f"the payload of job {row.id} has version {row.version}, and kind {row.kind} has "
            f"version {kind.spec.version}. Edit it in the app, which can upcast it: "
            "app.jobs.retry(id, overrides=…)"
        )
    return upcast_payload(kind.spec, kind.handler.upcast, payload, row.version)


def _check_editable(kind: str, fields: Mapping[str, Any], spec: KindSpec | None) -> None:
    editable = () if spec is None else spec.editable
    refused = sorted(set(fields).difference(editable))
    if not refused:
        return
    if editable:
        hint = f"kind {kind} allows: {', '.join(editable)}"
    elif spec is not None:
        hint = f"kind {kind} allows none. Declare them in its code: @app.job(editable=…)"
    else:
        hint = f"no worker has declared which fields kind {kind} allows"
    raise OverrideRefused(f"payload field {', '.join(refused)} cannot be changed; {hint}")


def _check_stored_schema(kind: str, payload: Any, spec: KindSpec | None) -> None:
    if spec is None or not spec.schema:
        raise OverrideRefused(
            f"kind {kind} has no JSON schema to check the payload against. "
            "Retry the job from the app: app.jobs.retry(id, overrides=…)"
        )
    check_payload(kind, payload, spec.schema)


def _changed_uses(row: JobRow, payload: Any, kind: KindInfo) -> str | None:
    """Return the new dependencies if they follow from the payload and changed."""
    if kind.spec is None or not kind.spec.uses_by_payload:
        return None
    if kind.spec.uses_template:
        uses = expand_uses(kind.spec, payload)
        return None if uses == row.uses else uses
    if kind.handler is None or kind.handler.uses is None:
        raise OverrideRefused(
            f"the dependencies of kind {row.kind} follow from its payload, and only its app can "
            "compute them. Retry the job from the app: app.jobs.retry(id, overrides=…)"
        )
    uses = format_uses(kind.handler.uses(payload))
    return None if uses == row.uses else uses


# --- Values that follow from the changes ---
def _update_unique_key(
    row: JobRow, change: JobOverrides, queue: str, kind: KindInfo
) -> JobOverrides:
    """Recompute a unique key that was made from changed values; keep one that a caller chose."""
    if row.unique_key is None or kind.spec is None or not kind.spec.unique_by:
        return change
    unique = Unique(by=kind.spec.unique_by)
    before = fill_defaults(kind.spec.schema, json.loads(row.payload))
    if unique.key(row.owner, queue, before) != row.unique_key:
        return change
    payload = fill_defaults(kind.spec.schema, json.loads(change.payload or row.payload))
    key = unique.key(row.owner, change.queue or queue, payload)
    return change if key == row.unique_key else change._replace(unique_key=key)


def _lane_key(row: JobRow, change: JobOverrides, queues: Mapping[str, QueueSpec]) -> str:
    uses = row.uses if change.uses is None else change.uses
    return lane_in_queue(row._replace(uses=uses), change.queue or row.queue, queues).key


def lane_in_queue(row: JobRow, queue: str, queues: Mapping[str, QueueSpec]) -> Lane:
    """Return the lane that this job would have in a queue."""
    is_fair = queue in queues and queues[queue].fair
    share = owner_share(row.owner) if is_fair else ""
    return Lane(queue, row.kind, row.uses, False, share)


# --- Changes to report ---
def _describe_changes(row: JobRow, change: JobOverrides) -> dict[str, dict[str, Any]]:
    """Return field name → before and after. Payload values are redacted: owners read them.
    The unique key is left out: it is made of values that are reported anyway.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in ("max_retries", "queue", "priority", "uses"):
        after = getattr(change, name)
        if after is not None and after != getattr(row, name):
            found[name] = {"before": getattr(row, name), "after": after}
    if change.timeout is not None and change.timeout != row.timeout:
        before = None if row.timeout is None else row.timeout / SECOND
        found["timeout"] = {"before": before, "after": change.timeout / SECOND}
    if change.policy is not None and change.policy != row.policy:
        policy = json.loads(row.policy or "null")
        found["policy"] = {"before": policy, "after": json.loads(change.policy)}
    if change.steps.from_step:
        found["from_step"] = {"before": None, "after": change.steps.from_step}
    for name in change.steps.results:  # results are private
        found[f"steps.{name}"] = {"before": None, "after": "set by hand"}
    return found | _describe_payload_changes(row, change)


def _describe_payload_changes(row: JobRow, change: JobOverrides) -> dict[str, dict[str, Any]]:
    if change.payload is None:
        return {}
    before = json.loads(row.payload)
    after = json.loads(change.payload)
    changes = {}
    for name in sorted({*before, *after}):
        is_in_both = name in before and name in after
        if not is_in_both or before[name] != after[name]:
            changes[f"payload.{name}"] = {
                "before": redact_value(name, before.get(name)),
                "after": redact_value(name, after.get(name)),
            }
    return changes


def redact_value(name: str, value: Any) -> Any:
    """Return a payload value fit for any reader: secrets removed, long texts shortened."""
    if SECRET_NAME.search(name):
        return None if value is None else REDACTED
    text = json.dumps({name: value})
    if len(text) > MAX_SHOWN_LENGTH:
        value_text = value if isinstance(value, str) else json.dumps(value)
        return scrub_public(value_text, MAX_SHOWN_LENGTH)
    scrubbed = scrub_public(text)
    if scrubbed == text:
        return value
    try:
        return json.loads(scrubbed)[name]
    except (ValueError, KeyError, TypeError):
        return REDACTED


# --- Preconditions ---
OWNER_SCOPE = "owner"  # scope of the meter that counts manual retries of an owner


class MeterBusy(Exception):
    """Another transaction holds the owner's meter."""


def unique_hash_after(row: JobRow, state: State, key: str | None = None) -> str | None:
    """Return the unique key hash that the job holds in `state`; None if it holds none there.

    `key` replaces the job's key. If another job holds the hash, the move is refused.
    """
    name = key or row.unique_key
    if name is None or frees_unique_key(row.unique_cover, state):
        return None
    if key or row.unique_hash is None:
        return unique_hash(row.owner, row.kind, name)
    return row.unique_hash


def find_refusals(
    tx: Transaction, row: JobRow, change: JobOverrides, at: Micros | None
) -> Iterator[MulliganError]:
    """Yield every reason in the database to refuse a manual retry."""
    checks: tuple[Callable[[], None], ...] = (
        lambda: _check_state(row),
        lambda: completion.check_member_retry(tx, row),
        lambda: _check_unique_key(tx, row, change),
        lambda: _check_dependencies(tx, row, change, at),
    )
    for check in checks:
        try:
            check()
        except MulliganError as error:
            yield error
            if isinstance(error, IllegalMove):  # The other checks make no sense in this state.
                return


def _check_state(row: JobRow) -> None:
    lifecycle.next_state(Verb.RETRY_BY_HAND, State(row.state))


def _check_unique_key(tx: Transaction, row: JobRow, change: JobOverrides) -> None:
    wanted = unique_hash_after(row, State.QUEUED, change.unique_key)
    holder = None if wanted is None else JobQueries(tx).find_unique_holder(wanted)
    if holder not in (None, row.id):
        raise UniqueTaken(describe_taken_key(row, change, holder))


def describe_taken_key(row: JobRow, change: JobOverrides, holder: str | None) -> str:
    """Return an error text: another job holds the unique key that this job needs."""
    key = one_line(change.unique_key or row.unique_key or "")
    holder_name = f"job {holder}" if holder else "another job"
    return (
        f"{holder_name} holds the unique key {key!r} of job {row.id}. "
        "Cancel or discard that job first."
    )


def _check_dependencies(
    tx: Transaction, row: JobRow, change: JobOverrides, at: Micros | None
) -> None:
    now = tx.now()
    if at is None or at <= now:  # A later retry may find the dependency recovered.
        uses = row.uses if change.uses is None else change.uses
        refuse_if_dependency_down(tx, uses, now)


def refuse_if_dependency_down(tx: Transaction, uses: str, now: Micros) -> None:
    """Refuse if a `fail_fast` dependency is down: the job would die at once.

    Jobs of a dependency in mode `hold` simply wait, and their `why` says so.
    """
    keys = split_uses(uses)
    if not keys:
        return
    down = {}
    for row in GuardQueries(tx).list_guards(active_only=True):
        if row.scope == "dependency" and row.key in keys:
            guard = load_guard(row.body)
            if guard.is_down(now):
                down[row.key] = guard
    if not down:
        return
    observer = DependencyObserver(
        declared_elsewhere=merge_breaker_configs(load_active_manifests(tx, now))
    )
    for key, guard in sorted(down.items()):
        if observer.config_for(key).mode == "fail_fast":
            raise DependencyOpen(
                f"dependency {key} is down since {format_time(guard.since)}, "
                "so the job would die at once. "
                "Retry it later (at=), or close the breaker first: "
                f"mulligan deps close {quote(key)}"
            )


def check_can_retry(row: JobRow, change: JobOverrides, kind: KindInfo) -> None:
    """Call the kind's `can_retry=`. Where the app is not loaded, a worker calls it later."""
    handler = kind.handler
    if handler is None or handler.can_retry is None:
        return
    payload, version = row.payload, row.version
    if change.payload is not None:
        payload, version = change.payload, handler.spec.version
    arguments = decode_payload(handler, payload, version)
    can_retry = handler.can_retry
    try:
        refusal = refusal_message(can_retry.call_blocking(can_retry.select_arguments(arguments)))
    except Exception as error:
        raise RetryRefused(
            f"nothing was changed: can_retry of kind {row.kind} raised {type(error).__name__}"
        ) from error
    if refusal:
        raise RetryRefused(f"can_retry of kind {row.kind} refused: {refusal}")


def spend_manual_retry(tx: Transaction, owner: str, rate_limit: str) -> None:
    """Count one manual retry against the owner's rate limit, for the whole fleet."""
    burst, seconds = parse_rate_parts(rate_limit) or (0.0, 1)
    rate = burst / seconds
    key = (OWNER_SCOPE, owner)
    stored = GuardQueries(tx).lock_token_buckets([key])[key]
    if stored is None:
        raise MeterBusy
    meter, now = stored
    meter = refill_bucket(meter, rate, now, burst=burst)
    next_at = next_start_at(Limit(rate=rate), meter)
    if next_at is not None:
        raise RetryLimited(
            f"owner {one_line(owner)} has used up {rate_limit} manual retries; "
            f"the next is possible at {format_time(next_at)}",
            to_datetime(next_at),
        )
    GuardQueries(tx).update_token_buckets({key: meter._replace(tokens=meter.tokens - 1)})
