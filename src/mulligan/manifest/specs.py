"""Specs of kinds, queues and dependencies; the manifest that stores them; the handler registry.

Handlers exist only in processes that load the app. All others work from the manifest.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from mulligan.core.attempt import Lease, Outcome
from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import ConfigError, UnknownKind
from mulligan.core.job import NAME_RULE, Unique, is_name
from mulligan.core.tracing import NO_TRACER, Tracer
from mulligan.failures.matcher import Rulebook
from mulligan.guards import budget as budgets
from mulligan.manifest.arguments import Arguments, JobCallback

if TYPE_CHECKING:
    from mulligan.guards.state import BreakerConfig

DEFAULT_TIMEOUT: Micros = 300 * SECOND
# Prefix of Mulligan's own kinds and queues, which are left out of lists, counts and insight.
SYSTEM_PREFIX = "mulligan."
# Kind of deliveries of stored subscriptions. Declared subscriptions append their name.
DELIVER_KIND = "mulligan.deliver"
DELIVERY_QUEUE = "mulligan.deliveries"
ENDPOINT_PREFIX = "mulligan.endpoint."  # of the dependencies of deliveries

S = TypeVar("S")

# --- Names ---


def check_name(what: str, name: Any) -> str:
    """Return a valid name; raise ConfigError otherwise."""
    if not is_name(name):
        message = f"{what} {name!r}: {NAME_RULE}"
        raise ConfigError(message)
    return str(name)


def check_user_name(what: str, name: Any) -> str:
    """Return a name that users may take: not one with Mulligan's own prefix."""
    if check_name(what, name).lower().startswith(SYSTEM_PREFIX):  # LIKE of SQLite ignores case
        message = f"{what} {name!r}: the prefix {SYSTEM_PREFIX!r} is reserved; use another name"
        raise ConfigError(message)
    return str(name)


# --- Specs ---


@dataclass(frozen=True, slots=True)
class KindSpec:
    """A kind as data: everything the supervisor, the web and the CLI need to know about it."""

    name: str
    queue: str = "default"
    priority: int = 0
    timeout: Micros = DEFAULT_TIMEOUT
    policy: str | None = None  # JSON
    isolate: bool = False
    memory_limit: int | None = None  # bytes
    retention: Micros | None = None
    uses: str = ""  # dependency keys, unless they depend on the payload
    schema: Mapping[str, Any] = field(default_factory=dict)
    unique_for: Micros | None = (
        None  # how long a unique key is reserved; None: while the job exists
    )
    unique_while: str = ""  # states in which the key is reserved, comma separated
    rules: tuple[Mapping[str, Any], ...] = ()  # its failure rules as JSON values
    shadow: str | None = None  # JSON of a policy that is only compared with the real one
    editable: tuple[str, ...] = ()  # arguments that a manual retry may change
    unique_by: tuple[str, ...] = ()  # arguments that its unique key consists of
    uses_by_payload: bool = False  # only the app can compute its dependencies
    index: tuple[str, ...] = ()  # arguments with an index for filters
    needs_history: bool = True  # its handler or callbacks get data of earlier attempts

    @property
    def alone(self) -> bool:
        """True if an attempt needs a process of its own: to isolate it or to limit its memory."""
        return self.isolate or self.memory_limit is not None


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue as code declares it. An operator's limits win over it."""

    name: str
    concurrency: int | None = None  # running at once, in the whole fleet
    rate: float | None = None  # starts per second, in the whole fleet
    fair: bool = False  # owners take turns
    policy: str | None = None  # JSON


@dataclass(frozen=True, slots=True)
class DependencySpec:
    """A dependency as code declares it."""

    key: str
    max_concurrency: int | None = None
    rate: float | None = None
    mode: str = "hold"
    open_at: float = 0.5
    min_calls: int = 20
    window: Micros = 120 * SECOND
    cool_down: Micros = 30 * SECOND
    budget: tuple[float, float, float, bool] | None = budgets.DEFAULT_BUDGET  # a BudgetConfig
    slow: float | None = None  # ms
    probe: bool = False  # the app declares a health check function

    @property
    def breaker_config(self) -> BreakerConfig:
        from mulligan.guards.state import BreakerConfig  # noqa: PLC0415 - supervisors only

        budget = None if self.budget is None else budgets.BudgetConfig(*self.budget)
        return BreakerConfig(
            self.mode,
            self.open_at,
            self.min_calls,
            self.window,
            self.cool_down,
            budget,
            self.slow,
            self.max_concurrency,
            self.probe,
        )


