"""A registered kind: the decorated function, the typed way to enqueue it, and its registration."""

from __future__ import annotations

import asyncio
import inspect
import time
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    final,
    overload,
)

from typing_extensions import TypeVar as DefaultTypeVar

from mulligan.config import RetentionSection
from mulligan.core.durations import SECOND, check_duration
from mulligan.core.errors import (
    Cancel,
    ConfigError,
    Duration,
    DurationOrTime,
    Fail,
    Hold,
    Park,
    PayloadRefused,
    Refused,
    Retry,
    Snooze,
    UnknownOption,
)
from mulligan.core.format import one_line
from mulligan.core.job import Job, NewJob, Unique
from mulligan.core.suggest import describe_unknown, did_you_mean, name_unknown_options, warn_caller
from mulligan.failures.rule_sources import (
    Rules,
    load_rulebook,
    rules_to_dicts,
    validate_kind_rules,
)
from mulligan.failures.rules import Rule
from mulligan.jobs.enqueue import EnqueueApp, enqueue, insert, new_jobs
from mulligan.jobs.filter import is_argument_path
from mulligan.jobs.options import (
    EnqueueOptions,
    check_cost,
    check_limit,
    check_log,
    check_memory_limit,
    check_priority,
    format_uses,
    job_template,
)
from mulligan.manifest.arguments import Arguments, build_callback, check_editable
from mulligan.manifest.schema import check_payload
from mulligan.manifest.specs import (
    ARGUMENT_FIELD,
    DEFAULT_RECORDS,
    DEFAULT_TIMEOUT,
    Handler,
    KindSpec,
    Upcast,
    check_name,
)
from mulligan.manifest.versions import check_versions
from mulligan.retries.policy import Policy, encode_policy
from mulligan.worker.runner.context import Context

if TYPE_CHECKING:
    from mulligan.batches.service import Batch
    from mulligan.config import Settings
    from mulligan.manifest.specs import QueueSpec
    from mulligan.storage.base import Store, Transaction


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
# With a default, so that `Kind[[int], str]` stays a type.
R_co = DefaultTypeVar("R_co", covariant=True, default=Any)
# What a handler may return instead of a result. Listed one by one: pyright removes only exact
# matches from a union, so that jobs of `-> str | Retry` are `Job[str]`.
Returned: TypeAlias = Union[T, Cancel, Fail, Hold, Park, Retry, Snooze]  # noqa: UP007


class KindApp(EnqueueApp, Protocol):
    """The methods of an app that a kind calls."""

    settings: Settings

    async def insert_async(self, new: Sequence[NewJob], connection: Any = None) -> list[Job]: ...


@final
class UntypedParameter:
    """Marks a handler whose first parameter has type Any or object.

    No value of this type exists, so only such a parameter accepts it. It would also accept a
    Context, so the arguments of such a handler are not type-checked.
    """


@dataclass(frozen=True, slots=True)
class KindCall(Generic[T]):
    """A call of a kind as a child job: see `ctx.gather`."""

    kind: Kind[Any, Any, Any]
    arguments: Mapping[str, Any]
    owner: str

    def build(self, owner: str) -> NewJob:
        """Return the job. It belongs to the owner of its parent unless it has one."""
        return self.kind.build_job(self.arguments, self.owner or owner, "child job")


