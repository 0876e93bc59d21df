"""What can be run: handlers where the app is, and the manifest (plain data) everywhere else."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from mulligan.core.attempt import Lease, Outcome
from mulligan.core.errors import ConfigError, UnknownKind
from mulligan.core.job import NAME_RULE, SECOND, Micros, is_name
from mulligan.core.tracing import NO_TRACER, Tracer
from mulligan.core.unique import Unique
from mulligan.failures.matcher import Rulebook
from mulligan.guards import budget as budgets
from mulligan.manifest.arguments import Arguments, Question

if TYPE_CHECKING:
    from mulligan.guards.state import BreakerTerms

DEFAULT_TIMEOUT: Micros = 300 * SECOND
OURS = "mulligan."  # how kinds and queues of our own begin: left out of lists, counts and insight
DELIVER_KIND = "mulligan.deliver"  # of stored subscriptions; of those an app declares: with their name behind it
DELIVERY_QUEUE = "mulligan.deliveries"
ENDPOINT = "mulligan.endpoint."  # how the dependencies of deliveries begin

S = TypeVar("S")


def checked_name(what: str, name: Any) -> str:
    if not is_name(name):
        message = f"{what} {name!r}: {NAME_RULE}"
        raise ConfigError(message)
    return str(name)


def free_name(what: str, name: Any) -> str:
    """A name for something of the user's."""
    if checked_name(what, name).lower().startswith(OURS):  # as SQLite compares in LIKE
        message = (
            f"{what} {name!r}: names that begin with {OURS!r} are Mulligan's own; take another"
        )
        raise ConfigError(message)
    return str(name)


@dataclass(frozen=True, slots=True)
class KindSpec:
    """One kind as data: all a supervisor, the web and the CLI need to know of it."""

    name: str
    queue: str = "default"
    priority: int = 0
    timeout: Micros = DEFAULT_TIMEOUT
    policy: str | None = None  # JSON
    isolate: bool = False
    memory_limit: int | None = None  # bytes
    retention: Micros | None = None
    uses: str = ""  # dependency keys, where they do not depend on the payload
    schema: Mapping[str, Any] = field(default_factory=dict)
    unique_for: Micros | None = (
        None  # how long a unique key is held, if not as long as its job is kept
    )
    unique_while: str = ""  # states in which it is held, comma separated
    rules: tuple[Mapping[str, Any], ...] = ()  # its own failure rules, as plain data
    shadow: str | None = None  # JSON of a policy that only says what it would have done
    editable: tuple[str, ...] = ()  # arguments that a retry by hand may change
    unique_by: tuple[str, ...] = ()  # what its unique key is made of
    uses_by_payload: bool = False  # what its jobs use, only its app can tell
    index: tuple[str, ...] = ()  # arguments that filters find fast
    remembers: bool = True  # something of it is given what earlier attempts left behind

    @property
    def alone(self) -> bool:
        """A memory limit is the limit of one attempt, so the attempt must have its process to itself."""
        return self.isolate or self.memory_limit is not None


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """What code declares of a queue: defaults, until an operator says otherwise."""

    name: str
    concurrency: int | None = None  # running at once, in the whole fleet
    rate: float | None = None  # starts per second, in the whole fleet
    fair: bool = False  # owners take turns
    policy: str | None = None  # JSON


