"""Functions of the app that shape a message: `render`, `to`, `subject`. They may look things up, and may be async."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from mulligan.notify.message import Message


async def called(function: Callable[[Message], Any], message: Message) -> Any:
    """On a thread, where it may wait for its database without holding up anybody."""
    if inspect.iscoroutinefunction(function):
        return await function(message)
    made = await asyncio.to_thread(function, message)
    return await made if inspect.isawaitable(made) else made
