"""A kind as developers hold it: the plain function, and the typed way to enqueue it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, final, overload

from mulligan.engine.enqueue import Options, common, new_jobs, new_like
from mulligan.engine.runner.context import Context
from mulligan.engine.unique import Unique
from mulligan.errors import Fail, Moment, Refused, Seconds
from mulligan.job import Job, NewJob
from mulligan.policy.retry import Policy

if TYPE_CHECKING:
    from mulligan.config import Settings
    from mulligan.engine.batches import Batch
    from mulligan.engine.jobs import Jobs
    from mulligan.engine.kinds import Handler, QueueSpec, Registry
    from mulligan.store.base import Store

P = ParamSpec("P")
R = TypeVar("R")


class Home(Protocol):
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

    def __init__(self, app: Home, handler: Handler, function: Callable[..., R], options: Options) -> None:
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
        return self._options != Options()

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
        said = Options(
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
        from mulligan.engine.rejecting import reject  # noqa: PLC0415 - most jobs begin

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
        if any(said is not None for said in (self._options.batch, self._options.unique, self._options.connection)):
            message = (
                f"on_complete: {self.name} is enqueued with each outcome; leave batch=, unique= and connection= out"
            )
            raise Refused(message)
        said = replace(self._options, owner=owner)
        return Kind(self._app, self._handler, self._function, said)._new(given)  # noqa: SLF001 - the same kind

    def _new(self, given: Mapping[str, Any]) -> NewJob:
        handler = self._handler
        payload = handler.arguments.encode(given)
        return new_like(
            handler.spec, handler, payload, self._options, self._app.settings.limits.payload, self._common()
        )

    def _several(self, given: Iterable[Mapping[str, Any]]) -> Sequence[NewJob]:
        handler, options = self._handler, self._options
        payloads = handler.arguments.encode_all(given)
        return new_jobs(handler.spec, handler, payloads, options, self._app.settings.limits.payload, self._common())

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
