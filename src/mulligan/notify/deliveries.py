"""`app.deliveries`: each message on its way to somebody, what became of it, and another try by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mulligan.config import Settings
from mulligan.engine.declared import stored_kinds
from mulligan.engine.jobs import Jobs
from mulligan.engine.kinds import DELIVER_KIND, DELIVERY_QUEUE
from mulligan.errors import NotFound, Refused
from mulligan.job import Job, State
from mulligan.store.base import Store, Unit

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

    def __init__(self, store: Callable[[], Store], settings: Callable[[], Settings], actor: str = "python") -> None:
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
            where: dict[str, str | tuple[str, ...]] = {"queue": DELIVERY_QUEUE, "kind": _kinds(unit)}
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


def _kinds(unit: Unit) -> tuple[str, ...]:
    return tuple({DELIVER_KIND, *(name for name in stored_kinds(unit) if name.startswith(f"{DELIVER_KIND}."))})


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
