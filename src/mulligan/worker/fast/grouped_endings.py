"""Endings of one moment that are alike: of failures that differ in nothing but their words and their jobs, one is
decided and one row is made, and all of them have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from random import Random
from typing import Any

from mulligan.core.attempt import Decision, Ending, Lease, Verb
from mulligan.core.job import Micros
from mulligan.failures.facts import TOLD, Wording, inside
from mulligan.retries.decide import decide
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage.base import Around, RetriedAttempt, Settlement
from mulligan.worker import settlement as news
from mulligan.worker.settlement import private_of, row_of

MANY = 10  # of them are worth a statement of their own

# What was decided, the row of one of them, the texts of all, and what each has of its own.
Together = tuple[Decision, Settlement, Around, "list[tuple[RetriedAttempt, Ending]]"]


class _Drawn:
    """A source of chance that knows whether it was asked."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.asked = False

    def random(self) -> float:
        self.asked = True
        return self._rng.random()

    def uniform(self, a: float, b: float) -> float:
        self.asked = True
        return self._rng.uniform(a, b)


class GroupedEndings:
    """What is shared, and by whom. Nothing is where chance has a say, or how long a job has waited."""

    def __init__(
        self, layers: EffectivePolicies, now: Micros, rng: Random, actor: str = ""
    ) -> None:
        self.layers = layers
        self.now = now
        self.rng = rng
        self.actor = actor
        self._decided: dict[tuple[int, tuple[Any, ...]], Decision] = {}
        self._rows: dict[int, _Parts] = {}  # by `Decision.group`

    def decide(self, ending: Ending, down: str = "") -> Decision:
        lease, outcome, _, words = ending
        if down or words is None:
            return decide(lease, outcome, self.layers.of(lease), self.now, self.rng, down=down)
        key = (id(outcome), _alike(lease))
        known = self._decided.get(key)
        if known is None:
            drawn, policy = _Drawn(self.rng), self.layers.of(lease)
            known = decide(lease, outcome, policy, self.now, drawn)
            if not drawn.asked and policy.max_age is None and self.layers.shadow(lease) is None:
                known = known._replace(group=len(self._decided) + 1)
                self._decided[key] = known
        return known

    def row(self, ending: Ending, decision: Decision) -> Settlement:
        known = self._rows.get(decision.group) if decision.group else None
        if known is not None:
            return known.of(ending)
        row = row_of(ending, decision, self.layers, self.now, self.actor)
        if decision.group:
            self._rows[decision.group] = _Parts(row, ending.lease, decision, self.layers)
        return row

    def retried(self, endings: Iterable[Ending]) -> Iterator[Together]:
        """Many that are tried again alike, and of which nothing else is to be said."""
        groups: dict[tuple[int, tuple[Any, ...]], list[Ending]] = {}
        for ending in endings:
            if (
                ending.words is not None
                and len(ending.words) <= TOLD
                and ending.duration_ms is not None
            ):
                groups.setdefault((id(ending.outcome), _alike(ending.lease)), []).append(ending)
        for group in groups.values():
            if len(group) >= MANY and (found := self._together(group)) is not None:
                yield found

    def _together(self, group: Sequence[Ending]) -> Together | None:
        first = group[0]
        decision = self.decide(first)
        failure = decision.failure
        if decision.verb is not Verb.RETRY or not decision.group or decision.hold is not None:
            return None
        if failure is None or failure.by_system or not isinstance(failure.private, Wording):
            return None
        row, told = self.row(first, decision), news.middle(first.lease, decision, self.layers)
        if told is None or row.queue is not None or row.free_key or row.saw_cancel or row.cost:
            return None
        around = Around(*failure.private.parts, *news.parts(first.lease, decision.reason, told))
        return decision, row, around, [(_retried(ending), ending) for ending in group]


def _retried(ending: Ending) -> RetriedAttempt:
    lease, _, took, words = ending
    return RetriedAttempt(
        lease.id,
        lease.lies_at,
        lease.started_at,
        inside(words or ""),
        took or 0,
        news.waited(lease),
    )


_OF_ONE = {
    "id",
    "payload",
    "created_at",
    "run_at",
    "started_at",
    "first_started_at",
    "choice",
    "unique_key",
    "trace",
    "lies_at",
}
_alike = itemgetter(*[place for place, name in enumerate(Lease._fields) if name not in _OF_ONE])
_STARTED, _PRIVATE, _DATA = map(Settlement._fields.index, ("started_at", "private", "data"))


class _Parts:
    """A row in parts: between them stands what each of those alike has of its own."""

    def __init__(
        self, row: Settlement, lease: Lease, decision: Decision, layers: EffectivePolicies
    ) -> None:
        self._decision = decision
        self._layers = layers
        self._parts = (
            row[1:_STARTED],
            row[_STARTED + 1 : _PRIVATE],
            row[_PRIVATE + 1 : _DATA],
            row[_DATA + 1 :],
        )
        self._told = news.middle(lease, decision, layers)

    def of(self, ending: Ending) -> Settlement:
        lease, failure = ending.lease, self._decision.failure
        private = None if failure is None else private_of(failure, ending.words)
        if self._told is None:
            data = news.data_of(ending, self._decision, self._layers)
        else:
            data = news.around(ending, self._decision.reason, self._told)
        first, second, third, last = self._parts
        return Settlement._make(
            (lease.id, *first, lease.started_at, *second, private, *third, data, *last)
        )
