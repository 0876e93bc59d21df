"""What the rule that judged a failure changes about its retries: a limit, a backoff, a ladder, and the hint."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import NamedTuple

from mulligan.job import Failure
from mulligan.policy.retry import AnyBackoff, Policy, Then


class Terms(NamedTuple):
    max_retries: int | None = None
    backoff: AnyBackoff | None = None
    then: tuple[Then, ...] = ()
    wait_for_hint: bool = True


NONE = Terms()


def terms_of(failure: Failure) -> Terms:
    """Most rules have none."""
    return _read(json.dumps(dict(failure.terms), sort_keys=True, default=str)) if failure.terms else NONE


@lru_cache(maxsize=1024)
def _read(text: str) -> Terms:
    """What a newer version wrote and we cannot read counts as unsaid."""
    said = json.loads(text)
    waits = said.get("wait_for_hint") is not False
    try:
        policy = Policy.from_plain({name: said[name] for name in ("max_retries", "backoff", "then") if name in said})
    except ValueError:
        return Terms(wait_for_hint=waits)
    return Terms(policy.max_retries, policy.backoff, policy.then or (), waits)
