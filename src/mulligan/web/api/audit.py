"""`/audit`: what people did. For an owner what was done to their things."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from mulligan.event import Event
from mulligan.web.api.acting import Back, Cursor, Limit, back
from mulligan.web.api.answers import AUDIT, answers
from mulligan.web.api.auth import Viewer
from mulligan.web.api.cursors import opened, sealed
from mulligan.web.api.problems import forbidden
from mulligan.web.api.shapes import Plain, event_shape

router = APIRouter(tags=["audit"])

Actor = Annotated[str | None, Query(max_length=200, description="cli:ann, key:mk_…; for operators of scope *")]
Types = Annotated[str, Query(max_length=1000, description="job.retried,queue.*")]
Of = Annotated[str | None, Query(max_length=100)]


@router.get("/audit", **answers(AUDIT))
async def list_deeds(
    caller: Viewer,
    actor: Actor = None,
    type: Types = "",  # noqa: A002 - the field's name
    job: Of = None,
    since: Back = None,
    until: Back = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Plain:
    """Newest first, each with actor, reason, before and after; who did it is for operators of scope `*`."""
    if actor is not None and not caller.backstage:
        raise forbidden("who did what is for operators of scope *")
    about = f"audit {actor} {type} {job} {since} {until}"
    before = opened(caller, about, cursor)

    def look() -> list[Event]:
        return caller.desk.events.list(
            actor=actor, type=[one for one in type.split(",") if one], job=job, owner=caller.owner, limit=limit,
            since=back("since", since), until=back("until", until), before=None if before is None else int(before),
        )  # fmt: skip

    found = await caller.room.ask(look)
    following = sealed(caller, about, str(found[-1].id)) if len(found) == limit else None
    return {"events": [event_shape(one, private=caller.backstage) for one in found], "next": following}
