"""Retry policies: how often, how long apart and until when a job is retried.

A policy does not decide *whether* a failure may be retried: its rule or class does. Each scope sets
only some fields; an unset field takes the value of the next scope:

    step  >  job  >  kind  >  queue  >  system
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass as stdlib_dataclass
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)
from pydantic.dataclasses import dataclass

from mulligan.config import ClassRetrySection, RetrySection
from mulligan.core.attempt import RETRYABLE, Cls, Lease
from mulligan.core.durations import SECOND
from mulligan.core.errors import Refused
from mulligan.core.format import format_duration, format_size
from mulligan.core.job import NAME_RULE, is_name, parse_job_settings
from mulligan.core.suggest import warn_caller
from mulligan.retries.backoff import (
    FORBID_EXTRA,
    Backoff,
    BackoffField,
    Exponential,
    Seconds,
    explain_refusal,
    require_finite,
)

Scope = Literal["step", "job", "kind", "queue", "system"]


# --- Validation ---


def _check_count(value: int, info: ValidationInfo) -> int:
    if not 0 <= value < 2**31:
        raise ValueError(f"{info.field_name} must be between 0 and {2**31 - 1}, not {value}")
    return value


Count = Annotated[int, BeforeValidator(require_finite), AfterValidator(_check_count)]


def _check_class_names(value: Any) -> Any:
    """Refuse an unknown failure class and suggest the closest known one."""
    if not isinstance(value, Mapping):
        return value
    known = [str(cls) for cls in Cls]
    for name in value:
        if name not in known:
            raise ValueError(_unknown_class(str(name), known))
    return value


def _unknown_class(name: str, known: Sequence[str]) -> str:
    similar = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    if similar:
        return f"unknown class {name!r}; did you mean {similar[0]!r}?"
    return f"unknown class {name!r}; use one of {', '.join(known)}"


MAX_SETTINGS_CHARS = 10_000  # of JSON: the settings are sent with every attempt


def _check_queue_name(value: Any) -> Any:
    if value is not None and not is_name(value):
        raise ValueError(f"queue {value!r}: {NAME_RULE}")
    return value


def _check_timeout(value: float | None) -> float | None:
    if value == 0:
        raise ValueError("timeout must be above 0 s")
    return value


def _check_settings(value: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        text = json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("settings must map names to JSON values") from None
    if len(text) > MAX_SETTINGS_CHARS:
        raise ValueError(
            f"settings are {len(text):,} characters of JSON; the limit is {MAX_SETTINGS_CHARS:,}"
        )
    return value


# --- Policies as users write them ---


def _describe_set_fields(value: Any) -> str:
    """Return the call that makes this value, without the fields that are not set."""
    values = {spec.name: getattr(value, spec.name) for spec in fields(value)}
    shown = [f"{name}={one!r}" for name, one in values.items() if one is not None and one != {}]
    return f"{type(value).__name__}({', '.join(shown)})"


@explain_refusal
@dataclass(frozen=True, config=FORBID_EXTRA, repr=False)
class Then:
    """Escalation step: another queue, more time or memory, or other settings after a failure."""

    queue: Annotated[str | None, BeforeValidator(_check_queue_name)] = None
    timeout: Annotated[Seconds | None, AfterValidator(_check_timeout)] = None
    # In bytes. An attempt with a memory limit runs alone in its process.
    memory_limit: Annotated[int, Field(gt=0, lt=2**63)] | None = None
    settings: Annotated[Mapping[str, Any], AfterValidator(_check_settings)] = Field(
        default_factory=dict
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that this step changes, as JSON values."""
        record: dict[str, Any] = _THEN_ADAPTER.dump_python(self, mode="json", exclude_none=True)
        return {name: value for name, value in record.items() if value != {}}

    def __hash__(self) -> int:
        return hash(_THEN_ADAPTER.dump_json(self))

    def __repr__(self) -> str:
        return _describe_set_fields(self)


_THEN_ADAPTER = TypeAdapter(Then)


