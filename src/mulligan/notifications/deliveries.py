"""Deliveries: the job that sends a message, and `app.deliveries`, which lists and retries them.

A delivery is a job like any other, with retries, history and dead letters.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mulligan.config import Settings
from mulligan.core.attempt import Ground
from mulligan.core.durations import SECOND
from mulligan.core.errors import Cancel, NotFound, Refused, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.ids import new_id
from mulligan.core.job import AttemptRow, Job, NewJob, State
from mulligan.events.queries import EventQueries
from mulligan.jobs.queries import JobQueries, SearchQueries
from mulligan.jobs.service import Jobs
from mulligan.manifest.declared import load_kinds
from mulligan.manifest.specs import DELIVER_KIND, DELIVERY_QUEUE
from mulligan.notifications import PRIORITY, THREAD_PATH
from mulligan.notifications.channels import Channel, ReceiverGone, SendContext, load_channel
from mulligan.notifications.message import Message
from mulligan.notifications.queries import NotificationQueries, SubscriptionRow
from mulligan.notifications.reactions import DeliveryThread, wait_for_turn
from mulligan.notifications.rules import SubscriptionMatcher
from mulligan.retries.reasons import read_ground
from mulligan.storage.base import Store, Transaction
from mulligan.worker.runner.context import Context

log = logging.getLogger("mulligan.notifications")

# --- The delivery job ---

DAY = 86_400 * SECOND
# A subscription is disabled after this time and this many failures in a row.
DISABLE_AFTER = 5 * DAY
DISABLE_AFTER_FAILURES = 10
ACCEPTED_CHECKPOINT = "reached"  # recipients that accepted the message
GUARD = "guard"  # actor of an automatic change


class DeliveryHandler:
    """Handler of the delivery kind: finds the channel, sends, and counts failures in a row.

    `channel` is the channel of a declared subscription; stored subscriptions have theirs in the
    database.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        settings: Callable[[], Settings],
        channel: Channel | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._channel = channel

    async def deliver(self, ctx: Context, subscription: str, message: dict[str, Any]) -> Any:
        """Send one message. Cancels the job if nothing is sent: it must not count as delivered."""
        row = await asyncio.to_thread(self._load_subscription, subscription)
        if row is None:
            return await self._skip(ctx, subscription, "its subscription was removed")
        if row.state != "on":
            return await self._skip(ctx, subscription, "its subscription is disabled")
        thread = DeliveryThread(subscription, THREAD_PATH, str(message.get("thread", "")))
        wait = await asyncio.to_thread(wait_for_turn, self._store(), ctx.job.id, thread)
        if wait is not None:
            return wait
        try:
            channel = self._channel or load_channel(json.loads(row.body))
            context = self._send_context(ctx, subscription)
            receipt = await channel.send(Message.from_dict(message), context)
        except Exception as error:
            await asyncio.to_thread(self._record_failure, subscription, error)
            raise
        if "skipped" in receipt:
            return await self._skip(ctx, subscription, receipt["skipped"])
        if row.failures:
            await asyncio.to_thread(self._record_success, subscription)
        return receipt

    async def _skip(self, ctx: Context, subscription: str, reason: str) -> Cancel:
        """Record that a message is not sent, and end its job."""
        data = {"subscription": subscription, "reason": reason, "kind": ctx.job.kind}
        event = NewEvent(
            EventType.DELIVERY_SKIPPED, job_id=ctx.job.id, owner=ctx.job.owner, data=data
        )
        await asyncio.to_thread(self._write_event, event)
        return Cancel(reason)

    def _write_event(self, event: NewEvent) -> None:
        with self._store().begin() as tx:
            EventQueries(tx).write_events([event])

    def _send_context(self, ctx: Context, subscription: str) -> SendContext:
        async def save_accepted(accepted: frozenset[str]) -> None:
            await ctx.checkpoint_async(ACCEPTED_CHECKPOINT, sorted(accepted))

        return SendContext(
            settings=self._settings(),
            delivery_id=ctx.job.id,
            subscription_id=subscription,
            attempt=ctx.attempt,
            accepted=frozenset(ctx.checkpoints.get(ACCEPTED_CHECKPOINT, ())),
            save_accepted=save_accepted,
        )

    def _load_subscription(self, subscription: str) -> SubscriptionRow | None:
        with self._store().read() as tx:
            return NotificationQueries(tx).get_subscription(subscription)

    def _record_success(self, subscription: str) -> None:
        with self._store().begin() as tx:
            NotificationQueries(tx).record_delivery(subscription)

    def _record_failure(self, subscription: str, error: Exception) -> None:
        # An error here is logged and dropped: the delivery must fail with its own error.
        try:
            with self._store().begin() as tx:
                _count_failure(tx, subscription, error)
        except Exception:
            log.exception("failed to count a failed delivery of subscription %s", subscription)


