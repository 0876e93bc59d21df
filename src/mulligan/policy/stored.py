"""Facts as they are kept beside an attempt, so that a later table can judge the same failure again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from mulligan.policy.facts import Facts

FACTS = "facts"  # under which they stand in the private half, for programs
_APART = ("message", "stderr", "detail")  # kept as texts of their own, for people
_NAMES = ("exception_types", "provider_codes")
_PLAIN = ("http_status", "grpc_status", "sqlstate", "errno", "exit_code", "signal", "timed_out", "program", "code")
_plain_of = attrgetter(*_PLAIN)
_PLAIN_OF_NOTHING = _plain_of(Facts())
_CAUSES = 6
_WORDS = 500  # of a cause's message


def to_plain(facts: Facts) -> dict[str, Any]:
    """What is known of one link and those below it, without what is kept apart; empty for a plain exception."""
    said: dict[str, Any] = {}
    if facts.exception_types:
        said["exception_types"] = list(facts.exception_types)
    if facts.provider_codes:
        said["provider_codes"] = list(facts.provider_codes)
    plain = _plain_of(facts)
    if plain != _PLAIN_OF_NOTHING:
        said.update([pair for pair in zip(_PLAIN, plain, strict=True) if pair[1]])
    if facts.causes:
        said["causes"] = [_below(cause) for cause in facts.causes[:_CAUSES]]
    if facts.leaves:
        said["leaves"] = [_below(leaf) for leaf in facts.leaves[:_CAUSES]]
    return said


def _below(facts: Facts) -> dict[str, Any]:
    said = to_plain(facts)
    if facts.message:
        said["message"] = facts.message[:_WORDS]
    if facts.implied:
        said["implied"] = True
    return said


def from_attempt(evidence: str | None, private: str | None, uses: str = "") -> Facts | None:
    """The facts of a stored attempt; None where nothing of them was kept."""
    told, kept = _read(private), _read(evidence)
    if not told and not kept:
        return None
    said = told.get(FACTS)
    plain = {"exception_types": [told["exception"]]} if "exception" in told else {}
    plain |= {name: value for name, value in kept.items() if name in _PLAIN}
    plain |= said if isinstance(said, dict) else {}
    texts = {name: str(told[name]) for name in _APART if name in told}
    return _facts({**plain, **texts}, tuple(filter(None, uses.split(","))))


def _read(text: Any) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (TypeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _facts(said: Mapping[str, Any], uses: tuple[str, ...] = ()) -> Facts:
    known: dict[str, Any] = {name: said[name] for name in (*_PLAIN, *_APART, "implied") if name in said}
    known |= {name: tuple(str(value) for value in said.get(name, ())) for name in _NAMES}
    known |= {name: tuple(_facts(link) for link in said.get(name, ())) for name in ("causes", "leaves")}
    return Facts(**known, uses=uses)
