"""What must hold before a job is run again by hand, each with its own code; asked before anything changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from shlex import quote

from mulligan.core.attempt import Verb
from mulligan.engine import batching
from mulligan.engine.amend import Change, Kinds
from mulligan.engine.asking import refusal
from mulligan.engine.declared import holding_manifests, terms_of_all
from mulligan.engine.recording import frees_key
from mulligan.engine.unique import unique_hash
from mulligan.engine.watch import Watch, remembered
from mulligan.errors import DependencyOpen, IllegalMove, MulliganError, RetryLimited, RetryRefused, UniqueTaken
from mulligan.job import JobRow, Limit, Micros, State, to_datetime
from mulligan.policy import lifecycle
from mulligan.policy.limits import next_start, rate_parts, refilled
from mulligan.policy.phrase import moment, one_line
from mulligan.store.base import Unit

OWNER = "owner"  # the scope of its meter


class Busy(Exception):
    """The meter is in another hand, for the length of a transaction."""


def key_after(row: JobRow, state: State, key: str | None = None) -> str | None:
    """Back in a covered state the job wants its key again; another holder refuses the move."""
    name = key or row.unique_key
    if name is None or frees_key(row.unique_cover, state):
        return None
    return unique_hash(row.owner, row.kind, name) if key or row.unique_hash is None else row.unique_hash


def refusals(unit: Unit, row: JobRow, change: Change, at: Micros | None) -> Iterator[MulliganError]:
    """Everything that stands in the way of a retry by hand, as far as the database can tell."""
    checks: tuple[Callable[[], None], ...] = (
        lambda: _state(row),
        lambda: batching.check_retry(unit, row),
        lambda: _key(unit, row, change),
        lambda: _dependencies(unit, row, change, at),
    )
    for check in checks:
        try:
            check()
        except MulliganError as error:
            yield error
            if isinstance(error, IllegalMove):  # of a job that cannot be retried nothing else is asked
                return


def _state(row: JobRow) -> None:
    lifecycle.move(Verb.RETRY_BY_HAND, State(row.state))


def _key(unit: Unit, row: JobRow, change: Change) -> None:
    wanted = key_after(row, State.QUEUED, change.unique_key)
    holder = None if wanted is None else unit.key_holder(wanted)
    if holder not in (None, row.id):
        raise UniqueTaken(taken(row, change, holder))


def taken(row: JobRow, change: Change, holder: str | None) -> str:
    key = one_line(change.unique_key or row.unique_key or "")
    who = f"job {holder}" if holder else "another job"
    return (
        f"{who} holds the unique key {key!r} of job {row.id} now; cancel or discard that one first, or leave this one"
    )


def _dependencies(unit: Unit, row: JobRow, change: Change, at: Micros | None) -> None:
    now = unit.now()
    if at is None or at <= now:  # else it may be well again by then
        refuse_down(unit, row.uses if change.uses is None else change.uses, now)


def refuse_down(unit: Unit, uses: str, now: Micros) -> None:
    """Down, and of those whose jobs end at once. Of others the job waits, and its `why` says so."""
    keys = [key for key in uses.split(",") if key]
    if not keys:
        return
    guards = {one.key: remembered(one.body) for one in unit.guards(at_work=True) if one.scope == "dependency"}
    down = [key for key in keys if key in guards and guards[key].is_down(now)]
    terms = Watch(others=terms_of_all(holding_manifests(unit, now))) if down else Watch()
    for key in down:
        if terms.terms(key).mode == "fail_fast":
            message = (
                f"dependency {key} is down since {moment(guards[key].since)}, and jobs that use it end at once: this "
                f"one would too. Retry it later (at=), or close it first: mulligan deps close {quote(key)}"
            )
            raise DependencyOpen(message)


def ask_app(row: JobRow, change: Change, known: Kinds) -> None:
    """`can_retry=` of its kind, where the app is; elsewhere a worker asks it before the first attempt."""
    handler = known.handler
    if handler is None or handler.can_retry is None:
        return
    arguments = handler.arguments.decode(change.payload or row.payload)
    try:
        why = refusal(handler.can_retry.answer(handler.can_retry.given(arguments)))
    except Exception as error:
        message = f"nothing was changed: can_retry of kind {row.kind} could not answer ({type(error).__name__})"
        raise RetryRefused(message) from error
    if why:
        message = f"kind {row.kind} says that this job must not run again: {why}"
        raise RetryRefused(message)


def spend(unit: Unit, owner: str, allowed: str) -> None:
    """One retry by hand of what an owner is allowed, counted for the whole fleet."""
    many, seconds = rate_parts(allowed) or (0.0, 1)
    key = (OWNER, owner)
    found = unit.meters([key])[key]
    if found is None:
        raise Busy
    limit = Limit(rate=many / seconds)
    meter = refilled(found[0], many / seconds, found[1], burst=many)
    again = next_start(limit, meter)
    if again is not None:
        message = (
            f"owner {one_line(owner)} may retry {allowed} by hand, and has; the next is possible at {moment(again)}"
        )
        raise RetryLimited(message, to_datetime(again))
    unit.spend(key, meter._replace(tokens=meter.tokens - 1))