def to_steps(value: Any) -> tuple[Then, ...]:
    """Return one step or several as a tuple; refuse anything that is not a `Then`."""
    steps = _to_tuple(value)
    for step in steps:
        if not isinstance(step, Then):
            raise TypeError(f"then must be Then(...) or a list of them, not {step!r:.80}")
    return steps


def _to_tuple(value: Any) -> tuple[Any, ...]:
    if isinstance(value, list | tuple):
        return tuple(value)
    return (value,)


if TYPE_CHECKING:
    EscalationSteps = Then | Sequence[Then]  # accepted forms; a tuple after validation
else:
    EscalationSteps = Annotated[tuple[Then, ...], BeforeValidator(_to_tuple)]


@explain_refusal
@dataclass(frozen=True, config=FORBID_EXTRA, repr=False)
class Policy:
    """Retry policy of one scope. An unset field takes the value of the next scope.

    Entries of `classes` may set `max_retries`, `backoff` and `then` for one failure class.
    """

    max_retries: Count | None = None
    backoff: BackoffField | None = None
    max_losses: Count | None = None
    max_snoozes: Count | None = None
    max_age: Seconds | None = None
    classes: Annotated[Mapping[str, Policy], BeforeValidator(_check_class_names)] = Field(
        default_factory=dict
    )
    retry_unknown: bool | None = None
    then: EscalationSteps | None = None  # changes of the attempts after a failure
    # Undo of finished steps when the job dies or is cancelled: by itself, or by a person.
    undo: Literal["auto", "by_hand"] | None = None

    @field_validator("classes", mode="after")
    @classmethod
    def _check_entries(cls, value: Mapping[str, Policy]) -> Mapping[str, Policy]:
        for name, entry in value.items():
            allowed = Policy(max_retries=entry.max_retries, backoff=entry.backoff, then=entry.then)
            if entry != allowed:
                raise ValueError(f"the entry for {name} may set max_retries, backoff and then only")
        return value

    @property
    def steps(self) -> tuple[Then, ...]:
        """Escalation steps; empty if there are none."""
        return () if self.then is None else to_steps(self.then)

    @property
    def queues(self) -> frozenset[str]:
        """Queues that escalation steps name, also those of single classes."""
        policies = (self, *self.classes.values())
        return frozenset(
            step.queue for policy in policies for step in policy.steps if step.queue is not None
        )

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __repr__(self) -> str:
        return _describe_set_fields(self)

    def to_json(self) -> str:
        """Return JSON of the fields that are set, so that unset fields stay unset when read."""
        return _POLICY_ADAPTER.dump_json(self, exclude_none=True).decode()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set, as they are written in TOML."""
        record = _POLICY_ADAPTER.dump_python(self, mode="json", exclude_none=True)
        return {name: value for name, value in record.items() if value not in ({}, [])}

    @classmethod
    def from_json(cls, text: str) -> Policy:
        return _POLICY_ADAPTER.validate_json(text)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Policy:
        return _POLICY_ADAPTER.validate_python(dict(fields))


_POLICY_ADAPTER = TypeAdapter(Policy)


def encode_policy(policy: Any) -> str | None:
    """Return a policy as JSON; refuse anything that is not a `Policy`."""
    if policy is None:
        return None
    if not isinstance(policy, Policy):
        message = f"policy must be Policy(...), not {policy!r:.80}"
        raise Refused(message)
    _check_effect(policy)
    return policy.to_json()


def _check_effect(policy: Policy) -> None:
    """Refuse a policy with a field that can have no effect; warn of one that rarely has."""
    for name, entry in policy.classes.items():
        _check_backoff(entry.backoff)
        retries = entry.max_retries or 0
        if policy.max_retries is not None and retries > policy.max_retries:
            message = (
                f"the entry for {name} allows {retries} retries, but max_retries="
                f"{policy.max_retries} is the limit of all classes together. Raise max_retries."
            )
            raise Refused(message)
        if name not in RETRYABLE and (retries or entry.backoff is not None):
            message = (
                f"class {name} is not retried, so its entry has an effect only for failures whose "
                "rule sets retry=True. Add such a rule, or remove the entry."
            )
            warn_caller(message, UserWarning)
    _check_backoff(policy.backoff)


def _check_backoff(backoff: Any) -> None:
    if isinstance(backoff, Exponential) and backoff.base > backoff.cap:
        message = (
            f"Exponential(base={backoff.base:g}, cap={backoff.cap:g}): the first delay is already "
            "above the cap. Raise cap, or use Fixed."
        )
        raise Refused(message)


# --- Effective policy ---

T = TypeVar("T")


class PolicyLayer(NamedTuple):
    """A policy and the scope that declares it."""

    scope: Scope
    policy: Policy


class ClassPolicy(NamedTuple):
    """Effective limit, backoff and escalation of one class, each with the scope that sets it.

    A backoff or an escalation declared for the class advances with failures of the class; a
    general one advances with every failure.
    """

    max_retries: int | None
    max_retries_from: Scope | None
    configured: bool  # False: the limit is the built-in one for unknown failures
    backoff: Backoff
    backoff_from: Scope
    backoff_is_for_class: bool
    then: tuple[Then, ...]
    then_from: Scope
    then_is_for_class: bool


@stdlib_dataclass(frozen=True, slots=True, eq=False)
class EffectivePolicy:
    """All scopes resolved into one policy. Compared by identity, so that it can be a cache key."""

    enabled: bool
    only: frozenset[Cls] | None  # classes that may be retried; None: all
    max_retries: int
    max_retries_from: Scope
    max_losses: int
    max_losses_from: Scope
    max_snoozes: int | None
    max_snoozes_from: Scope
    max_age: float | None
    max_age_from: Scope
    retry_unknown: bool | None
    retry_unknown_from: Scope
    backoff: Backoff
    backoff_from: Scope
    then: tuple[Then, ...]
    then_from: Scope
    by_class: Mapping[Cls, ClassPolicy]
    once: bool = False  # at most once: a started attempt whose fate is unknown is parked
    undo: str = "auto"  # or "by_hand"

    def allows_class(self, cls: Cls) -> bool:
        """Return True if `retry.enabled` and `retry.only` allow retries of this class."""
        return self.enabled and (self.only is None or cls in self.only)

    def backoff_for(self, cls: Cls) -> Backoff:
        return self.by_class[cls].backoff

    def backoff_scope_for(self, cls: Cls) -> Scope:
        return self.by_class[cls].backoff_from

    def class_limit(self, cls: Cls) -> int | None:
        """Return the limit of the class, which applies in addition to `max_retries`."""
        return self.by_class[cls].max_retries

    def class_limit_scope(self, cls: Cls) -> Scope | None:
        return self.by_class[cls].max_retries_from

    def class_limit_setting(self, cls: Cls) -> str:
        """Return the name of the setting behind a class limit of the system scope."""
        if self.by_class[cls].configured:
            return f"retry.classes.{cls}.max_retries"
        return "retry.unknown_retries"

    def max_retries_for(self, cls: Cls) -> int:
        """Return the retries of a job whose failures are all of this class."""
        limit = self.by_class[cls].max_retries
        if limit is None:
            return self.max_retries
        return min(limit, self.max_retries)


def resolve_policy(
    system: RetrySection,
    queue: Policy | None = None,
    kind: Policy | None = None,
    job: Policy | None = None,
    job_max_retries: int | None = None,
    *,
    step: Policy | None = None,
    once: bool = False,
) -> EffectivePolicy:
    """Take each field from the most specific scope that sets it.

    `once`: the kind runs at most once, whatever its jobs say about retries.
    """
    layers = _declared_layers(queue, kind, job, job_max_retries)
    if step is not None:
        layers.insert(0, PolicyLayer("step", step))
    max_retries, max_retries_from = _first_set(layers, "max_retries", system.max_retries)
    if once:
        max_retries, max_retries_from = 0, "kind"
    max_losses, max_losses_from = _first_set(layers, "max_losses", system.max_losses)
    max_snoozes, max_snoozes_from = _first_set(layers, "max_snoozes", system.max_snoozes)
    max_age, max_age_from = _first_set(layers, "max_age", None)
    retry_unknown, retry_unknown_from = _first_set(layers, "retry_unknown", None)
    backoff, backoff_from = _first_set(layers, "backoff", system_backoff(system))
    then, then_from = _first_set(layers, "then", ())
    builtin_limits = _builtin_limits(
        system, retries_are_set=max_retries_from != "system", retry_unknown=retry_unknown
    )
    system_layer = PolicyLayer("system", _system_policy(system))
    all_layers = [*layers, system_layer]
    by_class = {}
    for cls in Cls:
        by_class[cls] = _resolve_class(cls, all_layers, builtin_limits.get(cls))
    only = None if system.only is None else frozenset(map(Cls, system.only))
    return EffectivePolicy(
        enabled=system.enabled,
        only=only,
        max_retries=max_retries,
        max_retries_from=max_retries_from,
        max_losses=max_losses,
        max_losses_from=max_losses_from,
        max_snoozes=max_snoozes,
        max_snoozes_from=max_snoozes_from,
        max_age=max_age,
        max_age_from=max_age_from,
        retry_unknown=retry_unknown,
        retry_unknown_from=retry_unknown_from,
        backoff=backoff,
        backoff_from=backoff_from,
        then=then,
        then_from=then_from,
        by_class=MappingProxyType(by_class),
        once=once,
        undo=_first_set(layers, "undo", "auto")[0],
    )


def _declared_layers(
    queue: Policy | None, kind: Policy | None, job: Policy | None, job_max_retries: int | None
) -> list[PolicyLayer]:
    """Return the declared policies, most specific first."""
    layers = []
    if job_max_retries is not None:
        layers.append(PolicyLayer("job", Policy(max_retries=job_max_retries)))
    if job is not None:
        layers.append(PolicyLayer("job", job))
    if kind is not None:
        layers.append(PolicyLayer("kind", kind))
    if queue is not None:
        layers.append(PolicyLayer("queue", queue))
    return layers


def _first_set(layers: Sequence[PolicyLayer], field: str, default: Any) -> tuple[Any, Scope]:
    for scope, policy in layers:
        value = getattr(policy, field)
        if value is not None:
            return value, scope
    return default, "system"


def system_backoff(system: RetrySection) -> Exponential:
    return Exponential(system.base_delay, system.factor, system.max_delay, system.jitter)


def _system_policy(system: RetrySection) -> Policy:
    entries: dict[str, Policy] = {}
    for name, section in system.classes:
        entry = _class_entry(system, section)
        if entry != Policy():
            entries[name] = entry
    return Policy(backoff=system_backoff(system), classes=entries)


def _class_entry(system: RetrySection, section: ClassRetrySection) -> Policy:
    """Return the settings of a class as a policy; unset delays take the general ones."""
    delays = (section.base_delay, section.factor, section.max_delay, section.jitter)
    if delays == (None, None, None, None):
        return Policy(max_retries=section.max_retries)
    backoff = Exponential(
        base=_coalesce(section.base_delay, system.base_delay),
        factor=_coalesce(section.factor, system.factor),
        cap=_coalesce(section.max_delay, system.max_delay),
        jitter=_coalesce(section.jitter, system.jitter),
    )
    return Policy(max_retries=section.max_retries, backoff=backoff)


def _coalesce(value: T | None, default: T) -> T:
    return default if value is None else value


def _builtin_limits(
    system: RetrySection, *, retries_are_set: bool, retry_unknown: bool | None
) -> dict[Cls, int]:
    """Return the built-in limit for unknown failures, unless any scope sets its own number."""
    if retries_are_set or retry_unknown:
        return {}
    return {Cls.UNKNOWN: system.unknown_retries}


def _resolve_class(
    cls: Cls, layers: Sequence[PolicyLayer], builtin_limit: int | None
) -> ClassPolicy:
    max_retries, max_retries_from, configured = _class_max_retries(cls, layers, builtin_limit)
    backoff, backoff_from, backoff_is_for_class = _class_field(cls, layers, "backoff", None)
    then, then_from, then_is_for_class = _class_field(cls, layers, "then", ())
    return ClassPolicy(
        max_retries=max_retries,
        max_retries_from=max_retries_from,
        configured=configured,
        backoff=backoff,
        backoff_from=backoff_from,
        backoff_is_for_class=backoff_is_for_class,
        then=then,
        then_from=then_from,
        then_is_for_class=then_is_for_class,
    )


def _class_max_retries(
    cls: Cls, layers: Sequence[PolicyLayer], builtin_limit: int | None
) -> tuple[int | None, Scope | None, bool]:
    """Return the limit of a class, its scope, and whether it was configured."""
    for scope, policy in layers:
        entry = policy.classes.get(cls)
        if entry is not None and entry.max_retries is not None:
            return entry.max_retries, scope, True
    if builtin_limit is None:
        return None, None, False
    return builtin_limit, "system", False


def _class_field(
    cls: Cls, layers: Sequence[PolicyLayer], field: str, default: Any
) -> tuple[Any, Scope, bool]:
    """Return the value of a field for a class, its scope, and whether it was set for the class.

    Within one scope, the entry of the class wins over the general value.
    """
    for scope, policy in layers:
        for_class = getattr(policy.classes.get(cls), field, None)
        if for_class is not None:
            return for_class, scope, True
        general = getattr(policy, field)
        if general is not None:
            return general, scope, False
    return default, "system", False


# --- Escalation ---

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Escalation(NamedTuple):
    """Settings of the next attempts, and the changes that this step made to them."""

    settings: str | None
    changes: Mapping[str, Any]  # empty: the step changed nothing


def select_step(steps: Sequence[Then], count: int) -> Then | None:
    """Return the step after the `count`th failure; the last step repeats."""
    if not steps:
        return None
    index = min(max(count, 1), len(steps)) - 1
    return steps[index]


def escalate(lease: Lease, step: Then) -> Escalation:
    """Merge an escalation step into the settings of a job."""
    before = parse_job_settings(lease.settings)
    limits = _step_limits(step)
    after = {**before, **limits}
    if step.settings:
        after["settings"] = {**before.get("settings", {}), **step.settings}
    written = step.to_dict()
    changes = {name: written[name] for name in limits if after[name] != before.get(name)}
    if after.get("settings") != before.get("settings"):
        changes["settings"] = dict(step.settings)
    if step.queue is not None and step.queue != lease.queue:
        changes["queue"] = step.queue
        after["home"] = before.get("home", lease.queue)
    encoded = _encode(after) if after else None
    return Escalation(encoded, changes)


def _step_limits(step: Then) -> dict[str, int]:
    limits = {}
    if step.timeout is not None:
        limits["timeout"] = round(step.timeout * SECOND)
    if step.memory_limit is not None:
        limits["memory_limit"] = step.memory_limit
    return limits


def describe_escalation(changes: Mapping[str, Any]) -> str:
    """Return `the next attempt goes to queue big with 8 GB of memory`.

    Values of settings are left out: they may be secret.
    """
    if not changes:
        return ""
    resources = _join_with_and(list(_describe_resources(changes)))
    if "queue" not in changes:
        return f"the next attempt gets {resources}"
    target = f"the next attempt goes to queue {changes['queue']}"
    return f"{target} with {resources}" if resources else target


def _join_with_and(parts: Sequence[str]) -> str:
    if len(parts) <= 1:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _describe_resources(changes: Mapping[str, Any]) -> Iterator[str]:
    if "memory_limit" in changes:
        yield f"{format_size(changes['memory_limit'])} of memory"
    if "timeout" in changes:
        yield f"a timeout of {format_duration(changes['timeout'])}"
    if "settings" in changes:
        yield f"other settings ({', '.join(sorted(changes['settings']))})"
