"""How often, how long apart, until when: policies and the layers they are made of.

*Whether* a failure may be retried is not here: that comes from its rule or class alone. A policy
field is unset unless given, so that the layer below shows through:

    job  >  kind  >  queue  >  system
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)
from pydantic.dataclasses import dataclass

from mulligan.core.attempt import Cls, Lease
from mulligan.core.errors import Refused
from mulligan.core.format import duration, size
from mulligan.core.job import NAME_RULE, SECOND, is_name
from mulligan.retries.backoff import (
    STRICT,
    Backoff,
    Exponential,
    Factor,
    Fixed,
    Jitter,
    Seconds,
    Table,
    finite,
)

Scope = Literal["job", "kind", "queue", "system"]


def _count(value: int, info: ValidationInfo) -> int:
    if not 0 <= value < 2**31:
        raise ValueError(f"{info.field_name} must be between 0 and {2**31 - 1}, not {value}")
    return value


Count = Annotated[int, BeforeValidator(finite), AfterValidator(_count)]


def _class_names(value: Any) -> Any:
    """Refuse a class that does not exist, naming the one that was probably meant."""
    if not isinstance(value, Mapping):
        return value
    known = [str(cls) for cls in Cls]
    for name in value:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(known)}"
            raise ValueError(f"unknown class {name!r}; {hint}")
    return value


MOST_SETTINGS = 10_000  # characters of JSON: they travel with every attempt


def _queue_name(value: Any) -> Any:
    if value is not None and not is_name(value):
        raise ValueError(f"queue {value!r}: {NAME_RULE}")
    return value


def _some_time(value: float | None) -> float | None:
    if value == 0:
        raise ValueError("timeout must be above 0 s")
    return value


def _plain_settings(value: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        text = json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("settings must be plain JSON values by name") from None
    if len(text) > MOST_SETTINGS:
        raise ValueError(
            f"settings are {len(text)} characters of JSON, the limit is {MOST_SETTINGS}"
        )
    return value


@dataclass(frozen=True, config=STRICT)
class Then:
    """How the next attempt differs from the last: another queue, more time or memory, other settings."""

    queue: Annotated[str | None, BeforeValidator(_queue_name)] = None
    timeout: Annotated[Seconds | None, AfterValidator(_some_time)] = None
    memory_limit: Annotated[int, Field(gt=0, lt=2**63)] | None = (
        None  # bytes; such an attempt runs alone
    )
    settings: Annotated[Mapping[str, Any], AfterValidator(_plain_settings)] = Field(
        default_factory=dict
    )

    def to_plain(self) -> dict[str, Any]:
        """Only what it changes."""
        said: dict[str, Any] = _THEN.dump_python(self, mode="json", exclude_none=True)
        return {name: value for name, value in said.items() if value != {}}

    def __hash__(self) -> int:
        return hash(_THEN.dump_json(self))


_THEN = TypeAdapter(Then)


def as_ladder(value: Any) -> tuple[Then, ...]:
    """One step or several; the last one repeats."""
    steps = tuple(value) if isinstance(value, list | tuple) else (value,)
    for step in steps:
        if not isinstance(step, Then):
            raise TypeError(f"then must be Then(...) or a list of them, not {step!r:.80}")
    return steps


def _steps(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


if TYPE_CHECKING:
    Ladder = Then | Sequence[Then]  # what may be given; a tuple, once it is checked
else:
    Ladder = Annotated[tuple[Then, ...], BeforeValidator(_steps)]


@dataclass(frozen=True, config=STRICT)
class Policy:
    """What one scope says. In `classes` an entry may give `max_retries`, `backoff` and `then` for that class."""

    max_retries: Count | None = None
    backoff: Backoff | None = None
    max_losses: Count | None = None
    max_snoozes: Count | None = None
    max_age: Seconds | None = None
    classes: Annotated[Mapping[str, Policy], BeforeValidator(_class_names)] = Field(
        default_factory=dict
    )
    retry_unknown: bool | None = None
    then: Ladder | None = None  # how attempts after a failure differ

    @field_validator("classes", mode="after")
    @classmethod
    def _entries(cls, value: Mapping[str, Policy]) -> Mapping[str, Policy]:
        for name, entry in value.items():
            if entry != Policy(
                max_retries=entry.max_retries, backoff=entry.backoff, then=entry.then
            ):
                raise ValueError(f"the entry for {name} may set max_retries, backoff and then only")
        return value

    @property
    def ladder(self) -> tuple[Then, ...]:
        return () if self.then is None else as_ladder(self.then)

    def __hash__(self) -> int:
        return hash(self.to_json())

    def to_json(self) -> str:
        """Only what was given, so that unset stays unset after the journey."""
        return _JSON.dump_json(self, exclude_none=True).decode()

    def to_plain(self) -> dict[str, Any]:
        """The same as plain data, as one writes it in TOML."""
        said = _JSON.dump_python(self, mode="json", exclude_none=True)
        return {name: value for name, value in said.items() if value not in ({}, [])}

    @classmethod
    def from_json(cls, text: str) -> Policy:
        return _JSON.validate_json(text)

    @classmethod
    def from_plain(cls, said: Mapping[str, Any]) -> Policy:
        return _JSON.validate_python(dict(said))


_JSON = TypeAdapter(Policy)


# Of our own, needed after the first failure; what users write shows its signature from the start.
_LATER = ConfigDict(extra="forbid", defer_build=True)


@dataclass(frozen=True, config=_LATER)
class ClassSettings:
    """What the settings say of one class; a delay that is unset is the general one."""

    max_retries: Count | None = None
    base_delay: Seconds | None = None
    max_delay: Seconds | None = None
    factor: Factor | None = None
    jitter: Jitter | None = None


@dataclass(frozen=True, config=_LATER)
class RetrySettings:
    """The system layer: what holds where nobody said anything, and two switches that nothing widens."""

    enabled: bool = True
    only: tuple[Cls, ...] | None = None
    max_retries: Count = 3
    base_delay: Seconds = 30.0
    max_delay: Seconds = 3600.0
    factor: Factor = 2.0
    jitter: Jitter = "full"
    max_losses: Count = 2
    max_snoozes: Count | None = None
    unknown_retries: Count = 2
    classes: Mapping[Cls, ClassSettings] = Field(default_factory=dict)


T = TypeVar("T")
AnyBackoff = Table | Exponential | Fixed


class PolicyLayer(NamedTuple):
    """A policy and the scope that says it."""

    scope: Scope
    policy: Policy


class ClassPolicy(NamedTuple):
    """What holds for one class: its own cap, if any, its backoff and its ladder, each with the scope it came from.

    A backoff or a ladder that was said for the class goes on with each failure of the class; a general one with each
    failure.
    """

    cap: int | None
    cap_from: Scope | None
    configured: bool  # the cap was named by somebody; else it is our own caution
    backoff: AnyBackoff
    backoff_from: Scope
    backoff_of_class: bool
    then: tuple[Then, ...]
    then_from: Scope
    then_of_class: bool


@plain_dataclass(frozen=True, slots=True, eq=False)
class EffectivePolicy:
    """All layers made into one, once; asking it is a lookup. Compared and hashed by identity, to be cached."""

    enabled: bool
    only: frozenset[Cls] | None  # classes that may be retried; None: no such switch
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
    backoff: AnyBackoff
    backoff_from: Scope
    then: tuple[Then, ...]
    then_from: Scope
    by_class: Mapping[Cls, ClassPolicy]

    def allows(self, cls: Cls) -> bool:
        """By the two switches: `retry.enabled` and `retry.only`."""
        return self.enabled and (self.only is None or cls in self.only)

    def backoff_for(self, cls: Cls) -> AnyBackoff:
        return self.by_class[cls].backoff

    def backoff_from_for(self, cls: Cls) -> Scope:
        return self.by_class[cls].backoff_from

    def cap_for(self, cls: Cls) -> int | None:
        """The class's own limit, beside `max_retries`; None: it has none."""
        return self.by_class[cls].cap

    def cap_from(self, cls: Cls) -> Scope | None:
        return self.by_class[cls].cap_from

    def cap_setting(self, cls: Cls) -> str:
        """The name of the setting behind a cap that comes from the system."""
        return (
            f"retry.classes.{cls}.max_retries"
            if self.by_class[cls].configured
            else "retry.unknown_retries"
        )

    def limit_for(self, cls: Cls) -> int:
        """Retries a failure of this class can get at all: both limits must allow."""
        cap = self.by_class[cls].cap
        return self.max_retries if cap is None else min(cap, self.max_retries)


