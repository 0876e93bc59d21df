"""After a database was restored from a backup: what it remembers of workers and tokens is too old."""

from __future__ import annotations

from typing import NamedTuple

from mulligan.errors import Refused
from mulligan.event import EventType, NewEvent
from mulligan.store.base import Store

LIFT = 1_000_000  # more claims than one job has between a backup and its restore


class Restored(NamedTuple):
    workers: int  # closed: whoever they were, they do not hold these jobs any more
    jobs: int  # with a higher token


def restored(store: Store, actor: str = "python", reason: str = "") -> Restored:
    """Close every worker of before, and give out no token twice: systems outside may have seen the lost ones."""
    with store.begin() as unit:
        workers = unit.workers(closed=False)
        alive = [worker.id for worker in workers if not unit.expired(worker)]
        if alive:
            message = (
                f"workers may be alive: {', '.join(alive)}. Stop them. If they are those of the backup, wait until "
                "their lease is over, and say it again"
            )
            raise Refused(message)
        closed = [unit.close_worker(worker.id, "from before a restore", seen=None) for worker in workers]
        done = Restored(sum(closed), unit.lift_tokens(LIFT))
        seen = {"before": {"workers": done.workers}, "after": {"workers": 0}}
        news = {**done._asdict(), "reason": reason, **seen}
        unit.write_events([NewEvent(EventType.DATABASE_RESTORED, actor=actor, data=news)])
        return done
