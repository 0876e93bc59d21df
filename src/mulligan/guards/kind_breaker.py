"""Kind breaker: hold a kind when many of its jobs die of one cause and none succeeds. Pure.

Only dead jobs count; a job that is retried may still succeed. A cause that may be one owner's fault
(a file, a password, a used-up account) needs many more deaths, or never counts. An operator
releases the kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Any, NamedTuple
from zlib import crc32

from mulligan.core.attempt import Cls, Decision, Lease, Verb, system_rule
from mulligan.core.durations import SECOND, Micros
from mulligan.core.format import format_time

DAY = 86_400 * SECOND
MAX_CAUSES = 20  # per kind; the one with the oldest last death is dropped
CHECK_INTERVAL = 60 * SECOND  # between searches for a success of a kind that never had one
MAX_MESSAGE_CHARS = 200
SYSTEM_PREFIX = "mulligan."

# The input, a cancellation or a rate limit, which has its own guard: never the kind's fault.
EXCLUDED_CLASSES = frozenset({Cls.INVALID_INPUT, Cls.CANCELLED, Cls.RATE_LIMITED})
# Count only if a retry was made and failed too. Jobs with dependencies have breakers for these.
TEMPORARY_CLASSES = frozenset({Cls.TRANSIENT, Cls.TIMEOUT})
# May be the fault of one owner: an account, a file that is too large.
OWNER_CLASSES = frozenset({Cls.AUTH, Cls.QUOTA, Cls.RESOURCE, Cls.TIMEOUT})
# Failures that do not identify a cause, also after a rule of the app has renamed them.
EXCLUDED_RULES = frozenset(
    system_rule(code)
    for code in (
        "DEADLINE_PASSED",
        "DEPENDENCY_UNAVAILABLE",
        "KIND_UNKNOWN",
        "OUTCOME_REFUSED",
        "RETRY_REFUSED",
        "RETRY_REQUESTED",
        "SNOOZE_LIMIT",
        "UNREPORTED",
        "WORKER_LOST",
    )
)


class KindBreakerConfig(NamedTuple):
    """How many jobs of how many owners must die of one cause; 0 jobs switches the breaker off."""

    jobs: int = 5
    owners: int = 2
    single_owner_jobs: int = 20  # if all are of one owner, or the cause may be the owner's fault


DEFAULT_KIND_BREAKER = KindBreakerConfig()


class KindDeath(NamedTuple):
    """A job that died, as it is counted. A tally stores a list of these."""

    job: str
    owner: str
    at: Micros
    fingerprint: str
    code: str
    message: str  # public
    personal: bool  # may be the owner's fault


class Victim(NamedTuple):
    """A dead job and its owner as short hashes: only the number of different ones matters."""

    job: str
    owner: str
    at: Micros


@dataclass(frozen=True, slots=True)
class DeathStreak:
    """Deaths of one cause since the last success of the kind."""

    code: str
    message: str
    job: str  # id of the last one
    personal: bool
    victims: tuple[Victim, ...]  # the newest ones, oldest first

    @property
    def owners(self) -> int:
        return len({victim.owner for victim in self.victims})


class KindHold(NamedTuple):
    """The cause for which a kind is held."""

    fingerprint: str
    code: str
    message: str
    job: str
    jobs: int
    owners: int
    since: Micros  # time of the first death
    reason: str


class KindTrial(NamedTuple):
    """A job of a held kind that an operator lets run, to see whether the cause is fixed."""

    job: str
    lane: str
    token: int  # of its attempt
    at: Micros
    claimed: bool = False


@dataclass(frozen=True, slots=True)
class KindState:
    """State of a kind's breaker as stored."""

    streaks: Mapping[str, DeathStreak] = field(default_factory=dict)  # by fingerprint
    worked: bool = False  # a job of the kind has succeeded at some time
    checked_at: Micros = 0  # last search for a success
    held: KindHold | None = None
    trial: KindTrial | None = None  # the last one of this hold

    def to_json(self) -> str:
        record: dict[str, Any] = {}
        if self.streaks:
            record["streaks"] = {
                fingerprint: [getattr(streak, name) for name in DeathStreak.__slots__]
                for fingerprint, streak in self.streaks.items()
            }
        for name in ("worked", "checked_at", "held", "trial"):
            value = getattr(self, name)
            if value:
                record[name] = value
        return json.dumps(record, separators=(",", ":"))


EMPTY_KIND_STATE = KindState()


class LastSuccess(NamedTuple):
    """When a job of a kind last succeeded, and how far back was searched."""

    at: Micros | None
    searched_since: Micros


