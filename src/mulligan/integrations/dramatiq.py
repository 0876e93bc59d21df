"""Record, classify, group and repair the failures of Dramatiq's actors.

    attach(broker, app)                                      # only records
    attach(broker, app, mode="decide", only=["charge_*"])    # decides about retries too

Call it where both are defined, so that Dramatiq's workers and `mulligan worker` import it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

from mulligan.app.mulligan import Mulligan
from mulligan.core.durations import Micros
from mulligan.core.errors import Duration
from mulligan.failures.rules import Rule
from mulligan.integrations.bridge.bridge import (
    DEFAULT_SILENT_AFTER,
    DEFAULT_WAIT,
    MARK,
    WATCH,
    Bridge,
    check_seconds,
    find_bridge,
    make_scope,
    storable_arguments,
)
from mulligan.integrations.bridge.decider import HostOrder
from mulligan.integrations.bridge.report import RunEnd
from mulligan.retries.policy import Policy

if TYPE_CHECKING:
    from dramatiq import Broker

MILLISECOND: Micros = 1000
# Options of a message that are not sent again: they belong to the run that failed.
RUN_OPTIONS = frozenset(
    {"retries", "traceback", "requeue_timestamp", "eta", "redis_message_id", "max_retries", MARK}
)


def attach(  # noqa: PLR0913 - public API: one keyword per option
    host_app: Broker,
    app: Mulligan,
    *,
    mode: str = WATCH,
    only: str | Sequence[str] = ("*",),
    uses: str | Sequence[str] | None = None,
    policy: Policy | None = None,
    rules: Rule | Sequence[Rule] = (),
    silent_after: Duration = DEFAULT_SILENT_AFTER,
    wait: Duration = DEFAULT_WAIT,
) -> None:
    """Make each message that fails a job of kind `dramatiq:ACTOR`.

    - `mode`: "watch" changes nothing; with "decide" Mulligan decides about retries.
    - `only`: patterns of actor names. Of several calls the newest that covers an actor counts.
    - `uses`, `policy`, `rules`: as in `@app.job`.
    - `silent_after`: a message that Dramatiq runs is dead if its end is not known after so long.
    - `wait`: how long a message may be kept by Mulligan; then Dramatiq goes on without it.
    """
    scope = make_scope(mode, only, uses, policy, rules)
    bridge, is_new = find_bridge(DramatiqHost(host_app), host_app, app)
    bridge.courier.wait = check_seconds("wait", wait)
    bridge.silent_after = check_seconds("silent_after", silent_after)
    bridge.add_scope(scope)
    if is_new:
        _add_middleware(host_app, bridge)


class DramatiqHost:
    """Dramatiq as a host queue."""

    name = "dramatiq"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def task_names(self) -> Iterable[str]:
        return list(self._broker.get_declared_actors())

    def send(self, payload: Mapping[str, Any], generation: int) -> None:
        from dramatiq import Message  # noqa: PLC0415 - only apps with Dramatiq have it

        options = dict(payload["options"])
        queue = options.pop("queue_name")
        message: Message[Any] = Message(
            queue_name=queue,
            actor_name=payload["task"],
            args=tuple(payload["args"]),
            kwargs=payload["kwargs"],
            options={**options, MARK: generation},
            message_id=payload["task_id"],
        )
        self._broker.enqueue(message)


class RunOfMessage(threading.local):
    """The message that this thread processes."""

    message: Any = None
    number: int = 0  # earlier runs
    retry_at: Micros | None = None
    decided = False

    def begin(self, message: Any) -> None:
        """Start with a message."""
        self.message = message
        self.number = message.options.get("retries", 0)
        self.retry_at = None
        self.decided = False


class MessageListener:
    """Turns the ends of messages into reports. Never raises: Dramatiq must not notice it."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._current = RunOfMessage()

    def after_process_boot(self, *_: Any) -> None:
        """Deliver what an earlier process has left."""
        self._bridge.courier.start()

    def before_worker_boot(self, broker: Any, *_: Any) -> None:
        """Let Mulligan decide about the actors in question."""
        self._bridge.courier.start()
        for name in broker.get_declared_actors():
            if self._bridge.decides(name):
                guard_actor(broker.get_actor(name), self._bridge, self._current)

    def before_process_message(self, _: Any, message: Any) -> None:
        """Remember the message, and how often it ran before."""
        self._current.begin(message)

    def before_enqueue(self, _: Any, message: Any, delay: int | None) -> None:
        """Notice that a message is enqueued again while it is processed: it is retried."""
        current = self._current.message
        if current is not None and message.message_id == current.message_id:
            self._current.retry_at = self._bridge.now() + (delay or 0) * MILLISECOND

    def after_process_message(self, _: Any, message: Any, **end: Any) -> None:
        """Report the end of a message. Runs after the middleware that retries."""
        current, self._current.message = self._current.message, None
        if current is not None and self._bridge.scope_of(message.actor_name) is not None:
            self._bridge.quietly(lambda: self._report(message, end.get("exception")))

    def _report(self, message: Any, error: BaseException | None) -> None:
        current = self._current
        if error is None:
            if self._bridge.decides(message.actor_name):
                self._bridge.succeeded(message.actor_name)
            if current.number or MARK in message.options:
                self._publish(message, RunEnd.SUCCEEDED, None)
        elif not current.decided:
            end = RunEnd.FAILED if current.retry_at is None else RunEnd.RETRYING
            self._publish(message, end, error)

    def _publish(self, message: Any, end: RunEnd, error: BaseException | None) -> None:
        self._bridge.publish(
            message.actor_name,
            message.message_id,
            end,
            error=error,
            payload=None if error is None else describe_message(message),
            retry_at=self._current.retry_at,
            run=self._current.number,
            generation=message.options.get(MARK),
        )