def _count_failure(tx: Transaction, subscription: str, error: Exception) -> None:
    row = NotificationQueries(tx).record_failed_delivery(subscription)
    if row is None or row.state != "on":
        return
    failing_for = tx.now() - (row.failing_since or 0)
    if isinstance(error, ReceiverGone):
        disable_subscription(tx, row, "the receiver answered that it is gone (410)", GUARD)
    elif row.failures >= DISABLE_AFTER_FAILURES and failing_for > DISABLE_AFTER:
        reason = f"{row.failures:,} failures in a row over {DISABLE_AFTER // DAY} days"
        disable_subscription(tx, row, reason, GUARD)


def disable_subscription(tx: Transaction, row: SubscriptionRow, reason: str, actor: str) -> bool:
    """Disable a subscription. Returns False if it was changed by another transaction."""
    written = NotificationQueries(tx).update_subscription(row._replace(state="off", reason=reason))
    if written:
        data = {
            "subscription": row.id,
            "name": row.name,
            "reason": reason,
            "before": {"state": row.state},
            "after": {"state": "off"},
        }
        owner = row.owner or ""
        event = NewEvent(EventType.SUBSCRIPTION_DISABLED, owner=owner, actor=actor, data=data)
        EventQueries(tx).write_events([event])
        log.warning("subscription %s disabled: %s", row.id, reason)
    return written


# --- Enqueueing deliveries ---


def build_delivery_job(subscription: SubscriptionMatcher, message: Message, owner: str) -> NewJob:
    """Build the job that delivers a message to a subscription."""
    # The channel of a declared subscription exists only in its app, which registers its own kind.
    kind = f"{DELIVER_KIND}.{subscription.id}" if subscription.declared else DELIVER_KIND
    payload = {"subscription": subscription.id, "message": message.to_dict()}
    args = [("subscription", subscription.id)]
    if message.thread:
        args.append((THREAD_PATH, message.thread))
    return NewJob(
        id=new_id(),
        kind=kind,
        queue=DELIVERY_QUEUE,
        payload=json.dumps(payload, separators=(",", ":")),
        owner=owner,
        priority=PRIORITY,
        uses=subscription.endpoint,
        args=tuple(args),
    )


def insert_deliveries(tx: Transaction, jobs: Sequence[NewJob]) -> int:
    """Insert delivery jobs and return how many the database refused.

    If the batch fails, each job is inserted alone: one bad message must not block the others.
    """
    if not jobs:
        return 0
    try:
        with tx.savepoint():
            JobQueries(tx).insert_jobs(jobs, announce=True)
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("failed to enqueue %d messages together, trying them one by one", len(jobs))
        return sum(not _insert_one(tx, job) for job in jobs)
    return 0


def _insert_one(tx: Transaction, job: NewJob) -> bool:
    try:
        with tx.savepoint():
            JobQueries(tx).insert_jobs([job], announce=True)
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("failed to enqueue a message of kind %s", job.kind)
        return False
    return True


# --- app.deliveries ---

