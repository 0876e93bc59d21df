"""Messages on their way to become jobs: a delivery is a job like any other, with retries, history and dead letters."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from mulligan.engine.kinds import DELIVER_KIND, DELIVERY_QUEUE
from mulligan.errors import StoreUnavailable
from mulligan.ids import new_id
from mulligan.job import NewJob
from mulligan.notify.message import Message
from mulligan.notify.terms import PRIORITY
from mulligan.policy.subscription import Subscription
from mulligan.store.base import Unit

log = logging.getLogger("mulligan.notify")


def delivery(subscription: Subscription, message: Message, owner: str) -> NewJob:
    kind = f"{DELIVER_KIND}.{subscription.id}" if subscription.declared else DELIVER_KIND
    return NewJob(
        id=new_id(),
        kind=kind,
        queue=DELIVERY_QUEUE,
        payload=json.dumps({"subscription": subscription.id, "message": message.to_plain()}, separators=(",", ":")),
        owner=owner,
        priority=PRIORITY,
        uses=subscription.endpoint,
        args=(("subscription", subscription.id),),
    )


def insert(unit: Unit, jobs: Sequence[NewJob]) -> int:
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


def _inserted(unit: Unit, job: NewJob) -> bool:
    try:
        with unit.savepoint():
            unit.insert([job], announce=True)
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("a message of %s cannot be enqueued", job.kind)
        return False
    return True
