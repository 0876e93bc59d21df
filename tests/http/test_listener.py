"""The listening socket, and shared event filters."""

import asyncio
import socket

from mulligan.events.service import build_owner_event_filter, build_owner_filter
from mulligan.http.app import _listen


def test_the_listener_disables_nagles_algorithm():
    async def accepted():
        found = asyncio.get_running_loop().create_future()

        async def answer(_, writer):
            found.set_result(
                writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            )
            writer.close()

        listening = _listen("127.0.0.1", 0)
        server = await asyncio.start_server(answer, sock=listening)
        async with server:
            _, writer = await asyncio.open_connection(*listening.getsockname())
            writer.close()
            return await asyncio.wait_for(found, 10)

    assert asyncio.run(accepted())


def test_equal_event_filters_share_one_function():
    assert build_owner_event_filter(None, "kind:render") is build_owner_event_filter(
        None, "kind:render"
    )
    assert build_owner_event_filter("acme", "kind:render") is not build_owner_event_filter(
        None, "kind:render"
    )
    assert build_owner_filter("acme") is build_owner_filter("acme")
