"""What the rule that judged a failure changes about its retries: a limit, a backoff, a ladder, the hint, a promise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.core.attempt import Failure
from mulligan.policy.retry import AnyBackoff, Policy, Then


class Terms(NamedTuple):
    max_retries: int | None = None
    backoff: AnyBackoff | None = None
    then: tuple[Then, ...] = ()
    wait_for_hint: bool = True
    promise: str = ""


NONE = Terms()


MOST_KNOWN = 1000
_known: dict[str, Terms] = {}  # by how they are written: the same few come again and again


def terms_of(failure: Failure) -> Terms:
    """Most rules have none."""
    if not failure.terms:
        return NONE
    written = repr(failure.terms)
    found = _known.get(written)
    if found is None:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        found = _known[written] = _read(failure.terms)
    return found


def _read(said: Mapping[str, Any]) -> Terms:
    """What a newer version wrote and we cannot read counts as unsaid."""
    waits, promise = said.get("wait_for_hint") is not False, str(said.get("promise", ""))
    try:
        policy = Policy.from_plain({name: said[name] for name in ("max_retries", "backoff", "then") if name in said})
    except ValueError:
        return Terms(wait_for_hint=waits, promise=promise)
    return Terms(policy.max_retries, policy.backoff, policy.ladder, waits, promise)