def layer(
    system: RetrySettings,
    queue: Policy | None = None,
    kind: Policy | None = None,
    job: Policy | None = None,
    job_max_retries: int | None = None,
) -> EffectivePolicy:
    """Field by field the most specific scope that says something."""
    scopes: tuple[tuple[Scope, Policy | None], ...] = (
        ("job", job),
        ("kind", kind),
        ("queue", queue),
    )
    said = [PolicyLayer(scope, policy) for scope, policy in scopes if policy is not None]
    if job_max_retries is not None:
        said.insert(0, PolicyLayer("job", Policy(max_retries=job_max_retries)))
    retries = _first(said, "max_retries", system.max_retries)
    losses = _first(said, "max_losses", system.max_losses)
    snoozes = _first(said, "max_snoozes", system.max_snoozes)
    age: tuple[float | None, Scope] = _first(said, "max_age", None)
    unknown: tuple[bool | None, Scope] = _first(said, "retry_unknown", None)
    backoff = _first(said, "backoff", backoff_of(system))
    then: tuple[tuple[Then, ...], Scope] = _first(said, "then", ())
    builtin = _builtin_caps(system, named=retries[1] != "system", retry_unknown=unknown[0])
    said.append(
        PolicyLayer("system", Policy(backoff=backoff_of(system), classes=_entries_of(system)))
    )
    return EffectivePolicy(
        system.enabled,
        None if system.only is None else frozenset(system.only),
        *retries,
        *losses,
        *snoozes,
        *age,
        *unknown,
        *backoff,
        *then,
        MappingProxyType({cls: _for_class(cls, said, builtin.get(cls)) for cls in Cls}),
    )


