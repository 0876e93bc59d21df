"""A caller's connection: find the driver's own connection inside whatever was handed to us."""

from __future__ import annotations

import sqlite3
from typing import Any

import apsw

from mulligan.errors import ConnectionRefused
from mulligan.store.handle import ApswHandle, Handle, StdlibHandle


def driver_connection(connection: Any) -> Any:
    """Unwrap SQLAlchemy's Connection or Session down to the DB-API connection; anything else is itself."""
    if hasattr(connection, "connection") and callable(connection.connection):  # an ORM Session
        connection = connection.connection()
    pooled = getattr(connection, "connection", None)
    return getattr(pooled, "driver_connection", None) or connection


def sqlite_handle_of(connection: Any) -> Handle:
    raw = driver_connection(connection)
    raw = getattr(raw, "apsw_connection", raw)  # a connection of mulligan.dbapi
    if isinstance(raw, apsw.Connection):
        return ApswHandle(raw)
    if isinstance(raw, sqlite3.Connection):
        return StdlibHandle(raw)
    message = (
        f"connection= got {type(raw).__module__}.{type(raw).__qualname__}; a SQLite store takes app.transaction(), "
        "a mulligan.dbapi connection, or one of these inside SQLAlchemy"
    )
    raise ConnectionRefused(message)
