"""What if a job failed so? The verdict, the rule that gives it, and what the policy of a kind makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mulligan.config import Settings
from mulligan.core.attempt import Failure
from mulligan.engine.declared import stored_kinds, stored_queues, stored_rules
from mulligan.engine.judging import classify
from mulligan.engine.layers import Layers
from mulligan.engine.rules import configured_rules
from mulligan.errors import NotFound
from mulligan.policy.fate import Fate, fate
from mulligan.policy.rule import Rule
from mulligan.store.base import Store, Unit

MOST_TEXT = 20_000  # characters
LOOKED = 1000


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Nothing was stored."""

    kind: str  # empty: of one that says nothing itself
    failure: Failure
    fate: Fate  # if every attempt failed so
    would: Mapping[str, Any]  # what a rule in shadow would have said; empty: nothing else
    known: bool  # jobs are dead of this very cause


def what_if(store: Store, settings: Settings, kind: str, text: str, given: Mapping[str, Any]) -> WhatIf:
    """`given`: what is known beside the text, as `mulligan.classify` takes it."""
    with store.read() as unit:
        rules, layers = _rules(unit, settings, kind), _layers(unit, settings, kind)
        failure = classify(text[:MOST_TEXT], **given, rules=rules)
        known = bool(unit.group_known(failure.fingerprint, None, LOOKED)) if failure.fingerprint else False
    found = fate(layers.for_kind(kind), failure)
    return WhatIf(kind, failure, found, failure.judged.get("shadow") or {}, known)


def _rules(unit: Unit, settings: Settings, kind: str) -> Sequence[Rule]:
    return stored_rules(unit, kind) if kind else configured_rules(settings)


def _layers(unit: Unit, settings: Settings, kind: str) -> Layers:
    kinds = stored_kinds(unit)
    if kind and kind not in kinds:
        message = f"no kind {kind!r:.80} in a stored manifest"
        raise NotFound(message)
    return Layers(settings.retry, kinds, stored_queues(unit, unit.now()))