MAX_LIST = 500


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one subscription. Its id is the id of its job."""

    id: str
    subscription: str
    owner: str
    message: str  # the id that the receiver gets, the same in every attempt
    type: str
    summary: str
    state: State
    attempts: int
    failures: int
    error: str  # public sentence of the last failure
    skipped: str  # why nothing was sent; empty if it was sent or will be
    next_at: datetime | None
    created_at: datetime
    finished_at: datetime | None
    body: dict[str, Any]  # the message


class DeliveryList(list[Delivery]):
    """Deliveries, newest first. Pass `cursor` as `before` for the next page; None: no more."""

    cursor: str | None = None


class Deliveries:
    """Lists and retries deliveries.

    With `owner`, a delivery of another owner is treated as if it did not exist.
    """

    def __init__(
        self, store: Callable[[], Store], settings: Callable[[], Settings], actor: str = "python"
    ) -> None:
        self._open = store
        self._settings = settings
        self._actor = actor

    @property
    def _jobs(self) -> Jobs:
        return Jobs(self._open, self._settings, actor=self._actor)

    def list(
        self,
        *,
        subscription: str | None = None,
        owner: str | None = None,
        state: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> DeliveryList:
        """List deliveries, newest first."""
        if not 1 <= limit <= MAX_LIST:
            message = f"invalid limit {limit}. Use 1 to {MAX_LIST}."
            raise Refused(message)
        if state is not None and state not in list(State):
            message = f"unknown state {state!r:.80}. Use one of {', '.join(State)}."
            raise Refused(message)
        filters = {"owner": owner, "state": state, "indexed.subscription": subscription}
        with self._open().read() as tx:
            where: dict[str, str | tuple[str, ...]] = {
                "queue": DELIVERY_QUEUE,
                "kind": _delivery_kinds(tx),
            }
            for name, value in filters.items():
                if value is not None:
                    where[name] = value
            found = SearchQueries(tx).list_jobs_bounded(where, limit, before)
        deliveries = DeliveryList(self.get(row.id) for row in found.rows)
        deliveries.cursor = found.stopped
        if not found.stopped and len(deliveries) >= limit:
            deliveries.cursor = deliveries[-1].id
        return deliveries

    def get(self, delivery: str, *, owner: str | None = None) -> Delivery:
        """Return one delivery. Raises `NotFound`."""
        return _build_delivery(self._find_job(delivery, owner), self._last_attempt(delivery))

    def retry(self, delivery: str, *, owner: str | None = None, reason: str = "") -> Delivery:
        """Send a message again, with the same id for the receiver."""
        self._find_job(delivery, owner)
        self._jobs.retry(delivery, reason=reason)
        return self.get(delivery)

    def _find_job(self, delivery: str, owner: str | None) -> Job:
        job = self._jobs.get(delivery, owner=owner)
        if not job.kind.startswith(DELIVER_KIND):
            message = f"unknown delivery {delivery!r}"
            raise NotFound(message)
        return job

    def _last_attempt(self, delivery: str) -> AttemptRow | None:
        with self._open().read() as tx:
            return JobQueries(tx).get_latest_attempts([delivery]).get(delivery)


def _delivery_kinds(tx: Transaction) -> tuple[str, ...]:
    declared = {name for name in load_kinds(tx) if name.startswith(f"{DELIVER_KIND}.")}
    return tuple({DELIVER_KIND, *declared})


def _skip_reason(job: Job, attempt: AttemptRow | None) -> str:
    """Return why the handler cancelled a delivery; empty if it did not, or a person did."""
    if attempt is None or job.state is not State.CANCELLED:
        return ""
    by_handler = read_ground(attempt.judged) is Ground.CANCELLED_BY_HANDLER
    return attempt.reason if by_handler else ""


def _build_delivery(job: Job, attempt: AttemptRow | None) -> Delivery:
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
        error="" if attempt is None else attempt.public or "",
        skipped=_skip_reason(job, attempt),
        next_at=job.next_retry_at,
        created_at=job.created_at,
        finished_at=job.finished_at,
        body=body,
    )
