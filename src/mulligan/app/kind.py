"""A registered kind: the decorated function, the typed way to enqueue it, and its registration."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    final,
    overload,
)

from mulligan.config import RetentionSection
from mulligan.core.durations import SECOND, check_duration
from mulligan.core.errors import ConfigError, Duration, DurationOrTime, Fail, Refused
from mulligan.core.job import Job, NewJob, Unique
from mulligan.failures.matcher import Rulebook
from mulligan.failures.rule_sources import load_rulebook, rules_to_dicts, validate_kind_rules
from mulligan.failures.rules import Rule
from mulligan.jobs.enqueue import EnqueueApp, enqueue, insert, new_jobs
from mulligan.jobs.filter import is_argument_path
from mulligan.jobs.options import (
    EnqueueOptions,
    check_cost,
    check_memory_limit,
    check_priority,
    check_timeout,
    format_uses,
    job_template,
)
from mulligan.manifest.arguments import Arguments, build_callback, check_editable
from mulligan.manifest.specs import DEFAULT_TIMEOUT, Handler, KindSpec, check_name
from mulligan.retries.policy import Policy, encode_policy
from mulligan.worker.runner.context import Context

if TYPE_CHECKING:
    from mulligan.batches.service import Batch
    from mulligan.config import Settings
    from mulligan.core.attempt import Failure
    from mulligan.failures.facts import Facts
    from mulligan.manifest.specs import QueueSpec
    from mulligan.storage.base import Transaction


P = ParamSpec("P")
R = TypeVar("R")


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


class Kind(Generic[P, R]):
    """A registered handler. Call it like the function it decorates, or enqueue it."""

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
        return self._function(*args, **kwargs)

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
    ) -> Kind[P, R]:
        """Return this kind with options for the next enqueue."""
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

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Enqueue a job. It is durable on return, or with `connection=` on that commit."""
        new = self._new_jobs([self._handler.arguments.bind(args, kwargs)])
        return enqueue(self._app, new, self._options.connection)[0]

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Enqueue a job from a coroutine."""
        new = self._new_jobs([self._handler.arguments.bind(args, kwargs)])
        jobs = await self._app.insert_async(new, self._options.connection)
        return jobs[0]

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Job]:
        """Enqueue all jobs or none, in one round trip."""
        return enqueue(self._app, self._new_jobs(payloads), self._options.connection)

    async def enqueue_many_async(self, payloads: Iterable[Mapping[str, Any]]) -> list[Job]:
        """Enqueue many jobs from a coroutine."""
        return await self._app.insert_async(self._new_jobs(payloads), self._options.connection)

    def reject(self, reason: Fail, /, *args: P.args, **kwargs: P.kwargs) -> Job:
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
            [job] = insert(tx, [new], self._app.jobs.get)
            if not job.deduplicated:
                _kill(tx, job, self._handler, reason)
        return replace(job.refresh(), deduplicated=job.deduplicated)

    async def reject_async(self, reason: Fail, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Record a refused job from a coroutine."""
        return await asyncio.to_thread(self.reject, reason, *args, **kwargs)

    def build_job(self, arguments: Mapping[str, Any], owner: str) -> NewJob:
        """Return a job for later, with this kind's options. Used by `on_complete` of a batch."""
        options = self._options
        if not (options.batch is None and options.unique is None and options.connection is None):
            message = (
                f"on_complete: {self.name} is enqueued once per outcome. "
                "Leave out batch=, unique= and connection=."
            )
            raise Refused(message)
        kind: Kind[P, R] = Kind(
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


def _kill(tx: Transaction, job: Job, handler: Handler, reason: Fail) -> None:
    """End a job that this transaction inserted, so that no worker ever sees it queued."""
    from mulligan.failures.classify import classify_facts
    from mulligan.jobs.queries import JobQueries
    from mulligan.worker.runner.outcomes import outcome_of_request
    from mulligan.worker.upkeep import expire_jobs

    def classify(facts: Facts) -> Failure:
        return classify_facts(facts._replace(uses=job.uses), handler.rulebooks())

    failure = outcome_of_request(reason, tx.now(), classify).failure
    row = JobQueries(tx).get_job(job.id)
    assert failure is not None  # noqa: S101 - the outcome of a Fail always has a failure
    assert row is not None  # noqa: S101 - inserted in this transaction
    expire_jobs(tx, [(row, failure)], "python")


class JobDecorator(Protocol):
    """Type of `@app.job(...)`."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[UntypedParameter, P], R], /
    ) -> Kind[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Kind[P, R]: ...


# --- Registration ---

MAX_INDEXED = 10


def build_handler(  # noqa: PLR0913 - public API: one keyword per option
    function: Callable[..., Any],
    retention_settings: RetentionSection,
    app_rules: Callable[[], Rulebook],
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    uses: Any = None,
    policy: Policy | None = None,
    timeout: Duration = DEFAULT_TIMEOUT / SECOND,
    isolate: bool = False,
    memory_limit: int | None = None,
    unique: Unique | None = None,
    rules: Rule | Sequence[Rule] = (),
    shadow: Policy | None = None,
    retention: Duration | None = None,
    cost: float | None = None,
    done: Any = None,
    can_retry: Any = None,
    editable: str | Sequence[str] = (),
    index: str | Sequence[str] = (),
) -> Handler:
    """Check the options of `@app.job` and return the handler."""
    arguments = Arguments(function, Context)
    kind = name or function.__qualname__
    spec = KindSpec(
        name=kind,
        queue=check_name("queue", queue),
        priority=check_priority(priority),
        timeout=check_timeout(timeout) or DEFAULT_TIMEOUT,
        policy=encode_policy(policy),
        isolate=isolate,
        memory_limit=check_memory_limit(memory_limit),
        retention=None if retention is None else check_duration("retention", retention),
        uses="" if callable(uses) else format_uses(uses),
        schema=arguments.schema(),
        rules=rules_to_dicts(validate_kind_rules(kind, rules)),
        shadow=encode_policy(shadow),
        editable=check_editable(editable, arguments),
        uses_by_payload=callable(uses),
        index=_check_index(kind, index, arguments),
        needs_history=arguments.context_name is not None
        or done is not None
        or can_retry is not None,
        **_unique_options(unique),
    )
    _check_unique(spec, unique, retention_settings)
    return Handler(
        spec=spec,
        call=function,
        arguments=arguments,
        is_async=inspect.iscoroutinefunction(function),
        cost=check_cost(cost),
        uses=uses if callable(uses) else None,
        unique=unique,
        rulebooks=_rulebooks(spec.rules, app_rules),
        done=build_callback("done", done, arguments, Context, in_attempt=True),
        can_retry=build_callback("can_retry", can_retry, arguments, Context, in_attempt=False),
    )


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
    _check_known_arguments(kind, unique_paths, arguments)
    return unique_paths


def _check_known_arguments(kind: str, paths: Iterable[str], arguments: Arguments) -> None:
    parameters = arguments.public_signature.parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = {parameter.name for parameter in parameters}
    unknown = [path for path in paths if path.partition(".")[0] not in names]
    if unknown:
        message = (
            f"kind {kind!r}: index={unknown[0]!r} is not an argument of the handler. "
            f"It takes {', '.join(sorted(names))}."
        )
        raise ConfigError(message)


def _rulebooks(
    rules: Sequence[Mapping[str, Any]], app_rules: Callable[[], Rulebook]
) -> Callable[[], tuple[Rulebook, ...]]:
    """Return a function that yields the kind's rules, then the app's current rules."""
    kind_book = load_rulebook(rules)
    kind_books = (kind_book,) if kind_book.rules else ()

    def rulebooks() -> tuple[Rulebook, ...]:
        app_book = app_rules()
        return (*kind_books, app_book) if app_book.rules else kind_books

    return rulebooks


def _unique_options(unique: Any) -> dict[str, Any]:
    """Return the uniqueness options for the manifest. `doctor` and manual retries need them."""
    if not isinstance(unique, Unique):
        return {}
    return {
        "unique_for": unique.period,
        "unique_while": unique.covered_states,
        "unique_by": tuple(unique.by),
    }


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
