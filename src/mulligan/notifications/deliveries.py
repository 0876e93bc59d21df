"""`app.deliveries`: each message on its way to somebody, what became of it, and another try by hand."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mulligan.config import Settings
from mulligan.core.errors import Cancel, NotFound, Refused, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.ids import new_id
from mulligan.core.job import SECOND, Job, NewJob, State
from mulligan.failures.rules import Rule
from mulligan.jobs.service import Jobs
from mulligan.manifest.declared import stored_kinds
from mulligan.manifest.specs import DELIVER_KIND, DELIVERY_QUEUE
from mulligan.notifications.channel_registry import load_channel
from mulligan.notifications.channels import Channel, Gone, Sending
from mulligan.notifications.message import Message
from mulligan.notifications.rules import SubscriptionMatcher
from mulligan.retries.backoff import Table
from mulligan.retries.policy import Policy
from mulligan.storage.base import Store, Transaction
from mulligan.storage.notification_queries import SubscriptionRow
from mulligan.worker.runner.context import Context

# What a delivery job does: find the channel, send, and remember how that went for its subscription.

log = logging.getLogger("mulligan.notifications")

GIVEN_UP = 5 * 86_400 * SECOND  # after which of nothing but failures a subscription is switched off
MANY = 10  # failures that must be
REACHED = "reached"  # the checkpoint that holds who has the message already
GUARD = "guard"


class Courier:
    """`own`: the channel of a subscription that code declares; else it is stored."""

    def __init__(
        self,
        store: Callable[[], Store],
        settings: Callable[[], Settings],
        own: Channel | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._own = own

    async def deliver(self, ctx: Context, subscription: str, message: dict[str, Any]) -> Any:
        row = await asyncio.to_thread(self._row, subscription)
        if row is None or row.state != "on":
            return Cancel(
                "its subscription was removed"
                if row is None
                else "its subscription is switched off"
            )
        try:
            channel = self._own or load_channel(json.loads(row.body))
            receipt = await channel.send(
                Message.from_plain(message), self._sending(ctx, subscription)
            )
        except Exception as error:
            await asyncio.to_thread(self._failed, subscription, error)
            raise
        if row.failures:
            await asyncio.to_thread(self._recovered, subscription)
        return receipt

    def _sending(self, ctx: Context, subscription: str) -> Sending:
        async def remember(reached: frozenset[str]) -> None:
            await ctx.checkpoint_async(REACHED, sorted(reached))

        reached = frozenset(ctx.checkpoints.get(REACHED, ()))
        return Sending(self._settings(), ctx.job.id, subscription, ctx.attempt, reached, remember)

    def _row(self, subscription: str) -> SubscriptionRow | None:
        with self._store().read() as unit:
            return unit.subscription(subscription)

    def _recovered(self, subscription: str) -> None:
        with self._store().begin() as unit:
            unit.delivered(subscription)

    def _failed(self, subscription: str, error: Exception) -> None:
        """Never in the way of the failure itself."""
        try:
            with self._store().begin() as unit:
                _count(unit, subscription, error)
        except Exception:
            log.exception("the failure of subscription %s is not counted", subscription)


def _count(unit: Transaction, subscription: str, error: Exception) -> None:
    row = unit.undelivered(subscription)
    if row is None or row.state != "on":
        return
    if isinstance(error, Gone):
        switch_off(unit, row, "the receiver says that it is gone for good", GUARD)
    elif row.failures >= MANY and unit.now() - (row.failing_since or 0) > GIVEN_UP:
        switch_off(
            unit,
            row,
            f"{row.failures} failures in a row over {GIVEN_UP // (86_400 * SECOND)} days",
            GUARD,
        )


def switch_off(unit: Transaction, row: SubscriptionRow, reason: str, actor: str) -> bool:
    """False: somebody was quicker."""
    done = unit.write_subscription(row._replace(state="off", reason=reason))
    if done:
        before, after = {"state": row.state}, {"state": "off"}
        news = {
            "subscription": row.id,
            "name": row.name,
            "reason": reason,
            "before": before,
            "after": after,
        }
        event = NewEvent(
            EventType.SUBSCRIPTION_DISABLED, owner=row.owner or "", actor=actor, data=news
        )
        unit.write_events([event])
        log.warning("subscription %s is switched off: %s", row.id, reason)
    return done


# What is said of the kinds that deliver: all that a runner needs of messages before it has one to send.

PRIORITY = -5  # before most work: messages are short, and there are places for only so many of them

# From seconds to a day apart, three days in all: a receiver may be away over a weekend.
PATIENCE = Policy(
    max_retries=10,
    backoff=Table([5, 60, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]),
    max_losses=1000,  # a worker that is killed must not cost a message
)
# A receiver that refuses may be one that is just being deployed, so it is asked a few times more; a mail server that
# does not let us in waits for somebody who corrects a setting, and mails wait for that too.
RULES = (
    Rule(
        "delivery.refused",
        verdict="HTTP_4XX",
        code="RECEIVER_REFUSED",
        cls="transient",
        max_retries=5,
    ),
    Rule("delivery.login", verdict="AUTH", code="AUTH", cls="transient"),
    Rule("delivery.settings", verdict="MISCONFIGURED", code="MISCONFIGURED", cls="transient"),
)
# Channels have time limits of their own, well below.
TERMS: dict[str, Any] = {
    "queue": DELIVERY_QUEUE,
    "priority": PRIORITY,
    "policy": PATIENCE,
    "timeout": 90,
    "rules": RULES,
    "retention": 7 * 86_400,
    "index": ("subscription",),
}


# Messages on their way to become jobs: a delivery is a job like any other, with retries, history and dead letters.


def delivery(subscription: SubscriptionMatcher, message: Message, owner: str) -> NewJob:
    kind = f"{DELIVER_KIND}.{subscription.id}" if subscription.declared else DELIVER_KIND
    return NewJob(
        id=new_id(),
        kind=kind,
        queue=DELIVERY_QUEUE,
        payload=json.dumps(
            {"subscription": subscription.id, "message": message.to_plain()}, separators=(",", ":")
        ),
        owner=owner,
        priority=PRIORITY,
        uses=subscription.endpoint,
        args=(("subscription", subscription.id),),
    )


def insert(unit: Transaction, jobs: Sequence[NewJob]) -> int:
    """One that the database will not take must not keep the others back. Returns how many it did not take."""
    if not jobs:
        return 0
    try:
        with unit.savepoint():
            unit.insert(jobs, announce=True)
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("%d messages cannot be enqueued together; trying each", len(jobs))
        return sum(not _inserted(unit, job) for job in jobs)
    return 0


def _inserted(unit: Transaction, job: NewJob) -> bool:
    try:
        with unit.savepoint():
            unit.insert([job], announce=True)
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("a message of %s cannot be enqueued", job.kind)
        return False
    return True


# `app.deliveries`: each message on its way to somebody, what became of it, and another try by hand.

LIST_MOST = 500


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one subscription. Its id is that of its job."""

    id: str
    subscription: str
    owner: str
    message: str  # the id that the receiver sees, the same at every try
    type: str
    summary: str
    state: State
    attempts: int
    failures: int
    error: str  # the public sentence of the last failure
    next_at: datetime | None
    created_at: datetime
    finished_at: datetime | None
    body: dict[str, Any]  # the message


