"""Specs of kinds, queues and dependencies; the manifest that stores them; the handler registry.

Handlers exist only in processes that load the app. All others work from the manifest.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import ConfigError, UnknownKind
from mulligan.core.job import NAME_RULE, Unique, is_name
from mulligan.core.tracing import NO_TRACER, Tracer
from mulligan.guards import budget as budgets

if TYPE_CHECKING:  # commands that only read a manifest start without the modules that run jobs
    from mulligan.core.attempt import Lease, Outcome
    from mulligan.failures.matcher import Rulebook
    from mulligan.failures.rule_sources import Rules
    from mulligan.guards.state import BreakerConfig
    from mulligan.manifest.arguments import Arguments, JobCallback
    from mulligan.manifest.hooks import Hook

DEFAULT_TIMEOUT: Micros = 300 * SECOND
DEFAULT_RECORDS = 200
# Prefix of Mulligan's own kinds and queues, which are left out of lists, counts and insight.
SYSTEM_PREFIX = "mulligan."
# Kind of deliveries of stored subscriptions. Declared subscriptions append their name.
DELIVER_KIND = "mulligan.deliver"
DELIVERY_QUEUE = "mulligan.deliveries"
ENDPOINT_PREFIX = "mulligan.endpoint."  # of the dependencies of deliveries

ARGUMENT_FIELD = re.compile(r"\{([^{}]*)\}")  # in titles and keys: {order}, {customer.id}

S = TypeVar("S")
Upcast = Callable[[dict[str, Any]], dict[str, Any]]

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
    title: str = ""  # what people call its jobs: "Invoice {order}"; empty: their first arguments
    queue: str = "default"
    priority: int = 0
    timeout: Micros = DEFAULT_TIMEOUT
    policy: str | None = None  # JSON
    isolate: bool = False
    once: bool = False  # at most once: never retried, never a probe, parked after a loss
    hosted: bool = False  # another job queue runs its attempts; never a probe
    memory_limit: int | None = None  # bytes
    stall: Micros | None = None  # longest time without progress
    log: int = DEFAULT_RECORDS  # records that are kept with a failed attempt
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
    uses_by_payload: bool = False  # its dependencies follow from the payload
    uses_template: str = ""  # keys with {argument}, comma separated; empty: a function of the app
    index: tuple[str, ...] = ()  # arguments with an index for filters
    needs_history: bool = True  # its handler or callbacks get data of earlier attempts
    version: int = 1  # of the payloads that it enqueues
    oldest_version: int = 1  # of the payloads that its handler can upcast

    @property
    def alone(self) -> bool:
        """True if an attempt needs a process of its own: to isolate it or to limit its memory."""
        return self.isolate or self.memory_limit is not None

    def takes_version(self, version: int) -> bool:
        """Return True if its handler takes payloads of this version, perhaps upcast."""
        return self.oldest_version <= version <= self.version

    @property
    def unique(self) -> Unique | None:
        """The uniqueness of its jobs; None if they have no unique key."""
        if not (self.unique_by or self.unique_while):
            return None
        cover = tuple(filter(None, self.unique_while.split(",")))
        period = None if self.unique_for is None else self.unique_for / SECOND
        return Unique(self.unique_by, cover, period)


def schema_defaults(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default values that the schema of a payload declares."""
    properties = schema.get("properties", {})
    return {name: field["default"] for name, field in properties.items() if "default" in field}


def fill_defaults(schema: Mapping[str, Any], payload: Any) -> Any:
    """Return a payload with the default values that its schema declares, also in nested objects.

    A payload has only the arguments that were passed. Two calls that mean one thing may pass
    different ones, and have one unique key.
    """
    return _fill_defaults(schema, schema.get("$defs", {}), payload)


