"""What belongs to somebody else answers exactly like what does not exist."""

from __future__ import annotations

import re

from mulligan.engine.batches import Batch
from mulligan.engine.kinds import OURS
from mulligan.errors import NotFound
from mulligan.ids import LENGTH
from mulligan.job import Job
from mulligan.web.api.auth import Caller

_ID = re.compile(rf"[0-9a-z]{{{LENGTH}}}")


def owned_job(caller: Caller, job_id: str) -> Job:
    """A job of the caller's; what Mulligan does for itself is nobody's but of who sees everything."""
    job = caller.desk.jobs.get(known_id("job", job_id), owner=caller.owner)
    if caller.owner is not None and job.kind.startswith(OURS):
        raise NotFound(_no_such("job", job_id))
    return job


def owned_batch(caller: Caller, batch_id: str) -> Batch:
    return caller.desk.batches.get(known_id("batch", batch_id), owner=caller.owner)


def known_id(what: str, given: str) -> str:
    """What cannot be an id need not be looked for."""
    if _ID.fullmatch(given) is None:
        raise NotFound(_no_such(what, given))
    return given


def _no_such(what: str, given: str) -> str:
    return f"no {what} {given!r:.80}"
