"""What the forms of all screens ask for, and bulk actions with a look beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response

from mulligan.engine.keys import Role
from mulligan.engine.operations import Wishes
from mulligan.engine.preview import Preview
from mulligan.errors import MulliganError, Refused
from mulligan.policy.advice import percent
from mulligan.policy.operation import Action as Bulk
from mulligan.web.actions import Action, action
from mulligan.web.charts import Bar, bars
from mulligan.web.chips import listed, parts_of
from mulligan.web.desk import Visited
from mulligan.web.house import House, root_of
from mulligan.web.pages.signing import local

MOST_CHOSEN = 200
MUST_COUNT = 100  # from so many jobs on, a person types the number


class ActingScreens:
    def __init__(self, house: House) -> None:
        self._house = house

    async def act(self, request: Request, noun: str, name: str, verb: str) -> Response:
        asked = action(noun, verb)
        back = [asked.back.format(id=quote(name, safe=""))]

        def work(desk: Visited, said: dict[str, str]) -> str:
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

        def work(desk: Visited, said: dict[str, str]) -> str:
            back.append(local(said.get("back") or "/jobs"))
            asked = action("jobs", said.get("verb", ""))
            chosen = [job for job in said.get("id", "").split(",") if job][:MOST_CHOSEN]
            refused = [words for job in chosen if (words := _refusal(asked, desk, job, said))]
            done = f"{len(chosen) - len(refused):,} of {len(chosen):,} done"
            return f"{done}; not done: {'; '.join(dict.fromkeys(refused))}" if refused else f"{done}."

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

        def look(desk: Visited) -> dict[str, Any]:
            if action == "move" and not queue:  # nothing can be said of it yet
                return NOTHING
            found = desk.operations.start(action, filter, dry_run=True, **_wishes(desk, said))
            return _foreseen(found, root_of(request))

        found = await self._house.ask(request, look)
        values = {"action": action, "words": filter, "actions": [one.value for one in Bulk], **said, **found}
        return self._house.page(request, "preview.html", "operations", **values)

    async def start(self, request: Request) -> Response:
        def work(desk: Visited, said: dict[str, str]) -> str:
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
    "count": "0", "number": 0, "must_count": False, "steps": "", "codes": (), "kinds": (), "owners": (), "cost": "",
    "estimated": "", "chance": "", "tried": "", "held": (), "refused": (), "jobs": "",
}  # fmt: skip


def _wishes(desk: Visited, said: Mapping[str, str]) -> Wishes:
    wishes: Wishes = {"owner": desk.owner, "reason": said.get("reason", "")}
    wishes["queue"], wishes["choice"] = said.get("queue") or None, said.get("choice") or None
    wishes["rate"] = said.get("rate") or None
    if "filter" in said and not said.get("careful"):
        wishes["steps"] = ["rest"]
    if said.get("stop_if"):
        wishes["stop_if"] = _share(said["stop_if"])
    return wishes


def _share(text: str) -> float:
    """`10`, `10 %`."""
    number = text.removesuffix("%").strip()
    if not (number.isascii() and number.isdecimal() and int(number[:4]) <= 100):
        message = f"stop when more than: {text!r:.40} is no share; write 10 for 10 %"
        raise Refused(message)
    return int(number) / 100


def _refusal(asked: Action, desk: Visited, job: str, said: dict[str, str]) -> str:
    try:
        asked.do(desk, job, said)
    except MulliganError as refused:
        return str(refused)
    return ""


def _counted(found: Preview, said: Mapping[str, str]) -> None:
    """Many jobs are not moved by a slip of the hand."""
    if found.count > MUST_COUNT and said.get("count", "").replace(",", "") != str(found.count):
        message = f"type the number of jobs, {found.count:,}, to say that you mean all of them; nothing was done"
        raise MulliganError(message)


def _narrowed(found: Preview, root: str, field: str, names: Iterable[str]) -> dict[str, str]:
    """Where those of one name are listed, if the filter does not say the field already."""
    if any(part.startswith(f"{field}:") for part in parts_of(found.filter)):
        return {}
    return {name: listed(f"{root}/jobs", [found.filter, f"{field}:{name}"]) for name in names if _plain(name)}


def _plain(name: str) -> bool:
    return bool(name) and not set(name) & set(" ,\"'\\")


def _owners(found: Preview, root: str) -> tuple[Bar, ...]:
    named = {owner or "nobody": many for owner, many in found.owners.items()}
    return bars(named, _narrowed(found, root, "owner", found.owners))


def _foreseen(found: Preview, root: str) -> dict[str, Any]:
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
