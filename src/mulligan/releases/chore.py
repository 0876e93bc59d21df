"""Count attempts by kind and release. Each worker counts its own and adds them once a second.

A job that succeeds at its first claim has no row of its attempt, so counts are kept in memory and
written apart from the settlement. A worker that is killed loses the counts of its last second.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mulligan.core.attempt import Verb, Verdict
from mulligan.core.errors import StoreUnavailable
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.releases.queries import ReleaseDelta, ReleaseQueries
from mulligan.storage.base import Store, Transaction

NOT_COUNTED = frozenset({Verb.GIVE_BACK, Verb.HOLD, Verb.STOP})  # they say nothing about the code


class CountKey(NamedTuple):
    """Attempts that are counted together."""

    kind: str
    verb: Verb
    is_first: bool  # no attempt of this generation failed before
    has_failed: bool


Counts = Counter[CountKey]


def count_verdicts(verdicts: Iterable[Verdict]) -> Counts:
    """Count settled attempts."""
    return Counter(
        CountKey(
            lease.kind,
            decision.verb,
            not (lease.failures or lease.losses),
            decision.failure is not None,
        )
        for lease, decision in verdicts
        if decision is not None
    )


def build_deltas(release: str, counts: Counts) -> list[ReleaseDelta]:
    """Return what to add to the counters of each kind, in the order in which rows are locked."""
    sums: dict[str, Counter[str]] = {}
    for key, n in counts.items():
        if key.verb in NOT_COUNTED or key.kind.startswith(SYSTEM_PREFIX):
            continue
        row = sums.setdefault(key.kind, Counter())
        row["attempts"] += n
        row["deaths"] += n * (key.verb is Verb.DIE)
        # Only first attempts are compared: retries of one job would count one cause several times,
        # and a new release inherits the retries of jobs that failed under the old one.
        if key.is_first and (key.has_failed or key.verb is Verb.SUCCEED):
            row["starts"] += n
            row["failures"] += n * key.has_failed
    return [
        ReleaseDelta(release, kind, row["attempts"], row["deaths"], row["starts"], row["failures"])
        for kind, row in sorted(sums.items())
    ]


def count_of_lost_workers(tx: Transaction, verdicts: Iterable[Verdict]) -> None:
    """Add the attempts of lost workers to the counters of their releases."""
    by_worker: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_worker.setdefault(verdict.lease.worker, []).append(verdict)
    queries = ReleaseQueries(tx)
    releases: Mapping[str, str] = queries.releases_of_workers(list(by_worker))
    counts: dict[str, Counts] = {}
    for worker, settled in by_worker.items():
        if releases.get(worker):
            counts.setdefault(releases[worker], Counter()).update(count_verdicts(settled))
    for release in sorted(counts):
        queries.add_counts(build_deltas(release, counts[release]))


class ReleaseCounter:
    """Counts the attempts of one worker. A periodic task adds them to those of its release."""

    name = "releases"
    every = 1.0  # seconds

    def __init__(self) -> None:
        self.release = ""  # empty: nothing is counted
        self._pending: Counts = Counter()
        self._lock = threading.Lock()

    def count(self, verdicts: Sequence[Verdict]) -> None:
        """Count attempts whose settlement is committed. Any thread may call this."""
        if not (verdicts and self.release):
            return
        counts = count_verdicts(verdicts)
        with self._lock:
            self._pending.update(counts)

    def run_once(self, store: Store) -> bool:
        """Add what was counted to the stored counters."""
        if not self._pending:
            return False
        with self._lock:
            counts, self._pending = self._pending, Counter()
        deltas = build_deltas(self.release, counts)
        if not deltas:
            return False
        try:
            with store.begin() as tx:
                ReleaseQueries(tx).add_counts(deltas)
        except StoreUnavailable:
            with self._lock:
                self._pending.update(counts)
            raise
        return False
