"""Mulligan: the app a developer holds. Registers handlers, enqueues, reads and repairs; wires, decides nothing.

What talks to the database is imported at its first use: a runner starts in less time without it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import cached_property
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, overload

from mulligan.app.kind import Decorator, Kind, Untyped, handler_of
from mulligan.app.services import Nouns
from mulligan.config import Settings, read_settings
from mulligan.core.errors import (
    ConfigError,
    Moment,
    PayloadRefused,
    SchemaError,
    Seconds,
    StoreUnavailable,
)
from mulligan.core.job import Job, Micros, NewJob, all_plain, is_plain
from mulligan.core.unique import Unique
from mulligan.failures.rule_sources import Rules, as_plain
from mulligan.failures.rules import Rule
from mulligan.jobs.enqueue import EnqueueOptions, new_job
from mulligan.manifest.specs import (
    DELIVER_KIND,
    Handler,
    KindSpec,
    Manifest,
    QueueSpec,
    Registry,
    ScheduleSpec,
    checked_name,
    free_name,
)
from mulligan.notifications.deliveries import TERMS
from mulligan.observability.tracing import OtelTracer
from mulligan.retries.policy import Policy, policy_text
from mulligan.worker.runner.context import Context

if TYPE_CHECKING:
    from mulligan.app.services import Aio
    from mulligan.batches.service import Batch
    from mulligan.guards.probes import Health
    from mulligan.insight.service import Insight
    from mulligan.notifications.channels import Channel
    from mulligan.notifications.subscriptions import Subscription
    from mulligan.storage.base import Store, Transaction
    from mulligan.worker.inline import Inline

NO_TABLES = (
    "the database has no tables of Mulligan's yet, and your open transaction is in the way. Make them before: "
    "mulligan migrate, or app.open() when your program starts"
)
WEEK = timedelta(days=7)
MANIFEST_TRUST = 5.0  # seconds for which what was read of other apps' kinds is believed

P = ParamSpec("P")
R = TypeVar("R")


class Mulligan(Nouns):
    """One app on one database: "sqlite:///file.db", "postgresql://…", or as the settings say."""

    def __init__(
        self, url: str | None = None, *, settings: Settings | None = None, release: str = ""
    ) -> None:
        self.settings = settings or read_settings({"database_url": url, "release": release or None})
        self.registry = Registry()
        self.registry.tracer = OtelTracer(self.settings.trace)
        self._store: Store | None = None
        self._known: tuple[float, dict[str, KindSpec], dict[str, QueueSpec]] = (0.0, {}, {})
        self.rules = Rules(lambda: self.settings)
        self._offer_deliveries(DELIVER_KIND, None)

    # -- wiring -----------------------------------------------------------------------------------
    @cached_property
    def aio(self) -> Aio:
        """All of it, awaitable."""
        from mulligan.app.services import Aio

        return Aio(self)

    @property
    def store(self) -> Store:
        """Opened at first use, so that importing an app touches no database."""
        if self._store is None:
            store = self._opened()
            store.prepare()
            self._store = store
        return self._store

    def _opened(self) -> Store:
        from mulligan.storage import open_store

        said = self.settings
        hints, direct = said.notify_callers, said.listen_url
        return open_store(
            said.database_url, schema=said.schema_name, notify_callers=hints, listen_url=direct
        )

    def open(self) -> Self:
        """Open the database now rather than at first use. An empty one gets its tables."""
        _ = self.store
        return self

    def _open_beside_a_caller(self) -> Store:
        """The caller's transaction may hold SQLite's one write lock: the tables could only be waited for in vain."""
        from mulligan.storage.url import sqlite_file

        if self._store is None and sqlite_file(self.settings.database_url) is not None:
            try:
                with closing(self._opened()) as store:
                    empty = store.empty()
            except (
                StoreUnavailable
            ) as error:  # a file that was never ours is not in WAL mode yet, and is locked
                message = f"{error}. If your transaction is in the way, call app.open() when your program starts"
                raise StoreUnavailable(message) from error
            if empty:
                raise SchemaError(NO_TABLES)
        return self.store

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    @contextmanager
    def redirected(self, settings: Settings) -> Iterator[None]:
        """For `mulligan.testing.temporary`: this process under other settings, on another database, for a block."""
        before = self.settings, self._store, self._known
        self.settings, self._store, self._known = settings, None, (0.0, {}, {})
        try:
            yield
        finally:
            self.close()
            self.settings, self._store, self._known = before

    def manifest(self, app: str = "") -> Manifest:
        """The app as data."""
        return self.registry.manifest(app, self.settings.release, as_plain(self.rules))

    # -- register ---------------------------------------------------------------------------------
    @overload
    def job(self, function: Callable[Concatenate[Untyped, P], R], /) -> Kind[..., R]: ...
    @overload
    def job(self, function: Callable[Concatenate[Context, P], R], /) -> Kind[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Kind[P, R]: ...
    @overload
    def job(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        uses: str | Sequence[str] | Callable[[Any], Any] | None = None,
        policy: Policy | None = None,
        timeout: Seconds = 300,
        isolate: bool = False,
        memory_limit: int | None = None,
        unique: Unique | None = None,
        rules: Rule | Sequence[Rule] = (),
        shadow: Policy | None = None,
        retention: Seconds | None = None,
        cost: float | None = None,
        done: Callable[..., Any] | None = None,
        can_retry: Callable[..., Any] | None = None,
        editable: str | Sequence[str] = (),
        index: str | Sequence[str] = (),
    ) -> Decorator: ...
    def job(self, *functions: Any, **said: Any) -> Any:
        """Register a handler: `@app.job` or `@app.job(queue="render", timeout=300, …)`."""
        if not functions:
            return lambda decorated: self._register_own(decorated, **said)
        if len(functions) > 1 or not callable(functions[0]):
            message = (
                f"@app.job takes its options by name, such as @app.job(name={functions[-1]!r:.80})"
            )
            raise ConfigError(message)
        return self._register_own(functions[0], **said)

    def _register_own(self, function: Callable[..., Any], **said: Any) -> Kind[Any, Any]:
        """Of the user's, whose names must not be ours."""
        free_name("kind", said.get("name") or function.__qualname__)
        free_name("queue", said.get("queue", "default"))
        return self._register(function, **said)

    def _register(self, function: Callable[..., Any], **said: Any) -> Kind[Any, Any]:
        handler = handler_of(function, self.settings.retention, lambda: self.rules.book, **said)
        self.registry.add(handler)
        self._check_schedules(handler)
        return Kind(self, handler, function, EnqueueOptions())

    def queue(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: float | str | None = None,
        fair: bool = False,
        policy: Policy | None = None,
    ) -> None:
        """Declare defaults of a queue, for the whole fleet; what an operator sets wins until it is cleared.

        `concurrency`: running at once. `rate`: starts, per second or "100/m". `fair`: owners take turns. `policy`:
        for kinds that do not say otherwise.
        """
        from mulligan.guards.gates import checked_concurrency, checked_rate

        spec = QueueSpec(
            free_name("queue", name),
            checked_concurrency(concurrency),
            checked_rate(rate),
            bool(fair),
            policy_text(policy),
        )
        self.registry.declare(spec)

    def dependency(  # noqa: PLR0913 - the options of CONTRACT
        self,
        key: str,
        *,
        probe: Health | None = None,
        mode: str = "hold",
        open_at: float = 0.5,
        min_calls: int = 20,
        window: Seconds = 120,
        cool_down: Seconds = 30,
        budget: float | str | None = 0.1,
        max_concurrency: int | None = None,
        rate: float | str | None = None,
        slow: Seconds | None = None,
    ) -> None:
        """Declare something that jobs `use`: its limits, and how its breaker works. What is only used has defaults.

        `probe`: a function that looks whether it is well. `mode`: while it is down jobs wait ("hold") or end at once
        ("fail_fast"). `open_at`: the share of failed calls, of at least `min_calls` within `window`. `cool_down`: until
        the first probe. `budget`: retries per success at the first try, or "100/h". `max_concurrency`, `rate`: as for
        queues. `slow`: from when on an answer counts as a failure.
        """
        from mulligan.guards.probes import dependency_spec

        said = {
            "probe": probe,
            "mode": mode,
            "open_at": open_at,
            "min_calls": min_calls,
            "window": window,
            "cool_down": cool_down,
            "budget": budget,
            "max_concurrency": max_concurrency,
            "rate": rate,
            "slow": slow,
        }
        self.registry.declare(dependency_spec(key, **said))
        if probe is not None:
            self.registry.probes[key] = probe
            self._offer_probes()

    def _offer_probes(self) -> None:
        """The system job that calls them, once one is declared."""
        from mulligan.guards.observer import PROBE_KIND
        from mulligan.guards.probes import PROBE_QUEUE, ask

        if PROBE_KIND in self.registry.handlers:
            return
        probes = self.registry.probes

        async def probe(dependency: str) -> dict[str, Any]:
            return await ask(probes, dependency)

        once = Policy(max_retries=0, max_losses=0)
        self._register(probe, name=PROBE_KIND, queue=PROBE_QUEUE, priority=-9, policy=once)

    def notify(
        self,
        on: str | Sequence[str],
        to: Channel,
        *,
        owner: str | None = None,
        batch: Batch | str | None = None,
        name: str | None = None,
        form: str | None = None,
        filter: str = "",  # noqa: A002 - as in CONTRACT's other calls
        stored: bool = False,
    ) -> Subscription | None:
        """Tell somebody of what happens: `on` names events, such as "job.died" or ["batch.partial", "batch.failed"].

        It is part of the app, like a schedule: its channel stays in the app's processes. With `batch` or `stored` it is
        written to the database now, and any worker delivers. `form`: "each" event a message, or failures of one cause
        as one "incident". `filter`: `kind: queue: code: class:`.
        """
        from mulligan.notifications.subscriptions import checked_channel, spec_of

        if stored or batch is not None:
            return self.subscriptions.add(
                on, to, owner=owner, batch=batch, name=name or "", form=form, filter=filter
            )
        spec = spec_of(on, to, owner=owner, name=name, form=form, words=filter)
        if spec.name in self.registry.subscriptions:
            message = (
                f"subscription {spec.name!r} is declared twice; give one of them another name="
            )
            raise ConfigError(message)
        self.registry.subscriptions[spec.name] = spec
        self._offer_deliveries(f"{DELIVER_KIND}.{spec.name}", checked_channel(to))
        return None

    def _offer_deliveries(self, kind: str, channel: Channel | None) -> None:
        """The system job that sends messages, over a channel of this app or a stored one."""

        async def deliver(ctx: Context, subscription: str, message: dict[str, Any]) -> Any:
            from mulligan.notifications.deliveries import Courier

            courier = Courier(lambda: self.store, lambda: self.settings, channel)
            return await courier.deliver(ctx, subscription, message)

        self._register(deliver, name=kind, **TERMS)

    def schedule(  # noqa: PLR0913 - when, what, and what may be said about its jobs
        self,
        name: str,
        cron: str,
        kind: Kind[Any, Any] | str,
        payload: Mapping[str, Any] | None = None,
        *,
        timezone: str = "UTC",
        missed: str = "latest",
        queue: str | None = None,
        priority: int | None = None,
        owner: str = "",
        max_retries: int | None = None,
        policy: Policy | None = None,
        timeout: Seconds | None = None,
        deadline: Seconds | None = None,
    ) -> None:
        """A job of this kind at every slot of a cron expression, made by whichever worker is there."""
        from mulligan.schedules.chore import checked_schedule

        if checked_name("schedule", name) in self.registry.schedules:
            message = f"schedule {name!r} is declared twice; give one of them another name"
            raise ConfigError(message)
        handler = self._scheduled(name, kind)
        said = EnqueueOptions(
            queue=queue,
            priority=priority,
            owner=owner,
            max_retries=max_retries,
            policy=policy,
            timeout=timeout,
            deadline=deadline,
        )
        called = kind.name if isinstance(kind, Kind) else kind
        spec = ScheduleSpec(name=name, cron=cron, kind=called, timezone=timezone, missed=missed)
        given = {} if payload is None else payload
        self.registry.schedules[name] = checked_schedule(
            spec, handler, given, said, self.settings.limits.payload
        )

    def _scheduled(self, name: str, kind: Any) -> Handler | None:
        """The handler, where it is known."""
        if isinstance(kind, Kind) and kind.has_options:
            message = f"schedule {name!r}: say queue=, priority=, owner= … to schedule() itself, not with options()"
            raise ConfigError(message)
        if isinstance(kind, Kind):
            return kind.handler
        if not isinstance(kind, str):
            message = f"schedule {name!r}: kind is a function decorated with @app.job, or its name, not {kind!r:.80}"
            raise ConfigError(message)
        return self.registry.handlers.get(kind)

    def _check_schedules(self, handler: Handler) -> None:
        """Schedules that were declared by the kind's name before its handler."""
        for name, spec in self.registry.schedules.items():
            if spec.kind == handler.spec.name:
                from mulligan.schedules.chore import checked_again

                self.registry.schedules[name] = checked_again(
                    spec, handler, self.settings.limits.payload
                )

    def on_start(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Called once in each runner process before its first job; what it makes is `ctx.state`."""
        self.registry.on_start.append(function)
        return function

    def on_stop(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.registry.on_stop.append(function)
        return function

    # -- enqueue ----------------------------------------------------------------------------------
    def enqueue(self, kind: str, payload: Mapping[str, Any] | None = None, **options: Any) -> Job:
        """By name, without importing the handler; checked by it where it is known here."""
        new, connection = self._named(kind, payload, options)
        return self.insert_one(new, connection)

    def prepared(
        self, kind: str, payload: Mapping[str, Any] | None = None, **options: Any
    ) -> NewJob:
        """The same, not inserted yet."""
        return self._named(kind, payload, options)[0]

    def _named(self, kind: str, payload: Any, options: Mapping[str, Any]) -> tuple[NewJob, Any]:
        """A checked job by the name of its kind, and the connection it should go through."""
        if options.get("connection") is not None:
            self._open_beside_a_caller()
        handler = self.registry.handlers.get(checked_name("kind", kind))
        spec = handler.spec if handler is not None else self._stored_spec(kind)
        if not isinstance(payload, Mapping | None):
            message = f"enqueue({kind!r}): the payload is a mapping of arguments by name, not {type(payload).__name__}"
            raise PayloadRefused(message)
        plain: Any = dict(payload or {})
        if handler is not None:
            plain = handler.arguments.encode(plain)
        try:
            said = EnqueueOptions(**options)
        except TypeError as error:
            message = f"enqueue({kind!r}): {error}"
            raise PayloadRefused(message) from None
        queues = {**self._known[2], **self.registry.queues}
        return new_job(
            spec, handler, plain, said, self.settings.limits.payload, queues
        ), said.connection

    def _stored_spec(self, kind: str) -> KindSpec:
        """What the newest manifest that knows this kind says of it; a kind nobody knows yet may still wait."""
        from mulligan.manifest.declared import stored_kinds, stored_queues

        read_at, specs, _ = self._known
        if kind not in specs or time.monotonic() - read_at > MANIFEST_TRUST:
            with self.store.read() as unit:
                self._known = (
                    time.monotonic(),
                    stored_kinds(unit),
                    stored_queues(unit, unit.now()),
                )
        return self._known[1].get(kind) or KindSpec(kind)

    def insert_one(self, new: NewJob, connection: Any = None) -> Job:
        if not is_plain(new) or not self.registry.tracer.idle():
            return self.insert((new,), connection)[0]
        return self.jobs.fresh(new, self._insert_plain((new,), connection))

    def insert(
        self, new: Sequence[NewJob], connection: Any = None, *, actor: str = ""
    ) -> list[Job]:
        """`actor`: a person enqueues them, and that is told."""
        if not new:
            return []
        tracer = self.registry.tracer
        if tracer.idle():
            return self._insert(new, connection, actor)
        with tracer.sending(new) as sent:
            return self._insert(sent, connection, actor)

    def _insert(self, new: Sequence[NewJob], connection: Any, actor: str) -> list[Job]:
        from mulligan.batches import service as joining

        if actor:
            from mulligan.schedules.chore import queued_by

            with self.store.begin() as unit:
                new, answers = joining.insert(unit, new, announce=False)
                unit.announce_as(queued_by(actor, new, answers))
                return self.jobs.inserted(unit, new, answers)
        if all_plain(new):
            return self.jobs.all_fresh(new, self._insert_plain(new, connection))
        if connection is not None:
            unit = self._joined(connection)
            return self.jobs.inserted(unit, *joining.insert(unit, new, announce=False))
        with self.store.begin() as unit:
            return self.jobs.inserted(unit, *joining.insert(unit, new, announce=True))

    def _insert_plain(self, new: Sequence[NewJob], connection: Any) -> Micros:
        """By one statement; the moment of it."""
        if connection is not None:
            return self._joined(connection).insert_free(new, announce=False)
        with self.store.once() as unit:
            return unit.insert_free(new, announce=True)

    def _joined(self, connection: Any) -> Transaction:
        return self._open_beside_a_caller().join(connection)

    async def insert_async(self, new: Sequence[NewJob], connection: Any = None) -> list[Job]:
        """On a thread; on SQLAlchemy's async connections and sessions where they are, by their own bridge."""
        run_sync = getattr(connection, "run_sync", None)
        if run_sync is None:
            return await asyncio.to_thread(self.insert, new, connection)
        await asyncio.to_thread(self.open)  # the first use may make the schema: not on the loop
        jobs: list[Job] = await run_sync(lambda inner: self.insert(new, inner))
        return jobs

    # -- batches ----------------------------------------------------------------------------------
    def batch(
        self,
        name: str,
        *,
        owner: str = "",
        on_complete: Kind[Any, Any] | str | None = None,
        tolerance: float | str = 0,
        expires_in: Moment | None = None,
        unique: str | None = None,
        connection: Any = None,
    ) -> Batch:
        """Jobs with a common outcome: `options(batch=batch).enqueue(…)` until `batch.seal()`.

        `on_complete`: a kind whose handler takes one argument, `batch`, its id; enqueued once with each outcome.
        `tolerance`: how many members may die, or which share ("10%"). `unique`: a second call returns the first batch.
        """
        from mulligan.batches.completion import prepared
        from mulligan.batches.service import new_batch

        new = new_batch(name, owner, tolerance, expires_in, unique)
        if on_complete is not None:
            new = new._replace(
                on_complete=prepared(self._finaliser(on_complete, {"batch": new.id}, new.owner))
            )
        return self.batches.begin(new, connection)

    def _finaliser(self, kind: Any, payload: Mapping[str, str], owner: str) -> NewJob:
        """Checked where the handler is known: nobody hears of it when the last member ends."""
        try:
            if isinstance(kind, Kind):
                return kind.prepared(payload, owner)
            return self._named(kind, payload, {"owner": owner})[0]
        except PayloadRefused as error:
            message = (
                f"on_complete: the handler takes one argument, batch (the id of the batch): {error}"
            )
            raise PayloadRefused(message) from None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Our connection, for the user's own statements and for `connection=`."""
        with self.store.transaction() as connection:
            yield connection

    # -- look back ----------------------------------------------------------------------------------
    def insight(
        self, since: Moment = WEEK, *, kind: str | None = None, queue: str | None = None
    ) -> Insight:
        """What the jobs enqueued since then came to: what retries are worth, what failures cost, what that advises.

        `since`: seconds or a timedelta back from now, or a datetime.
        """
        from mulligan.insight.service import insight

        return insight(self.store, self.settings, since, kind, queue)

    def metrics(self) -> str:
        """The numbers of this database, as Prometheus reads them; at most five seconds old."""
        from mulligan.observability import (
            exporter,
        )  # brings a web server along, which few apps want

        return exporter.text(self.store)

    # -- run --------------------------------------------------------------------------------------
    def run_inline(self, *, until_idle: bool = True, seed: int | None = None) -> int:
        """Everything in this process, one job at a time, for scripts and tests. Returns how many attempts ran."""
        return self.inline(seed).run(until_idle=until_idle)

    def inline(self, seed: int | None = None) -> Inline:
        """A worker in this process, for those who want to lead it step by step."""
        from mulligan.notifications.dispatcher import Dispatch
        from mulligan.worker.inline import Inline

        rng = Random(SystemRandom().getrandbits(64) if seed is None else seed)
        told = (Dispatch(self.settings),)
        return Inline(self.store, self.settings, self.registry, self.manifest("inline"), rng, told)
