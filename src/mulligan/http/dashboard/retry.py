"""Retry with changes: what may be changed, what would become of it as before and after, and only then the retry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from fastapi import Request, Response

from mulligan.access.keys import Role
from mulligan.core.errors import MulliganError, NotFound, Refused
from mulligan.core.format import duration, moment
from mulligan.core.job import Job, JobRow, Micros, State, to_micros
from mulligan.http.dashboard.renderer import Renderer, Story, story_of
from mulligan.http.dashboard.view_models import badge_of
from mulligan.http.services import CallerServices
from mulligan.jobs.filter import seconds
from mulligan.jobs.preconditions import hidden
from mulligan.jobs.view import traffic_now
from mulligan.jobs.why import phase
from mulligan.manifest.declared import stored_kinds
from mulligan.retries.policy import Policy
from mulligan.retries.preview import described
from mulligan.storage.base import Transaction
from mulligan.worker.upkeep import live_kinds

# Arguments of a job that people may change, as a form shows them and as what was typed is meant.


class Field(NamedTuple):
    name: str
    text: str  # empty where it is not to be seen
    value: Any
    known: bool  # may be shown


def editable_fields(unit: Transaction, job: Job) -> list[Field]:
    """What its kind calls editable."""
    spec = stored_kinds(unit).get(job.kind)
    payload = job.payload if isinstance(job.payload, Mapping) else {}
    return [] if spec is None else [_field(name, payload.get(name)) for name in spec.editable]


def _field(name: str, value: Any) -> Field:
    known = hidden(name, value) == value
    return Field(name, _shown(value) if known else "", value, known)


def _shown(value: Any) -> str:
    """A text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def changed(fields: list[Field], said: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """What was typed otherwise than it was shown."""
    typed = [(one, said[prefix + one.name]) for one in fields if prefix + one.name in said]
    return {one.name: _meant(text, one.value) for one, text in typed if text != one.text}


def _meant(text: str, before: Any) -> Any:
    """Where a text was, a text; else JSON, and what is none is meant as the text it is."""
    if isinstance(before, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


# What a retry by hand would do, in sentences, before anybody does it.

AGAIN = (State.DEAD, State.PARKED, State.CANCELLED)


def foreseen(
    desk: CallerServices,
    job: Job,
    row: JobRow,
    said: dict[str, Any] | None = None,
    at: float | datetime | None = None,
) -> list[str]:
    """Empty: it is not one that could be retried. `said`: overrides."""
    if job.state not in AGAIN:
        return []
    try:
        found = desk.jobs.preview_retry(job.id, overrides=said, at=at, owner=desk.owner)
    except MulliganError as refused:
        return [f"A retry would be refused: {refused}"]
    if found.refused:
        return [f"A retry would be refused: {'; '.join(str(error) for error in found.refused)}"]
    return list(_sentences(desk, job, row, said or {}, at))


def _sentences(
    desk: CallerServices, job: Job, row: JobRow, said: dict[str, Any], at: float | datetime | None
) -> Iterator[str]:
    begins = f"Retry begins generation {job.generation + 1}: attempt 1{_of(desk, row, said)}"
    yield f"{begins}, {_when(at)}. Its history stays."
    queue = str(said.get("queue") or job.queue)
    if waits := _held(desk, row._replace(queue=queue)):
        yield f"As things are it would wait: {waits}."
    if job.token:
        times = "once" if job.token == 1 else f"{job.token} times"
        yield f"It has run {times}: whatever it did outside may be done again."
    if job.cost:
        yield f"{job.cost:g} was spent on it so far."


def _when(at: float | datetime | None) -> str:
    if at is None:
        return "as soon as a worker is free"
    return (
        f"not before {moment(to_micros(at))}" if isinstance(at, datetime) else f"in {duration(at)}"
    )


def _of(desk: CallerServices, row: JobRow, said: dict[str, Any]) -> str:
    """Of how many, and how far apart."""
    most = said.get("max_retries", row.max_retries)
    policy = Policy.from_json(row.policy) if row.policy else None
    try:
        found = desk.policies.explain(
            row.kind, queue=said.get("queue") or row.queue, policy=policy, max_retries=most
        )
    except NotFound:
        return ""
    limit, backoff = found.field("max_retries"), found.field("backoff")
    if not limit.value:
        return " and no other"
    return f" of at most {limit.value + 1} ({limit.origin}), retries after {described(backoff.value)} ({backoff.origin})"


def _held(desk: CallerServices, row: JobRow) -> str:
    """What stands in the way of such a job that is due now."""
    with desk.store.read() as unit:
        now: Micros = unit.now()
        waiting = row._replace(state=State.QUEUED, run_at=now)
        stage, words = phase(waiting, unit.gates(), now, live_kinds(unit), traffic_now(unit, now))
    return "" if stage == "ready" else words


# Retry with changes: what may be changed, what would become of it as before and after, and only then the retry.

PLAIN = ("max_retries", "queue", "priority", "timeout")
FIELD = "payload."
MOST_DIGITS = 9


class EditScreens:
    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def form(self, request: Request, job_id: str) -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            found = story_of(desk, job_id)
            return _page(desk, found, {}) | {"foreseen": foreseen(desk, found.job, found.row)}

        found = await self._house.ask(request, look)
        return self._house.page(request, "retry.html", "jobs", **found)

    async def look(self, request: Request, job_id: str) -> Response:
        """The form again, with what it would change; `do`: it is done."""

        def work(desk: CallerServices, said: dict[str, str]) -> dict[str, Any] | str:
            found = story_of(desk, job_id)
            if said.get("do"):
                done = desk.jobs.retry(
                    job_id,
                    reason=said.get("reason", ""),
                    owner=desk.owner,
                    **_wish(desk, found, said),
                )
                return f"Retried: generation {done.generation} begins. {done.why}"
            return _looked(desk, found, said)

        try:
            answer = await self._house.act(request, work, Role.OPERATOR)
        except MulliganError as refused:
            return self._house.back(request, f"/jobs/{job_id}", f"Not done: {refused}", "bad")
        if isinstance(answer, str):
            return self._house.back(request, f"/jobs/{job_id}", answer)
        return self._house.page(request, "retry.html", "jobs", still=True, **answer)


def _page(desk: CallerServices, found: Story, said: Mapping[str, str]) -> dict[str, Any]:
    job = found.job
    now = {
        "max_retries": job.max_retries,
        "queue": job.queue,
        "priority": job.priority,
        "timeout": _timeout(found),
    }
    return {
        "job": job,
        "badge": badge_of(job),
        "may_retry": job.state in AGAIN,
        "plain": [
            (name, said.get(name, ""), "" if now[name] is None else now[name]) for name in PLAIN
        ],
        "payload": [
            (one.name, said.get(FIELD + one.name, one.text), one.known)
            for one in _fields(desk, job)
        ],
        "at": said.get("at", ""),
        "reason": said.get("reason", ""),
        "changes": [],
        "looked": False,
        "wrong": "",
    }


def _timeout(found: Story) -> str:
    return "" if found.row.timeout is None else duration(found.row.timeout / 1_000_000)


def _looked(desk: CallerServices, found: Story, said: Mapping[str, str]) -> dict[str, Any]:
    page = _page(desk, found, said)
    try:
        wish = _wish(desk, found, said)
        changes = desk.jobs.preview_retry(found.job.id, owner=desk.owner, **wish).changes
    except MulliganError as refused:
        return {**page, "wrong": str(refused), "foreseen": []}
    shown = [(name, _text(one["before"]), _text(one["after"])) for name, one in changes.items()]
    words = foreseen(desk, found.job, found.row, wish["overrides"], wish["at"])
    return {**page, "changes": shown, "looked": True, "foreseen": words}


def _text(value: Any) -> str:
    return (
        "–"
        if value is None
        else value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False)
    )


# -- what was said ------------------------------------------------------------------------------------
def _wish(desk: CallerServices, found: Story, said: Mapping[str, str]) -> dict[str, Any]:
    return {
        "overrides": _overrides(desk, found.job, said) or None,
        "at": moment_of(said.get("at", "")),
    }


def _overrides(desk: CallerServices, job: Job, said: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {name: _plain(name, said[name]) for name in PLAIN if said.get(name)}
    payload = changed(_fields(desk, job), said, FIELD)
    return {**found, "payload": payload} if payload else found


def _fields(desk: CallerServices, job: Job) -> list[Field]:
    with desk.store.read() as unit:
        return editable_fields(unit, job)


def _plain(name: str, text: str) -> Any:
    if name == "queue":
        return text
    if name == "timeout":
        length = seconds(text)
        if length is None:
            message = f"timeout: {text!r:.40} is no length; write 30s, 5m or 2h"
            raise Refused(message)
        return length
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= MOST_DIGITS):
        message = f"{name}: {text!r:.40} is no whole number"
        raise Refused(message)
    return int(text)


def moment_of(text: str) -> float | datetime | None:
    """`30m`, `2026-11-17 03:00`; without a zone it is UTC, as everywhere on the pages."""
    if not text:
        return None
    length = seconds(text)
    if length is not None:
        return length
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        message = f"at: {text!r:.40} is no moment; write 30m, 2h, or 2026-11-17 03:00 (UTC)"
        raise Refused(message) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