def _first(said: list[PolicyLayer], field: str, otherwise: T) -> tuple[T, Scope]:
    for scope, policy in said:
        value: T | None = getattr(policy, field)
        if value is not None:
            return value, scope
    return otherwise, "system"


def backoff_of(system: RetrySettings) -> AnyBackoff:
    return Exponential(system.base_delay, system.factor, system.max_delay, system.jitter)


def _entries_of(system: RetrySettings) -> dict[str, Policy]:
    return {
        cls: _entry_of(system, entry)
        for cls, entry in system.classes.items()
        if entry != ClassSettings()
    }


def _entry_of(system: RetrySettings, entry: ClassSettings) -> Policy:
    """A delay that is said for a class has the general numbers where it says nothing itself."""
    if entry == ClassSettings(max_retries=entry.max_retries):
        return Policy(max_retries=entry.max_retries)
    base, factor, cap, jitter = (
        getattr(system if getattr(entry, name) is None else entry, name)
        for name in ("base_delay", "factor", "max_delay", "jitter")
    )
    return Policy(max_retries=entry.max_retries, backoff=Exponential(base, factor, cap, jitter))


def _builtin_caps(
    system: RetrySettings, *, named: bool, retry_unknown: bool | None
) -> dict[Cls, int]:
    """Our own caution about unknown failures; it yields to any number a team has named."""
    if named or retry_unknown:
        return {}
    return {Cls.UNKNOWN: system.unknown_retries}


def _for_class(cls: Cls, said: list[PolicyLayer], builtin: int | None) -> ClassPolicy:
    cap = _class_cap(cls, said, builtin)
    return ClassPolicy(
        *cap, *_special(cls, said, "backoff", None), *_special(cls, said, "then", ())
    )


def _class_cap(
    cls: Cls, said: list[PolicyLayer], builtin: int | None
) -> tuple[int | None, Scope | None, bool]:
    for scope, policy in said:
        entry = policy.classes.get(cls)
        if entry is not None and entry.max_retries is not None:
            return entry.max_retries, scope, True
    return builtin, None if builtin is None else "system", False


def _special(
    cls: Cls, said: list[PolicyLayer], field: str, otherwise: Any
) -> tuple[Any, Scope, bool]:
    """Scope by scope, and within a scope the entry for the class before the general one; which of the two it was."""
    for scope, policy in said:
        for source, of_class in ((policy.classes.get(cls), True), (policy, False)):
            value = getattr(source, field, None)
            if value is not None:
                return value, scope, of_class
    return otherwise, "system", False


# Escalation: after a failure the next attempt may go to another queue, get more time or memory, or other settings.

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Escalated(NamedTuple):
    """What the next attempts get; `then` is what changes now, empty when nothing does."""

    settings: str | None
    then: Mapping[str, Any]


def step_of(ladder: Sequence[Then], count: int) -> Then | None:
    """The step after the `count`th failure; the last one repeats."""
    return ladder[min(max(count, 1), len(ladder)) - 1] if ladder else None


def escalate(lease: Lease, step: Then) -> Escalated:
    before = given(lease.settings)
    after = {**before, **_limits(step)}
    if step.settings:
        after["settings"] = {**before.get("settings", {}), **step.settings}
    changed = {
        name: step.to_plain()[name] for name in _limits(step) if after[name] != before.get(name)
    }
    if after.get("settings") != before.get("settings"):
        changed["settings"] = dict(step.settings)
    if step.queue is not None and step.queue != lease.queue:
        changed["queue"] = step.queue
        after["home"] = before.get("home", lease.queue)
    return Escalated(_encode(after) if after else None, changed)


def _limits(step: Then) -> dict[str, int]:
    said = {
        "timeout": None if step.timeout is None else round(step.timeout * SECOND),
        "memory_limit": step.memory_limit,
    }
    return {name: value for name, value in said.items() if value is not None}


def given(settings: str | None) -> dict[str, Any]:
    """What is stored beside a job; what cannot be read is as if it had never been given."""
    try:
        said = json.loads(settings) if settings else {}
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def in_words(then: Mapping[str, Any]) -> str:
    """`the next attempt goes to queue big with 8 GB of memory`. Values of settings stay unsaid: they may be secret."""
    if not then:
        return ""
    extras = list(_extras(then))
    listed = " and ".join([", ".join(extras[:-1]), extras[-1]] if len(extras) > 1 else extras)
    if "queue" not in then:
        return f"the next attempt gets {listed}"
    return f"the next attempt goes to queue {then['queue']}{f' with {listed}' if listed else ''}"


def _extras(then: Mapping[str, Any]) -> Iterator[str]:
    if "memory_limit" in then:
        yield f"{size(then['memory_limit'])} of memory"
    if "timeout" in then:
        yield f"{duration(then['timeout'])} of time"
    if "settings" in then:
        yield f"other settings ({', '.join(sorted(then['settings']))})"


def policy_text(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, Policy):
        message = f"policy must be Policy(...), not {value!r:.80}"
        raise Refused(message)
    return value.to_json()
