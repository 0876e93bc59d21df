"""The app object: registers handlers, enqueues jobs and provides the services.

Modules that talk to the database are imported on first use, so that runners start quickly.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property, partial
from random import Random
from threading import Lock
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    get_overloads,
    overload,
)

from mulligan.app.kind import (
    JobDecorator,
    Kind,
    StoredKinds,
    UntypedParameter,
    build_handler,
    check_kind_name,
    check_mapping,
    check_option_names,
    check_options,
    job_signature,
    warn_on_event_loop,
)
from mulligan.app.services import WEEK, AppServices, AsyncApp
from mulligan.config import (
    CODE,
    UNPUBLISHED_SETTINGS,
    Settings,
    check_declared,
    read_settings,
)
from mulligan.core import other_libraries
from mulligan.core.errors import (
    ConfigError,
    Duration,
    DurationOrTime,
    PayloadRefused,
    Refused,
    SchemaError,
    StoreUnavailable,
)
from mulligan.core.job import Job, NewJob, Unique
from mulligan.core.other_libraries import refuse_attribute
from mulligan.core.suggest import name_unknown_options
from mulligan.failures.rule_sources import Rules, rules_to_dicts
from mulligan.failures.rules import Rule
from mulligan.jobs.enqueue import enqueue, new_job
from mulligan.jobs.options import EnqueueOptions
from mulligan.manifest.arguments import to_json
from mulligan.manifest.hooks import (
    DEFAULT_HOOK_TIMEOUT,
    build_around_hook,
    build_failure_hook,
)
from mulligan.manifest.specs import (
    DELIVER_KIND,
    Handler,
    KindSpec,
    Manifest,
    QueueSpec,
    Registry,
    ScheduleSpec,
    check_name,
    check_user_name,
)
from mulligan.notifications import DELIVERY_KIND_OPTIONS
from mulligan.observability.tracing import OtelTracer
from mulligan.releases.detect import find_release
from mulligan.retries.policy import Policy, encode_policy
from mulligan.storage import check_driver
from mulligan.worker.runner.context import Context

if TYPE_CHECKING:
    from mulligan.batches.service import Batch
    from mulligan.insight.service import Insight
    from mulligan.notifications.channels import Channel
    from mulligan.notifications.subscriptions import Subscription
    from mulligan.storage.base import Store, Transaction
    from mulligan.worker.inline import InlineWorker
    from mulligan.worker.probes import HealthCheck

NO_TABLES = (
    "the database has no Mulligan tables yet, and your open transaction prevents their creation. "
    'Run "mulligan migrate", or call app.open() when your program starts.'
)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Mulligan(AppServices):
    """An app on one database: "sqlite:///file.db", "postgresql://…", or the one in the settings."""

    @name_unknown_options
    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = "",
        settings: Mapping[str, Any] | Settings | None = None,
        release: str = "",
    ) -> None:
        """Create an app. `name` tells apps on one database apart; default: `module:attribute`.

        `settings` declares values by the names of mulligan.toml: {"worker.lease": 30}. Worker, web
        and tests obey them; mulligan.toml and the environment win. A `Settings` object is used
        unchanged.
        """
        self.name = check_name("app", name) if name else ""
        self._declared_settings: dict[str, Any] = {}
        if isinstance(settings, Settings):
            self.settings = settings
        else:
            if settings is not None:
                self._declared_settings = check_declared(settings)
            self.settings = read_settings(
                {"database_url": url, "release": release or None},
                declared=self._declared_settings,
                flag_origin=CODE,
            )
        check_driver(self.settings.database_url)
        self.registry = Registry()
        self.registry.tracer = OtelTracer(self.settings.trace)
        self._stored_kinds = StoredKinds(lambda: self.store)
        # Worker of `run_inline`, and what it was built from: the store, settings and declarations.
        self._idle_inline: tuple[tuple[Any, ...], InlineWorker] | None = None
        self._opening = Lock()
        self.rules = Rules(lambda: self.settings)
        self._register_delivery_kind(DELIVER_KIND, None)

    # -- wiring -----------------------------------------------------------------------------------
    @cached_property
    def aio(self) -> AsyncApp:
        """Return the awaitable counterpart of this app."""
        return AsyncApp(self)

    @cached_property
    def store(self) -> Store:
        """Open the database on first use, so that importing an app touches none."""
        with self._opening:  # two threads must not open it twice
            store: Store = vars(self).get("store") or self._open_store()
            vars(self)["store"] = store
            return store

    def _open_store(self) -> Store:
        store = self._connect()
        try:
            store.prepare()
        except BaseException:
            store.close()
            raise
        return store

    def _connect(self) -> Store:
        from mulligan.storage import open_store

        return open_store(
            self.settings.database_url,
            schema=self.settings.schema_name,
            notify_callers=self.settings.notify_callers,
            listen_url=self.settings.listen_url,
        )

    if not TYPE_CHECKING:  # checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Refuse an unknown attribute; name what one of another library is called here."""
            return refuse_attribute(self, name, other_libraries.APP)

    def open(self) -> Self:
        """Open the database now rather than on first use. Create the tables in an empty one."""
        _ = self.store
        return self

    def _store_for_caller(self, connection: Any) -> Store:
        """Open the store while the caller has a transaction open.

        On SQLite that transaction may hold the only write lock. Creating the tables would wait for
        it in vain, so refuse with advice.
        """
        from mulligan.storage import sqlite_path

        is_of_driver = type(connection).__module__ != "builtins"  # else the store refuses it
        is_sqlite = sqlite_path(self.settings.database_url) is not None
        if "store" not in vars(self) and is_sqlite and is_of_driver:
            self._refuse_empty_database()
        return self.store

    def _refuse_empty_database(self) -> None:
        try:
            with closing(self._connect()) as store:
                empty = store.is_empty()
        except StoreUnavailable as error:
            # A new file is not in WAL mode yet, so the caller's transaction locks it.
            message = (
                f"{error}. If your own transaction holds the lock, call app.open() when your "
                "program starts."
            )
            raise StoreUnavailable(message) from error
        if empty:
            raise SchemaError(NO_TABLES)

    def close(self) -> None:
        """Close the database. The next use opens it again."""
        self._idle_inline = None
        if "events" in vars(self):
            self.events.followers.close()
        store = vars(self).pop("store", None)
        if store is not None:
            store.close()

    @contextmanager
    def redirected(self, settings: Settings) -> Iterator[None]:
        """Use other settings and another database during the block, for `mulligan.testing`."""
        store = vars(self).pop("store", None)
        before = self.settings, self._stored_kinds
        self.settings, self._stored_kinds = settings, StoredKinds(lambda: self.store)
        try:
            yield
        finally:
            self.close()
            self.settings, self._stored_kinds = before
            if store is not None:
                self.store = store

    def manifest(self, app: str = "") -> Manifest:
        """Return the app as data. `app`: its name, unless it was given one."""
        self.registry.declare_late()
        return self.registry.manifest(
            self.name or app,
            self.settings.release or find_release(self.registry.source_files),
            rules_to_dicts(self.rules),
            {
                name: value
                for name, value in self._declared_settings.items()
                if name not in UNPUBLISHED_SETTINGS
            },
        )

    # -- register ---------------------------------------------------------------------------------
    @overload
    def job(
        self, function: Callable[Concatenate[UntypedParameter, P], Coroutine[Any, Any, T]], /
    ) -> Kind[..., Coroutine[Any, Any, T], T]: ...
    @overload
    def job(
        self, function: Callable[Concatenate[UntypedParameter, P], R], /
    ) -> Kind[..., R, R]: ...
    @overload
    def job(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> Kind[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def job(self, function: Callable[Concatenate[Context, P], R], /) -> Kind[P, R, R]: ...
    @overload
    def job(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Kind[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Kind[P, R, R]: ...
    @overload
    def job(
        self,
        *,
        name: str | None = None,
        title: str = "",
        queue: str = "default",
        priority: int = 0,
        uses: str | Sequence[str] | Callable[[Any], Any] | None = None,
        policy: Policy | None = None,
        timeout: Duration = 300,
        isolate: bool = False,
        once: bool = False,
        memory_limit: int | None = None,
        stall: Duration | None = None,
        log: int = 200,
        unique: Unique | None = None,
        rules: Rule | Sequence[Rule] = (),
        shadow: Policy | None = None,
        retention: Duration | None = None,
        cost: float | None = None,
        done: Callable[..., Any] | None = None,
        can_retry: Callable[..., Any] | None = None,
        editable: str | Sequence[str] = (),
        index: str | Sequence[str] = (),
        version: int = 1,
        upcast: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] | None = None,
    ) -> JobDecorator: ...
    def job(self, *functions: Any, **options: Any) -> Any:
        """Register a handler: `@app.job`, or `@app.job(queue="render", timeout=300)`.

        Returns a `Kind`: call it like the function, or `enqueue` it. A parameter annotated with
        `Context` gets the attempt; all others are the payload. Durations are seconds or timedeltas.

        Where and when:

        - `name`: name of the kind; default: the function's qualified name.
        - `title`: what lists and pages call a job: "Invoice {order} for {customer}".
        - `queue`, `priority`: from -9 (first) to 9 (last).
        - `uses`: dependencies: names, "account-{account}", or a function of the payload.
        - `unique`: a `Unique`: enqueue no second job with the same key.

        What happens after a failure:

        - `policy`: a `Policy`: how often to retry, how long apart, until when.
        - `rules`: failure rules of this kind; they come before the app's and the built-in ones.
        - `once`: run at most once: never retried, and parked if the attempt is lost.
        - `shadow`: a `Policy` that only records what it would have decided.
        - `done`: a function that returns the result if the work exists already.
        - `can_retry`: a function that returns why a manual retry is refused.
        - `editable`: arguments that a manual retry may change.

        Limits of an attempt:

        - `timeout`: hard time limit of an attempt.
        - `stall`: longest time without progress or a checkpoint; the code is STALLED.
        - `isolate`: run each attempt alone in a process.
        - `memory_limit`: resident memory of an attempt in bytes; implies `isolate`.

        Bookkeeping:

        - `retention`: how long finished jobs are kept.
        - `log`: log records to keep with a failed attempt.
        - `cost`: cost of an attempt, in any unit.
        - `index`: arguments that `arg.` filters find fast.
        - `version`, `upcast`: version of its payloads; functions that make one of an older version
          one of the next: {1: f, 2: g}.
        """
        if not functions:
            return lambda function: self._register_job(function, **options)
        if len(functions) > 1 or not callable(functions[0]):
            message = (
                f"@app.job takes options by name, for example @app.job(name={functions[-1]!r:.80})"
            )
            raise ConfigError(message)
        return self._register_job(functions[0], **options)

    # For help(), documentation and editors: the options instead of `*functions, **options`.
    job.__signature__ = job_signature(get_overloads(job))  # type: ignore[attr-defined]

    def _register_job(self, function: Callable[..., Any], **options: Any) -> Kind[Any, Any]:
        """Register a handler of the user. Refuse names that are reserved for Mulligan."""
        check_option_names(options)
        check_user_name("kind", options.get("name") or function.__qualname__)
        check_user_name("queue", options.get("queue", "default"))
        return self._register(function, **options)

    def _register(self, function: Callable[..., Any], **options: Any) -> Kind[Any, Any]:
        retention = self.settings.retention
        handler = build_handler(function, retention, self.rules, **options)
        self.registry.add(handler)
        self._check_schedules(handler)
        return Kind(self, handler, function, EnqueueOptions())

    @name_unknown_options
    def step(
        self,
        *functions: F,
        name: str | None = None,
        uses: str | Sequence[str] | None = None,
        policy: Policy | None = None,
        timeout: Duration | None = None,
        undo: Callable[..., object] | None = None,
        doubt: Literal["again", "park"] | None = None,
        done: Callable[..., object] | None = None,
    ) -> Any:
        """Declare the options of a step with its function: `ctx.step(charge, order)`.

        The function stays as it is. The options are those of `ctx.step`. Without `name` the step
        is named after the function.
        """
        from mulligan.steps.options import check_step_options, declare_step

        def declare(function: F) -> F:
            options = check_step_options(
                function,
                uses=uses,
                policy=policy,
                timeout=timeout,
                undo=undo,
                doubt=doubt,
                done=done,
            )
            return declare_step(function, name, options)

        return declare(*functions) if functions else declare

    @name_unknown_options
    def queue(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: float | str | None = None,
        fair: bool = False,
        policy: Policy | None = None,
    ) -> None:
        """Declare defaults of a queue for the whole fleet. An operator's settings override them.

        `concurrency`: jobs that run at the same time. `rate`: starts per second, or "100/m".
        `fair`: owners take turns. `policy`: for kinds without their own policy.
        """
        from mulligan.guards.operator_limits import check_concurrency, check_rate

        spec = QueueSpec(
            check_user_name("queue", name),
            check_concurrency(concurrency),
            check_rate(rate),
            bool(fair),
            encode_policy(policy),
        )
        self.registry.declare(spec)

    @name_unknown_options
    def dependency(  # noqa: PLR0913 - public API: one keyword per option
        self,
        key: str,
        *,
        probe: HealthCheck | None = None,
        mode: str = "hold",
        open_at: float = 0.5,
        min_calls: int = 20,
        window: Duration = 120,
        cool_down: Duration = 30,
        budget: float | str | None = 0.1,
        max_concurrency: int | None = None,
        rate: float | str | None = None,
        slow: Duration | None = None,
    ) -> None:
        """Declare a dependency: an external service that jobs name with `uses=`.

        A dependency that is used but not declared has the defaults below.

        `probe`: a function that checks the service's health. `mode`: while the breaker is open,
        jobs wait ("hold") or fail at once ("fail_fast"). `open_at`: share of failed calls that
        opens the breaker, among at least `min_calls` within `window`. `cool_down`: time until the
        first probe. `budget`: retries per first-attempt success, or "100/h".
        `max_concurrency`, `rate`: as for queues. `slow`: a longer call counts as a failure.
        """
        from mulligan.worker.probes import build_dependency_spec

        options = {
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
        self.registry.declare(build_dependency_spec(key, **options))
        if probe is not None:
            self.registry.probes[key] = probe
            self._register_probe_kind()

    def _register_probe_kind(self) -> None:
        """Register the built-in kind that runs health probes, when the first probe is declared."""
        from mulligan.guards.observer import PROBE_KIND
        from mulligan.worker.probes import PROBE_QUEUE, run_health_check

        if PROBE_KIND in self.registry.handlers:
            return
        probes = self.registry.probes

        async def probe(dependency: str) -> dict[str, Any]:
            return await run_health_check(probes, dependency)

        no_retries = Policy(max_retries=0, max_losses=0)
        self._register(probe, name=PROBE_KIND, queue=PROBE_QUEUE, priority=-9, policy=no_retries)

    @name_unknown_options
    def notify(
        self,
        on: str | Sequence[str],
        to: Channel,
        *,
        owner: str | None = None,
        batch: Batch | str | None = None,
        name: str | None = None,
        form: str | None = None,
        filter: str = "",  # noqa: A002 - public name
        stored: bool = False,
    ) -> Subscription | None:
        """Send a message to a channel when an event happens.

        `on` names events: "job.died" or ["batch.partial", "batch.failed"]. The subscription is part
        of the app, like a schedule, and its channel stays in the app's processes. With `batch` or
        `stored` it is written to the database now and any worker delivers. `form`: one message for
        "each" event, or one "incident" for failures of one cause. `filter` takes
        `kind: queue: code: class:`.
        """
        from mulligan.notifications.channels import check_channel
        from mulligan.notifications.subscriptions import build_subscription_spec

        if stored or batch is not None:
            return self.subscriptions.add(
                on, to, owner=owner, batch=batch, name=name or "", form=form, filter=filter
            )
        spec = build_subscription_spec(
            on, to, owner=owner, name=name, form=form, filter_text=filter
        )
        self.registry.declare(spec)
        self._register_delivery_kind(f"{DELIVER_KIND}.{spec.name}", check_channel(to))
        return None

    @name_unknown_options
    def on(
        self,
        events: str | Sequence[str],
        *,
        filter: str = "",  # noqa: A002 - public name
        owner: str | None = None,
        name: str | None = None,
        queue: str = "reactions",
        priority: int = -5,
        policy: Policy | None = None,
        timeout: Duration = 300,
    ) -> Callable[[F], F]:
        """Run a function as a job for each event: `@app.on("job.died", filter="kind:charge")`.

        The function takes an `Event` and, if it is annotated, a `Context`. It runs at least once
        per event, and for one job in the order of its events. Events about reactions start none.
        The kind is the function's name unless `name` is given; the other options are those of
        `@app.job`.
        """

        def register(function: F) -> F:
            from mulligan.notifications.reactions import (
                INDEX,
                build_reaction_handler,
                build_reaction_spec,
            )

            kind = self._register_job(
                build_reaction_handler(function, lambda: self.store),
                name=name or function.__qualname__,
                queue=queue,
                priority=priority,
                policy=policy,
                timeout=timeout,
                index=INDEX,
            )
            spec = build_reaction_spec(kind.handler.spec, events, owner=owner, filter_text=filter)
            self.registry.declare(spec)
            return function

        return register

    def _register_delivery_kind(self, kind: str, channel: Channel | None) -> None:
        """Register the built-in kind that sends messages through a declared or a stored channel."""

        async def deliver(ctx: Context, subscription: str, message: dict[str, Any]) -> Any:
            from mulligan.notifications.deliveries import DeliveryHandler

            handler = DeliveryHandler(lambda: self.store, lambda: self.settings, channel)
            return await handler.deliver(ctx, subscription, message)

        self._register(deliver, name=kind, **DELIVERY_KIND_OPTIONS)

    @name_unknown_options
    def schedule(  # noqa: PLR0913 - public API: one keyword per option
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
        timeout: Duration | None = None,
        deadline: Duration | None = None,
    ) -> None:
        """Enqueue a job of this kind at every slot of a cron expression. Any worker does it."""
        from mulligan.schedules.chore import check_schedule

        check_name("schedule", name)
        handler = self._scheduled_handler(name, kind)
        options = EnqueueOptions(
            queue=queue,
            priority=priority,
            owner=owner,
            max_retries=max_retries,
            policy=policy,
            timeout=timeout,
            deadline=deadline,
        )
        kind_name = kind.name if isinstance(kind, Kind) else kind
        spec = ScheduleSpec(name=name, cron=cron, kind=kind_name, timezone=timezone, missed=missed)
        arguments = {} if payload is None else payload
        limit = self.settings.limits.payload
        self.registry.declare(check_schedule(spec, handler, arguments, options, limit))

    def _scheduled_handler(self, name: str, kind: Any) -> Handler | None:
        """Return the handler of a scheduled kind if this process knows it."""
        if isinstance(kind, Kind) and kind.has_options:
            message = (
                f"schedule {name!r}: pass queue=, priority=, owner= … to schedule() itself, "
                "not with options()."
            )
            raise ConfigError(message)
        if isinstance(kind, Kind):
            return kind.handler
        if not isinstance(kind, str):
            message = (
                f"schedule {name!r}: kind must be a function decorated with @app.job, or its name, "
                f"not {kind!r:.80}"
            )
            raise ConfigError(message)
        return self.registry.handlers.get(kind)

    def _check_schedules(self, handler: Handler) -> None:
        """Check schedules that named this kind before its handler was registered."""
        for name, spec in self.registry.schedules.items():
            if spec.kind == handler.spec.name:
                from mulligan.schedules.chore import recheck_schedule

                self.registry.schedules[name] = recheck_schedule(
                    spec, handler, self.settings.limits.payload
                )

    def on_start(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Call this function once per runner before its first job. Its result is `ctx.state`."""
        self.registry.on_start.append(function)
        return function

    def on_stop(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Call this function once in each runner process before it exits."""
        self.registry.on_stop.append(function)
        return function

    @overload
    def around(self, function: F, /) -> F: ...
    @overload
    def around(self, *, timeout: Duration = ...) -> Callable[[F], F]: ...
    def around(self, *functions: Any, timeout: Duration = DEFAULT_HOOK_TIMEOUT) -> Any:
        """Run this context manager around every attempt, in its runner.

        The function is a generator with one `yield`, or returns a context manager, sync or async.
        It takes the attempt's `Context`, or nothing. Several nest in the order of registration.
        What a hook raises, swallows or does not finish within `timeout` seconds changes no outcome.
        """

        def register(function: Any) -> Any:
            self.registry.around.append(build_around_hook(function, timeout))
            self.registry.version += 1
            return function

        return register(*functions) if functions else register

    @overload
    def on_failure(self, function: F, /) -> F: ...
    @overload
    def on_failure(self, *, timeout: Duration = ...) -> Callable[[F], F]: ...
    def on_failure(self, *functions: Any, timeout: Duration = DEFAULT_HOOK_TIMEOUT) -> Any:
        """Call this function, sync or async, with (job, attempt, failure) when an attempt fails.

        It runs in a runner after the failure is classified, and is best effort. For a function that
        must run for every death use `@app.on("job.died")`.
        """

        def register(function: Any) -> Any:
            self.registry.on_failure.append(build_failure_hook(function, timeout))
            self.registry.version += 1
            return function

        return register(*functions) if functions else register

    # -- enqueue ----------------------------------------------------------------------------------
    def enqueue(self, kind: str, payload: Mapping[str, Any] | None = None, **options: Any) -> Job:
        """Enqueue by the name of a kind.

        Without its handler in this process, what the newest manifest declares applies: payload
        schema, queue, priority, `unique` and `uses`. Nothing is converted then.
        """
        if _get_running_loop() is not None:
            warn_on_event_loop("enqueue", "app.aio.enqueue", options.get("connection"))
        new, connection = self.new_job_by_name(kind, payload, options)
        return enqueue(self, [new], connection)[0]

    def tell(
        self,
        *,
        name: str,
        job: str | Job | None = None,
        key: str | None = None,
        value: Any = None,
        actor: str = "",
        reason: str = "",
    ) -> Job:
        """Answer what a job waits for with `ctx.wait(name)`. The first answer counts.

        `job` is the job or its id, `key` its unique key instead. An answer that comes before the
        wait is kept. Raises AnswerRefused if there was an answer before, or its time is over.
        """
        if (job is None) == (key is None):
            message = "tell() needs either job= or key="
            raise Refused(message)
        job_id = self.jobs.find_by_key(key) if key is not None else getattr(job, "id", job)
        return self.jobs.tell(str(job_id), name, value, actor=actor, reason=reason)

    def build_job(
        self, kind: str, payload: Mapping[str, Any] | None = None, **options: Any
    ) -> NewJob:
        """Return a checked job that is not inserted yet."""
        return self.new_job_by_name(kind, payload, options)[0]

    def new_job_by_name(
        self, kind: str, payload: Any, options: Mapping[str, Any]
    ) -> tuple[NewJob, Any]:
        """Return a checked job and the connection to insert it through."""
        handler = self.registry.handlers.get(check_kind_name(kind))
        arguments = check_mapping(kind, payload)
        enqueue_options = check_options(kind, options)
        if enqueue_options.connection is not None:
            self._store_for_caller(enqueue_options.connection)
        if handler is not None:
            spec = handler.spec
            arguments = handler.arguments.encode(arguments)
        else:
            arguments = json.loads(to_json(arguments, f"the payload of {kind}"))
            spec = self._stored_kinds.find_accepting(kind, arguments)
        queues = {**self._stored_kinds.queues, **self.registry.queues}
        limit = self.settings.limits.payload
        new = new_job(spec, handler, arguments, enqueue_options, limit, queues)
        return new, enqueue_options.connection

    def stored_specs(self, kind: str) -> Sequence[KindSpec]:
        """Return what stored manifests declare of a kind, at most five seconds old."""
        return self._stored_kinds.find(kind)

    def insert(
        self, new: Sequence[NewJob], connection: Any = None, *, actor: str = ""
    ) -> list[Job]:
        """Insert jobs in one transaction. `actor`: the person to name in their events."""
        return enqueue(self, new, connection, actor=actor)

    def join_transaction(self, connection: Any) -> Transaction:
        """Return a transaction of ours inside the caller's transaction."""
        return self._store_for_caller(connection).join(connection)

    async def insert_async(self, new: Sequence[NewJob], connection: Any = None) -> list[Job]:
        """Insert on a thread, or in the transaction of an async connection."""
        if connection is None:
            return await asyncio.to_thread(self.insert, new)
        from mulligan.storage.async_connections import call_with_connection

        return await call_with_connection(partial(self.insert, new), connection, self.open)

    # -- batches ----------------------------------------------------------------------------------
    @name_unknown_options
    def batch(
        self,
        name: str,
        *,
        owner: str = "",
        on_complete: Kind[Any, Any] | str | None = None,
        tolerance: float | str = 0,
        expires_in: DurationOrTime | None = None,
        unique: str | None = None,
        connection: Any = None,
    ) -> Batch:
        """Create a batch. Add members with `options(batch=batch).enqueue(…)` until `batch.seal()`.

        `on_complete`: a kind whose handler takes one argument, `batch`, the batch's id. It is
        enqueued once per outcome. `tolerance`: how many members may die, or which share ("10%").
        `unique`: a second call with the same key returns the first batch.
        """
        from mulligan.batches.completion import dump_on_complete
        from mulligan.batches.service import new_batch

        new = new_batch(name, owner, tolerance, expires_in, unique)
        if on_complete is not None:
            job = self._completion_job(on_complete, {"batch": new.id}, new.owner)
            new = new._replace(on_complete=dump_on_complete(job))
        return self.batches.begin(new, connection)

    def _completion_job(self, kind: Any, payload: Mapping[str, str], owner: str) -> NewJob:
        """Build the `on_complete` job now: a wrong handler would fail unnoticed at the end."""
        try:
            if isinstance(kind, Kind):
                return kind.build_job(payload, owner)
            return self.new_job_by_name(kind, payload, {"owner": owner})[0]
        except PayloadRefused as error:
            message = (
                f"on_complete: the handler takes one argument, batch (the batch's id): {error}"
            )
            raise PayloadRefused(message) from None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Yield our connection, for your own statements and for `connection=`."""
        with self.store.transaction() as connection:
            yield connection

    # -- statistics -------------------------------------------------------------------------------
    def insight(
        self, since: DurationOrTime = WEEK, *, kind: str | None = None, queue: str | None = None
    ) -> Insight:
        """Return statistics of jobs enqueued since then: what retries gain, what failures cost.

        `since`: seconds or a timedelta back from now, or a datetime.
        """
        from mulligan.insight.service import load_insight

        return load_insight(self.store, self.settings, since, kind, queue)

    def metrics(self) -> str:
        """Return the metrics in the Prometheus format, at most five seconds old."""
        # Imported here: it loads a web server, which few apps need.
        from mulligan.core.extras import check_extra

        check_extra("web", "app.metrics()")
        from mulligan.observability import exporter

        return exporter.metrics_text(self.store, self.settings.metrics_prefix)

    # -- run --------------------------------------------------------------------------------------
    def run_inline(self, *, until_idle: bool = True, seed: int | None = None) -> int:
        """Run due jobs in this process, one at a time. Return the number of attempts."""
        self.registry.declare_late()
        built_from = (self.store, self.settings, self.registry.version, self.rules.version)
        # Taken out while it runs: another thread that runs jobs at the same time builds its own.
        kept, self._idle_inline = self._idle_inline, None
        if kept is None or kept[0] != built_from:
            kept = (built_from, self.inline(seed))
        worker = kept[1]
        worker.rng.seed(seed)
        ran = worker.run(until_idle=until_idle)
        self._idle_inline = kept
        return ran

    def inline(self, seed: int | None = None) -> InlineWorker:
        """Return a worker in this process that you can drive step by step."""
        from mulligan.notifications.dispatcher import Dispatcher
        from mulligan.worker.inline import InlineWorker

        rng = Random(seed)
        dispatcher = Dispatcher(self.settings)
        return InlineWorker(
            self.store, self.settings, self.registry, self.manifest("inline"), rng, dispatcher
        )
