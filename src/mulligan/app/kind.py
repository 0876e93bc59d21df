"""A kind as developers hold it: the plain function, and the typed way to enqueue it."""

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

from mulligan.batches import service as joining
from mulligan.config import RetentionSection
from mulligan.core.attempt import Failure
from mulligan.core.durations import length
from mulligan.core.errors import ConfigError, Fail, Moment, Refused, Seconds
from mulligan.core.job import SECOND, Job, NewJob
from mulligan.core.unique import Unique
from mulligan.failures.classify import classify_facts
from mulligan.failures.facts import Facts
from mulligan.failures.matcher import Rulebook
from mulligan.failures.rule_sources import as_plain, book_of, kind_rules
from mulligan.failures.rules import Rule
from mulligan.jobs.enqueue import (
    EnqueueOptions,
    checked_cost,
    checked_memory,
    checked_priority,
    checked_timeout,
    common,
    new_jobs,
    new_like,
    uses_text,
)
from mulligan.jobs.filter import is_path
from mulligan.manifest.arguments import Arguments, editable_fields, question
from mulligan.manifest.specs import DEFAULT_TIMEOUT, Handler, KindSpec, checked_name
from mulligan.retries.policy import Policy, policy_text
from mulligan.storage.base import Inserted, Store, Transaction
from mulligan.worker.runner.context import Context
from mulligan.worker.runner.outcomes import outcome_of
from mulligan.worker.upkeep import expired

if TYPE_CHECKING:
    from mulligan.batches.service import Batch
    from mulligan.config import Settings
    from mulligan.jobs.service import Jobs
    from mulligan.manifest.specs import Handler, QueueSpec, Registry
    from mulligan.storage.base import Store


# A job that failed before it could begin: what was asked for is refused, and its owner shall see that it was.


def reject(store: Store, handler: Handler, new: NewJob, why: Any, actor: str) -> Inserted:
    """Insert it dead, in one transaction: no worker ever sees it. A twin that holds its key is left as it is."""
    if not isinstance(why, Fail):
        message = f"reject() takes Fail(...) first, not {why!r:.80}"
        raise Refused(message)
    with store.begin() as unit:
        _, [answer] = joining.insert(unit, [new], announce=True)
        if answer.fresh:
            _bury(unit, answer.id, _judged(handler, new, why, unit.now()), actor)
        return answer


def _judged(handler: Handler, new: NewJob, why: Fail, now: int) -> Failure:
    uses = tuple(filter(None, new.uses.split(",")))

    def judge(facts: Facts) -> Failure:
        return classify_facts(facts._replace(uses=uses), handler.books())

    failure = outcome_of(why, now, judge).failure
    assert failure is not None  # noqa: S101 - a Fail always has one
    return failure


def _bury(unit: Transaction, job_id: str, failure: Failure, actor: str) -> None:
    row = unit.get(job_id)
    assert row is not None  # noqa: S101 - inserted a moment ago, in this transaction
    expired(unit, [(row, failure)], actor)


# A kind as developers hold it: the plain function, and the typed way to enqueue it.

P = ParamSpec("P")
R = TypeVar("R")


class KindApp(Protocol):
    """What a kind needs of its app."""

    settings: Settings
    registry: Registry

    @property
    def jobs(self) -> Jobs: ...

    @property
    def store(self) -> Store: ...

    def insert(self, new: Sequence[NewJob], connection: Any = None) -> list[Job]: ...

    def insert_one(self, new: NewJob, connection: Any = None) -> Job: ...

    async def insert_async(self, new: Sequence[NewJob], connection: Any = None) -> list[Job]: ...


@final
class Untyped:
    """Nobody has one, so only a parameter of type Any or object takes it.

    It would take a Context too, and count as one: its arguments must be left unchecked instead.
    """


