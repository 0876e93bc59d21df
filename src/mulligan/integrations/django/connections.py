"""Care for Django's connections around attempts: what Django itself does around a request."""

from __future__ import annotations

from asyncio import _get_running_loop
from types import TracebackType
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections


class ConnectionCare:
    """Close connections that are too old or broken before an attempt and after it.

    A connection belongs to a thread. A sync handler runs on this thread, and Django's async
    methods run on the thread of `sync_to_async`.
    """

    def __enter__(self) -> None:
        close_old_connections()

    def __exit__(self, *_: object) -> None:
        close_old_connections()


class AsyncConnectionCare:
    """Close old connections around an attempt of an async handler."""

    async def __aenter__(self) -> None:
        await sync_to_async(close_old_connections)()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await sync_to_async(close_old_connections)()


def attempt_connections() -> Any:
    """Return what cares for the connections of the attempt that starts on this thread."""
    return ConnectionCare() if _get_running_loop() is None else AsyncConnectionCare()
