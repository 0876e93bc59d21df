"""Retry with changes: what may be changed, what would become of it as before and after, and only then the retry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import Request, Response

from mulligan.engine.filters import seconds
from mulligan.engine.keys import Role
from mulligan.errors import MulliganError, Refused
from mulligan.job import Job
from mulligan.policy.phrase import duration
from mulligan.web.desk import Visited
from mulligan.web.fields import Field, changed, editable_fields
from mulligan.web.foreseeing import AGAIN, foreseen
from mulligan.web.house import House
from mulligan.web.present import badge_of
from mulligan.web.reading import Story, story_of

PLAIN = ("max_retries", "queue", "priority", "timeout")
FIELD = "payload."
MOST_DIGITS = 9


class EditScreens:
    def __init__(self, house: House) -> None:
        self._house = house

    async def form(self, request: Request, job_id: str) -> Response:
        def look(desk: Visited) -> dict[str, Any]:
            found = story_of(desk, job_id)
            return _page(desk, found, {}) | {"foreseen": foreseen(desk, found.job, found.row)}

        found = await self._house.ask(request, look)
        return self._house.page(request, "retry.html", "jobs", **found)

    async def look(self, request: Request, job_id: str) -> Response:
        """The form again, with what it would change; `do`: it is done."""

        def work(desk: Visited, said: dict[str, str]) -> dict[str, Any] | str:
            found = story_of(desk, job_id)
            if said.get("do"):
                done = desk.jobs.retry(
                    job_id, reason=said.get("reason", ""), owner=desk.owner, **_wish(desk, found, said)
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


def _page(desk: Visited, found: Story, said: Mapping[str, str]) -> dict[str, Any]:
    job = found.job
    now = {"max_retries": job.max_retries, "queue": job.queue, "priority": job.priority, "timeout": _timeout(found)}
    return {
        "job": job,
        "badge": badge_of(job),
        "may_retry": job.state in AGAIN,
        "plain": [(name, said.get(name, ""), "" if now[name] is None else now[name]) for name in PLAIN],
        "payload": [(one.name, said.get(FIELD + one.name, one.text), one.known) for one in _fields(desk, job)],
        "at": said.get("at", ""),
        "reason": said.get("reason", ""),
        "changes": [],
        "looked": False,
        "wrong": "",
    }


def _timeout(found: Story) -> str:
    return "" if found.row.timeout is None else duration(found.row.timeout / 1_000_000)


def _looked(desk: Visited, found: Story, said: Mapping[str, str]) -> dict[str, Any]:
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
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# -- what was said ------------------------------------------------------------------------------------
def _wish(desk: Visited, found: Story, said: Mapping[str, str]) -> dict[str, Any]:
    return {"overrides": _overrides(desk, found.job, said) or None, "at": moment_of(said.get("at", ""))}


def _overrides(desk: Visited, job: Job, said: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {name: _plain(name, said[name]) for name in PLAIN if said.get(name)}
    payload = changed(_fields(desk, job), said, FIELD)
    return {**found, "payload": payload} if payload else found


def _fields(desk: Visited, job: Job) -> list[Field]:
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
