"""What the engine says in its log about jobs: failures, retries, ends, what was found due, what was put in order.

Said after the commit, never within it. The words are for people; the fields beside them (`extra`) are stable, and what
a formatter makes of both is not the engine's concern. A job that succeeds costs nothing here.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from mulligan.core.attempt import Decision, Ending, Failure, Lease, Verb, Verdict
from mulligan.core.format import duration
from mulligan.core.job import SECOND, JobRow, Micros, State
from mulligan.failures.facts import Wording
from mulligan.jobs.sentences import waited
from mulligan.retries.policy import EffectivePolicy

if TYPE_CHECKING:
    from mulligan.retries.effective import EffectivePolicies


# How often the same may be said: the first few of each second, then one sentence with their number.

MOST = 20  # of one thing, in one second
MOST_KNOWN = 1000  # things; beyond that, nothing is counted together any more

Key = TypeVar("Key", bound=Hashable)
Said = TypeVar("Said")


class LogSampler(Generic[Key]):
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._second = 0
        self._said: dict[Key, int] = {}

    def may_say(self, key: Key) -> bool:
        """False: it was said often enough in this second; it is counted."""
        count = self._said.get(key, 0) + 1
        if count == 1 and len(self._said) >= MOST_KNOWN:
            return True
        self._said[key] = count
        return count <= self._most

    def few(self, key: Key, many: Sequence[Said]) -> Sequence[Said]:
        """Of many that are the same, those that may be said; all of them are counted."""
        before = self._said.get(key, 0)
        if before == 0 and len(self._said) >= MOST_KNOWN:
            return many
        self._said[key] = before + len(many)
        return many[: max(0, self._most - before)]

    def unsaid(self, now: Micros) -> list[tuple[Key, int]]:
        """A second is over: what was counted in it and not said, and how often."""
        second = now // SECOND
        if second == self._second or not self._said:
            self._second = second
            return []
        left = [
            (key, count - self._most) for key, count in self._said.items() if count > self._most
        ]
        self._second, self._said = second, {}
        return left


# What the engine says in its log about jobs: failures, retries, ends, what was found due, what was put in order.

log = logging.getLogger("mulligan.jobs")


class Same(NamedTuple):
    """What ended alike, as far as a log is concerned."""

    kind: str
    verb: Verb
    code: str


_TEXTS = (
    "exception",
    "message",
    "detail",
    "stderr",
    "trace",
)  # of the private half: for the log and for operators
_ENDS = {
    State.DEAD: "ended for good",
    State.PARKED: "waits for a person",
    State.CANCELLED: "cancelled",
}


def tell_verdicts(
    verdicts: Sequence[Verdict],
    layers: EffectivePolicies,
    now: Micros,
    murmur: LogSampler[Same] | None = None,
) -> None:
    """How attempts ended that did not succeed; with `murmur`, of many that ended alike the first and their number."""
    if murmur is not None:
        _tell_unsaid(murmur, now)
    unsuccessful = [
        (lease, decision, words)
        for lease, decision, words in verdicts
        if decision is not None and decision.verb is not Verb.SUCCEED
    ]
    for same, group in groupby(unsuccessful, key=lambda one: _same(one[0], one[1])):
        alike = [*group]
        for lease, decision, words in alike if murmur is None else murmur.few(same, alike):
            _tell(lease, decision, words, layers, now)
    tell_succeeded(
        lease
        for lease, decision, _ in verdicts
        if decision is not None and decision.verb is Verb.SUCCEED
    )


def tell_retried(
    decision: Decision,
    endings: Sequence[Ending],
    layers: EffectivePolicies,
    now: Micros,
    murmur: LogSampler[Same],
) -> None:
    """The same of attempts that failed alike and are tried again."""
    _tell_unsaid(murmur, now)
    for ending in murmur.few(_same(endings[0].lease, decision), endings) if endings else ():
        _tell(ending.lease, decision, ending.words, layers, now)


def _tell(
    lease: Lease, decision: Decision, words: str | None, layers: EffectivePolicies, now: Micros
) -> None:
    if decision.failure is not None and log.isEnabledFor(logging.ERROR):
        _failed(lease, decision.failure, words)
    if decision.verb is Verb.RETRY and log.isEnabledFor(logging.INFO):
        _retry(lease, decision, layers.of(lease), now)
    elif decision.state in _ENDS and log.isEnabledFor(logging.WARNING):
        _ended(lease, decision)


def _tell_unsaid(murmur: LogSampler[Same], now: Micros) -> None:
    for same, count in murmur.unsaid(now):
        _many_more(same, count)


def _same(lease: Lease, decision: Decision) -> Same:
    return Same(
        lease.kind, decision.verb, "" if decision.failure is None else decision.failure.code
    )


def _many_more(same: Same, count: int) -> None:
    failed = f" of {same.code}" if same.code else ""
    log.warning(
        "and %d more of %s%s within a second, not told one by one: %s",
        count,
        same.kind,
        failed,
        same.verb.value,
        extra={"kind": same.kind, "code": same.code, "verb": same.verb.value, "untold": count},
    )


def tell_succeeded(leases: Iterable[Lease]) -> None:
    if log.isEnabledFor(logging.DEBUG):
        for lease in leases:
            log.debug("attempt %d of %s succeeded", lease.attempt, lease.kind, extra=_ids(lease))


def _failed(lease: Lease, failure: Failure, words: str | None) -> None:
    said = failure.private
    if words is not None and isinstance(said, Wording):
        said = said.whole(words)
    private = {f"error_{name}": said[name] for name in _TEXTS if said.get(name)}
    told = said.get("message") or failure.public
    fields = {
        "code": failure.code,
        "error_class": failure.cls.value,
        "rule": failure.rule,
        "error": told,
    }
    log.error(
        "attempt %d of %s failed with %s (%s): %s",
        lease.attempt,
        lease.kind,
        failure.code,
        failure.cls.value,
        told,
        extra={
            **_ids(lease),
            **fields,
            "group": failure.fingerprint,
            "evidence": dict(failure.evidence),
            **private,
        },
    )


def _retry(lease: Lease, decision: Decision, policy: EffectivePolicy, now: Micros) -> None:
    delay = max(0, (decision.run_at or now) - now) / SECOND
    how = waited(policy, decision, now)
    log.info(
        "attempt %d of %s in %s: %s; %s",
        lease.attempt + 1,
        lease.kind,
        duration(delay),
        decision.reason,
        how,
        extra={
            **_ids(lease),
            "code": decision.failure.code if decision.failure else "",
            "retry": decision.failures,
            "next_attempt": lease.attempt + 1,
            "delay": round(delay, 3),
            "computed": how,
        },
    )


def _ended(lease: Lease, decision: Decision) -> None:
    """For good: nothing tries it again by itself."""
    permanent = decision.state is State.DEAD
    fields = {"state": decision.state.value, "reason": decision.reason, "permanent": permanent}
    code = decision.failure.code if decision.failure else ""
    log.log(
        logging.WARNING if permanent else logging.INFO,
        "%s %s: %s",
        lease.kind,
        _ENDS[decision.state],
        decision.reason,
        extra={**_ids(lease), **fields, "code": code},
    )


def tell_due(leases: Sequence[Lease], worker: str) -> None:
    """Retries whose time had come; fresh work only for who wants every detail."""
    if not leases or not log.isEnabledFor(logging.INFO):
        return
    retries = sum(1 for lease in leases if lease.failures)
    if retries:
        fields = {"due": len(leases), "retries": retries, "worker": worker}
        log.info("%d retries found due", retries, extra=fields)
    elif log.isEnabledFor(logging.DEBUG):
        log.debug(
            "%d jobs found due",
            len(leases),
            extra={"due": len(leases), "retries": 0, "worker": worker},
        )


def tell_move(verb: Verb, row: JobRow, actor: str, reason: str) -> None:
    """By hand."""
    if log.isEnabledFor(logging.INFO):
        fields = {
            "job": row.id,
            "kind": row.kind,
            "queue": row.queue,
            "actor": actor,
            "reason": reason,
        }
        log.info(
            "%s of %s asked for by %s%s",
            _spoken(verb),
            row.kind,
            actor or "somebody",
            f": {reason}" if reason else "",
            extra={**fields, "generation": row.generation, "action": verb.value},
        )


def _spoken(verb: Verb) -> str:
    return "manual retry" if verb is Verb.RETRY_BY_HAND else verb.value.replace("_", " ")


def tell_sweep(counts: Mapping[str, int]) -> None:
    """What was put in order, if anything was. Of workers that are gone: a warning."""
    for what, count in counts.items():
        if count:
            level = logging.WARNING if what in _LOUD else logging.INFO
            _swept.log(level, f"%d {what}", count, extra={"swept": what, "count": count})


_swept = logging.getLogger("mulligan.upkeep")
_LOUD = frozenset(
    {
        "jobs of lost workers settled",
        "jobs past their deadline ended",
        "jobs of unknown kinds ended",
    }
)


def _ids(lease: Lease) -> dict[str, Any]:
    return {
        "job": lease.id,
        "kind": lease.kind,
        "queue": lease.queue,
        "attempt": lease.attempt,
        "token": lease.token,
        "worker": lease.worker,
    }
