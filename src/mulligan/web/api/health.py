"""Is it alive, is it ready, and its numbers."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from mulligan.observe import exporter
from mulligan.web.api.auth import KEYED, ViewerOfAll
from mulligan.web.api.problems import Problem
from mulligan.web.api.room import Room
from mulligan.web.asking import Away, away_words

router = APIRouter(tags=["health"])


@router.get("/livez", response_class=PlainTextResponse)
async def livez() -> Response:
    """The loop turns; the database is not asked."""
    return PlainTextResponse("ok\n")


@router.get("/readyz", response_class=PlainTextResponse)
@router.get("/startupz", name="startupz", response_class=PlainTextResponse)
async def readyz(request: Request) -> Response:
    """The database answers and its schema is the one this version knows."""
    room: Room = request.app.state.room
    try:
        await room.ask(lambda: _look(room))
    except Away as error:
        raise Problem(503, "NOT_READY", away_words(error, candid=room.candid), retryable=True) from error
    return PlainTextResponse("ok\n")


def _look(room: Room) -> None:
    with room.store().read() as unit:
        unit.now()


@router.get("/metrics", response_class=PlainTextResponse, dependencies=KEYED)
async def metrics(caller: ViewerOfAll) -> Response:
    """Numbers for Prometheus."""
    room = caller.room
    text = await room.ask(lambda: exporter.text(room.store()))
    return Response(text, media_type=exporter.CONTENT_TYPE)
