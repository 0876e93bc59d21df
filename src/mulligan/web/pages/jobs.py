"""Jobs, and one job: its story, its attempts, and what can be done with it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response

from mulligan.engine.paging import Count
from mulligan.job import Job, State
from mulligan.web import present
from mulligan.web.chips import alternatives, removable
from mulligan.web.desk import Visited
from mulligan.web.foreseeing import foreseen
from mulligan.web.house import House, root_of
from mulligan.web.present import row_of
from mulligan.web.reading import PAGE, Shown, checked_words, story_of
from mulligan.web.relations import relations

VERBS = {
    "retry": ("Retry", (State.DEAD, State.PARKED, State.CANCELLED)),
    "release": ("Release", (State.PARKED,)),
    "cancel": ("Cancel", (State.QUEUED, State.RUNNING)),
    "discard": ("Discard", (State.DEAD, State.PARKED)),
}


class JobScreens:
    def __init__(self, house: House) -> None:
        self._house = house

    async def list(self, request: Request, filter: str = "", before: str = "") -> Response:  # noqa: A002 - as in the URL
        words, here = checked_words(filter, before), f"{root_of(request)}/jobs"

        def look(desk: Visited) -> dict[str, Any]:
            found = desk.jobs.list(words, limit=PAGE, before=before or None, owner=desk.owner, private=desk.private)
            whole = not before and found.cursor is None  # then it is counted already
            many = Count(len(found)) if whole else desk.jobs.count(words, owner=desk.owner, private=desk.private)
            with desk.store.read() as unit:
                now = unit.now()
            older = urlencode({"filter": words, "before": found.cursor}) if found.cursor else ""
            return {
                "rows": [row_of(Shown(job, ""), now, root_of(request)) for job in found],
                "older": f"{here}?{older}" if older else "",
                "partial": found.partial,
                "many": f"{many:,}{'+' if many.capped or many.partial else ''}",
                "one_alone": many == 1,
            }

        found = await self._house.ask(request, look)
        chips: dict[str, Any] = {"states": alternatives(here, words, "state", State), "chosen": removable(here, words)}
        return self._house.page(request, "list.html", "jobs", filter=words, before=before, **chips, **found)

    async def one(self, request: Request, job_id: str) -> Response:
        def look(desk: Visited) -> dict[str, Any]:
            found = story_of(desk, job_id)
            return {
                **present.story(found, private=desk.visitor.private),
                "actions": _actions(found.job),
                "foreseen": foreseen(desk, found.job, found.row),
                "relations": relations(desk, found),
                "copies": _copies(found.job, _base(request, desk)),
            }

        return self._house.page(request, "job.html", "jobs", **await self._house.ask(request, look))


def _actions(job: Job) -> list[tuple[str, str]]:
    return [(verb, title) for verb, (title, states) in VERBS.items() if job.state in states]


def _base(request: Request, desk: Visited) -> str:
    return desk.settings.web.public_url.rstrip("/") or str(request.base_url).rstrip("/")


def _copies(job: Job, base: str) -> list[str]:
    """The same by other means: to look, and to do what can be done with it now."""
    call = f'curl -H "Authorization: Bearer $KEY" {base}/api/v1/jobs/{job.id}'
    looks = [f"mulligan jobs show {job.id}", f"mulligan jobs explain {job.id}", call]
    for verb, _ in _actions(job):
        body = """-H "Content-Type: application/json" -d '{"reason": "…"}'"""
        looks += [f'mulligan jobs {verb} {job.id} --reason "…"', f"{call}/{verb} {body}"]
    return looks
