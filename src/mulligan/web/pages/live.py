"""What a page listens to: the events that concern its visitor. The page then reads itself again."""

from __future__ import annotations

from fastapi import Request, Response

from mulligan.engine.hearing import concerns
from mulligan.engine.sessions import hash_of
from mulligan.web.api.hub import Hub, Listener
from mulligan.web.api.stream import EventStream, Stream
from mulligan.web.house import House
from mulligan.web.visits import session_of


class LiveStream:
    def __init__(self, house: House, hub: Hub) -> None:
        self._house = house
        self._hub = hub

    async def listen(self, request: Request) -> Response:
        visitor = await self._house.visitor(request)
        listener = Listener(
            visitor.key_id, visitor.owner, concerns(visitor.owner), session=hash_of(session_of(request))
        )
        stream = Stream(self._hub, listener, None, private=False)
        self._hub.enter(listener)
        return EventStream(self._hub, listener, stream)