class DeliveryList(list[Delivery]):
    """Newest first. `cursor`: say it as `before` for what comes after; None: this was the end."""

    cursor: str | None = None


class Deliveries:
    """With `owner`, what is another owner's answers like what does not exist."""

    def __init__(
        self, store: Callable[[], Store], settings: Callable[[], Settings], actor: str = "python"
    ) -> None:
        self._open = store
        self._settings = settings
        self._actor = actor

    @property
    def _jobs(self) -> Jobs:
        return Jobs(self._open, self._settings(), actor=self._actor)

    def list(
        self,
        *,
        subscription: str | None = None,
        owner: str | None = None,
        state: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> DeliveryList:
        if not 1 <= limit <= LIST_MOST:
            message = f"limit must be from 1 to {LIST_MOST}, not {limit}"
            raise Refused(message)
        if state is not None and state not in list(State):
            message = f"state is one of {', '.join(State)}, not {state!r:.80}"
            raise Refused(message)
        with self._open().read() as unit:
            where: dict[str, str | tuple[str, ...]] = {
                "queue": DELIVERY_QUEUE,
                "kind": _kinds(unit),
            }
            where |= {} if owner is None else {"owner": owner}
            where |= {} if state is None else {"state": state}
            where |= {} if subscription is None else {"indexed.subscription": subscription}
            found = unit.skim(where, limit, before)
        listed = DeliveryList(self._shown(row.id) for row in found.rows)
        listed.cursor = found.stopped or (listed[-1].id if len(listed) >= limit else None)
        return listed

    def get(self, delivery: str, *, owner: str | None = None) -> Delivery:
        return _delivery(self._found(delivery, owner), self._message(delivery))

    def retry(self, delivery: str, *, owner: str | None = None, reason: str = "") -> Delivery:
        """Once more, from the first try on; with the same id for its receiver."""
        self._found(delivery, owner)
        self._jobs.retry(delivery, reason=reason)
        return self.get(delivery)

    def _shown(self, delivery: str) -> Delivery:
        return _delivery(self._jobs.get(delivery), self._message(delivery))

    def _found(self, delivery: str, owner: str | None) -> Job:
        job = self._jobs.get(delivery, owner=owner)
        if not job.kind.startswith(DELIVER_KIND):
            message = f"no delivery {delivery!r}"
            raise NotFound(message)
        return job

    def _message(self, delivery: str) -> str:
        """The public sentence of its last failure."""
        with self._open().read() as unit:
            last = unit.latest_attempts([delivery]).get(delivery)
        return "" if last is None else last.public or ""


def _kinds(unit: Transaction) -> tuple[str, ...]:
    return tuple(
        {
            DELIVER_KIND,
            *(name for name in stored_kinds(unit) if name.startswith(f"{DELIVER_KIND}.")),
        }
    )


def _delivery(job: Job, error: str) -> Delivery:
    payload: dict[str, Any] = json.loads(json.dumps(job.payload))
    body = payload.get("message", {})
    return Delivery(
        id=job.id,
        subscription=str(payload.get("subscription", "")),
        owner=job.owner,
        message=str(body.get("id", "")),
        type=str(body.get("type", "")),
        summary=str(body.get("summary", "")),
        state=job.state,
        attempts=job.attempts,
        failures=job.failures,
        error=error,
        next_at=job.next_retry_at,
        created_at=job.created_at,
        finished_at=job.finished_at,
        body=body,
    )


class AsyncDeliveries:
    """The same, awaitable: each call on a thread."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    async def list(self, **said: Any) -> DeliveryList:
        return await asyncio.to_thread(self._deliveries.list, **said)

    async def get(self, delivery: str, *, owner: str | None = None) -> Delivery:
        return await asyncio.to_thread(self._deliveries.get, delivery, owner=owner)

    async def retry(self, delivery: str, *, owner: str | None = None, reason: str = "") -> Delivery:
        return await asyncio.to_thread(self._deliveries.retry, delivery, owner=owner, reason=reason)
