"""What a retry by hand changes of a job: checked before anything is written, and told as before and after."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from shlex import quote
from typing import Any, NamedTuple

from pydantic import ValidationError

from mulligan.batches import completion as batching
from mulligan.core import lifecycle
from mulligan.core.attempt import Verb
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
from mulligan.core.format import moment, one_line
from mulligan.core.job import SECOND, JobRow, Lane, Limit, Micros, State, to_datetime
from mulligan.core.json import indexed
from mulligan.core.unique import Unique, unique_hash
from mulligan.failures.redact import shown
from mulligan.guards.limits import next_start, rate_parts, refilled, share_of
from mulligan.guards.observer import DependencyObserver, read_guard_state
from mulligan.jobs.enqueue import checked_count, checked_priority, checked_timeout, uses_text
from mulligan.manifest.arguments import refusal, to_json
from mulligan.manifest.declared import holding_manifests, stored_kinds, stored_queues, terms_of_all
from mulligan.manifest.specs import Handler, KindSpec, QueueSpec, free_name
from mulligan.retries.policy import Policy, given, policy_text
from mulligan.storage.base import Transaction
from mulligan.worker.settlement import frees_key

LONGEST = 300  # characters of a payload's value that an event tells
GONE = "[redacted]"
TELLING = re.compile(
    r"passw|passphrase|secret|token|(?:api|private)_?key|credential|auth|pwd|session", re.IGNORECASE
)


class KnownKinds(NamedTuple):
    """What is known where the retry is asked for: with the app its handler, else what a worker has stored."""

    spec: KindSpec | None
    handler: Handler | None
    queues: Mapping[str, QueueSpec]
    most: int  # bytes of a payload


BESIDE = frozenset({"args", "told"})  # what is no column of a job


class JobOverrides(NamedTuple):
    """New values of columns, None: as it was; and what there is to tell."""

    queue: str | None = None
    lane: str | None = None
    priority: int | None = None
    timeout: int | None = None
    policy: str | None = None
    max_retries: int | None = None
    payload: str | None = None
    uses: str | None = None
    unique_key: str | None = None
    args: tuple[tuple[str, str], ...] | None = None  # what filters find it by
    told: Mapping[str, Mapping[str, Any]] = {}  # name → before, after

    @property
    def columns(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self._asdict().items()
            if name not in BESIDE and value is not None
        }


UNCHANGED = JobOverrides()


def kinds_of(
    unit: Transaction, row: JobRow, handlers: Mapping[str, Handler], most: int
) -> KnownKinds:
    handler = handlers.get(row.kind)
    spec = stored_kinds(unit).get(row.kind) if handler is None else handler.spec
    return KnownKinds(spec, handler, stored_queues(unit, unit.now()), most)


def checked(overrides: Any) -> Mapping[str, Any]:
    """By themselves; whether they fit a job is another question."""
    _names("overrides", overrides or {})
    said = dict(overrides or {})
    strange = sorted(said.keys() - _CHECKED.keys() - {"payload"})
    if strange:
        message = (
            f"cannot override {', '.join(strange)}; possible: {', '.join([*_CHECKED, 'payload'])}"
        )
        raise OverrideRefused(message)
    return {
        name: value if name == "payload" else _checked(name, value) for name, value in said.items()
    }


def amended(row: JobRow, overrides: Mapping[str, Any] | None, known: KnownKinds) -> JobOverrides:
    """All of it checked. May call functions of the app: not to be called inside a transaction."""
    said = checked(overrides)
    change = UNCHANGED._replace(
        **{name: value for name, value in said.items() if name != "payload"}
    )
    if said.get("payload"):
        change = _edited(row, said["payload"], known, change)
    home = given(row.settings).get("home")  # back from where an escalation has moved it
    change = _with_key(row, change, home or row.queue, known)
    if change.queue or change.uses is not None or home:
        change = change._replace(queue=change.queue or home)
        change = change._replace(lane=_lane(row, change, known.queues))
    return change._replace(told=_told(row, change))


def homeward(unit: Transaction, row: JobRow) -> JobOverrides:
    """Nothing but this: back in the queue it was enqueued for, from where an escalation had moved it."""
    if not given(row.settings).get("home"):
        return UNCHANGED
    return amended(row, None, kinds_of(unit, row, {}, 0))


# -- values -----------------------------------------------------------------------------------------
def _policy(value: Any) -> str | None:
    try:
        return policy_text(Policy.from_plain(value) if isinstance(value, Mapping) else value)
    except ValidationError as errors:
        found = "; ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in errors.errors()
        )
        raise OverrideRefused(found) from None


def _queue(value: Any) -> str:
    return free_name("queue", value)


_CHECKED: Mapping[str, Callable[[Any], Any]] = {
    "max_retries": checked_count,
    "queue": _queue,
    "priority": checked_priority,
    "timeout": checked_timeout,
    "policy": _policy,
}


def _checked(name: str, value: Any) -> Any:
    if value is None:
        message = f"override {name}: None says nothing; leave it out to keep what the job has"
        raise OverrideRefused(message)
    try:
        return _CHECKED[name](value)
    except (MulliganError, ConfigError) as error:
        message = f"override {name}: {error}"
        raise OverrideRefused(message) from None


def _names(what: str, said: Any) -> None:
    if not isinstance(said, Mapping) or not all(isinstance(name, str) for name in said):
        message = f"{what} map names to values, not {said!r:.80}"
        raise OverrideRefused(message)


# -- payload ----------------------------------------------------------------------------------------
def _edited(row: JobRow, fields: Any, known: KnownKinds, change: JobOverrides) -> JobOverrides:
    _names("the payload's overrides", fields)
    _allowed(row.kind, fields, known.spec)
    merged = {**json.loads(row.payload), **fields}
    if known.handler is not None:
        merged = known.handler.arguments.encode(merged)
    else:
        _fits(row.kind, merged, known.spec)
    text = to_json(merged, f"the payload of {row.kind}")
    if len(text) > known.most:
        message = f"the payload of {row.kind} would be {len(text)} bytes of JSON, the limit is {known.most}"
        raise PayloadRefused(message)
    args = (
        indexed(merged, known.spec.index) if known.spec is not None and known.spec.index else None
    )
    return change._replace(payload=text, uses=_uses(row, merged, known), args=args)


def _allowed(kind: str, fields: Mapping[str, Any], spec: KindSpec | None) -> None:
    editable = () if spec is None else spec.editable
    strange = sorted(set(fields).difference(editable))
    if not strange:
        return
    allowed = (
        f"kind {kind} allows: {', '.join(editable)}"
        if editable
        else (
            f"kind {kind} allows none; its code says which: @app.job(editable=…)"
            if spec is not None
            else f"no worker has told what kind {kind} allows"
        )
    )
    message = f"payload field {', '.join(strange)} cannot be changed; {allowed}"
    raise OverrideRefused(message)


def _fits(kind: str, payload: Any, spec: KindSpec | None) -> None:
    """By the stored schema: stricter than the handler, which also takes "7" for 7."""
    if spec is None or not spec.schema:
        message = f"kind {kind}: its arguments have no JSON schema to check this by; retry it where its app is"
        raise OverrideRefused(message)
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # noqa: PLC0415 - slow, seldom needed

    errors = sorted(
        Draft202012Validator(spec.schema).iter_errors(payload),
        key=lambda error: list(map(str, error.path)),
    )
    if errors:
        parts = [
            f"{'.'.join(map(str, error.path)) or 'payload'}: {shown(error.message, LONGEST)}"
            for error in errors
        ]
        message = f"{kind}: {'; '.join(parts)}"
        raise PayloadRefused(message)


def _uses(row: JobRow, payload: Any, known: KnownKinds) -> str | None:
    """Where they follow from the payload, only the app can tell."""
    if known.spec is None or not known.spec.uses_by_payload:
        return None
    if known.handler is None or known.handler.uses is None:
        message = (
            f"kind {row.kind}: what it uses follows from its payload, and only its app can tell; retry it there: "
            "app.jobs.retry(id, overrides=…)"
        )
        raise OverrideRefused(message)
    uses = uses_text(known.handler.uses(payload))
    return None if uses == row.uses else uses


# -- what follows from it -----------------------------------------------------------------------------
def _with_key(row: JobRow, change: JobOverrides, queue: str, known: KnownKinds) -> JobOverrides:
    """A key that was made of what changes changes with it; one that somebody gave stays."""
    if row.unique_key is None or known.spec is None or not known.spec.unique_by:
        return change
    unique = Unique(by=known.spec.unique_by)
    if unique.key(row.owner, queue, json.loads(row.payload)) != row.unique_key:
        return change
    after = unique.key(row.owner, change.queue or queue, json.loads(change.payload or row.payload))
    return change if after == row.unique_key else change._replace(unique_key=after)


def _lane(row: JobRow, change: JobOverrides, queues: Mapping[str, QueueSpec]) -> str:
    queue, uses = change.queue or row.queue, row.uses if change.uses is None else change.uses
    return lane_in(row._replace(uses=uses), queue, queues).key


def lane_in(row: JobRow, queue: str, queues: Mapping[str, QueueSpec]) -> Lane:
    """Of this job in this queue, where owners may take turns."""
    share = share_of(row.owner) if queue in queues and queues[queue].fair else ""
    return Lane(queue, row.kind, row.uses, False, share)


# -- what is told -------------------------------------------------------------------------------------
def _told(row: JobRow, change: JobOverrides) -> dict[str, dict[str, Any]]:
    """Of payloads through redaction: an event is read by owners and by webhooks."""
    found: dict[str, dict[str, Any]] = {}
    for name in (
        "max_retries",
        "queue",
        "priority",
        "uses",
    ):  # a key is made of what is told anyway
        after = getattr(change, name)
        if after is not None and after != getattr(row, name):
            found[name] = {"before": getattr(row, name), "after": after}
    if change.timeout is not None and change.timeout != row.timeout:
        before = None if row.timeout is None else row.timeout / SECOND
        found["timeout"] = {"before": before, "after": change.timeout / SECOND}
    if change.policy is not None and change.policy != row.policy:
        found["policy"] = {
            "before": json.loads(row.policy or "null"),
            "after": json.loads(change.policy),
        }
    return found | _payload_told(row, change)


def _payload_told(row: JobRow, change: JobOverrides) -> dict[str, dict[str, Any]]:
    if change.payload is None:
        return {}
    before, after = json.loads(row.payload), json.loads(change.payload)
    return {
        f"payload.{name}": {
            "before": hidden(name, before.get(name)),
            "after": hidden(name, after.get(name)),
        }
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name) or (name in before) != (name in after)
    }


def hidden(name: str, value: Any) -> Any:
    """As any outlet may show it: a field with a telling name not at all, a long text in part."""
    if TELLING.search(name):
        return None if value is None else GONE
    text = json.dumps({name: value})
    if len(text) > LONGEST:
        return shown(value if isinstance(value, str) else json.dumps(value), LONGEST)
    safe = shown(text)
    if safe == text:
        return value
    try:
        return json.loads(safe)[name]
    except (ValueError, KeyError, TypeError):
        return GONE


# What must hold before a job is run again by hand, each with its own code; asked before anything changes.

OWNER = "owner"  # the scope of its meter


class Busy(Exception):
    """The meter is in another hand, for the length of a transaction."""


def key_after(row: JobRow, state: State, key: str | None = None) -> str | None:
    """Back in a covered state the job wants its key again; another holder refuses the move."""
    name = key or row.unique_key
    if name is None or frees_key(row.unique_cover, state):
        return None
    return (
        unique_hash(row.owner, row.kind, name)
        if key or row.unique_hash is None
        else row.unique_hash
    )


def refusals(
    unit: Transaction, row: JobRow, change: JobOverrides, at: Micros | None
) -> Iterator[MulliganError]:
    """Everything that stands in the way of a retry by hand, as far as the database can tell."""
    checks: tuple[Callable[[], None], ...] = (
        lambda: _state(row),
        lambda: batching.check_retry(unit, row),
        lambda: _key(unit, row, change),
        lambda: _dependencies(unit, row, change, at),
    )
    for check in checks:
        try:
            check()
        except MulliganError as error:
            yield error
            if isinstance(
                error, IllegalMove
            ):  # of a job that cannot be retried nothing else is asked
                return


def _state(row: JobRow) -> None:
    lifecycle.move(Verb.RETRY_BY_HAND, State(row.state))


def _key(unit: Transaction, row: JobRow, change: JobOverrides) -> None:
    wanted = key_after(row, State.QUEUED, change.unique_key)
    holder = None if wanted is None else unit.key_holder(wanted)
    if holder not in (None, row.id):
        raise UniqueTaken(taken(row, change, holder))


def taken(row: JobRow, change: JobOverrides, holder: str | None) -> str:
    key = one_line(change.unique_key or row.unique_key or "")
    who = f"job {holder}" if holder else "another job"
    return f"{who} holds the unique key {key!r} of job {row.id} now; cancel or discard that one first, or leave this one"


def _dependencies(unit: Transaction, row: JobRow, change: JobOverrides, at: Micros | None) -> None:
    now = unit.now()
    if at is None or at <= now:  # else it may be well again by then
        refuse_down(unit, row.uses if change.uses is None else change.uses, now)


def refuse_down(unit: Transaction, uses: str, now: Micros) -> None:
    """Down, and of those whose jobs end at once. Of others the job waits, and its `why` says so."""
    keys = [key for key in uses.split(",") if key]
    if not keys:
        return
    guards = {
        one.key: read_guard_state(one.body)
        for one in unit.guards(at_work=True)
        if one.scope == "dependency"
    }
    down = [key for key in keys if key in guards and guards[key].is_down(now)]
    terms = (
        DependencyObserver(others=terms_of_all(holding_manifests(unit, now)))
        if down
        else DependencyObserver()
    )
    for key in down:
        if terms.terms(key).mode == "fail_fast":
            message = (
                f"dependency {key} is down since {moment(guards[key].since)}, and jobs that use it end at once: this "
                f"one would too. Retry it later (at=), or close it first: mulligan deps close {quote(key)}"
            )
            raise DependencyOpen(message)


def ask_app(row: JobRow, change: JobOverrides, known: KnownKinds) -> None:
    """`can_retry=` of its kind, where the app is; elsewhere a worker asks it before the first attempt."""
    handler = known.handler
    if handler is None or handler.can_retry is None:
        return
    arguments = handler.arguments.decode(change.payload or row.payload)
    try:
        why = refusal(handler.can_retry.answer(handler.can_retry.given(arguments)))
    except Exception as error:
        message = f"nothing was changed: can_retry of kind {row.kind} could not answer ({type(error).__name__})"
        raise RetryRefused(message) from error
    if why:
        message = f"kind {row.kind} says that this job must not run again: {why}"
        raise RetryRefused(message)


def spend(unit: Transaction, owner: str, allowed: str) -> None:
    """One retry by hand of what an owner is allowed, counted for the whole fleet."""
    many, seconds = rate_parts(allowed) or (0.0, 1)
    key = (OWNER, owner)
    found = unit.meters([key])[key]
    if found is None:
        raise Busy
    limit = Limit(rate=many / seconds)
    meter = refilled(found[0], many / seconds, found[1], burst=many)
    again = next_start(limit, meter)
    if again is not None:
        message = f"owner {one_line(owner)} may retry {allowed} by hand, and has; the next is possible at {moment(again)}"
        raise RetryLimited(message, to_datetime(again))
    unit.spend(key, meter._replace(tokens=meter.tokens - 1))
