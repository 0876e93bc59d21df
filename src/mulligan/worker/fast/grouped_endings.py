"""Accelerator of settling: decide once for endings that differ only in job and error message.

Their decision and most of their settlement row are equal, so both are made once and shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from random import Random
from typing import Any, NamedTuple

from mulligan.core.attempt import Decision, Ending, Lease, Verb
from mulligan.core.durations import Micros
from mulligan.failures.facts import TRACE_MESSAGE_LIMIT, PrivateTemplate, escape_json_string
from mulligan.retries.decide import decide
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage.base import RetryRow, Settlement, SharedRetryTexts
from mulligan.worker.settlement import (
    encode_private,
    event_data,
    join_retry_data,
    retry_data_parts,
    settlement_row,
    shared_retry_data,
    wait_ms,
)

MIN_GROUP = 10  # retries that are worth their own statement


class RetryGroup(NamedTuple):
    """Equal retries that one statement writes."""

    decision: Decision
    row: Settlement  # of the first one
    texts: SharedRetryTexts
    attempts: list[tuple[RetryRow, Ending]]  # what differs


class _RecordingRandom:
    """Random source that records whether it was used."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.used = False

    def random(self) -> float:
        self.used = True
        return self._rng.random()

    def uniform(self, a: float, b: float) -> float:
        self.used = True
        return self._rng.uniform(a, b)


class GroupedEndings:
    """Decisions and rows of one settlement, shared by equal endings.

    Nothing is shared if a decision uses random numbers or depends on the age of the job.
    """

    def __init__(
        self, policies: EffectivePolicies, now: Micros, rng: Random, actor: str = ""
    ) -> None:
        self.policies = policies
        self.now = now
        self.rng = rng
        self.actor = actor
        self._decided: dict[tuple[int, tuple[Any, ...]], Decision] = {}
        self._rows: dict[int, _SharedRow] = {}  # by `Decision.group`

    def decide(self, ending: Ending, down: str = "") -> Decision:
        """Decide an ending. `down`: why a dependency counts as down."""
        lease, outcome, _, message = ending
        if down or message is None:
            return decide(
                lease,
                outcome,
                self.policies.for_job(lease),
                self.now,
                self.rng,
                dependency_down=down,
            )
        key = (id(outcome), _shared_fields(lease))
        known = self._decided.get(key)
        if known is None:
            rng = _RecordingRandom(self.rng)
            policy = self.policies.for_job(lease)
            known = decide(lease, outcome, policy, self.now, rng)
            has_shadow = self.policies.shadow_for_job(lease) is not None
            if not rng.used and policy.max_age is None and not has_shadow:
                known = known._replace(group=len(self._decided) + 1)
                self._decided[key] = known
        return known

    def settlement_row(self, ending: Ending, decision: Decision) -> Settlement:
        """Return the row of an ending, from the shared one if there is one."""
        known = self._rows.get(decision.group) if decision.group else None
        if known is not None:
            return known.row_for(ending)
        row = settlement_row(ending, decision, self.policies, self.now, self.actor)
        if decision.group:
            self._rows[decision.group] = _SharedRow(row, ending.lease, decision, self.policies)
        return row

    def retry_groups(self, endings: Iterable[Ending]) -> Iterator[RetryGroup]:
        """Yield groups of many equal retries that nothing else distinguishes."""
        groups: dict[tuple[int, tuple[Any, ...]], list[Ending]] = {}
        for ending in endings:
            if (
                ending.message is not None
                and len(ending.message) <= TRACE_MESSAGE_LIMIT
                and ending.duration_ms is not None
            ):
                groups.setdefault((id(ending.outcome), _shared_fields(ending.lease)), []).append(
                    ending
                )
        for group in groups.values():
            retry_group = self._retry_group(group) if len(group) >= MIN_GROUP else None
            if retry_group is not None:
                yield retry_group

    def _retry_group(self, group: Sequence[Ending]) -> RetryGroup | None:
        first = group[0]
        decision = self.decide(first)
        failure = decision.failure
        if decision.verb is not Verb.RETRY or not decision.group or decision.hold is not None:
            return None
        if failure is None or failure.by_system or not isinstance(failure.private, PrivateTemplate):
            return None
        row = self.settlement_row(first, decision)
        shared = shared_retry_data(first.lease, decision, self.policies)
        if (
            shared is None
            or row.queue is not None
            or row.release_key
            or row.cancel_known
            or row.cost
        ):
            return None
        texts = SharedRetryTexts(
            *failure.private.parts, *retry_data_parts(first.lease, decision.reason, shared)
        )
        attempts = [(_retry_row(ending), ending) for ending in group]
        return RetryGroup(decision, row, texts, attempts)


def _retry_row(ending: Ending) -> RetryRow:
    lease, _, took, message = ending
    return RetryRow(
        lease.id,
        lease.row_location,
        lease.started_at,
        escape_json_string(message or ""),
        took or 0,
        wait_ms(lease),
    )


_INDIVIDUAL_FIELDS = {
    "id",
    "payload",
    "created_at",
    "run_at",
    "started_at",
    "first_started_at",
    "choice",
    "unique_key",
    "trace",
    "row_location",
}
_shared_fields = itemgetter(
    *[index for index, name in enumerate(Lease._fields) if name not in _INDIVIDUAL_FIELDS]
)
_STARTED, _PRIVATE, _DATA = map(Settlement._fields.index, ("started_at", "private", "data"))


class _SharedRow:
    """Settlement row of equal endings, cut at the columns in which they differ."""

    def __init__(
        self, row: Settlement, lease: Lease, decision: Decision, policies: EffectivePolicies
    ) -> None:
        self._decision = decision
        self._policies = policies
        self._parts = (
            row[1:_STARTED],
            row[_STARTED + 1 : _PRIVATE],
            row[_PRIVATE + 1 : _DATA],
            row[_DATA + 1 :],
        )
        self._shared_data = shared_retry_data(lease, decision, policies)

    def row_for(self, ending: Ending) -> Settlement:
        """Return the row of another ending of the group."""
        lease = ending.lease
        failure = self._decision.failure
        private = None if failure is None else encode_private(failure, ending.message)
        if self._shared_data is None:
            data = event_data(ending, self._decision, self._policies)
        else:
            data = join_retry_data(ending, self._decision.reason, self._shared_data)
        first, second, third, last = self._parts
        return Settlement._make(
            (lease.id, *first, lease.started_at, *second, private, *third, data, *last)
        )
