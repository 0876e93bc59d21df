"""Async connections of callers: use them from our code, which is synchronous.

| connection | how |
|---|---|
| SQLAlchemy's AsyncConnection and AsyncSession | inside their `run_sync` |
| asyncpg's Connection, psycopg's AsyncConnection | on a thread, while the loop runs the driver |
| aiosqlite's Connection, also inside SQLAlchemy | on its own thread, with its sqlite3 connection |
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any, TypeVar

T = TypeVar("T")

ASYNC_DRIVERS = ("asyncpg", "aiosqlite")


class LoopBridge:
    """Async connection that a thread uses while the connection's event loop runs the driver."""

    def __init__(self, connection: Any) -> None:
        """Create it on the event loop of the connection."""
        import asyncio  # noqa: PLC0415 - not needed by commands that list jobs

        self.connection = connection
        self._loop = asyncio.get_running_loop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop. Called on the thread."""
        import asyncio  # noqa: PLC0415 - not needed by commands that list jobs

        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


async def call_with_connection(
    call: Callable[[Any], T], connection: Any, prepare: Callable[[], object] | None = None
) -> T:
    """Call a synchronous function with a form of this connection that it can use.

    `prepare` is called first, on a thread, if the connection is async: the first use of an app may
    create its schema, which must not block the event loop.
    """
    import asyncio  # noqa: PLC0415 - not needed by commands that list jobs

    connection = _without_proxy(connection)
    if not is_async_connection(connection):
        return await asyncio.to_thread(call, connection)
    if prepare is not None:
        await asyncio.to_thread(prepare)
    if driver_of(connection) == "aiosqlite":
        return await _call_on_thread_of_aiosqlite(call, connection)
    if hasattr(connection, "run_sync"):
        return await _call_through_sqlalchemy(call, connection)
    return await _finish(asyncio.to_thread(call, LoopBridge(connection)))


def driver_of(connection: Any) -> str:
    """Return the top-level package that a connection comes from."""
    return type(connection).__module__.partition(".")[0]


def is_async_connection(connection: Any) -> bool:
    """True if its methods are coroutines: asyncpg's, psycopg's AsyncConnection, SQLAlchemy's."""
    if driver_of(connection) in ASYNC_DRIVERS:  # also the proxies of their pools
        return True
    kind = type(connection)
    return any(iscoroutinefunction(getattr(kind, name, None)) for name in ("execute", "commit"))


def _without_proxy(connection: Any) -> Any:
    """Return the connection behind a proxy of asyncpg's pool or an async_scoped_session."""
    if driver_of(connection) == "asyncpg":
        return getattr(connection, "_con", None) or connection
    if driver_of(connection) == "sqlalchemy" and is_async_connection(connection):
        return connection if hasattr(connection, "run_sync") else connection()
    return connection


async def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work on a thread. If cancelled, wait too: it still uses the caller's connection."""
    import asyncio  # noqa: PLC0415 - not needed by commands that list jobs

    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _call_through_sqlalchemy(call: Callable[[Any], T], connection: Any) -> T:
    if hasattr(connection, "get_raw_connection"):
        core = connection
    else:  # an AsyncSession
        core = await connection.connection()
    driver = (await core.get_raw_connection()).driver_connection
    if driver_of(driver) != "aiosqlite":
        result: T = await connection.run_sync(call)
        return result
    if not core.in_transaction():
        await core.begin()  # as its first statement would; before that, commit() does nothing
    return await _call_on_thread_of_aiosqlite(call, driver)


async def _call_on_thread_of_aiosqlite(call: Callable[[Any], T], connection: Any) -> T:
    # The public methods run one statement each; a sqlite3 connection must stay on its thread.
    result: T = await _finish(connection._execute(call, connection._conn))  # noqa: SLF001
    return result