class Kind(Generic[P, R, R_co]):
    """A registered handler. Call it like the function it decorates, or enqueue it.

    For type checkers: its parameters, what the call returns, and the result of its jobs, which
    differs for async functions.
    """

    def __init__(
        self, app: KindApp, handler: Handler, function: Callable[..., R], options: EnqueueOptions
    ) -> None:
        self._app = app
        self._handler = handler
        self._function = function
        self._options = options
        self._template: tuple[QueueSpec | None, NewJob | None] = (None, None)
        self.__doc__ = function.__doc__
        self.__name__ = handler.spec.name
        self.__wrapped__ = function

    @property
    def name(self) -> str:
        return self._handler.spec.name

    @property
    def handler(self) -> Handler:
        return self._handler

    @property
    def has_options(self) -> bool:
        return self._options != EnqueueOptions()

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Call the function directly, for unit tests."""
        if self.has_options:
            message = (
                f"options() has no effect on a direct call, which enqueues nothing. "
                f"Write {self.name}.options(…).enqueue(…)"
            )
            warn_caller(message, UserWarning)
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        options = describe_set_options(self._options)
        return f"<Kind {self.name}{self._handler.arguments.describe()}{options}>"

    if not TYPE_CHECKING:  # checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Refuse an unknown attribute; name what a method of another library is called here."""
            message = f"a Kind has no attribute {name!r}."
            if not name.startswith("_"):
                message += describe_missing_method(self, name)
            raise AttributeError(message, name=name, obj=None)  # Python would suggest a name too

    @name_unknown_options
    def options(  # noqa: PLR0913 - public API: one keyword per option
        self,
        *,
        queue: str | None = None,
        delay: DurationOrTime | None = None,
        priority: int | None = None,
        owner: str = "",
        unique: str | Unique | None = None,
        batch: Batch | Context | str | None = None,
        must_have: bool = False,
        max_retries: int | None = None,
        policy: Policy | None = None,
        timeout: Duration | None = None,
        deadline: DurationOrTime | None = None,
        connection: Any = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Kind[P, R, R_co]:
        """Return this kind with options for the next enqueue."""
        if isinstance(unique, Unique):
            _check_unique_parts(self.name, unique, self._handler.arguments)
        options = EnqueueOptions(
            queue=queue,
            delay=delay,
            priority=priority,
            owner=owner,
            unique=unique,
            batch=batch,
            must_have=must_have,
            max_retries=max_retries,
            policy=policy,
            timeout=timeout,
            deadline=deadline,
            connection=connection,
            traceparent=traceparent,
            tracestate=tracestate,
        )
        return Kind(self._app, self._handler, self._function, options)

    def enqueue(self: Kind[P, Any, Returned[T]], *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Enqueue a job. It is durable on return, or with `connection=` on that commit."""
        if _get_running_loop() is not None:
            warn_on_event_loop("enqueue", "enqueue_async", self._options.connection)
        new = self._new_jobs([self._handler.arguments.bind(args, kwargs)])
        return enqueue(self._app, new, self._options.connection)[0]

    async def enqueue_async(
        self: Kind[P, Any, Returned[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Job[T]:
        """Enqueue a job from a coroutine."""
        new = self._new_jobs([self._handler.arguments.bind(args, kwargs)])
        jobs = await self._app.insert_async(new, self._options.connection)
        return jobs[0]

    def enqueue_many(
        self: Kind[P, Any, Returned[T]], payloads: Iterable[Mapping[str, Any]]
    ) -> list[Job[T]]:
        """Enqueue all jobs or none, in one round trip."""
        if _get_running_loop() is not None:
            connection = self._options.connection
            warn_on_event_loop("enqueue_many", "enqueue_many_async", connection)
        return enqueue(self._app, self._new_jobs(payloads), self._options.connection)

    async def enqueue_many_async(
        self: Kind[P, Any, Returned[T]], payloads: Iterable[Mapping[str, Any]]
    ) -> list[Job[T]]:
        """Enqueue many jobs from a coroutine."""
        return await self._app.insert_async(self._new_jobs(payloads), self._options.connection)

    def reject(
        self: Kind[P, Any, Returned[T]], reason: Fail, /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[T]:
        """Record a job that is refused before it runs: dead at once, visible to its owner.

        If another job holds its unique key, that job is returned and nothing is written. A manual
        retry starts it like any dead job.
        """
        [new] = self._new_jobs([self._handler.arguments.bind(args, kwargs)])
        if self._options.connection is not None:
            message = f"{self.name}.reject() writes at once. Leave out connection=."
            raise Refused(message)
        request: Any = reason
        if not isinstance(request, Fail):
            message = f"reject() takes Fail(...) as its first argument, not {request!r:.80}"
            raise Refused(message)
        with self._app.store.begin() as tx:
            [job] = insert(tx, [new], self._app.jobs)
            if not job.deduplicated:
                _kill(tx, job, self._handler, reason)
        return replace(job.refresh(), deduplicated=job.deduplicated)

    async def reject_async(
        self: Kind[P, Any, Returned[T]], reason: Fail, /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[T]:
        """Record a refused job from a coroutine."""
        return await asyncio.to_thread(self.reject, reason, *args, **kwargs)

    def call(self: Kind[P, Any, Returned[T]], *args: P.args, **kwargs: P.kwargs) -> KindCall[T]:
        """Return a call of this kind for `ctx.gather`, with the options of `options(…)`."""
        arguments = self._handler.arguments.bind(args, kwargs)
        return KindCall(self, arguments, self._options.owner)

    def build_job(
        self, arguments: Mapping[str, Any], owner: str, what: str = "on_complete"
    ) -> NewJob:
        """Return a job for later, with this kind's options: of a batch's end, or a child."""
        options = self._options
        if not (options.batch is None and options.unique is None and options.connection is None):
            often = "per outcome" if what == "on_complete" else "by its parent"
            message = (
                f"{what}: {self.name} is enqueued once {often}. "
                "Leave out batch=, unique= and connection=."
            )
            raise Refused(message)
        kind: Kind[P, R, R_co] = Kind(
            self._app, self._handler, self._function, replace(options, owner=owner)
        )
        return kind._new_jobs([arguments])[0]

    def _new_jobs(self, calls: Iterable[Mapping[str, Any]]) -> list[NewJob]:
        """Check the arguments of calls and return their jobs, which are not inserted yet."""
        handler = self._handler
        app = self._app
        payloads = handler.arguments.encode_all(calls)
        queue, template = self._template
        if template is None or app.registry.queues.get(template.queue) is not queue:
            template = self._build_template()
        limit = app.settings.limits.payload
        return new_jobs(template, handler.spec, handler, payloads, self._options, limit)

    def _build_template(self) -> NewJob:
        """Return the job that all jobs with these options start from.

        It is cached: only its queue, which may be declared later, and its batch can change.
        """
        queues = self._app.registry.queues
        template = job_template(self._handler.spec, self._options, queues)
        if self._options.batch is None:
            self._template = (queues.get(template.queue), template)
        return template


def warn_on_event_loop(method: str, instead: str, connection: Any) -> None:
    """Warn that a call blocks the event loop. Python shows a warning once per line of code.

    A caller's connection may be a bridge to an async driver, which does not block.
    """
    if connection is None:
        message = (
            f"{method}() blocks the event loop until the database has answered. "
            f"In a coroutine use: await {instead}(…)"
        )
        warn_caller(message, RuntimeWarning)


def describe_set_options(options: EnqueueOptions) -> str:
    """Return the options that are set: ` with delay=30, owner='acme'`; empty without any."""
    values = {spec.name: (getattr(options, spec.name), spec.default) for spec in fields(options)}
    shown = [
        f"{name}={value!r:.80}" for name, (value, default) in values.items() if value != default
    ]
    return f" with {', '.join(shown)}" if shown else ""


# Methods that enqueue in Celery, RQ, Dramatiq, Huey, Procrastinate and Sidekiq's relatives.
ENQUEUE_ELSEWHERE = frozenset(
    [
        "delay",
        "send",
        "defer",
        "defer_async",
        "kiq",
        "push",
        "perform_async",
        "submit",
        "apply",
        "s",
        "si",
    ]
)
OPTIONS_ELSEWHERE = frozenset(
    [
        "apply_async",
        "send_with_options",
        "configure",
        "schedule",
        "enqueue_at",
        "enqueue_in",
        "using",
    ]
)


def describe_missing_method(kind: Kind[Any, Any], name: str) -> str:
    """Return what to write instead of a method that a kind does not have."""
    function = getattr(kind.__wrapped__, "__name__", kind.name)
    arguments = ", ".join(f"{argument}=…" for argument in kind.handler.arguments.names)
    if name in ENQUEUE_ELSEWHERE:
        return f" Enqueue a job: {function}.enqueue({arguments})"
    if name in OPTIONS_ELSEWHERE:
        return f" Enqueue with options: {function}.options(delay=30).enqueue({arguments})"
    return did_you_mean(name, [one for one in dir(kind) if not one.startswith("_")])


def _kill(tx: Transaction, job: Job, handler: Handler, reason: Fail) -> None:
    """End a job that this transaction inserted, so that no worker ever sees it queued."""
    from mulligan.jobs.queries import JobQueries
    from mulligan.worker.runner.execute import make_classifier
    from mulligan.worker.runner.outcomes import outcome_of_request
    from mulligan.worker.upkeep import expire_jobs

    classify = make_classifier(handler, ",".join(job.uses))
    failure = outcome_of_request(reason, tx.now(), classify).failure
    row = JobQueries(tx).get_job(job.id)
    assert failure is not None  # noqa: S101 - the outcome of a Fail always has a failure
    assert row is not None  # noqa: S101 - inserted in this transaction
    expire_jobs(tx, [(row, failure)], "python")


class JobDecorator(Protocol):
    """Type of `@app.job(...)`."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[UntypedParameter, P], Coroutine[Any, Any, T]], /
    ) -> Kind[..., Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[UntypedParameter, P], R], /
    ) -> Kind[..., R, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> Kind[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Kind[P, R, R]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Kind[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Kind[P, R, R]: ...


def job_signature(overloads: Sequence[Callable[..., Any]]) -> inspect.Signature:
    """Return the signature of `app.job`: a function, and the options of its last overload."""
    own, *options = inspect.signature(overloads[-1]).parameters.values()
    function = inspect.Parameter("function", inspect.Parameter.POSITIONAL_ONLY, default=None)
    own = own.replace(kind=inspect.Parameter.POSITIONAL_ONLY)
    return inspect.Signature([own, function, *options])


# --- Registration ---

MAX_INDEXED = 10
MAX_TITLE = 120  # characters


def build_handler(  # noqa: PLR0913 - public API: one keyword per option
    function: Callable[..., Any],
    retention_settings: RetentionSection,
    app_rules: Rules,
    *,
    name: str | None = None,
    title: str = "",
    queue: str = "default",
    priority: int = 0,
    uses: Any = None,
    policy: Policy | None = None,
    timeout: Duration = DEFAULT_TIMEOUT / SECOND,
    isolate: bool = False,
    once: bool = False,
    memory_limit: int | None = None,
    stall: Duration | None = None,
    log: int = DEFAULT_RECORDS,
    unique: Unique | None = None,
    rules: Rule | Sequence[Rule] = (),
    shadow: Policy | None = None,
    retention: Duration | None = None,
    cost: float | None = None,
    done: Any = None,
    can_retry: Any = None,
    editable: str | Sequence[str] = (),
    index: str | Sequence[str] = (),
    version: int = 1,
    upcast: Mapping[int, Upcast] | None = None,
) -> Handler:
    """Check the options of `@app.job` and return the handler."""
    _check_function(function)
    arguments = Arguments(function, Context)
    kind = function.__qualname__ if name is None else name
    arguments.check_types(kind)
    arguments.warn_about_unresolved_annotations(kind)
    has_fields = not callable(uses) and "{" in format_uses(uses)
    is_dynamic = callable(uses) or has_fields
    uses_function = uses if callable(uses) else None
    uses_template = _check_uses_template(kind, uses, arguments) if has_fields else ""
    static_uses = "" if is_dynamic else format_uses(uses)
    kept_for = None
    if retention is not None:
        kept_for = check_duration("retention", retention)
    has_callback = done is not None or can_retry is not None
    upcasts = check_versions(kind, version, upcast)
    spec = KindSpec(
        name=kind,
        title=_check_title(kind, title, arguments),
        queue=check_name("queue", queue),
        priority=check_priority(priority),
        timeout=check_limit("timeout", timeout) or DEFAULT_TIMEOUT,
        policy=encode_policy(policy),
        isolate=isolate,
        once=_check_once(kind, once, policy),
        memory_limit=check_memory_limit(memory_limit),
        stall=check_limit("stall", stall),
        log=check_log(log),
        retention=kept_for,
        uses=static_uses,
        schema=arguments.schema(),
        rules=rules_to_dicts(validate_kind_rules(kind, rules)),
        shadow=encode_policy(shadow),
        editable=check_editable(editable, arguments),
        uses_by_payload=is_dynamic,
        uses_template=uses_template,
        index=_check_index(kind, index, arguments),
        needs_history=arguments.context_name is not None or has_callback,
        version=version,
        oldest_version=min(upcasts, default=version),
        **_unique_options(unique),
    )
    _check_unique(spec, unique, retention_settings)
    if unique is not None:
        _check_unique_parts(kind, unique, arguments)
    return Handler(
        spec=spec,
        call=function,
        arguments=arguments,
        is_async=inspect.iscoroutinefunction(function),
        cost=check_cost(cost),
        uses=uses_function,
        kind_rules=load_rulebook(spec.rules),
        app_rules=app_rules,
        done=build_callback("done", done, arguments, Context, in_attempt=True),
        can_retry=build_callback("can_retry", can_retry, arguments, Context, in_attempt=False),
        upcast=upcasts,
    )


def check_option_names(options: Mapping[str, Any]) -> None:
    """Refuse an option that `@app.job` does not have, and say where it belongs."""
    known: Mapping[str, Any] = build_handler.__kwdefaults__ or {}
    for name, value in options.items():
        if name not in known:
            advice = _describe_other_option(name, value)
            message = advice or describe_unknown("@app.job", name, known)
            raise UnknownOption(message)


# What other libraries call the fields of a policy.
POLICY_ELSEWHERE = {
    "retries": "max_retries",
    "retry": "max_retries",
    "max_attempts": "max_retries",
    "retry_backoff": "backoff",
    "default_retry_delay": "backoff",
    "min_backoff": "backoff",
    "max_backoff": "backoff",
}


# What other libraries call the limits of a queue.
LIMITS_ELSEWHERE = {"concurrency", "rate", "rate_limit", "max_concurrency", "limit", "lock"}


def _describe_other_option(name: str, value: Any) -> str:
    """Return where an option of a policy or of a single job is written; empty for others."""
    refusal = f"@app.job has no option {name!r}"
    field = POLICY_ELSEWHERE.get(name, name)
    if field in {spec.name for spec in fields(Policy)}:
        shown = "…" if field == "backoff" else f"{value!r:.80}"
        return f"{refusal}. Write policy=Policy({field}={shown})"
    if name in {spec.name for spec in fields(EnqueueOptions)}:
        return f"{refusal}: each job has its own. Write YOUR_FUNCTION.options({name}=…).enqueue(…)"
    if name in LIMITS_ELSEWHERE:
        return (
            f"{refusal}: limits belong to a queue. Write "
            'app.queue("NAME", concurrency=1, rate="10/m") and @app.job(queue="NAME")'
        )
    if name == "bind":
        return f"{refusal}. To get the context, annotate a parameter: ctx: Context"
    if name == "autoretry_for":
        return (
            f"{refusal}: every failure is classified, and retried if its class allows it. "
            'Add rules=Rule("…", type="YourError", code="…", cls="transient") for your own errors.'
        )
    return ""


def _check_function(function: Any) -> None:
    """Refuse what cannot be a handler: a class, or a generator, whose items would be the result."""
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isclass(function):
        message = f"@app.job: {name} is a class. Decorate a function."
        raise ConfigError(message)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        message = (
            f"@app.job: {name} is a generator function. A job has one result: return a list, or "
            "save what is done with ctx.checkpoint()."
        )
        raise ConfigError(message)


def _check_once(kind: str, once: Any, policy: Policy | None) -> bool:
    """Refuse a policy with retries for a handler that may start at most once."""
    if once and policy is not None and policy.max_retries:
        message = (
            f"kind {kind!r}: once=True allows no retries, but its policy sets"
            f" max_retries={policy.max_retries}. Remove one of them."
        )
        raise ConfigError(message)
    return bool(once)


def _check_index(kind: str, index: Any, arguments: Arguments) -> tuple[str, ...]:
    """Return the indexed argument paths. Refuse paths that the handler does not take."""
    paths = (index,) if isinstance(index, str) else index
    if not isinstance(paths, Iterable) or not all(
        isinstance(path, str) and is_argument_path(path) for path in paths
    ):
        message = (
            f'kind {kind!r}: index names arguments, like ("customer", "address.city"), '
            f"not {index!r:.80}"
        )
        raise ConfigError(message)
    unique_paths = tuple(dict.fromkeys(paths))
    if len(unique_paths) > MAX_INDEXED:
        message = (
            f"kind {kind!r}: index has {len(unique_paths)} arguments, at most {MAX_INDEXED} are "
            "allowed: each adds a row per job."
        )
        raise ConfigError(message)
    _check_known_arguments(kind, "index", unique_paths, arguments)
    return unique_paths


def _check_uses_template(kind: str, uses: Any, arguments: Arguments) -> str:
    """Return dependency keys with arguments in braces, such as "account-{account}"."""
    template = format_uses(uses)
    _check_template(kind, "uses", template, "account-{account}", arguments)
    return template


def _check_title(kind: str, title: Any, arguments: Arguments) -> str:
    """Return a title with arguments in braces, such as "Invoice {order}"."""
    if not isinstance(title, str) or len(title) > MAX_TITLE or title != one_line(title, MAX_TITLE):
        message = (
            f"kind {kind!r}: title must be one line of at most {MAX_TITLE} characters, "
            f"not {title!r:.80}"
        )
        raise ConfigError(message)
    _check_template(kind, "title", title, "Invoice {order}", arguments)
    return title


def _check_template(
    kind: str, option: str, template: str, example: str, arguments: Arguments
) -> None:
    """Refuse braces that do not hold an argument of the handler."""
    paths = ARGUMENT_FIELD.findall(template)
    if "{" in ARGUMENT_FIELD.sub("", template) or not all(map(is_argument_path, paths)):
        message = (
            f"kind {kind!r}: {option}={template!r:.80} has braces without an argument. "
            f'Write "{example}".'
        )
        raise ConfigError(message)
    _check_known_arguments(kind, option, paths, arguments)


def _check_known_arguments(
    kind: str, option: str, paths: Iterable[str], arguments: Arguments
) -> None:
    parameters = arguments.public_signature.parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = {parameter.name for parameter in parameters}
    unknown = [path for path in paths if path.partition(".")[0] not in names]
    if unknown:
        message = (
            f"kind {kind!r}: {option} names {unknown[0]!r}, which is not an argument of the "
            f"handler. It takes {', '.join(sorted(names))}."
        )
        raise ConfigError(message)


def _unique_options(unique: Any) -> dict[str, Any]:
    """Return the uniqueness options for the manifest. `doctor` and manual retries need them."""
    if not isinstance(unique, Unique):
        return {}
    return {
        "unique_for": unique.period,
        "unique_while": unique.covered_states,
        "unique_by": tuple(unique.by),
    }


def _check_unique_parts(kind: str, unique: Unique, arguments: Arguments) -> None:
    """Refuse a misspelt argument: it would be the same for all jobs, so one key for all of them."""
    paths = [part.removeprefix("payload.") for part in unique.by if part.startswith("payload.")]
    _check_known_arguments(kind, "unique", paths, arguments)


def _check_unique(spec: KindSpec, unique: Any, retention: RetentionSection) -> None:
    """Refuse a unique key that outlives its job: the key would end silently with the job."""
    if unique is None:
        return
    if not isinstance(unique, Unique):
        message = (
            f"kind {spec.name!r}: unique must be Unique(...), not {unique!r:.80}. "
            "Pass a key with options(unique=...)."
        )
        raise ConfigError(message)
    if unique.period is None:
        return
    for state in unique.while_:
        if not hasattr(retention, state):  # unfinished jobs are not pruned
            continue
        retained = spec.retention or round(getattr(retention, state) * SECOND)
        if unique.period > retained:
            message = (
                f"kind {spec.name!r}: Unique(for_={unique.for_}) is longer than {state} jobs are "
                f"kept ({retained / SECOND:g} s). Raise retention or shorten for_."
            )
            raise ConfigError(message)


# --- Kinds by name: enqueue without the handler ---

MANIFEST_CACHE_SECONDS = 5.0  # how long stored manifests of other apps are cached


class StoredKinds:
    """Kinds and queues that stored manifests declare, at most five seconds old."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._read_at = 0.0
        self._kinds: Mapping[str, Sequence[KindSpec]] = {}
        self.queues: Mapping[str, QueueSpec] = {}

    def find(self, kind: str) -> Sequence[KindSpec]:
        """Return the declarations of a kind, the newest first."""
        if kind not in self._kinds or time.monotonic() - self._read_at > MANIFEST_CACHE_SECONDS:
            self._read()
        return self._kinds.get(kind, ())

    def _read(self) -> None:
        from mulligan.manifest.declared import load_kind_versions, load_queues

        with self._store().read() as tx:
            self._kinds = load_kind_versions(tx)
            self.queues = load_queues(tx, tx.now())
        self._read_at = time.monotonic()

    def find_accepting(self, kind: str, payload: Any) -> KindSpec:
        """Return the newest declaration of a kind that accepts this payload.

        During a deploy several are in force, and workers of each run the jobs it accepts. An
        unknown kind is accepted: a worker that knows it may start later.
        """
        refusals = []
        for spec in self.find(kind):
            try:
                check_payload(kind, payload, spec.schema)
            except PayloadRefused as error:
                refusals.append(error)
                continue
            _refuse_computed_uses(spec)
            return spec
        if refusals:
            raise refusals[0]
        return KindSpec(kind)


def _refuse_computed_uses(spec: KindSpec) -> None:
    if spec.uses_by_payload and not spec.uses_template:
        message = (
            f"{spec.name}: a function of the app computes its dependencies, and this process has "
            'not loaded the app. Enqueue it in the app, or declare uses="name-{argument}".'
        )
        raise PayloadRefused(message)


def check_kind_name(kind: Any) -> str:
    """Return the name of a kind; refuse a function, which enqueues itself."""
    if isinstance(kind, Kind):
        function = getattr(kind.__wrapped__, "__name__", kind.name)
        message = (
            f"a kind by name is a text: {kind.name!r}. With the function at hand, write "
            f"{function}.enqueue(…)"
        )
        raise ConfigError(message)
    if callable(kind):
        message = f"{kind!r:.80} is no kind: decorate it with @app.job, or pass a kind's name"
        raise ConfigError(message)
    return check_name("kind", kind)


def check_mapping(kind: str, payload: Any) -> dict[str, Any]:
    """Return a payload as a dict, or refuse it."""
    if not isinstance(payload, Mapping | None):
        message = (
            f"enqueue({kind!r}): the payload must be a mapping of arguments by name, "
            f"not {type(payload).__name__}"
        )
        raise PayloadRefused(message)
    return dict(payload or {})


def check_options(kind: str, options: Mapping[str, Any]) -> EnqueueOptions:
    """Return the options of an enqueue by name, or refuse unknown ones."""
    known = [spec.name for spec in fields(EnqueueOptions)]
    for name in options:
        if name not in known:
            message = f"enqueue({kind!r}) has no option {name!r}."
            advice = f" Pass arguments as a mapping: enqueue({kind!r}, {{{name!r}: …}})"
            raise PayloadRefused(message + (did_you_mean(name, known) or advice))
    return EnqueueOptions(**options)