@dataclass(frozen=True, slots=True)
class Handler:
    """A kind and its function. Exists only in processes that load the app."""

    spec: KindSpec
    call: Callable[..., Any]
    arguments: Arguments
    is_async: bool
    cost: float
    uses: Callable[[Any], Any] | None  # returns the dependencies of a payload
    unique: Unique | None
    rulebooks: Callable[[], tuple[Rulebook, ...]] = tuple  # rules of the kind, then of the app
    done: JobCallback | None = None  # does the result already exist?
    can_retry: JobCallback | None = None  # may the job run again after a manual retry?

    @property
    def has_callbacks(self) -> bool:
        """True if `done=` or `can_retry=` must be called before the handler."""
        return self.done is not None or self.can_retry is not None


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """A schedule as data. None means: as the kind declares."""

    name: str
    cron: str
    kind: str
    payload: str = "{}"  # JSON
    timezone: str = "UTC"
    missed: str = "latest"
    queue: str | None = None
    priority: int | None = None
    owner: str = ""
    uses: str | None = None
    max_retries: int | None = None
    policy: str | None = None  # JSON
    timeout: Micros | None = None
    deadline: Micros | None = None  # counted from the slot


@dataclass(frozen=True, slots=True)
class SubscriptionSpec:
    """A declared subscription as data, without its address: only the app knows that."""

    name: str
    on: tuple[str, ...]  # event types
    owner: str | None = None
    filter: str = ""
    form: str = "each"
    channel: str = ""
    endpoint: str = ""  # dependency of its deliveries
    per_owner: bool = False  # each owner is notified separately


# --- Manifest ---


