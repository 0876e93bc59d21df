"""What can be done from a page: who may, and what to call. The rules are where they always are; this only asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mulligan.engine.filters import seconds
from mulligan.engine.keys import Role
from mulligan.engine.limiting import KEEP
from mulligan.engine.workers import request_drain
from mulligan.errors import NotFound, Refused
from mulligan.policy.phrase import duration, per
from mulligan.web.desk import Visited

Said = Mapping[str, str]
WEEK = 7 * 86_400.0


class Action(NamedTuple):
    do: Callable[[Visited, str, Said], str]  # returns what was done, for people
    back: str  # where the visitor finds it
    role: Role = Role.OPERATOR
    shared: bool = False  # of all owners, so it needs scope *


def _reason(said: Said) -> str:
    return said.get("reason", "")


def _until(said: Said) -> float | None:
    words = said.get("until", "")
    found = seconds(words) if words else None
    if words and found is None:
        message = f"until: {words!r:.40} is no length; write 30m, 2h or 1d"
        raise Refused(message)
    return found


# -- jobs -------------------------------------------------------------------------------------------
def _retry(desk: Visited, job: str, said: Said) -> str:
    found = desk.jobs.retry(job, reason=_reason(said), owner=desk.owner)
    return f"Retried: generation {found.generation} begins. {found.why}"


def _cancel(desk: Visited, job: str, said: Said) -> str:
    found = desk.jobs.cancel(job, reason=_reason(said), owner=desk.owner)
    return "Cancelled." if found.state == "cancelled" else "Asked to stop; it is cancelled once its code has stopped."


def _release(desk: Visited, job: str, said: Said) -> str:
    desk.jobs.release(job, choice=said.get("choice") or None, reason=_reason(said), owner=desk.owner)
    return "Released: it goes on where it was."


def _discard(desk: Visited, job: str, said: Said) -> str:
    desk.jobs.discard(job, reason=_reason(said), owner=desk.owner)
    return "Discarded: it stays in the history, and nobody has to look at it any more."


# -- failures ---------------------------------------------------------------------------------------
def _mute(desk: Visited, group: str, said: Said) -> str:
    desk.failures.mute(group, until=_until(said), reason=_reason(said), owner=desk.owner)
    return "Muted."


def _resolve(desk: Visited, group: str, said: Said) -> str:
    desk.failures.resolve(group, note=_reason(said), owner=desk.owner)
    return "Resolved. If a job dies of it again, it comes back as regressed."


def _reopen(desk: Visited, group: str, said: Said) -> str:
    desk.failures.reopen(group, reason=_reason(said), owner=desk.owner)
    return "Open again."


# -- batches, operations ----------------------------------------------------------------------------
def _retry_batch(desk: Visited, batch: str, said: Said) -> str:
    desk.batches.get(batch, owner=desk.owner)
    found = desk.batches.retry_failed(batch, reason=_reason(said))
    return f"Retried {len(found.jobs):,} of its members."


def _cancel_batch(desk: Visited, batch: str, said: Said) -> str:
    desk.batches.get(batch, owner=desk.owner)
    desk.batches.cancel(batch, reason=_reason(said))
    return "Cancelled: what waits is cancelled, what runs is asked to stop."


def _operation(verb: str, words: str) -> Callable[[Visited, str, Said], str]:
    def act(desk: Visited, operation: str, said: Said) -> str:
        getattr(desk.operations, verb)(operation, reason=_reason(said), owner=desk.owner)
        return words

    return act


# -- links for owners -------------------------------------------------------------------------------
def _share(noun: str) -> Callable[[Visited, str, Said], str]:
    def act(desk: Visited, name: str, said: Said) -> str:
        found = desk.jobs.get(name, owner=desk.owner) if noun == "jobs" else desk.batches.get(name, owner=desk.owner)
        expires = _until(said) or WEEK
        link = desk.status.link(found, retry=said.get("again") == "1", expires=expires)
        return f"For its owner, who needs no key, for {duration(expires)}: {link}"

    return act


# -- limits -----------------------------------------------------------------------------------------
def _limits(said: Said) -> dict[str, Any]:
    """What is left empty stays as it was set; "none" is no limit."""
    concurrency, rate = said.get("concurrency", ""), said.get("rate", "")
    if concurrency and concurrency != "none" and not (concurrency.isascii() and concurrency.isdecimal()):
        message = f"at once: {concurrency!r:.40} is no whole number; to have no limit, write none"
        raise Refused(message)
    return {
        "concurrency": KEEP if not concurrency else None if concurrency == "none" else int(concurrency[:9]),
        "rate": KEEP if not rate else None if rate == "none" else rate,
        "until": _until(said),
        "reason": _reason(said),
    }


def _set_queue(desk: Visited, queue: str, said: Said) -> str:
    found = desk.queues.set(queue, **_limits(said))
    return f"Queue {queue}: {limits_in_words(found.concurrency, found.rate)}, whatever its code says."


def _clear_queue(desk: Visited, queue: str, said: Said) -> str:
    found = desk.queues.clear(queue, reason=_reason(said))
    return f"Queue {queue} is back to what its code says: {limits_in_words(found.concurrency, found.rate)}."


def _set_dependency(desk: Visited, key: str, said: Said) -> str:
    found = desk.dependencies.set(key, **_limits(said))
    return f"{key}: {limits_in_words(found.concurrency, found.rate)}, whatever its code says."


def _clear_dependency(desk: Visited, key: str, said: Said) -> str:
    found = desk.dependencies.clear(key, reason=_reason(said))
    return f"{key} is back to what its code says: {limits_in_words(found.concurrency, found.rate)}."


def limits_in_words(concurrency: int | None, rate: float | None) -> str:
    said = [f"{concurrency:,} at once" if concurrency is not None else "", per(rate) if rate is not None else ""]
    return ", ".join(limit for limit in said if limit) or "no limit"


# -- what is shared ---------------------------------------------------------------------------------
def _pause(desk: Visited, queue: str, said: Said) -> str:
    desk.queues.pause(queue, until=_until(said), reason=_reason(said))
    return f"Queue {queue} is paused: nothing of it starts; what runs goes on."


def _resume(desk: Visited, queue: str, said: Said) -> str:
    desk.queues.resume(queue, reason=_reason(said))
    return f"Queue {queue} goes on."


def _hold_kind(desk: Visited, kind: str, said: Said) -> str:
    desk.kinds.hold(kind, until=_until(said), reason=_reason(said))
    return f"Kind {kind} is held: its jobs wait."


def _release_kind(desk: Visited, kind: str, said: Said) -> str:
    desk.kinds.release(kind, reason=_reason(said))
    return f"Kind {kind} is released."


def _open(desk: Visited, key: str, said: Said) -> str:
    desk.dependencies.open(key, until=_until(said), reason=_reason(said))
    return f"{key} is held open: its jobs wait."


def _close(desk: Visited, key: str, said: Said) -> str:
    desk.dependencies.close(key, reason=_reason(said))
    return f"{key} is closed: its jobs go on, slowly at first."


def _probe(desk: Visited, key: str, said: Said) -> str:
    desk.dependencies.probe(key, reason=_reason(said))
    return f"{key} is looked at as soon as a worker can."


def _drain(desk: Visited, worker: str, said: Said) -> str:
    with desk.store.begin() as unit:
        found = [row for row in unit.workers(closed=False) if row.id == worker]
        if not found:
            message = f"no worker {worker!r:.80} that has not left"
            raise NotFound(message)
        request_drain(unit, found, desk.visitor.actor, _reason(said))
    return "Asked to drain: it claims nothing more, finishes what it runs, and leaves."


def _silence(desk: Visited, rule: str, said: Said) -> str:
    desk.alerts.silence(rule, _until(said) or 3600.0, reason=_reason(said))
    return f"Alert {rule} is silent for {duration(_until(said) or 3600.0)}."


def _unsilence(desk: Visited, rule: str, said: Said) -> str:
    desk.alerts.unsilence(rule, reason=_reason(said))
    return f"Alert {rule} is heard again."


# -- notifications ----------------------------------------------------------------------------------
def _test(desk: Visited, subscription: str, said: Said) -> str:
    del said
    return f"A test is on its way: {desk.subscriptions.test(subscription, owner=desk.owner).message}."


def _switch(verb: str, words: str) -> Callable[[Visited, str, Said], str]:
    def act(desk: Visited, subscription: str, said: Said) -> str:
        getattr(desk.subscriptions, verb)(subscription, owner=desk.owner, reason=_reason(said))
        return words

    return act


def _send_again(desk: Visited, delivery: str, said: Said) -> str:
    desk.deliveries.retry(delivery, owner=desk.owner, reason=_reason(said))
    return "It is sent again."


def _pause_schedule(desk: Visited, schedule: str, said: Said) -> str:
    desk.schedules.pause(schedule, until=_until(said), reason=_reason(said))
    return f"Schedule {schedule} is paused: its slots get no job; one of the next seconds may have one already."


def _resume_schedule(desk: Visited, schedule: str, said: Said) -> str:
    desk.schedules.resume(schedule, reason=_reason(said))
    return f"Schedule {schedule} goes on from now; what came meanwhile is not made up for."


def _run(desk: Visited, schedule: str, said: Said) -> str:
    job = desk.schedules.run(schedule, reason=_reason(said))
    return f"Enqueued now: job {job.id}."


ACTIONS: Mapping[tuple[str, str], Action] = {
    ("jobs", "retry"): Action(_retry, "/jobs/{id}"),
    ("jobs", "cancel"): Action(_cancel, "/jobs/{id}"),
    ("jobs", "release"): Action(_release, "/jobs/{id}"),
    ("jobs", "discard"): Action(_discard, "/jobs/{id}"),
    ("failures", "mute"): Action(_mute, "/failures/{id}"),
    ("failures", "resolve"): Action(_resolve, "/failures/{id}"),
    ("failures", "reopen"): Action(_reopen, "/failures/{id}"),
    ("batches", "retry"): Action(_retry_batch, "/batches/{id}"),
    ("batches", "cancel"): Action(_cancel_batch, "/batches/{id}"),
    ("operations", "pause"): Action(_operation("pause", "Paused: nothing more is sent for now."), "/operations/{id}"),
    ("operations", "resume"): Action(_operation("resume", "It goes on."), "/operations/{id}"),
    ("operations", "abort"): Action(
        _operation("abort", "Ended. What was not sent stays untouched."), "/operations/{id}"
    ),
    ("jobs", "share"): Action(_share("jobs"), "/jobs/{id}"),
    ("batches", "share"): Action(_share("batches"), "/batches/{id}"),
    ("queues", "set"): Action(_set_queue, "/queues", shared=True),
    ("queues", "clear"): Action(_clear_queue, "/queues", shared=True),
    ("dependencies", "set"): Action(_set_dependency, "/dependencies", shared=True),
    ("dependencies", "clear"): Action(_clear_dependency, "/dependencies", shared=True),
    ("workers", "drain"): Action(_drain, "/queues", shared=True),
    ("queues", "pause"): Action(_pause, "/queues", shared=True),
    ("queues", "resume"): Action(_resume, "/queues", shared=True),
    ("kinds", "hold"): Action(_hold_kind, "/queues", shared=True),
    ("kinds", "release"): Action(_release_kind, "/queues", shared=True),
    ("dependencies", "open"): Action(_open, "/dependencies", shared=True),
    ("dependencies", "close"): Action(_close, "/dependencies", shared=True),
    ("dependencies", "probe"): Action(_probe, "/dependencies", shared=True),
    ("alerts", "silence"): Action(_silence, "/alerts", shared=True),
    ("alerts", "unsilence"): Action(_unsilence, "/alerts", shared=True),
    ("subscriptions", "test"): Action(_test, "/notifications"),
    ("subscriptions", "enable"): Action(_switch("enable", "Switched on."), "/notifications"),
    ("subscriptions", "disable"): Action(_switch("disable", "Switched off."), "/notifications"),
    ("deliveries", "retry"): Action(_send_again, "/notifications"),
    ("schedules", "pause"): Action(_pause_schedule, "/schedules", shared=True),
    ("schedules", "resume"): Action(_resume_schedule, "/schedules", shared=True),
    ("schedules", "run"): Action(_run, "/schedules", shared=True),
}


def action(noun: str, verb: str) -> Action:
    found = ACTIONS.get((noun, verb))
    if found is None:
        message = f"there is nothing called {verb!r:.40} to do with {noun!r:.40}"
        raise Refused(message)
    return found
