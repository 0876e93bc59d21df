"""The supervisor's side of the store: turns on one thread, chores on another, so that neither waits for the other.

A turn writes what ended and takes what is due, in one transaction. It may be repeated as it is: settling twice
is noticed by the token, and a claim whose answer was lost is found again by asking what this worker holds.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from random import Random, SystemRandom
from typing import NamedTuple

from mulligan.core.attempt import Ended, Ending, Lease, Outcome, Verdict
from mulligan.core.errors import StoreUnavailable
from mulligan.core.job import Micros, PreviousAttempts
from mulligan.failures.codes import unrecordable
from mulligan.failures.redact import scrub
from mulligan.guards.observer import KindObserver, tend
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage.base import Store, Transaction
from mulligan.worker.claim import Claimer, Places, memories
from mulligan.worker.fast.grouped_endings import GroupedEndings
from mulligan.worker.fast.lease_batch import LeaseBatch
from mulligan.worker.job_log import (
    LogSampler,
    Same,
    tell_due,
    tell_retried,
    tell_succeeded,
    tell_verdicts,
)
from mulligan.worker.settle import finish, settle

log = logging.getLogger("mulligan.worker")


News = tuple[str, int, float | None, str]  # job, token, fraction, message


class TransactionResult(NamedTuple):
    verdicts: list[Verdict]
    leases: LeaseBatch
    memories: Mapping[str, PreviousAttempts]
    now: Micros
    next_due: Micros | None
    more: bool


class LoopTransactions:
    def __init__(
        self,
        store: Store,
        policies: EffectivePolicies,
        claimer: Claimer,
        causes: KindObserver | None = None,
    ) -> None:
        self._store = store
        self._policies = policies
        self._claimer = claimer
        self.given_up: set[tuple[str, int]] = (
            set()
        )  # leases whose endings the store will not take in any form
        self._rng, self._rng_beside = (Random(SystemRandom().getrandbits(64)) for _ in range(2))
        self._watch = claimer.watch
        self._causes = causes or KindObserver()
        self._murmur: LogSampler[Same] = LogSampler()
        self._murmur_beside: LogSampler[Same] = LogSampler()
        claimer.end = self._end

    def _end(self, unit: Transaction, endings: Sequence[Ending]) -> None:
        settle(unit, endings, self._policies, unit.now(), self._rng, wait=False)

    def _settle(self, unit: Transaction, endings: Sequence[Ending], now: Micros) -> list[Verdict]:
        return settle(
            unit, endings, self._policies, now, self._rng, watch=self._watch, causes=self._causes
        )

    def take(
        self,
        endings: Sequence[Ending],
        free: int,
        now: Micros,
        known: Collection[tuple[str, int]] | None,
        news: Sequence[News] = (),
        *,
        hinted: bool = False,
        places: Places | None = None,
    ) -> TransactionResult:
        """One turn. With `known`: also adopt leases of ours that we do not know of."""
        hopeful = free > 0 and (hinted or self._claimer.full)
        if not (endings or hopeful or known is not None or self._anything_due(free)):
            return self._nothing()
        self._watch.begin()
        only_claims = not (
            endings or news or known is not None
        )  # one writing statement: it needs no more around it
        with self._store.once() if only_claims else self._store.begin() as unit:
            if news:
                unit.progress(self._claimer.worker, news)
            verdicts = self._settle(unit, endings, now) if endings else []
            claimed = self._claimer.claim(unit, free, hinted=hinted, places=places)
            leases = claimed.leases
            if known is not None:
                fresh = {lease.fence for lease in leases}
                held = unit.claimed(self._claimer.worker)
                leases = leases + [x for x in held if x.fence not in known and x.fence not in fresh]
            kept = memories(unit, leases, self._claimer.mindful)
        self._watch.commit()
        tell_verdicts(verdicts, self._policies, now, self._murmur)
        tell_due(leases, self._claimer.worker)
        return TransactionResult(
            verdicts, LeaseBatch(leases), kept, claimed.now, claimed.next_due, claimed.more
        )

    def finish(self, endings: Sequence[Ending], now: Micros) -> None:
        """Beside a turn: what returned or failed and uses nothing that a turn watches."""
        with self._store.once() as unit:
            written = finish(unit, endings, GroupedEndings(self._policies, now, self._rng_beside))
        tell_succeeded(written.returned)
        for decision, retried in written.retried:
            tell_retried(decision, retried, self._policies, now, self._murmur_beside)
        verdicts: list[Verdict] = []
        if written.rest:
            with self._store.begin() as unit:
                verdicts = settle(
                    unit, written.rest, self._policies, now, self._rng_beside, causes=self._causes
                )
        tell_verdicts(verdicts, self._policies, now, self._murmur_beside)

    def settle_each(self, endings: Sequence[Ending], now: Micros) -> None:
        """One by one, after the store refused them together: what it will not take is recorded as just that."""
        for ending in endings:
            try:
                self._settle_one(ending, now)
            except StoreUnavailable:
                raise
            except Exception as refusal:
                log.exception("job %s: the store refuses its outcome", ending.lease.id)
                self._record_refusal(ending.lease, refusal, now)

    def _record_refusal(self, lease: Lease, refusal: Exception, now: Micros) -> None:
        failure = unrecordable(scrub(f"{type(refusal).__name__}: {refusal}"))
        try:
            self._settle_one(Ending(lease, Outcome(Ended.FAILED, failure=failure, final=True)), now)
        except StoreUnavailable:
            raise
        except Exception:
            log.exception(
                "job %s: not even that can be recorded; it stays as it is until this worker leaves",
                lease.id,
            )
            self.given_up.add(lease.fence)

    def leave(self, endings: Sequence[Ending], now: Micros) -> None:
        """The last turn: write what ended, and give back whatever else still stands under our name."""
        self.settle_each(endings, now)
        with self._store.read() as unit:
            held = [
                lease
                for lease in unit.claimed(self._claimer.worker)
                if lease.fence not in self.given_up
            ]
        back = Outcome(Ended.RELEASED, reason="its worker shut down")
        self.settle_each([Ending(lease, back) for lease in held], now)

    def _settle_one(self, ending: Ending, now: Micros) -> None:
        self._watch.begin()
        with self._store.begin() as unit:
            verdicts = self._settle(unit, [ending], now)
        self._watch.commit()
        tell_verdicts(verdicts, self._policies, now)

    def watch(self, running: Sequence[tuple[Lease, float]], *, idle: bool) -> None:
        """Between turns: what has been running for too long, and, where little happens, what time has changed."""
        if self._watch.overdue(running) or idle:
            tend(self._store, self._watch, self._causes)

    def _anything_due(self, free: int) -> bool:
        """A look without the write lock: an idle worker disturbs nobody. Without a free place: for messages only."""
        with self._store.read() as unit:
            self._seen = self._claimer.claim(unit, 0)
        return self._seen.more if free > 0 else self._seen.messages

    def _nothing(self) -> TransactionResult:
        return TransactionResult(
            [], LeaseBatch(), {}, self._seen.now, self._seen.next_due, more=False
        )