def _add_middleware(broker: Broker, bridge: Bridge) -> None:
    """Add the middleware so that it is called last after a message, when its fate is known."""
    from dramatiq import Middleware  # noqa: PLC0415 - only apps with Dramatiq have it

    middleware = type("BridgeMiddleware", (MessageListener, Middleware), {})(bridge)
    if broker.middleware:
        broker.add_middleware(middleware, before=type(broker.middleware[0]))
    else:
        broker.add_middleware(middleware)


def guard_actor(actor: Any, bridge: Bridge, current: RunOfMessage) -> None:
    """Wrap the function of an actor: Mulligan decides about its failures."""
    if isinstance(getattr(actor.fn, "guard", None), ActorGuard):
        return
    guard = ActorGuard(actor, bridge, current)

    @wraps(actor.fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        return guard.run(*args, **kwargs)

    run.guard = guard  # type: ignore[attr-defined]
    actor.fn = run


class ActorGuard:
    """Runs an actor, and does with its failures what Mulligan decides.

    Without a decision the message is retried as if the actor was not attached.
    """

    def __init__(self, actor: Any, bridge: Bridge, current: RunOfMessage) -> None:
        self._name = actor.actor_name
        self._original = actor.fn
        self._bridge = bridge
        self._current = current

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the actor, unless a gate is closed, and obey the decision about a failure."""
        from dramatiq.errors import Retry  # noqa: PLC0415 - only apps with Dramatiq have it

        message = self._current.message
        if message is None:  # called directly
            return self._original(*args, **kwargs)
        wait = self._bridge.postpone(self._name)
        if wait > 0:
            self._order(message, max_retries=None)
            raise Retry("a gate of Mulligan is closed", delay=milliseconds(wait))
        try:
            return self._original(*args, **kwargs)
        except Retry:
            raise
        except Exception as error:
            order = self._decide(message, error)
            if order is None:
                raise
            if order.retry_in is None:
                self._order(message, max_retries=0)
                raise
            self._order(message, max_retries=None)
            raise Retry(str(error), delay=milliseconds(order.retry_in)) from error

    def _order(self, message: Any, *, max_retries: int | None) -> None:
        """Set how often the middleware may retry: without limit, or not at all."""
        self._current.decided = True
        message.options["max_retries"] = max_retries

    def _decide(self, message: Any, error: Exception) -> HostOrder | None:
        return self._bridge.decide(
            self._name,
            message.message_id,
            error=error,
            payload=describe_message(message),
            run=self._current.number,
            generation=message.options.get(MARK),
        )


def milliseconds(seconds: float) -> int:
    """Convert seconds to milliseconds, as Dramatiq counts."""
    return round(seconds * 1000)


def describe_message(message: Any) -> dict[str, Any]:
    """Return what is needed to send a message again."""
    options = {name: value for name, value in message.options.items() if name not in RUN_OPTIONS}
    options["queue_name"] = message.queue_name
    return storable_arguments(list(message.args), dict(message.kwargs), options)
