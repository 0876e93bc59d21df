"""What a page listens to: the events that concern its visitor. The page then reads itself again."""

from __future__ import annotations

from fastapi import Request, Response

from mulligan.engine.hearing import concerns
from mulligan.web.api.hub import Hub, Listener
from mulligan.web.api.stream import EventStream, Stream
from mulligan.web.house import House


class LiveStream:
    def __init__(self, house: House, hub: Hub) -> None:
        self._house = house
        self._hub = hub

    async def listen(self, request: Request) -> Response:
        visitor = await self._house.visitor(request)
        listener = Listener(visitor.key_id, visitor.owner, concerns(visitor.owner))
        stream = Stream(self._hub, listener, None, private=False)
        self._hub.enter(listener)
        return EventStream(self._hub, listener, stream)
