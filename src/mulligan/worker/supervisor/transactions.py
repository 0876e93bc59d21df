"""Database transactions of the claim/settle loop.

Each transaction settles what ended and claims what is due. It can be repeated as it is: settling
twice is noticed by the token, and a claim whose result was lost is found again by reading what
this worker holds. Chores use another thread, so that neither waits for the other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from random import Random, SystemRandom
from typing import NamedTuple

from mulligan.core.attempt import Ended, Ending, Lease, Outcome, Verdict
from mulligan.core.durations import Micros
from mulligan.core.errors import StatementAborted, StoreUnavailable
from mulligan.core.job import PreviousAttempts
from mulligan.failures.codes import outcome_refused
from mulligan.failures.redact import scrub
from mulligan.guards.capacity import SlotLimits
from mulligan.guards.kind_observer import KindObserver
from mulligan.guards.observer import fold_guards, has_guards_to_fold
from mulligan.manifest.specs import Manifest
from mulligan.releases.chore import ReleaseCounter
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage.base import Store, Transaction
from mulligan.worker.claim import Claimer, ClaimResult
from mulligan.worker.job_log import (
    LogGroup,
    LogSampler,
    log_claimed,
    log_verdicts,
)
from mulligan.worker.queries import WorkerQueries
from mulligan.worker.settle import SettleContext, settle

log = logging.getLogger("mulligan.worker")

MAX_ABORTS = 3  # settlements of one attempt, until a large result counts as refused
LARGE_RESULT = 1 << 16  # characters

ProgressUpdate = tuple[str, int, float | None, str]  # job, token, fraction, message


class TransactionResult(NamedTuple):
    """Result of one transaction, and when to run the next."""

    verdicts: list[Verdict]
    leases: list[Lease]
    previous_attempts: Mapping[str, PreviousAttempts]
    now: Micros
    next_due: Micros | None
    more_due: bool


class LoopTransactions:
    """Transactions of one worker, run by its claim/settle loop."""

    def __init__(
        self,
        store: Store,
        policies: EffectivePolicies,
        claimer: Claimer,
        kind_observer: KindObserver | None = None,
        release_counter: ReleaseCounter | None = None,
    ) -> None:
        # Leases whose endings the database refused in every form.
        self.unrecordable: set[tuple[str, int]] = set()
        self._aborts: Counter[tuple[str, int]] = Counter()  # aborted settlements of each lease
        self._store = store
        self._policies = policies
        self._claimer = claimer
        self._observer = claimer.observer
        self._kind_observer = kind_observer or KindObserver()
        self._releases = release_counter or ReleaseCounter()
        self._rng = Random(SystemRandom().getrandbits(64))
        self._log_sampler: LogSampler[LogGroup] = LogSampler()
        # The second writer runs on its own thread.
        self._parallel_rng = Random(SystemRandom().getrandbits(64))
        self._parallel_log_sampler: LogSampler[LogGroup] = LogSampler()
        claimer.prober.settle_endings = self._settle_fail_fast

    def apply_manifest(self, manifest: Manifest) -> None:
        """Use the kinds of the app as it is now."""
        self._claimer.apply_manifest(manifest)

    def is_suspect(self, lease: Lease) -> bool:
        """True if a job that has lost its runner so often may kill the whole worker."""
        return lease.losses >= self._policies.for_job(lease).max_losses

    def _settle_fail_fast(self, tx: Transaction, endings: Sequence[Ending]) -> None:
        context = SettleContext(self._policies, tx.now(), self._rng, wait_for_batches=False)
        settle(tx, endings, context)

    def _settle(self, tx: Transaction, endings: Sequence[Ending], now: Micros) -> list[Verdict]:
        context = SettleContext(
            self._policies,
            now,
            self._rng,
            observer=self._observer,
            kind_observer=self._kind_observer,
        )
        return settle(tx, endings, context)

    def settle_and_claim(
        self,
        endings: Sequence[Ending],
        free: int,
        now: Micros,
        known: Collection[tuple[str, int]] | None,
        progress: Sequence[ProgressUpdate] = (),
        *,
        hinted: bool = False,
        slots: SlotLimits | None = None,
    ) -> TransactionResult:
        """Settle `endings` and claim up to `free` jobs in one transaction.

        `known`: the fences that this worker knows. Leases of this worker that are not among them
        belong to a claim whose result was lost, and are returned too.
        """
        likely_due = free > 0 and (hinted or self._claimer.claimed_all)
        if not (endings or likely_due or known is not None):
            poll = self._poll()
            is_due = poll.more_due if free > 0 else poll.deliveries_due
            if not is_due:
                return TransactionResult([], [], {}, poll.now, poll.next_due, more_due=False)
        self._observer.begin()
        # A claim alone is one writing statement and needs no explicit transaction.
        only_claims = not (endings or progress or known is not None)
        with self._store.single_statement() if only_claims else self._store.begin() as tx:
            if progress:
                WorkerQueries(tx).update_progress(self._claimer.worker, progress)
            verdicts = self._settle(tx, endings, now) if endings else []
            claimed = self._claimer.claim(tx, free, slots=slots)
            leases = claimed.leases
            if known is not None:
                leases = leases + self._forgotten_leases(tx, leases, known)
            previous = WorkerQueries(tx).previous_attempts_of(leases, self._claimer.history_kinds)
        self._observer.commit()
        self._releases.count(verdicts)
        log_verdicts(verdicts, self._policies, now, self._log_sampler)
        log_claimed(leases, self._claimer.worker)
        return TransactionResult(
            verdicts,
            leases,
            previous,
            claimed.now,
            claimed.next_due,
            claimed.more_due,
        )

    def _poll(self) -> ClaimResult:
        """Look for due jobs without the write lock, so that an idle worker disturbs no other."""
        with self._store.read() as tx:
            return self._claimer.claim(tx, 0)

    def _forgotten_leases(
        self, tx: Transaction, claimed: Sequence[Lease], known: Collection[tuple[str, int]]
    ) -> list[Lease]:
        """Return leases of this worker that are neither known nor just claimed."""
        just_claimed = {lease.fence for lease in claimed}
        return [
            lease
            for lease in WorkerQueries(tx).list_leases(self._claimer.worker)
            if lease.fence not in known and lease.fence not in just_claimed
        ]

    def settle_in_parallel(self, endings: Sequence[Ending], now: Micros) -> None:
        """Settle endings on another thread, in parallel to `settle_and_claim`.

        Only endings of jobs without dependencies: the observer belongs to the other thread.
        """
        context = SettleContext(
            self._policies, now, self._parallel_rng, kind_observer=self._kind_observer
        )
        with self._store.begin() as tx:
            verdicts = settle(tx, endings, context)
        self._releases.count(verdicts)
        log_verdicts(verdicts, self._policies, now, self._parallel_log_sampler)

    def settle_each(self, endings: Sequence[Ending], now: Micros) -> list[Ending]:
        """Settle endings one by one, after the database refused them together.

        An ending that the database refuses alone is settled as failed with OUTCOME_REFUSED. Return
        the endings whose statement the database aborted: they must be tried again later.
        """
        aborted: list[Ending] = []
        for place, ending in enumerate(endings):
            try:
                self._settle_one_or_refuse(ending, now)
            except StatementAborted:
                aborted.append(ending)
                if len(aborted) > place >= 1:  # all so far: the database is slow, not the ending
                    raise
        return aborted

    def _settle_one_or_refuse(self, ending: Ending, now: Micros) -> None:
        fence = ending.lease.fence
        try:
            self._settle_one(ending, now)
        except StatementAborted as refusal:
            # A small outcome waits for a lock or a slow server: replacing it would not help.
            is_large = len(ending.outcome.result or "") >= LARGE_RESULT
            self._aborts[fence] += 1
            if self._aborts[fence] < MAX_ABORTS or not is_large:
                raise
            log.exception("job %s: its outcome cannot be written in time", ending.lease.id)
            self._settle_as_refused(ending.lease, refusal, now)
        except StoreUnavailable:
            raise
        except Exception as refusal:
            log.exception("job %s: the database refuses its outcome", ending.lease.id)
            self._settle_as_refused(ending.lease, refusal, now)
        self._aborts.pop(fence, None)

    def _settle_as_refused(self, lease: Lease, refusal: Exception, now: Micros) -> None:
        failure = outcome_refused(scrub(f"{type(refusal).__name__}: {refusal}"))
        try:
            self._settle_one(Ending(lease, Outcome(Ended.FAILED, failure=failure, final=True)), now)
        except StoreUnavailable:
            raise
        except Exception:
            log.exception(
                "job %s: the database refuses this failure too; the job stays in state running "
                "until this worker stops",
                lease.id,
            )
            self.unrecordable.add(lease.fence)

    def release_all(self, endings: Sequence[Ending], now: Micros) -> None:
        """Settle the last endings and release every other lease of this worker."""
        self.settle_each(endings, now)
        with self._store.read() as tx:
            held = WorkerQueries(tx).list_leases(self._claimer.worker)
        released = Outcome(Ended.RELEASED, reason="its worker shut down")
        rest = [Ending(lease, released) for lease in held if lease.fence not in self.unrecordable]
        self.settle_each(rest, now)

    def _settle_one(self, ending: Ending, now: Micros) -> None:
        self._observer.begin()
        with self._store.begin() as tx:
            verdicts = self._settle(tx, [ending], now)
        self._observer.commit()
        self._releases.count(verdicts)
        log_verdicts(verdicts, self._policies, now)

    def has_guards_to_fold(self, store: Store) -> bool:
        """True if guards must be folded. Any thread may call this, with a store of its own."""
        return has_guards_to_fold(store, self._observer, self._kind_observer)

    def check_dependencies(self, running: Sequence[tuple[Lease, float]], *, fold: bool) -> None:
        """Count calls that take too long, and fold the guards if there are any or if `fold`."""
        if self._observer.count_overdue(running) or fold:
            fold_guards(self._store, self._observer, self._kind_observer)
