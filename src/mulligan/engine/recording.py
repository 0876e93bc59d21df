"""What is written of an ending: its attempt, and the new columns of its job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Any

from mulligan.core.attempt import Decision, Ending, Failure, Ground, Lease, Verb
from mulligan.engine import news
from mulligan.engine.layers import Layers
from mulligan.engine.wording import Wording
from mulligan.job import SECOND, Lane, Micros, State
from mulligan.plain_json import encode as _encode
from mulligan.policy.decide import decide
from mulligan.policy.lifecycle import TERMINAL, event_for
from mulligan.store.base import Settlement


def row_of(ending: Ending, decision: Decision, layers: Layers, now: Micros, actor: str) -> Settlement:
    lease, failure, state = ending.lease, decision.failure, decision.state
    told = _NOTHING if failure is None else _columns(failure, ending.words)
    queue = decision.then.get("queue") if decision.then else None
    return Settlement(  # by position: by name it costs three times as much
        lease.id,
        lease.worker,
        lease.token,
        lease.cancel_reason is not None,  # saw_cancel
        news.TEXT[state],
        decision.run_at if state is State.QUEUED else None,
        decision.failures,
        decision.losses,
        decision.snoozes,
        decision.alone,
        decision.result,
        json.dumps(news.error_of(failure)) if state is State.DEAD else None,
        json.dumps(decision.choices) if state is State.PARKED else None,
        decision.reason,
        state in TERMINAL,  # finished
        lease.unique_cover is not None and frees_key(lease.unique_cover, state),
        decision.cost,
        lease.generation,
        lease.attempt,
        actor or lease.worker,  # settled_by
        lease.started_at,
        news.TEXT[ending.outcome.ended],
        news.TEXT[decision.verb],
        *told,
        news.TEXT[event_for(decision.verb)],
        lease.owner,
        lease.batch_id,
        news.data_of(ending, decision, layers),
        decision.counts,
        decision.settings,
        _judged(decision, None if failure is None else _would(ending, layers, now)),
        queue,
        None if queue is None else _lane(lease, decision, queue, layers),
    )


_Columns = tuple[str | None, str | None, str | None, str | None, str | None, str | None, str | None]
_NOTHING: _Columns = (None, None, None, None, None, None, None)


def _columns(failure: Failure, words: str | None) -> _Columns:
    """From `code` to `fingerprint`."""
    return (
        failure.code, news.TEXT[failure.cls], failure.rule, failure.public, news.as_json(failure.evidence),
        private_of(failure, words), failure.fingerprint,
    )  # fmt: skip


def private_of(failure: Failure, words: str | None) -> str:
    private = failure.private
    return private.text(words) if words is not None and isinstance(private, Wording) else news.as_json(private)


def _would(ending: Ending, layers: Layers, now: Micros) -> dict[str, Any] | None:
    """What the policy in shadow would have decided; it draws from a source of its own, so that it disturbs nothing."""
    policy = layers.shadow(ending.lease) if ending.outcome.failure is not None else None
    if policy is None:
        return None
    would = decide(ending.lease, ending.outcome, policy, now, Random(ending.lease.token))
    wait = {} if would.run_at is None else {"wait": round((would.run_at - now) / SECOND, 1)}
    return {"verb": would.verb.value, "reason": would.reason, **wait}


def _judged(decision: Decision, would: Mapping[str, Any] | None) -> str | None:
    """How the verdict came about, and how the next attempt differs; of most attempts there is nothing to say."""
    failure = decision.failure
    if failure is not None and would is None and not (failure.terms or decision.then or decision.skipped):
        return _without_extras(failure.judged, decision)
    said: dict[str, Any] = {} if failure is None else dict(failure.judged)
    said |= _grounds(decision.verb, decision.ground, decision.retry_count)
    if failure is not None and failure.terms:
        said["terms"] = dict(failure.terms)
    if would is not None:
        said["shadow_policy"] = would
    if decision.then:
        said["then"] = dict(decision.then)
    if decision.skipped:
        said["skipped"] = True
    return _encode(said) if said else None


def _without_extras(judged: Mapping[str, Any], decision: Decision) -> str:
    """Encode what most failures have: the version of the rule table, the ground and the count."""
    table = judged.get("table")
    if len(judged) == 1 and type(table) is str:
        return _encoded(table, decision.verb, decision.ground, decision.retry_count)
    return _encode({**judged, **_grounds(decision.verb, decision.ground, decision.retry_count)})


@lru_cache(maxsize=256)
def _encoded(table: str, verb: Verb, ground: Ground, retry_count: str) -> str:
    return _encode({"table": table, **_grounds(verb, ground, retry_count)})


def _grounds(verb: Verb, ground: Ground, retry_count: str) -> dict[str, str]:
    """Return what is stored of a ground; a success has no other than that it returned."""
    if verb is Verb.SUCCEED:
        return {}
    known = {"ground": ground.value}
    return {**known, "retry_count": retry_count} if retry_count else known


def _lane(lease: Lease, decision: Decision, queue: str, layers: Layers) -> str:
    """In another queue: owners may take turns there, or not any more."""
    return Lane(queue, lease.kind, lease.uses, decision.failures > 0, layers.share(queue, lease.owner)).key


def frees_key(cover: str | None, state: State) -> bool:
    """A move out of the covered states frees the unique key in the same statement."""
    return cover is not None and state.value not in cover.split(",")
