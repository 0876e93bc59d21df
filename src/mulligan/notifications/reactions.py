"""Reactions: functions of the app that run as jobs when an event happens (`@app.on`).

A reaction is a declared subscription whose deliveries are jobs of its own kind. The dispatcher
enqueues them in the transaction that moves its cursor, so no event is lost or handled twice.

Reactions and messages about one job, batch or incident wait for their turn (`wait_for_turn`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import ConfigError, Snooze
from mulligan.core.event import Event
from mulligan.core.format import check_text
from mulligan.core.ids import new_id
from mulligan.core.job import NewJob, State
from mulligan.manifest.arguments import Arguments
from mulligan.manifest.specs import KindSpec, SubscriptionSpec
from mulligan.notifications.queries import EarlierDelivery, NotificationQueries
from mulligan.notifications.rules import Reaction, expand_patterns, parse_filter, split_patterns
from mulligan.storage.base import Store
from mulligan.worker.runner.context import Context

CHANNEL = "reaction"
THREAD_PATH = "thread"  # in the payload: the job or batch whose events are handled in order
INDEX = ("subscription", THREAD_PATH)


def build_reaction_spec(
    kind: KindSpec, on: str | Sequence[str], *, owner: str | None, filter_text: str
) -> SubscriptionSpec:
    """Check the arguments of `@app.on` and return the subscription for the manifest."""
    expand_patterns(on)
    parse_filter(filter_text)
    if owner is not None:
        owner = check_text("owner", owner)
    return SubscriptionSpec(
        name=kind.name,
        on=tuple(split_patterns(on)),
        owner=owner,
        filter=filter_text,
        channel=CHANNEL,
        kind=kind.name,
        queue=kind.queue,
        priority=kind.priority,
    )


def build_reaction_job(subscription: str, reaction: Reaction, event: Event) -> NewJob:
    """Build the job that calls a reaction for one event. It belongs to the app, not to an owner."""
    thread = event.job_id or event.batch_id or ""
    payload = {"subscription": subscription, "thread": thread, "event": event._asdict()}
    args = [("subscription", subscription)]
    if thread:
        args.append((THREAD_PATH, thread))
    return NewJob(
        id=new_id(),
        kind=reaction.kind,
        queue=reaction.queue,
        payload=json.dumps(payload, separators=(",", ":")),
        priority=reaction.priority,
        args=tuple(args),
    )


def build_reaction_handler(
    function: Callable[..., Any], store: Callable[[], Store]
) -> Callable[..., Any]:
    """Return the handler of a reaction's kind: it waits for its turn and calls the function."""
    arguments = Arguments(function, Context)
    if len(arguments.names) != 1:
        message = (
            f"@app.on: {arguments.name} must take one event, and a Context if it needs one, "
            f"not ({', '.join(arguments.names)})"
        )
        raise ConfigError(message)

    def call(ctx: Context, event: dict[str, Any]) -> Any:
        values: dict[str, Any] = {arguments.names[0]: Event.from_dict(event)}
        if arguments.context_name is not None:
            values[arguments.context_name] = ctx
        return function(**values)

    def react(ctx: Context, subscription: str, thread: str, event: dict[str, Any]) -> Any:
        turn = DeliveryThread(subscription, THREAD_PATH, thread)
        return wait_for_turn(store(), ctx.job.id, turn) or call(ctx, event)

    async def react_async(
        ctx: Context, subscription: str, thread: str, event: dict[str, Any]
    ) -> Any:
        turn = DeliveryThread(subscription, THREAD_PATH, thread)
        wait = await asyncio.to_thread(wait_for_turn, store(), ctx.job.id, turn)
        return wait or await call(ctx, event)

    return react_async if inspect.iscoroutinefunction(function) else react


# --- Turns: deliveries of one thread run in the order of their events ---

# A thread is what one subscription receives about one job, batch or incident.
POLL = 0.05  # seconds between two looks at an earlier delivery that is running
MAX_WAIT = 2.0  # seconds; a delivery that waits occupies a slot
MARGIN = 1.0  # seconds after the time of the earlier delivery's retry
REASON = "an earlier message about the same job, batch or incident is not delivered yet"


class DeliveryThread(NamedTuple):
    """Deliveries that run one after another."""

    subscription: str
    path: str  # of the indexed payload field that holds `key`
    key: str  # id of the job, batch or incident; empty: no order


def wait_for_turn(store: Store, job_id: str, thread: DeliveryThread) -> Snooze | None:
    """Wait until the earlier deliveries of a thread are finished. Return a snooze if it takes long.

    A running delivery ends soon: wait for it. One that waits for a retry may need this slot.
    """
    if not thread.key:
        return None
    give_up_at = time.monotonic() + MAX_WAIT
    while True:
        with store.read() as tx:
            earlier = NotificationQueries(tx).find_earlier_delivery(job_id, *thread)
            now = tx.now()
        if earlier is None:
            return None
        if earlier.state != State.RUNNING or time.monotonic() > give_up_at:
            return snooze_for_earlier(earlier, now)
        time.sleep(POLL)


def snooze_for_earlier(earlier: EarlierDelivery, now: Micros) -> Snooze:
    """Return how long a delivery lets an earlier one of its thread go first."""
    until_retry = 0.0
    if earlier.state == State.QUEUED:
        until_retry = max(0.0, (earlier.run_at - now) / SECOND)
    return Snooze(until_retry + MARGIN, REASON)