class Kind(Generic[P, R]):
    """A registered handler: still the plain function, and the way to enqueue it."""

    def __init__(
        self, app: KindApp, handler: Handler, function: Callable[..., R], options: EnqueueOptions
    ) -> None:
        self._app = app
        self._handler = handler
        self._function = function
        self._options = options
        self._begun: tuple[QueueSpec | None, NewJob] | None = None
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
        """The plain function, for unit tests."""
        return self._function(*args, **kwargs)

    def options(  # noqa: PLR0913 - each says one thing about one enqueue
        self,
        *,
        queue: str | None = None,
        delay: Moment | None = None,
        priority: int | None = None,
        owner: str = "",
        unique: str | Unique | None = None,
        batch: Batch | Context | str | None = None,
        must_have: bool = False,
        max_retries: int | None = None,
        policy: Policy | None = None,
        timeout: Seconds | None = None,
        deadline: Moment | None = None,
        connection: Any = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> Kind[P, R]:
        """The same kind with something said about the next enqueue."""
        said = EnqueueOptions(
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
        return Kind(self._app, self._handler, self._function, said)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Durable when this returns (with `connection=`: when that transaction commits)."""
        given = self._handler.arguments.bind(args, kwargs)
        return self._app.insert_one(self._new(given), self._options.connection)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        given = self._handler.arguments.bind(args, kwargs)
        return (await self._app.insert_async([self._new(given)], self._options.connection))[0]

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Job]:
        """All of them or none, in one round trip."""
        return self._app.insert(self._several(payloads), self._options.connection)

    async def enqueue_many_async(self, payloads: Iterable[Mapping[str, Any]]) -> list[Job]:
        return await self._app.insert_async(self._several(payloads), self._options.connection)

    def reject(self, why: Fail, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """A job that failed before it could begin, for its owner to see: dead at once, without an attempt.

        As with `enqueue` a twin that holds its unique key is the answer, and nothing is written. `retry` by hand begins
        it like any dead job.
        """
        pass

        new = self._new(self._handler.arguments.bind(args, kwargs))
        if self._options.connection is not None:
            message = f"{self.name}.reject(): it is written at once; leave connection= out"
            raise Refused(message)
        answer = reject(self._app.store, self._handler, new, why, "python")
        return replace(self._app.jobs.get(answer.id), deduplicated=not answer.fresh)

    async def reject_async(self, why: Fail, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        return await asyncio.to_thread(self.reject, why, *args, **kwargs)

    def prepared(self, given: Mapping[str, Any], owner: str) -> NewJob:
        """A job for later, of this owner, with the options that were said."""
        if any(
            said is not None
            for said in (self._options.batch, self._options.unique, self._options.connection)
        ):
            message = f"on_complete: {self.name} is enqueued with each outcome; leave batch=, unique= and connection= out"
            raise Refused(message)
        said = replace(self._options, owner=owner)
        return Kind(self._app, self._handler, self._function, said)._new(given)  # noqa: SLF001 - the same kind

    def _new(self, given: Mapping[str, Any]) -> NewJob:
        handler = self._handler
        payload = handler.arguments.encode(given)
        return new_like(
            handler.spec,
            handler,
            payload,
            self._options,
            self._app.settings.limits.payload,
            self._common(),
        )

    def _several(self, given: Iterable[Mapping[str, Any]]) -> Sequence[NewJob]:
        handler, options = self._handler, self._options
        payloads = handler.arguments.encode_all(given)
        return new_jobs(
            handler.spec,
            handler,
            payloads,
            options,
            self._app.settings.limits.payload,
            self._common(),
        )

    def _common(self) -> NewJob:
        """What all jobs with these options share, kept: nothing of it changes but its queue, which may be declared
        late, and its batch.
        """
        queues, begun = self._app.registry.queues, self._begun
        if begun is not None and queues.get(begun[1].queue) is begun[0]:
            return begun[1]
        made = common(self._handler.spec, self._options, queues)
        if self._options.batch is None:
            self._begun = (queues.get(made.queue), made)
        return made


class Decorator(Protocol):
    """The typed face of `@app.job(...)`."""

    @overload
    def __call__(self, function: Callable[Concatenate[Untyped, P], R], /) -> Kind[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Kind[P, R]: ...


# From a decorated function and what was said about it to a Handler: checked before anything is registered.

MOST_INDEXED = 10


def handler_of(  # noqa: PLR0913 - the options of CONTRACT
    function: Callable[..., Any],
    keep: RetentionSection,
    app_rules: Callable[[], Rulebook],
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    uses: Any = None,
    policy: Policy | None = None,
    timeout: Seconds = DEFAULT_TIMEOUT / SECOND,
    isolate: bool = False,
    memory_limit: int | None = None,
    unique: Unique | None = None,
    rules: Rule | Sequence[Rule] = (),
    shadow: Policy | None = None,
    retention: Seconds | None = None,
    cost: float | None = None,
    done: Any = None,
    can_retry: Any = None,
    editable: str | Sequence[str] = (),
    index: str | Sequence[str] = (),
) -> Handler:
    arguments = Arguments(function, Context)
    spec = KindSpec(
        name=name or function.__qualname__,
        queue=checked_name("queue", queue),
        priority=checked_priority(priority),
        timeout=checked_timeout(timeout) or DEFAULT_TIMEOUT,
        policy=policy_text(policy),
        isolate=isolate,
        memory_limit=checked_memory(memory_limit),
        retention=None if retention is None else length("retention", retention),
        uses="" if callable(uses) else uses_text(uses),
        schema=arguments.schema(),
        rules=as_plain(kind_rules(name or function.__qualname__, rules)),
        shadow=policy_text(shadow),
        editable=editable_fields(editable, arguments),
        uses_by_payload=callable(uses),
        index=_checked_index(name or function.__qualname__, index, arguments),
        remembers=arguments.context_name is not None or done is not None or can_retry is not None,
        **_key_facts(unique),
    )
    _check_unique(spec, unique, keep)
    return Handler(
        spec=spec,
        call=function,
        arguments=arguments,
        is_async=inspect.iscoroutinefunction(function),
        cost=checked_cost(cost),
        uses=uses if callable(uses) else None,
        unique=unique,
        books=_books(spec.rules, app_rules),
        done=question("done", done, arguments, Context, in_attempt=True),
        can_retry=question("can_retry", can_retry, arguments, Context, in_attempt=False),
    )


def _checked_index(kind: str, said: Any, arguments: Arguments) -> tuple[str, ...]:
    """The paths, each of an argument that the handler takes."""
    paths = (said,) if isinstance(said, str) else said
    if not isinstance(paths, Iterable) or not all(
        isinstance(path, str) and is_path(path) for path in paths
    ):
        message = f'kind {kind!r}: index names arguments, like ("customer", "address.city"), not {said!r:.80}'
        raise ConfigError(message)
    found = tuple(dict.fromkeys(paths))
    if len(found) > MOST_INDEXED:
        message = f"kind {kind!r}: index has {len(found)} arguments; {MOST_INDEXED} at most, each is a row per job"
        raise ConfigError(message)
    takes = arguments.public_signature.parameters.values()
    names = {parameter.name for parameter in takes}
    unknown = [path for path in found if path.partition(".")[0] not in names]
    if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes):
        message = f"kind {kind!r}: index={unknown[0]!r}: it takes no such argument; it takes {', '.join(sorted(names))}"
        raise ConfigError(message)
    return found


def _books(
    rules: Sequence[Mapping[str, Any]], app_rules: Callable[[], Rulebook]
) -> Callable[[], tuple[Rulebook, ...]]:
    """The kind's own rules, then the app's as they are when they are asked."""
    own = book_of(rules)
    alone = (own,) if own.rules else ()
    return lambda: (*alone, book) if (book := app_rules()).rules else alone


def _key_facts(unique: Any) -> dict[str, Any]:
    """For `doctor`: what retention must not cut short. For edits: what the key is made of."""
    if not isinstance(unique, Unique):
        return {}
    return {"unique_for": unique.span, "unique_while": unique.cover, "unique_by": tuple(unique.by)}


def _check_unique(spec: KindSpec, unique: Any, keep: RetentionSection) -> None:
    """A key that should be held longer than its job is kept would end silently."""
    if unique is not None and not isinstance(unique, Unique):
        message = f"kind {spec.name!r}: unique must be Unique(...), not {unique!r:.80}; give a key with options()"
        raise ConfigError(message)
    if unique is None or unique.span is None:
        return
    for state in unique.while_:
        if not hasattr(keep, state):  # not an end: such jobs are not pruned
            continue
        kept = spec.retention or round(getattr(keep, state) * SECOND)
        if unique.span > kept:
            message = (
                f"kind {spec.name!r}: Unique(for_={unique.for_}) is longer than {state} jobs are kept "
                f"({kept / SECOND:g} s); raise retention or shorten for_"
            )
            raise ConfigError(message)
