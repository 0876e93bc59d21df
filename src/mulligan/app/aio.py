"""Awaitable services, `app.aio`: one proxy turns every method of a service into a coroutine.

`docs/generate.py` writes the types to `aio.pyi`, from the signatures of the services.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, TypeVar

T = TypeVar("T")


async def run_on_thread(method: Callable[..., T], *args: Any, **options: Any) -> T:
    """Call a method on a thread and return its result. Commands start faster without asyncio."""
    import asyncio  # noqa: PLC0415

    return await asyncio.to_thread(method, *args, **options)


class AsyncService:
    """Proxy of a service: each public method runs on a thread and is awaited.

    If the service has a coroutine method `NAME_async`, the proxy's `NAME` is that method.
    """

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        method = getattr(self._service, name)
        return getattr(self._service, f"{name}_async", partial(run_on_thread, method))


class AsyncServices:
    """The properties of `Services`, each an `AsyncService`."""

    def __init__(self, services: Any) -> None:
        self._services = services

    def __getattr__(self, name: str) -> AsyncService:
        if isinstance(getattr(type(self._services), name, None), cached_property):
            return AsyncService(getattr(self._services, name))
        message = f"there is no service {name!r}"
        raise AttributeError(message)
