"""What can be done from a page: who may, and what to call. The rules are where they always are; this only asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import Request, Response

from mulligan.access.keys import Role
from mulligan.core.errors import MulliganError, NotFound, Refused
from mulligan.core.format import duration, per
from mulligan.guards.gates import KEEP
from mulligan.http.dashboard.charts import Bar, bars
from mulligan.http.dashboard.renderer import Renderer, root_of
from mulligan.http.dashboard.sign_in import local
from mulligan.http.dashboard.view_models import listed, parts_of
from mulligan.http.services import CallerServices
from mulligan.insight.rules import percent
from mulligan.jobs.filter import seconds
from mulligan.operations.request import OperationPreview
from mulligan.operations.rules import Action as Bulk
from mulligan.operations.service import Wishes
from mulligan.worker.liveness import request_drain

Said = Mapping[str, str]
WEEK = 7 * 86_400.0


class PageAction(NamedTuple):
    do: Callable[[CallerServices, str, Said], str]  # returns what was done, for people
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
def _retry(desk: CallerServices, job: str, said: Said) -> str:
    found = desk.jobs.retry(job, reason=_reason(said), owner=desk.owner)
    return f"Retried: generation {found.generation} begins. {found.why}"


def _cancel(desk: CallerServices, job: str, said: Said) -> str:
    found = desk.jobs.cancel(job, reason=_reason(said), owner=desk.owner)
    return (
        "Cancelled."
        if found.state == "cancelled"
        else "Asked to stop; it is cancelled once its code has stopped."
    )


def _release(desk: CallerServices, job: str, said: Said) -> str:
    desk.jobs.release(
        job, choice=said.get("choice") or None, reason=_reason(said), owner=desk.owner
    )
    return "Released: it goes on where it was."


def _discard(desk: CallerServices, job: str, said: Said) -> str:
    desk.jobs.discard(job, reason=_reason(said), owner=desk.owner)
    return "Discarded: it stays in the history, and nobody has to look at it any more."


# -- failures ---------------------------------------------------------------------------------------
def _mute(desk: CallerServices, group: str, said: Said) -> str:
    desk.failures.mute(group, until=_until(said), reason=_reason(said), owner=desk.owner)
    return "Muted."


def _resolve(desk: CallerServices, group: str, said: Said) -> str:
    desk.failures.resolve(group, note=_reason(said), owner=desk.owner)
    return "Resolved. If a job dies of it again, it comes back as regressed."


def _reopen(desk: CallerServices, group: str, said: Said) -> str:
    desk.failures.reopen(group, reason=_reason(said), owner=desk.owner)
    return "Open again."


# -- batches, operations ----------------------------------------------------------------------------
def _retry_batch(desk: CallerServices, batch: str, said: Said) -> str:
    desk.batches.get(batch, owner=desk.owner)
    found = desk.batches.retry_failed(batch, reason=_reason(said))
    return f"Retried {len(found.jobs):,} of its members."


def _cancel_batch(desk: CallerServices, batch: str, said: Said) -> str:
    desk.batches.get(batch, owner=desk.owner)
    desk.batches.cancel(batch, reason=_reason(said))
    return "Cancelled: what waits is cancelled, what runs is asked to stop."


def _operation(verb: str, words: str) -> Callable[[CallerServices, str, Said], str]:
    def act(desk: CallerServices, operation: str, said: Said) -> str:
        getattr(desk.operations, verb)(operation, reason=_reason(said), owner=desk.owner)
        return words

    return act


# -- links for owners -------------------------------------------------------------------------------
def _share_link(noun: str) -> Callable[[CallerServices, str, Said], str]:
    def act(desk: CallerServices, name: str, said: Said) -> str:
        found = (
            desk.jobs.get(name, owner=desk.owner)
            if noun == "jobs"
            else desk.batches.get(name, owner=desk.owner)
        )
        expires = _until(said) or WEEK
        link = desk.status.link(found, retry=said.get("again") == "1", expires=expires)
        return f"For its owner, who needs no key, for {duration(expires)}: {link}"

    return act


# -- limits -----------------------------------------------------------------------------------------
def _limits(said: Said) -> dict[str, Any]:
    """What is left empty stays as it was set; "none" is no limit."""
    concurrency, rate = said.get("concurrency", ""), said.get("rate", "")
    if (
        concurrency
        and concurrency != "none"
        and not (concurrency.isascii() and concurrency.isdecimal())
    ):
        message = f"at once: {concurrency!r:.40} is no whole number; to have no limit, write none"
        raise Refused(message)
    return {
        "concurrency": KEEP
        if not concurrency
        else None
        if concurrency == "none"
        else int(concurrency[:9]),
        "rate": KEEP if not rate else None if rate == "none" else rate,
        "until": _until(said),
        "reason": _reason(said),
    }


def _set_queue(desk: CallerServices, queue: str, said: Said) -> str:
    found = desk.queues.set(queue, **_limits(said))
    return (
        f"Queue {queue}: {limits_in_words(found.concurrency, found.rate)}, whatever its code says."
    )


def _clear_queue(desk: CallerServices, queue: str, said: Said) -> str:
    found = desk.queues.clear(queue, reason=_reason(said))
    return f"Queue {queue} is back to what its code says: {limits_in_words(found.concurrency, found.rate)}."


def _set_dependency(desk: CallerServices, key: str, said: Said) -> str:
    found = desk.dependencies.set(key, **_limits(said))
    return f"{key}: {limits_in_words(found.concurrency, found.rate)}, whatever its code says."


def _clear_dependency(desk: CallerServices, key: str, said: Said) -> str:
    found = desk.dependencies.clear(key, reason=_reason(said))
    return f"{key} is back to what its code says: {limits_in_words(found.concurrency, found.rate)}."


def limits_in_words(concurrency: int | None, rate: float | None) -> str:
    said = [
        f"{concurrency:,} at once" if concurrency is not None else "",
        per(rate) if rate is not None else "",
    ]
    return ", ".join(limit for limit in said if limit) or "no limit"


# -- what is shared ---------------------------------------------------------------------------------
def _pause(desk: CallerServices, queue: str, said: Said) -> str:
    desk.queues.pause(queue, until=_until(said), reason=_reason(said))
    return f"Queue {queue} is paused: nothing of it starts; what runs goes on."


def _resume(desk: CallerServices, queue: str, said: Said) -> str:
    desk.queues.resume(queue, reason=_reason(said))
    return f"Queue {queue} goes on."


def _hold_kind(desk: CallerServices, kind: str, said: Said) -> str:
    desk.kinds.hold(kind, until=_until(said), reason=_reason(said))
    return f"Kind {kind} is held: its jobs wait."


def _release_kind(desk: CallerServices, kind: str, said: Said) -> str:
    desk.kinds.release(kind, reason=_reason(said))
    return f"Kind {kind} is released."


def _open(desk: CallerServices, key: str, said: Said) -> str:
    desk.dependencies.open(key, until=_until(said), reason=_reason(said))
    return f"{key} is held open: its jobs wait."


def _close(desk: CallerServices, key: str, said: Said) -> str:
    desk.dependencies.close(key, reason=_reason(said))
    return f"{key} is closed: its jobs go on, slowly at first."


def _probe(desk: CallerServices, key: str, said: Said) -> str:
    desk.dependencies.probe(key, reason=_reason(said))
    return f"{key} is looked at as soon as a worker can."


def _drain(desk: CallerServices, worker: str, said: Said) -> str:
    with desk.store.begin() as unit:
        found = [row for row in unit.workers(closed=False) if row.id == worker]
        if not found:
            message = f"no worker {worker!r:.80} that has not left"
            raise NotFound(message)
        request_drain(unit, found, desk.visitor.actor, _reason(said))
    return "Asked to drain: it claims nothing more, finishes what it runs, and leaves."


def _silence(desk: CallerServices, rule: str, said: Said) -> str:
    desk.alerts.silence(rule, _until(said) or 3600.0, reason=_reason(said))
    return f"Alert {rule} is silent for {duration(_until(said) or 3600.0)}."


def _unsilence(desk: CallerServices, rule: str, said: Said) -> str:
    desk.alerts.unsilence(rule, reason=_reason(said))
    return f"Alert {rule} is heard again."


# -- notifications ----------------------------------------------------------------------------------
def _test(desk: CallerServices, subscription: str, said: Said) -> str:
    del said
    return (
        f"A test is on its way: {desk.subscriptions.test(subscription, owner=desk.owner).message}."
    )


def _switch(verb: str, words: str) -> Callable[[CallerServices, str, Said], str]:
    def act(desk: CallerServices, subscription: str, said: Said) -> str:
        getattr(desk.subscriptions, verb)(subscription, owner=desk.owner, reason=_reason(said))
        return words

    return act


def _send_again(desk: CallerServices, delivery: str, said: Said) -> str:
    desk.deliveries.retry(delivery, owner=desk.owner, reason=_reason(said))
    return "It is sent again."


def _pause_schedule(desk: CallerServices, schedule: str, said: Said) -> str:
    desk.schedules.pause(schedule, until=_until(said), reason=_reason(said))
    return f"Schedule {schedule} is paused: its slots get no job; one of the next seconds may have one already."


def _resume_schedule(desk: CallerServices, schedule: str, said: Said) -> str:
    desk.schedules.resume(schedule, reason=_reason(said))
    return f"Schedule {schedule} goes on from now; what came meanwhile is not made up for."


def _run(desk: CallerServices, schedule: str, said: Said) -> str:
    job = desk.schedules.run(schedule, reason=_reason(said))
    return f"Enqueued now: job {job.id}."


ACTIONS: Mapping[tuple[str, str], PageAction] = {
    ("jobs", "retry"): PageAction(_retry, "/jobs/{id}"),
    ("jobs", "cancel"): PageAction(_cancel, "/jobs/{id}"),
    ("jobs", "release"): PageAction(_release, "/jobs/{id}"),
    ("jobs", "discard"): PageAction(_discard, "/jobs/{id}"),
    ("failures", "mute"): PageAction(_mute, "/failures/{id}"),
    ("failures", "resolve"): PageAction(_resolve, "/failures/{id}"),
    ("failures", "reopen"): PageAction(_reopen, "/failures/{id}"),
    ("batches", "retry"): PageAction(_retry_batch, "/batches/{id}"),
    ("batches", "cancel"): PageAction(_cancel_batch, "/batches/{id}"),
    ("operations", "pause"): PageAction(
        _operation("pause", "Paused: nothing more is sent for now."), "/operations/{id}"
    ),
    ("operations", "resume"): PageAction(_operation("resume", "It goes on."), "/operations/{id}"),
    ("operations", "abort"): PageAction(
        _operation("abort", "Ended. What was not sent stays untouched."), "/operations/{id}"
    ),
    ("jobs", "share"): PageAction(_share_link("jobs"), "/jobs/{id}"),
    ("batches", "share"): PageAction(_share_link("batches"), "/batches/{id}"),
    ("queues", "set"): PageAction(_set_queue, "/queues", shared=True),
    ("queues", "clear"): PageAction(_clear_queue, "/queues", shared=True),
    ("dependencies", "set"): PageAction(_set_dependency, "/dependencies", shared=True),
    ("dependencies", "clear"): PageAction(_clear_dependency, "/dependencies", shared=True),
    ("workers", "drain"): PageAction(_drain, "/queues", shared=True),
    ("queues", "pause"): PageAction(_pause, "/queues", shared=True),
    ("queues", "resume"): PageAction(_resume, "/queues", shared=True),
    ("kinds", "hold"): PageAction(_hold_kind, "/queues", shared=True),
    ("kinds", "release"): PageAction(_release_kind, "/queues", shared=True),
    ("dependencies", "open"): PageAction(_open, "/dependencies", shared=True),
    ("dependencies", "close"): PageAction(_close, "/dependencies", shared=True),
    ("dependencies", "probe"): PageAction(_probe, "/dependencies", shared=True),
    ("alerts", "silence"): PageAction(_silence, "/alerts", shared=True),
    ("alerts", "unsilence"): PageAction(_unsilence, "/alerts", shared=True),
    ("subscriptions", "test"): PageAction(_test, "/notifications"),
    ("subscriptions", "enable"): PageAction(_switch("enable", "Switched on."), "/notifications"),
    ("subscriptions", "disable"): PageAction(_switch("disable", "Switched off."), "/notifications"),
    ("deliveries", "retry"): PageAction(_send_again, "/notifications"),
    ("schedules", "pause"): PageAction(_pause_schedule, "/schedules", shared=True),
    ("schedules", "resume"): PageAction(_resume_schedule, "/schedules", shared=True),
    ("schedules", "run"): PageAction(_run, "/schedules", shared=True),
}


def action(noun: str, verb: str) -> PageAction:
    found = ACTIONS.get((noun, verb))
    if found is None:
        message = f"there is nothing called {verb!r:.40} to do with {noun!r:.40}"
        raise Refused(message)
    return found


# What the forms of all screens ask for, and bulk actions with a look beforehand.

MOST_CHOSEN = 200
MUST_COUNT = 100  # from so many jobs on, a person types the number


class ActionScreens:
    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def act(self, request: Request, noun: str, name: str, verb: str) -> Response:
        asked = action(noun, verb)
        back = [asked.back.format(id=quote(name, safe=""))]

        def work(desk: CallerServices, said: dict[str, str]) -> str:
            back.append(local(said["back"]) if said.get("back") else back[0])
            return asked.do(desk, name, said)

        try:
            words = await self._house.act(request, work, asked.role, shared=asked.shared)
        except MulliganError as refused:
            return self._house.back(request, back[-1], f"Not done: {refused}", "bad")
        return self._house.back(request, back[-1], words)

    async def many(self, request: Request) -> Response:
        """Those somebody has ticked, one by one: what refuses one is no matter of the others."""
        back = ["/jobs"]

        def work(desk: CallerServices, said: dict[str, str]) -> str:
            back.append(local(said.get("back") or "/jobs"))
            asked = action("jobs", said.get("verb", ""))
            chosen = [job for job in said.get("id", "").split(",") if job][:MOST_CHOSEN]
            refused = [words for job in chosen if (words := _refusal(asked, desk, job, said))]
            done = f"{len(chosen) - len(refused):,} of {len(chosen):,} done"
            return (
                f"{done}; not done: {'; '.join(dict.fromkeys(refused))}" if refused else f"{done}."
            )

        try:
            words = await self._house.act(request, work, Role.OPERATOR)
        except MulliganError as refused:
            return self._house.back(request, back[-1], f"Not done: {refused}", "bad")
        return self._house.back(request, back[-1], words)

    async def preview(
        self,
        request: Request,
        action: str = "retry",
        filter: str = "",  # noqa: A002 - as in the URL
        queue: str = "",
        choice: str = "",
    ) -> Response:
        """What a bulk action would do, before anything is done."""
        said = {"queue": queue, "choice": choice}

        def look(desk: CallerServices) -> dict[str, Any]:
            if action == "move" and not queue:  # nothing can be said of it yet
                return NOTHING
            found = desk.operations.start(action, filter, dry_run=True, **_wishes(desk, said))
            return _foreseen(found, root_of(request))

        found = await self._house.ask(request, look)
        values = {
            "action": action,
            "words": filter,
            "actions": [one.value for one in Bulk],
            **said,
            **found,
        }
        return self._house.page(request, "preview.html", "operations", **values)

    async def start(self, request: Request) -> Response:
        def work(desk: CallerServices, said: dict[str, str]) -> str:
            action, words = said.get("action", "retry"), said.get("filter", "")
            wishes = _wishes(desk, said)
            _counted(desk.operations.start(action, words, dry_run=True, **wishes), said)
            return desk.operations.start(action, words, **wishes).id

        try:
            operation = await self._house.act(request, work, Role.OPERATOR)
        except MulliganError as refused:
            return self._house.back(request, "/operations", f"Not done: {refused}", "bad")
        return self._house.back(request, f"/operations/{operation}", "Begun. This page follows it.")


NOTHING: dict[str, Any] = {
    "count": "0",
    "number": 0,
    "must_count": False,
    "steps": "",
    "codes": (),
    "kinds": (),
    "owners": (),
    "cost": "",
    "estimated": "",
    "chance": "",
    "tried": "",
    "held": (),
    "refused": (),
    "jobs": "",
}


def _wishes(desk: CallerServices, said: Mapping[str, str]) -> Wishes:
    wishes: Wishes = {"owner": desk.owner, "reason": said.get("reason", "")}
    wishes["queue"], wishes["choice"] = said.get("queue") or None, said.get("choice") or None
    wishes["rate"] = said.get("rate") or None
    if "filter" in said and not said.get("careful"):
        wishes["steps"] = ["rest"]
    if said.get("stop_if"):
        wishes["stop_if"] = _parse_share(said["stop_if"])
    return wishes


def _parse_share(text: str) -> float:
    """`10`, `10 %`."""
    number = text.removesuffix("%").strip()
    if not (number.isascii() and number.isdecimal() and int(number[:4]) <= 100):
        message = f"stop when more than: {text!r:.40} is no share; write 10 for 10 %"
        raise Refused(message)
    return int(number) / 100


def _refusal(asked: PageAction, desk: CallerServices, job: str, said: dict[str, str]) -> str:
    try:
        asked.do(desk, job, said)
    except MulliganError as refused:
        return str(refused)
    return ""


def _counted(found: OperationPreview, said: Mapping[str, str]) -> None:
    """Many jobs are not moved by a slip of the hand."""
    if found.count > MUST_COUNT and said.get("count", "").replace(",", "") != str(found.count):
        message = f"type the number of jobs, {found.count:,}, to say that you mean all of them; nothing was done"
        raise MulliganError(message)


def _narrowed(
    found: OperationPreview, root: str, field: str, names: Iterable[str]
) -> dict[str, str]:
    """Where those of one name are listed, if the filter does not say the field already."""
    if any(part.startswith(f"{field}:") for part in parts_of(found.filter)):
        return {}
    return {
        name: listed(f"{root}/jobs", [found.filter, f"{field}:{name}"])
        for name in names
        if _plain(name)
    }


def _plain(name: str) -> bool:
    return bool(name) and not set(name) & set(" ,\"'\\")


def _owners(found: OperationPreview, root: str) -> tuple[Bar, ...]:
    named = {owner or "nobody": many for owner, many in found.owners.items()}
    return bars(named, _narrowed(found, root, "owner", found.owners))


def _foreseen(found: OperationPreview, root: str) -> dict[str, Any]:
    return {
        "count": f"{found.count:,}{'+' if found.capped else ''}",
        "number": found.count,
        "must_count": found.count > MUST_COUNT,
        "steps": ", ".join(f"{step:,}" for step in found.steps),
        "codes": bars(found.codes, _narrowed(found, root, "code", found.codes)),
        "kinds": bars(found.kinds, _narrowed(found, root, "kind", found.kinds)),
        "owners": _owners(found, root) if len(found.owners) > 1 else (),
        "cost": f"{found.cost:g}" if found.cost else "",
        "estimated": f"{found.estimated_cost:g}" if found.estimated_cost else "",
        "chance": "" if found.chance is None else percent(found.chance),
        "tried": f"{found.recovered:,} of {found.retried:,}",
        "held": found.held,
        "refused": found.refused,
        "jobs": f"{root}/jobs?filter={quote(found.filter)}",
    }