@dataclass(frozen=True, slots=True)
class Manifest:
    """The app as data, stored in the database."""

    app: str
    release: str
    kinds: Mapping[str, KindSpec]
    queues: Mapping[str, QueueSpec] = field(default_factory=dict)
    dependencies: Mapping[str, DependencySpec] = field(default_factory=dict)
    schedules: Mapping[str, ScheduleSpec] = field(default_factory=dict)
    rules: tuple[Mapping[str, Any], ...] = ()  # the app's failure rules as JSON values
    subscriptions: Mapping[str, SubscriptionSpec] = field(default_factory=dict)

    @property
    def kinds_with_rules(self) -> dict[str, KindSpec]:
        """Kinds, each with the app's rules after its own: the order of matching."""
        if not self.rules:
            return dict(self.kinds)
        return {
            name: replace(spec, rules=(*spec.rules, *self.rules))
            for name, spec in self.kinds.items()
        }

    @property
    def id(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:24]

    def to_json(self) -> str:
        body = {
            "app": self.app,
            "release": self.release,
            "kinds": _to_dicts(self.kinds),
            "queues": _to_dicts(self.queues),
            "dependencies": _to_dicts(self.dependencies),
            "schedules": _to_dicts(self.schedules),
            "rules": list(self.rules),
            "subscriptions": _to_dicts(self.subscriptions),
        }
        return json.dumps(body, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        body = json.loads(text)
        kinds = _from_dicts(KindSpec, body["kinds"])
        queues = _from_dicts(QueueSpec, body.get("queues", ()))
        dependencies = _from_dicts(DependencySpec, body.get("dependencies", ()))
        schedules = _from_dicts(ScheduleSpec, body.get("schedules", ()))
        subscriptions = _from_dicts(SubscriptionSpec, body.get("subscriptions", ()))
        return cls(
            app=body["app"],
            release=body["release"],
            kinds={spec.name: _restore_tuples(spec) for spec in kinds},
            queues={spec.name: spec for spec in queues},
            dependencies={spec.key: spec for spec in dependencies},
            schedules={spec.name: spec for spec in schedules},
            rules=tuple(body.get("rules", ())),
            subscriptions={spec.name: replace(spec, on=tuple(spec.on)) for spec in subscriptions},
        )


def _restore_tuples(spec: KindSpec) -> KindSpec:
    """Turn the lists of JSON into tuples again."""
    return replace(
        spec,
        rules=tuple(spec.rules),
        editable=tuple(spec.editable),
        unique_by=tuple(spec.unique_by),
        index=tuple(spec.index),
    )


def _to_dicts(specs: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [asdict(spec) for _, spec in sorted(specs.items())]


def _from_dicts(spec_type: type[S], rows: Iterable[dict[str, Any]]) -> list[S]:
    """Build specs from JSON. Fields of a newer version are ignored."""
    known = {field.name for field in fields(spec_type)}  # type: ignore[arg-type]
    specs = []
    for row in rows:
        values = {name: value for name, value in row.items() if name in known}
        specs.append(spec_type(**values))
    return specs


# --- Registry ---


# Replaces a handler in a test. Returns None for attempts that it does not replace.
HandlerOverride = Callable[[Handler, Lease], Handler | Outcome | None]


class Registry:
    """Handlers, queues, dependencies, schedules and subscriptions of one app."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.queues: dict[str, QueueSpec] = {}
        self.dependencies: dict[str, DependencySpec] = {}
        self.probes: dict[str, Callable[[], Any]] = {}
        self.schedules: dict[str, ScheduleSpec] = {}
        self.subscriptions: dict[str, SubscriptionSpec] = {}
        self.on_start: list[Callable[..., Any]] = []
        self.on_stop: list[Callable[..., Any]] = []
        self.overrides: list[HandlerOverride] = []  # set by tests; the last one wins
        self.tracer: Tracer = NO_TRACER

    def add(self, handler: Handler) -> None:
        name = check_name("kind", handler.spec.name)
        existing = self.handlers.get(name)
        if existing is not None:
            first = _source_location(existing.call)
            second = _source_location(handler.call)
            message = f"kind {name!r} is registered twice: at {first} and at {second}"
            raise ConfigError(message)
        self.handlers[name] = handler

    @property
    def kinds(self) -> dict[str, KindSpec]:
        return {name: handler.spec for name, handler in self.handlers.items()}

    def get(self, kind: str) -> Handler:
        try:
            return self.handlers[kind]
        except KeyError:
            raise UnknownKind(unknown_kind_message(kind, self.handlers)) from None

    def resolve_handler(self, lease: Lease) -> Handler | Outcome:
        """Return the handler of an inline attempt, or what a test put in its place."""
        handler = self.get(lease.kind)
        for override in reversed(self.overrides):
            replacement = override(handler, lease)
            if replacement is not None:
                return replacement
        return handler

    def manifest(
        self, app: str, release: str, rules: tuple[Mapping[str, Any], ...] = ()
    ) -> Manifest:
        return Manifest(
            app=app,
            release=release,
            kinds=self.kinds,
            queues=dict(self.queues),
            dependencies=dict(self.dependencies),
            schedules=dict(self.schedules),
            rules=rules,
            subscriptions=dict(self.subscriptions),
        )

    def declare(self, spec: QueueSpec | DependencySpec) -> None:
        """Add a queue or dependency; refuse a second declaration."""
        if isinstance(spec, QueueSpec):
            if spec.name in self.queues:
                raise ConfigError(_declared_twice("queue", spec.name))
            self.queues[spec.name] = spec
        else:
            if spec.key in self.dependencies:
                raise ConfigError(_declared_twice("dependency", spec.key))
            self.dependencies[spec.key] = spec


def _declared_twice(what: str, name: str) -> str:
    return f"{what} {name!r} is declared twice; remove one declaration"


def unknown_kind_message(kind: str, known: Mapping[str, Any]) -> str:
    """Return the error for a kind without a handler, with the names of known kinds."""
    names = (
        ", ".join(sorted(name for name in known if not name.startswith(SYSTEM_PREFIX)))
        or "none yet"
    )
    return f"no handler for kind {kind!r}; known kinds: {names}"


def _source_location(function: Callable[..., Any]) -> str:
    """Return `file:line`. Slow: it reads the source, so only errors may call it."""
    try:
        return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError):
        return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
