"""A job that failed before it could begin: what was asked for is refused, and its owner shall see that it was."""

from __future__ import annotations

from typing import Any

from mulligan.core.attempt import Failure
from mulligan.engine import joining
from mulligan.engine.kinds import Handler
from mulligan.engine.runner.outcomes import outcome_of
from mulligan.engine.upkeep import expired
from mulligan.errors import Fail, Refused
from mulligan.job import NewJob
from mulligan.policy.classify import classify
from mulligan.policy.facts import Facts
from mulligan.store.base import Inserted, Store, Unit


def reject(store: Store, handler: Handler, new: NewJob, why: Any, actor: str) -> Inserted:
    """Insert it dead, in one transaction: no worker ever sees it. A twin that holds its key is left as it is."""
    if not isinstance(why, Fail):
        message = f"reject() takes Fail(...) first, not {why!r:.80}"
        raise Refused(message)
    with store.begin() as unit:
        _, [answer] = joining.insert(unit, [new], announce=True)
        if answer.fresh:
            _bury(unit, answer.id, _judged(handler, new, why, unit.now()), actor)
        return answer


def _judged(handler: Handler, new: NewJob, why: Fail, now: int) -> Failure:
    uses = tuple(filter(None, new.uses.split(",")))

    def judge(facts: Facts) -> Failure:
        return classify(facts._replace(uses=uses), handler.books())

    failure = outcome_of(why, now, judge).failure
    assert failure is not None  # noqa: S101 - a Fail always has one
    return failure


def _bury(unit: Unit, job_id: str, failure: Failure, actor: str) -> None:
    row = unit.get(job_id)
    assert row is not None  # noqa: S101 - inserted a moment ago, in this transaction
    expired(unit, [(row, failure)], actor)
