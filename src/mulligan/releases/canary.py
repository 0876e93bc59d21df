"""The share of each kind that canary workers may claim until their release is judged."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from mulligan.core.attempt import Lease
from mulligan.core.job import LimitKey
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.releases.queries import ReleaseDelta, ReleaseQueries
from mulligan.releases.rules import (
    ReleaseKindRow,
    ReleaseState,
    canary_starts_left,
    judge_release,
)
from mulligan.storage.base import Transaction

CANARY = "canary"  # scope of the limit keys
READ_INTERVAL = 1.0  # seconds for which the kinds of other releases are remembered


class Canary:
    """Limits what one worker claims. All canaries of a release share the counters."""

    def __init__(self, release: str, share: float) -> None:
        self.release = release
        self.share = share
        self.is_limiting = True  # whether the last claim was limited
        self._others: frozenset[str] = frozenset()  # kinds that workers of other releases run
        self._others_read_at = float("-inf")

    def lock(self, tx: Transaction, kinds: Iterable[str]) -> dict[LimitKey, int]:
        """Lock the counters of these kinds. Return how many jobs of each may be claimed.

        A kind that only this release runs is not limited: its jobs would wait for ever.
        """
        limited = sorted(kind for kind in self._limited_kinds(tx, kinds))
        self.is_limiting = bool(limited)
        if not limited:
            return {}
        queries = ReleaseQueries(tx)
        # Adding nothing creates missing rows, and locks the others until the claim is written.
        queries.add_counts([ReleaseDelta(self.release, kind, 0, 0, 0, 0) for kind in limited])
        rows = queries.list_counts(limited)
        judged = queries.count_kinds(self.release)
        left: dict[LimitKey, int] = {}
        for kind in limited:
            allowed = self._starts_left([row for row in rows if row.kind == kind], judged)
            if allowed is not None:
                left[CANARY, kind] = allowed
        self.is_limiting = bool(left)
        return left

    def spend(self, tx: Transaction, leases: Sequence[Lease]) -> None:
        """Count claimed jobs."""
        counts = Counter(lease.kind for lease in leases if not _is_system(lease.kind))
        for kind in sorted(counts):
            ReleaseQueries(tx).add_claimed(self.release, kind, counts[kind])

    def _starts_left(self, rows: Sequence[ReleaseKindRow], judged: int) -> int | None:
        """Return how many jobs of a kind may be claimed; None: any number."""
        others = [row for row in rows if row.release != self.release]
        (own,) = (row for row in rows if row.release == self.release)
        if judge_release(own, others, judged) is ReleaseState.FINE:
            return None
        meanwhile = sum(row.attempts for row in others) - own.base_attempts
        return canary_starts_left(self.share, own.claimed, max(0, meanwhile))

    def _limited_kinds(self, tx: Transaction, kinds: Iterable[str]) -> list[str]:
        now = time.monotonic()
        if now - self._others_read_at > READ_INTERVAL:
            self._others_read_at = now
            self._others = frozenset(
                kind
                for release, text in ReleaseQueries(tx).list_live_kinds()
                for kind in json.loads(text)
                if release != self.release
            )
        return [kind for kind in kinds if kind in self._others and not _is_system(kind)]


def _is_system(kind: str) -> bool:
    return kind.startswith(SYSTEM_PREFIX)