@dataclass(frozen=True, slots=True)
class DependencySpec:
    """What code declares of something outside that jobs use."""

    key: str
    max_concurrency: int | None = None
    rate: float | None = None
    mode: str = "hold"
    open_at: float = 0.5
    min_calls: int = 20
    window: Micros = 120 * SECOND
    cool_down: Micros = 30 * SECOND
    budget: tuple[float, float, float, bool] | None = budgets.DEFAULT  # as in `policy.budget.Terms`
    slow: float | None = None  # ms
    probe: bool = False  # the app has a function that looks whether it is well

    @property
    def terms(self) -> BreakerTerms:
        from mulligan.guards.state import BreakerTerms  # noqa: PLC0415 - only a supervisor asks for them

        budget = None if self.budget is None else budgets.BudgetTerms(*self.budget)
        return BreakerTerms(
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
    """A kind together with its function: exists only in processes that hold the app."""

    spec: KindSpec
    call: Callable[..., Any]
    arguments: Arguments
    is_async: bool
    cost: float
    uses: Callable[[Any], Any] | None  # of the payload
    unique: Unique | None
    books: Callable[[], tuple[Rulebook, ...]] = tuple  # the kind's own rules, then the app's
    done: Question | None = None  # is its result there already?
    can_retry: Question | None = None  # may it run again, after a retry by hand?

    @property
    def asks(self) -> bool:
        """Is there something to ask before it is called?"""
        return self.done is not None or self.can_retry is not None


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """One schedule as data: when, and what its jobs are. None: as the kind says."""

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
    """Who is told of what, as data: never to where, which only the app knows."""

    name: str
    on: tuple[str, ...]  # event types
    owner: str | None = None
    filter: str = ""
    form: str = "each"
    channel: str = ""
    endpoint: str = ""  # the dependency that its deliveries use
    apart: bool = False  # owners are told apart


@dataclass(frozen=True, slots=True)
class Manifest:
    """The app as data."""

    app: str
    release: str
    kinds: Mapping[str, KindSpec]
    queues: Mapping[str, QueueSpec] = field(default_factory=dict)
    dependencies: Mapping[str, DependencySpec] = field(default_factory=dict)
    schedules: Mapping[str, ScheduleSpec] = field(default_factory=dict)
    rules: tuple[Mapping[str, Any], ...] = ()  # the app's failure rules, as plain data
    subscriptions: Mapping[str, SubscriptionSpec] = field(default_factory=dict)

    @property
    def ruled(self) -> dict[str, KindSpec]:
        """The kinds, each with the app's rules after its own: in the order in which they are asked."""
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
            "kinds": _written(self.kinds),
            "queues": _written(self.queues),
            "dependencies": _written(self.dependencies),
            "schedules": _written(self.schedules),
            "rules": list(self.rules),
            "subscriptions": _written(self.subscriptions),
        }
        return json.dumps(body, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        body = json.loads(text)
        return cls(
            body["app"],
            body["release"],
            {spec.name: _tupled(spec) for spec in _read(KindSpec, body["kinds"])},
            {spec.name: spec for spec in _read(QueueSpec, body.get("queues", ()))},
            {spec.key: spec for spec in _read(DependencySpec, body.get("dependencies", ()))},
            {spec.name: spec for spec in _read(ScheduleSpec, body.get("schedules", ()))},
            tuple(body.get("rules", ())),
            {
                spec.name: replace(spec, on=tuple(spec.on))
                for spec in _read(SubscriptionSpec, body.get("subscriptions", ()))
            },
        )


def _tupled(spec: KindSpec) -> KindSpec:
    """JSON knows lists alone."""
    rules, editable, by, index = (
        tuple(spec.rules),
        tuple(spec.editable),
        tuple(spec.unique_by),
        tuple(spec.index),
    )
    return replace(spec, rules=rules, editable=editable, unique_by=by, index=index)


def _written(specs: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [asdict(spec) for _, spec in sorted(specs.items())]


def _read(spec: type[S], rows: Iterable[dict[str, Any]]) -> list[S]:
    """A newer version may say more of a thing than we know."""
    known = {one.name for one in fields(spec)}  # type: ignore[arg-type]
    return [spec(**{name: value for name, value in row.items() if name in known}) for row in rows]


StandIn = Callable[
    [Handler, Lease], Handler | Outcome | None
]  # None: this attempt is not its concern


class Registry:
    """All handlers of one app, and its schedules."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.queues: dict[str, QueueSpec] = {}
        self.dependencies: dict[str, DependencySpec] = {}
        self.probes: dict[str, Callable[[], Any]] = {}
        self.schedules: dict[str, ScheduleSpec] = {}
        self.subscriptions: dict[str, SubscriptionSpec] = {}
        self.on_start: list[Callable[..., Any]] = []
        self.on_stop: list[Callable[..., Any]] = []
        self.stand_ins: list[StandIn] = []  # of tests
        self.tracer: Tracer = NO_TRACER

    def add(self, handler: Handler) -> None:
        name = checked_name("kind", handler.spec.name)
        twin = self.handlers.get(name)
        if twin is not None:
            message = f"kind {name!r} is registered twice: at {_place_of(twin.call)} and at {_place_of(handler.call)}"
            raise ConfigError(message)
        self.handlers[name] = handler

    @property
    def kinds(self) -> dict[str, KindSpec]:
        return {name: handler.spec for name, handler in self.handlers.items()}

    def get(self, kind: str) -> Handler:
        try:
            return self.handlers[kind]
        except KeyError:
            raise UnknownKind(unknown(kind, self.handlers)) from None

    def stand_in(self, lease: Lease) -> Handler | Outcome:
        """What runs this attempt inline: its handler, or what a test put in its place (the last one first)."""
        handler = self.get(lease.kind)
        answers = (stand_in(handler, lease) for stand_in in reversed(self.stand_ins))
        return next((answer for answer in answers if answer is not None), handler)

    def manifest(
        self, app: str, release: str, rules: tuple[Mapping[str, Any], ...] = ()
    ) -> Manifest:
        declared = (
            dict(self.queues),
            dict(self.dependencies),
            dict(self.schedules),
            rules,
            dict(self.subscriptions),
        )
        return Manifest(app, release, self.kinds, *declared)

    def declare(self, spec: QueueSpec | DependencySpec) -> None:
        """A thing is declared once: of two declarations nobody could say which holds."""
        if isinstance(spec, QueueSpec):
            what, name, known = "queue", spec.name, spec.name in self.queues
            self.queues[name] = self.queues.get(name, spec)
        else:
            what, name, known = "dependency", spec.key, spec.key in self.dependencies
            self.dependencies[name] = self.dependencies.get(name, spec)
        if known:
            message = f"{what} {name!r} is declared twice; say it once"
            raise ConfigError(message)


def unknown(kind: str, known: Mapping[str, Any]) -> str:
    names = ", ".join(sorted(name for name in known if not name.startswith(OURS))) or "none yet"
    return f"no handler for kind {kind!r}; known kinds: {names}"


def _place_of(function: Callable[..., Any]) -> str:
    """`file:line`. Its source is read for that: not for each that is registered."""
    try:
        return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError):
        return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
