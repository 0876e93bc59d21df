"""Jobs, and one job: its story, its attempts, and what can be done with it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response

from mulligan.errors import MulliganError, NotFound
from mulligan.ids import LENGTH
from mulligan.job import Job, State
from mulligan.web import present
from mulligan.web.desk import Visited
from mulligan.web.house import House, root_of
from mulligan.web.present import row_of
from mulligan.web.reading import PAGE, Shown, Story, checked_words

VERBS = {
    "retry": ("Retry", (State.DEAD, State.PARKED, State.CANCELLED)),
    "release": ("Release", (State.PARKED,)),
    "cancel": ("Cancel", (State.QUEUED, State.RUNNING)),
    "discard": ("Discard", (State.DEAD, State.PARKED)),
}
STATES = ("", *State)


class JobScreens:
    def __init__(self, house: House) -> None:
        self._house = house

    async def list(self, request: Request, filter: str = "", before: str = "") -> Response:  # noqa: A002 - as in the URL
        words = checked_words(filter, before)

        def look(desk: Visited) -> dict[str, Any]:
            found = desk.jobs.list(words, limit=PAGE, before=before or None, owner=desk.owner, private=desk.private)
            with desk.store.read() as unit:
                now = unit.now()
            older = urlencode({"filter": words, "before": found.cursor}) if found.cursor else ""
            return {
                "rows": [row_of(Shown(job, ""), now) for job in found],
                "older": f"{root_of(request)}/jobs?{older}" if older else "",
                "partial": found.partial,
            }

        found = await self._house.ask(request, look)
        chips = [(state or "all", f"{root_of(request)}/jobs?{urlencode({'filter': f'state:{state}' if state else ''})}",
                  words == (f"state:{state}" if state else "")) for state in STATES]  # fmt: skip
        return self._house.page(request, "list.html", "jobs", filter=words, before=before, chips=chips, **found)

    async def one(self, request: Request, job_id: str) -> Response:
        def look(desk: Visited) -> dict[str, Any]:
            found = _story(desk, job_id)
            return {**present.story(found), "actions": _actions(found.job), "foreseen": _foreseen(desk, found.job),
                    "private": _private(found) if desk.visitor.private else [],
                    "choices": json.loads(found.row.choices or "[]")}  # fmt: skip

        return self._house.page(request, "job.html", "jobs", **await self._house.ask(request, look))


def _story(desk: Visited, job_id: str) -> Story:
    if len(job_id) != LENGTH or not job_id.isalnum():
        message = f"no job {job_id!r:.80}"
        raise NotFound(message)
    job = desk.jobs.get(job_id, owner=desk.owner)
    with desk.store.read() as unit:
        row = unit.get(job_id)
        if row is None:
            message = f"no job {job_id!r:.80}"
            raise NotFound(message)
        return Story(unit.now(), row, job, unit.attempts(job_id), unit.story(job_id))


def _actions(job: Job) -> list[tuple[str, str]]:
    return [(verb, title) for verb, (title, states) in VERBS.items() if job.state in states]


def _foreseen(desk: Visited, job: Job) -> str:
    """What a retry would do, said before it is done."""
    if job.state not in VERBS["retry"][1]:
        return ""
    try:
        found = desk.jobs.preview_retry(job.id, owner=desk.owner)
    except MulliganError as refused:
        return f"A retry would be refused: {refused}"
    if found.refused:
        return f"A retry would be refused: {'; '.join(str(error) for error in found.refused)}"
    spent = f" {job.cost:g} was spent on it so far." if job.cost else ""
    again = f"Retry begins generation {job.generation + 1}: attempt 1 as soon as a worker is free, with all its retries"
    return f"{again}. Its history stays.{spent}"


def _private(found: Story) -> list[tuple[int, list[tuple[str, str]]]]:
    return [(row.attempt, present.private_of(row)) for row in reversed(found.attempts) if present.private_of(row)]