def parse_kind_state(text: str) -> KindState:
    """Parse a stored state. An unreadable state is empty."""
    if not text:
        return EMPTY_KIND_STATE
    try:
        record = json.loads(text)
        streaks = {}
        for fingerprint, (*values, victims) in record.get("streaks", {}).items():
            code, message, job, personal = values
            last = tuple(starmap(Victim, victims))
            streaks[fingerprint] = DeathStreak(code, message, job, personal, last)
        hold = record.get("held")
        held = None if hold is None else KindHold(*hold)
        trial = record.get("trial")
        return KindState(
            streaks=streaks,
            worked=bool(record.get("worked")),
            checked_at=int(record.get("checked_at", 0)),
            held=held,
            trial=None if trial is None else KindTrial(*trial),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return EMPTY_KIND_STATE


def parse_deaths(text: str) -> list[KindDeath]:
    """Parse a tally. One that a newer version wrote in another form is ignored."""
    try:
        return [KindDeath(*value) for value in json.loads(text)]
    except (TypeError, ValueError):
        return []


# --- Counting ---


def count_death(lease: Lease, decision: Decision, now: Micros) -> KindDeath | None:
    """Return the death of a job as it is counted, or None if it does not count."""
    failure = decision.failure
    if failure is None or decision.verb is not Verb.DIE or lease.kind.startswith(SYSTEM_PREFIX):
        return None
    if not failure.fingerprint or failure.origin in EXCLUDED_RULES:
        return None
    if failure.cls in EXCLUDED_CLASSES:
        return None
    if failure.cls in TEMPORARY_CLASSES and (lease.uses or decision.failures <= 1):
        return None
    return KindDeath(
        job=lease.id,
        owner=lease.owner,
        at=now,
        fingerprint=failure.fingerprint,
        code=failure.code,
        message=failure.public[:MAX_MESSAGE_CHARS],
        # A failure that Mulligan observed from outside, such as a dead process, may have any cause.
        personal=failure.cls in OWNER_CLASSES or failure.by_system,
    )


def add_deaths(
    state: KindState, deaths: Iterable[KindDeath], config: KindBreakerConfig, now: Micros
) -> KindState:
    """Add deaths to the streaks of their causes and drop victims older than a day."""
    streaks = dict(state.streaks)
    max_victims = max(config.jobs, config.single_owner_jobs)
    for death in deaths:
        before = streaks.pop(death.fingerprint, None)
        streaks[death.fingerprint] = _extend_streak(before, death, max_victims)
    return replace(state, streaks=_drop_older(streaks, now - DAY))


def _extend_streak(streak: DeathStreak | None, death: KindDeath, max_victims: int) -> DeathStreak:
    victim = Victim(_hash(death.job), _hash(death.owner), death.at)
    others: list[Victim] = []
    if streak is not None:
        others = [other for other in streak.victims if other.job != victim.job]
    victims = (*others, victim)[-max_victims:]
    return DeathStreak(death.code, death.message, death.job, death.personal, victims)


def _hash(name: str) -> str:
    return f"{crc32(name.encode()):08x}"


def _drop_older(streaks: Mapping[str, DeathStreak], since: Micros) -> dict[str, DeathStreak]:
    """Keep the victims after `since` and the causes with the newest deaths."""
    recent = {}
    for fingerprint, streak in streaks.items():
        victims = tuple(victim for victim in streak.victims if victim.at > since)
        if victims:
            recent[fingerprint] = replace(streak, victims=victims)
    by_last_death = sorted((streak.victims[-1].at, cause) for cause, streak in recent.items())
    return {cause: recent[cause] for _, cause in by_last_death[-MAX_CAUSES:]}


# --- Judging ---


def is_suspicious(state: KindState, config: KindBreakerConfig, now: Micros) -> bool:
    """Return True if it is worth a query for the last success of this kind."""
    if state.held is not None:
        return False
    may_have_worked = state.worked or abs(now - state.checked_at) >= CHECK_INTERVAL
    return any(
        _is_too_many(streak, config, worked=may_have_worked) for streak in state.streaks.values()
    )


def judge_streaks(
    state: KindState, success: LastSuccess, config: KindBreakerConfig, now: Micros
) -> KindState:
    """Hold the kind if too many jobs died of one cause since the last success.

    Deaths before the searched period do not count: a success may lie between them.
    """
    since = success.searched_since
    if success.at is not None:
        since = max(success.at, since)
    worked = state.worked or success.at is not None
    streaks = _drop_older(state.streaks, since)
    state = replace(state, streaks=streaks, worked=worked, checked_at=now)
    if state.held is not None:
        return state
    for fingerprint, streak in streaks.items():
        if _is_too_many(streak, config, worked=worked):
            return replace(state, streaks={}, held=_build_hold(fingerprint, streak))
    return state


def _is_too_many(streak: DeathStreak, config: KindBreakerConfig, *, worked: bool) -> bool:
    if not config.jobs:
        return False
    jobs = len(streak.victims)
    several_owners = streak.owners >= config.owners
    if several_owners and not streak.personal and jobs >= config.jobs:
        return True
    return 0 < config.single_owner_jobs <= jobs and (several_owners or worked)


def _build_hold(fingerprint: str, streak: DeathStreak) -> KindHold:
    jobs = len(streak.victims)
    owners = streak.owners
    since = streak.victims[0].at
    of_owners = f" of {owners} owners" if owners > 1 else ""
    reason = (
        f"{jobs} jobs{of_owners} failed in a row with {streak.code} since {format_time(since)};"
        f" the others wait instead of dying: {streak.message}"
    )
    return KindHold(
        fingerprint, streak.code, streak.message, streak.job, jobs, owners, since, reason
    )


def release_kind(state: KindState) -> KindState:
    """Forget all deaths: an operator releases a kind after the cause is fixed."""
    return KindState(worked=state.worked)