def _fill_defaults(schema: Mapping[str, Any], definitions: Mapping[str, Any], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    schema = definitions.get(name, schema)
    filled = dict(value)
    for field_name, field_schema in schema.get("properties", {}).items():
        if field_name in value:
            field_value = value[field_name]
            filled[field_name] = _fill_defaults(field_schema, definitions, field_value)
        elif "default" in field_schema:
            filled[field_name] = field_schema["default"]
    return filled


def allows_no_retries(spec: KindSpec) -> bool:
    """True if the policy of a kind sets `max_retries=0`."""
    return bool(json.loads(spec.policy or "{}").get("max_retries") == 0)


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
    kind_rules: Rulebook
    app_rules: Rules
    done: JobCallback | None = None  # does the result already exist?
    can_retry: JobCallback | None = None  # may the job run again after a manual retry?
    upcast: Mapping[int, Upcast] = field(default_factory=dict)  # from a version to the next one


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
    version: int = 1  # of the payload


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
    kind: str = ""  # of a reaction: the kind that runs the function, its queue and priority
    queue: str = ""
    priority: int = 0


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
    settings: Mapping[str, Any] = field(default_factory=dict)  # declared in code, by dotted name

    @property
    def kinds_with_rules(self) -> dict[str, KindSpec]:
        """Kinds, each with the app's rules after its own: the order of matching."""
        return {name: self.kind_with_rules(name) for name in self.kinds}

    def kind_with_rules(self, name: str) -> KindSpec:
        """Return one of `kinds_with_rules`."""
        spec = self.kinds[name]
        return replace(spec, rules=(*spec.rules, *self.rules)) if self.rules else spec

    @property
    def title(self) -> str:
        """Name for people: `release r42 of jobs:app`."""
        return f"release {self.release} of {self.app}" if self.release else self.app

    @property
    def queue_names(self) -> frozenset[str]:
        """Queues that the app declares or that one of its kinds uses, without Mulligan's own."""
        names = {*self.queues, *(spec.queue for spec in self.kinds.values())}
        return frozenset(name for name in names if not name.startswith(SYSTEM_PREFIX))

    @property
    def declared_names(self) -> frozenset[str]:
        """Names of everything that may outlive a release: kinds, schedules, subscriptions."""
        return frozenset(
            [
                *(f"kind {name}" for name in self.kinds),
                *(f"schedule {name}" for name in self.schedules),
                *(f"subscription {name}" for name in self.subscriptions),
            ]
        )

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
            "settings": dict(self.settings),
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
            kinds={spec.name: spec for spec in kinds},
            queues={spec.name: spec for spec in queues},
            dependencies={spec.key: spec for spec in dependencies},
            schedules={spec.name: spec for spec in schedules},
            rules=tuple(body.get("rules", ())),
            subscriptions={spec.name: spec for spec in subscriptions},
            settings=body.get("settings", {}),
        )


def _to_dicts(specs: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [asdict(spec) for _, spec in sorted(specs.items())]


def _from_dicts(spec_type: type[S], rows: Iterable[dict[str, Any]]) -> list[S]:
    """Build specs from JSON."""
    return [
        _make_spec(spec_type, json.dumps(row, sort_keys=True))  # type: ignore[arg-type]
        for row in rows
    ]


@lru_cache(maxsize=4096)
def _make_spec(spec_type: Any, text: str) -> Any:
    """Build a spec. Cached, because most releases of an app declare most things the same way.

    Lists become tuples again. Fields of a newer version are ignored.
    """
    known = {field.name for field in fields(spec_type)}
    values = {}
    for name, value in json.loads(text).items():
        if name in known:
            values[name] = tuple(value) if isinstance(value, list) else value
    return spec_type(**values)


# --- Registry ---


# Replaces a handler in a test. Returns None for attempts that it does not replace.
HandlerOverride = Callable[[Handler, "Lease"], "Handler | Outcome | None"]


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
        self.around: list[Hook] = []  # the outermost first
        self.on_failure: list[Hook] = []
        # Called before the manifest is built: they declare what is known only then.
        self.late_declarations: list[Callable[[], None]] = []
        self.overrides: list[HandlerOverride] = []  # set by tests; the last one wins
        self.tracer: Tracer = NO_TRACER
        self.version = 0  # grows with every declaration

    def add(self, handler: Handler) -> None:
        name = check_name("kind", handler.spec.name)
        existing = self.handlers.get(name)
        if existing is not None:
            first = _source_location(existing.call)
            second = _source_location(handler.call)
            message = f"kind {name!r} is registered twice: at {first} and at {second}"
            raise ConfigError(message)
        self.handlers[name] = handler
        self.version += 1

    def declare_late(self) -> None:
        """Call the late declarations. Each one may be called many times."""
        for declaration in self.late_declarations:
            declaration()

    @property
    def kinds(self) -> dict[str, KindSpec]:
        return {name: handler.spec for name, handler in self.handlers.items()}

    @property
    def source_files(self) -> list[str]:
        """Return the files of the app's handlers, in the order of their registration."""
        functions = [
            inspect.unwrap(handler.call)
            for name, handler in self.handlers.items()
            if not name.startswith(SYSTEM_PREFIX)
        ]
        codes = [getattr(function, "__code__", None) for function in functions]
        return [code.co_filename for code in codes if code is not None]

    def get(self, kind: str) -> Handler:
        try:
            return self.handlers[kind]
        except KeyError:
            raise UnknownKind(unknown_kind_message(kind, self.handlers)) from None

    def manifest(
        self,
        app: str,
        release: str,
        rules: tuple[Mapping[str, Any], ...] = (),
        settings: Mapping[str, Any] | None = None,
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
            settings=settings or {},
        )

    def declare(self, spec: QueueSpec | DependencySpec | ScheduleSpec | SubscriptionSpec) -> None:
        """Add a queue, dependency, schedule or subscription; refuse a second declaration."""
        match spec:
            case QueueSpec():
                _add_once(self.queues, "queue", spec.name, spec)
            case DependencySpec():
                _add_once(self.dependencies, "dependency", spec.key, spec)
            case ScheduleSpec():
                _add_once(self.schedules, "schedule", spec.name, spec)
            case SubscriptionSpec():
                _add_once(self.subscriptions, "subscription", spec.name, spec)
        self.version += 1


def _add_once(specs: dict[str, S], what: str, name: str, spec: S) -> None:
    if name in specs:
        message = f"{what} {name!r} is declared twice. Remove one declaration or rename it."
        raise ConfigError(message)
    specs[name] = spec


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
