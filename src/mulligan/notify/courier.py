"""What a delivery job does: find the channel, send, and remember how that went for its subscription."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from mulligan.config import Settings
from mulligan.engine.runner.context import Context
from mulligan.errors import Cancel
from mulligan.event import EventType, NewEvent
from mulligan.job import SECOND
from mulligan.notify.channel_registry import load_channel
from mulligan.notify.channels import Channel, Gone, Sending
from mulligan.notify.message import Message
from mulligan.store.base import Store, Unit
from mulligan.store.notifying import SubscriptionRow

log = logging.getLogger("mulligan.notify")

GIVEN_UP = 5 * 86_400 * SECOND  # after which of nothing but failures a subscription is switched off
MANY = 10  # failures that must be
REACHED = "reached"  # the checkpoint that holds who has the message already
GUARD = "guard"


class Courier:
    """`own`: the channel of a subscription that code declares; else it is stored."""

    def __init__(
        self, store: Callable[[], Store], settings: Callable[[], Settings], own: Channel | None = None
    ) -> None:
        self._store = store
        self._settings = settings
        self._own = own

    async def deliver(self, ctx: Context, subscription: str, message: dict[str, Any]) -> Any:
        row = await asyncio.to_thread(self._row, subscription)
        if row is None or row.state != "on":
            return Cancel("its subscription was removed" if row is None else "its subscription is switched off")
        try:
            channel = self._own or load_channel(json.loads(row.body))
            receipt = await channel.send(Message.from_plain(message), self._sending(ctx, subscription))
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


def _count(unit: Unit, subscription: str, error: Exception) -> None:
    row = unit.undelivered(subscription)
    if row is None or row.state != "on":
        return
    if isinstance(error, Gone):
        switch_off(unit, row, "the receiver says that it is gone for good", GUARD)
    elif row.failures >= MANY and unit.now() - (row.failing_since or 0) > GIVEN_UP:
        switch_off(unit, row, f"{row.failures} failures in a row over {GIVEN_UP // (86_400 * SECOND)} days", GUARD)


def switch_off(unit: Unit, row: SubscriptionRow, reason: str, actor: str) -> bool:
    """False: somebody was quicker."""
    done = unit.write_subscription(row._replace(state="off", reason=reason))
    if done:
        before, after = {"state": row.state}, {"state": "off"}
        news = {"subscription": row.id, "name": row.name, "reason": reason, "before": before, "after": after}
        event = NewEvent(EventType.SUBSCRIPTION_DISABLED, owner=row.owner or "", actor=actor, data=news)
        unit.write_events([event])
        log.warning("subscription %s is switched off: %s", row.id, reason)
    return done
