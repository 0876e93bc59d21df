"""The socket that is served on."""

import asyncio
import socket

from mulligan.events.service import concerns, hears
from mulligan.http.serve import _listen


def test_what_is_answered_leaves_at_once_and_does_not_wait_for_more():
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


def test_streams_that_want_the_same_share_one_question():
    assert hears(None, "kind:render") is hears(None, "kind:render")
    assert hears("acme", "kind:render") is not hears(None, "kind:render")
    assert concerns("acme") is concerns("acme")
