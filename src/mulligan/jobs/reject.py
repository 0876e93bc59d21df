"""Record a job that is refused before it runs, so that its owner can see why."""

from __future__ import annotations

from typing import Any

from mulligan.batches import service as batches
from mulligan.core.attempt import Failure
from mulligan.core.errors import Fail, Refused
from mulligan.core.job import NewJob
from mulligan.failures.classify import classify_facts
from mulligan.failures.facts import Facts
from mulligan.jobs.queries import JobQueries
from mulligan.manifest.specs import Handler
from mulligan.storage.base import Inserted, Store, Transaction
from mulligan.worker.runner.outcomes import outcome_of_request
from mulligan.worker.upkeep import expire_jobs


def reject(store: Store, handler: Handler, new: NewJob, reason: Any, actor: str) -> Inserted:
    """Insert a job that is dead from the start, in one transaction; no worker ever sees it.

    If another job holds its unique key, that job is the answer and nothing is written.
    """
    if not isinstance(reason, Fail):
        message = f"reject() takes Fail(...) as its first argument, not {reason!r:.80}"
        raise Refused(message)
    with store.begin() as tx:
        _, [answer] = batches.insert_jobs(tx, [new], announce=True)
        if answer.fresh:
            failure = _classify(handler, new, reason, tx.now())
            _kill(tx, answer.id, failure, actor)
        return answer


def _classify(handler: Handler, new: NewJob, reason: Fail, now: int) -> Failure:
    uses = tuple(filter(None, new.uses.split(",")))

    def classify(facts: Facts) -> Failure:
        return classify_facts(facts._replace(uses=uses), handler.rulebooks())

    failure = outcome_of_request(reason, now, classify).failure
    assert failure is not None  # noqa: S101 - the outcome of a Fail always has a failure
    return failure


def _kill(tx: Transaction, job_id: str, failure: Failure, actor: str) -> None:
    row = JobQueries(tx).get_job(job_id)
    assert row is not None  # noqa: S101 - inserted in this transaction
    expire_jobs(tx, [(row, failure)], actor)
