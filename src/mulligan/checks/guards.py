"""What jobs use: which breakers are open, what runs at less than it could, and whether there are too many names."""

from __future__ import annotations

from shlex import quote

from mulligan.checks.finding import OK, WARN, Check, Checks
from mulligan.config import Settings
from mulligan.engine.dependencies import Dependency, picture
from mulligan.engine.queues import COUNT_CAP
from mulligan.job import SECOND, Micros, to_micros
from mulligan.policy.phrase import per, span
from mulligan.store.base import Unit

MANY = 2000
WAITS_ANYWAY = ("handler", "hint")  # a hold for a certain time, whatever the mode


def guard_checks(unit: Unit, _: Settings) -> Checks:
    now = unit.now()
    found = picture(unit)
    troubled = [check for one in found for check in _of(one, now)]
    yield from troubled or [Check(OK, "dependencies", f"{len(found)} known, none is open or slowed down")]
    yield from _too_many(len(unit.look().lanes), len(found))


def _of(one: Dependency, now: Micros) -> Checks:
    if one.state == "open":
        why = f": {one.reason}" if one.reason else f", by {one.actor}"
        ends = one.mode == "fail_fast" and one.actor not in WAITS_ANYWAY
        held = "its jobs end at once" if ends else f"{count(one.held)} jobs are held"
        sentence = f"{one.key} is open{_since(one, now)}{why}; {held}, {_next(one, now)}"
        yield Check(WARN, "dependencies", sentence, _advice(one))
    elif one.state == "ramping":
        sentence = f"{one.key} recovers{_since(one, now)}: {per(one.rate or 0)} may start, {count(one.held)} jobs wait"
        yield Check(WARN, "dependencies", sentence, "nothing: it grows by itself while all goes well")
    if one.reduced:
        sentence = f"{one.key} asked for fewer calls: {one.concurrency} at a time for now"
        advice = f"mulligan deps set {quote(one.key)} --rate N/s, with what it allows"
        yield Check(WARN, "dependencies", sentence, advice)


def _since(one: Dependency, now: Micros) -> str:
    return "" if one.since is None else f" since {span(to_micros(one.since), now)}"


def _next(one: Dependency, now: Micros) -> str:
    if one.probing:
        return "a probe is under way"
    if one.probe_at is not None:
        at = to_micros(one.probe_at)
        return f"next probe in {span(now, at)}" if at - now >= SECOND else "a probe goes as soon as a worker is free"
    return "until somebody closes it" if one.until is None else f"for another {span(now, to_micros(one.until))}"


def _advice(one: Dependency) -> str:
    return f"mulligan deps {'close' if one.probe_at is None else 'probe'} {quote(one.key)}"


def _too_many(lanes: int, keys: int) -> Checks:
    """Every claim looks at every lane."""
    advice = "fewer different uses=, or kinds: a key per service, not per customer or file"
    if lanes > MANY:
        yield Check(WARN, "lanes", f"{lanes} lanes have waiting jobs: every claim looks at each of them", advice)
    if keys > MANY:
        yield Check(WARN, "lanes", f"{keys} dependencies are known: each has a guard of its own", advice)


def count(jobs: int) -> str:
    return f"{COUNT_CAP}+" if jobs >= COUNT_CAP else str(jobs)
