"""The fingerprint breaker: jobs of a kind die of one cause, and none succeeds. Pure; a person releases what it holds.

A job counts once it is dead: as long as it will be tried again, there is hope. What one customer may have brought
about alone (a file, a password, an account that is used up) needs many more of them, or never counts at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from zlib import crc32

from mulligan.core.attempt import Cls, Decision, Failure, Lease, Verb
from mulligan.core.format import moment
from mulligan.core.job import SECOND, Micros

DAY = 86_400 * SECOND
MOST_CAUSES = 20  # of one kind; the one without news for longest is forgotten
ASKED_EVERY = 60 * SECOND  # of a kind that is not known ever to have worked
LONGEST = 200  # characters of a public sentence
OURS = "mulligan."

# An input, a wish, a limit that a guard of its own minds: never a kind's fault.
INNOCENT = frozenset({Cls.INVALID_INPUT, Cls.CANCELLED, Cls.RATE_LIMITED})
# Worth another try: counts only where one was made and did not help; jobs that use something have that one's breaker.
PASSING = frozenset({Cls.TRANSIENT, Cls.TIMEOUT})
# May be one customer's own: an account, a file that is too large.
PERSONAL = frozenset({Cls.AUTH, Cls.QUOTA, Cls.RESOURCE, Cls.TIMEOUT})
# Ends that say nothing of a cause, or the same of many.
SILENT = frozenset(
    {
        "DEADLINE_PASSED",
        "DEPENDENCY_UNAVAILABLE",
        "KIND_UNKNOWN",
        "OUTCOME_REFUSED",
        "RETRY_REFUSED",
        "RETRY_REQUESTED",
        "SNOOZE_LIMIT",
        "UNREPORTED",
        "WORKER_LOST",
    }
)


class KindBreakerTerms(NamedTuple):
    """How many distinct jobs, of how many owners, are too many; 0 jobs: none ever are."""

    jobs: int = 5
    owners: int = 2
    alone: int = 20  # of one owner, or where the cause may be a customer's own

    @property
    def most(self) -> int:
        return max(self.jobs, self.alone)


DEFAULT_KIND_TERMS = KindBreakerTerms()


class KindDeath(NamedTuple):
    """A job that died, as it is counted. A list of these is the body of a tally."""

    job: str
    owner: str
    at: Micros
    fingerprint: str
    code: str
    message: str  # the public one
    personal: bool


class Victim(NamedTuple):
    """Short names: it matters only how many different ones there are."""

    job: str
    owner: str
    at: Micros


@dataclass(frozen=True, slots=True)
class Streak:
    """Deaths of one cause."""

    code: str
    message: str
    job: str  # the last one, as an example
    personal: bool
    victims: tuple[Victim, ...]  # the newest, in the order of time

    @property
    def owners(self) -> int:
        return len({victim.owner for victim in self.victims})


class KindHold(NamedTuple):
    """A kind that is held, and for what."""

    fingerprint: str
    code: str
    message: str
    job: str
    jobs: int
    owners: int
    since: Micros  # when the first of them died
    reason: str


@dataclass(frozen=True, slots=True)
class KindState:
    """What is remembered of a kind."""

    streaks: Mapping[str, Streak] = field(default_factory=dict)  # by fingerprint
    worked: bool = False  # a job of it has succeeded some day
    asked_at: Micros = 0  # when the store was last asked for one
    held: KindHold | None = None

    def to_json(self) -> str:
        said: dict[str, Any] = {}
        if self.streaks:
            said["streaks"] = {
                name: [getattr(one, part) for part in _PARTS] for name, one in self.streaks.items()
            }
        said |= {name: value for name in _PLAIN if (value := getattr(self, name))}
        return json.dumps(said, separators=(",", ":"))


NOTHING = KindState()
_PARTS = Streak.__slots__
_PLAIN = ("worked", "asked_at", "held")


class Success(NamedTuple):
    """When a job of a kind last succeeded, as far back as was looked."""

    at: Micros | None
    looked: Micros  # back to this moment


def read_kind_body(text: str) -> KindState:
    """What cannot be read is forgotten."""
    try:
        said = json.loads(text) if text else {}
        streaks = {name: _streak(one) for name, one in said.get("streaks", {}).items()}
        held = said.get("held")
        return KindState(
            streaks,
            bool(said.get("worked")),
            int(said.get("asked_at", 0)),
            None if held is None else KindHold(*held),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return NOTHING


def _streak(said: Any) -> Streak:
    code, message, job, personal, victims = said
    return Streak(code, message, job, personal, tuple(Victim(*victim) for victim in victims))


def read_deaths(text: str) -> list[KindDeath]:
    try:
        return [KindDeath(*said) for said in json.loads(text)]
    except (TypeError, ValueError):
        return []  # a newer version counts otherwise


# -- counting ---------------------------------------------------------------------------------------
def death(lease: Lease, decision: Decision, now: Micros) -> KindDeath | None:
    """None: it does not count."""
    failure = decision.failure
    if (
        decision.verb is not Verb.DIE
        or failure is None
        or lease.kind.startswith(OURS)
        or not _counts(lease, decision)
    ):
        return None
    message = failure.public[:LONGEST]
    return KindDeath(
        lease.id, lease.owner, now, failure.fingerprint, failure.code, message, _personal(failure)
    )


def _counts(lease: Lease, decision: Decision) -> bool:
    failure = decision.failure
    if (
        failure is None
        or not failure.fingerprint
        or failure.cls in INNOCENT
        or failure.code in SILENT
    ):
        return False
    return failure.cls not in PASSING or (not lease.uses and decision.failures > 1)


def _personal(failure: Failure) -> bool:
    """What was seen only from outside, such as a process that died, may have any reason."""
    return failure.cls in PERSONAL or failure.by_system


def counted(
    memory: KindState, deaths: Iterable[KindDeath], terms: KindBreakerTerms, now: Micros
) -> KindState:
    streaks = dict(memory.streaks)
    for one in deaths:
        before = streaks.pop(one.fingerprint, None)
        streaks[one.fingerprint] = _with(before, one, terms.most)
    return replace(memory, streaks=_since(streaks, now - DAY))


def _with(streak: Streak | None, one: KindDeath, most: int) -> Streak:
    victim = Victim(_short(one.job), _short(one.owner), one.at)
    others = (
        [] if streak is None else [other for other in streak.victims if other.job != victim.job]
    )
    return Streak(one.code, one.message, one.job, one.personal, (*others, victim)[-most:])


def _short(name: str) -> str:
    return f"{crc32(name.encode()):08x}"


def _since(streaks: Mapping[str, Streak], since: Micros) -> dict[str, Streak]:
    late = {
        name: tuple(victim for victim in one.victims if victim.at > since)
        for name, one in streaks.items()
    }
    kept = {name: replace(one, victims=late[name]) for name, one in streaks.items() if late[name]}
    newest = sorted(kept, key=lambda name: kept[name].victims[-1].at)[-MOST_CAUSES:]
    return {name: kept[name] for name in newest}


# -- judging ----------------------------------------------------------------------------------------
def suspicious(memory: KindState, terms: KindBreakerTerms, now: Micros) -> bool:
    """Is it worth asking when a job of this kind last succeeded?"""
    may_have_worked = memory.worked or abs(now - memory.asked_at) >= ASKED_EVERY
    return memory.held is None and any(
        _too_many(one, terms, worked=may_have_worked) for one in memory.streaks.values()
    )


def judged(memory: KindState, success: Success, terms: KindBreakerTerms, now: Micros) -> KindState:
    """Only deaths after the last success count, and only as far back as it is known that there was none."""
    since = success.looked if success.at is None else max(success.at, success.looked)
    worked = memory.worked or success.at is not None
    memory = replace(memory, streaks=_since(memory.streaks, since), worked=worked, asked_at=now)
    for name, one in memory.streaks.items():
        if memory.held is None and _too_many(one, terms, worked=worked):
            return replace(memory, streaks={}, held=_held(name, one))
    return memory


def _too_many(streak: Streak, terms: KindBreakerTerms, *, worked: bool) -> bool:
    jobs, several = len(streak.victims), streak.owners >= terms.owners
    if not terms.jobs:
        return False
    if several and not streak.personal and jobs >= terms.jobs:
        return True
    return 0 < terms.alone <= jobs and (several or worked)


def _held(fingerprint: str, streak: Streak) -> KindHold:
    jobs, owners, since = len(streak.victims), streak.owners, streak.victims[0].at
    of = f" of {owners} owners" if owners > 1 else ""
    reason = f"{jobs} jobs{of} died of {streak.code} since {moment(since)}, and none has succeeded: {streak.message}"
    return KindHold(
        fingerprint, streak.code, streak.message, streak.job, jobs, owners, since, reason
    )


def released(memory: KindState) -> KindState:
    """Whoever releases it has seen to the cause: what came before says nothing any more."""
    return KindState(worked=memory.worked)
