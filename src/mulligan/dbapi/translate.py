"""What apsw raises, as PEP 249 calls it, and values SQLite has no type for."""

from __future__ import annotations

from datetime import date, datetime, time
from sqlite3 import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
)
from typing import Any

import apsw

# The first row that matches; the choice is that of sqlite3.
_MEANINGS: tuple[tuple[tuple[type[Exception], ...], type[Error]], ...] = (
    ((apsw.ConstraintError, apsw.MismatchError), IntegrityError),
    ((apsw.TooBigError,), DataError),
    ((apsw.MisuseError, apsw.RangeError), InterfaceError),
    ((apsw.InternalError, apsw.NotFoundError), InternalError),
    ((apsw.AuthError, apsw.CorruptError, apsw.FormatError, apsw.NotADBError), DatabaseError),
    ((apsw.BindingsError, apsw.ConnectionClosedError, apsw.CursorClosedError), ProgrammingError),
    ((apsw.ThreadingViolationError, KeyError, TypeError), ProgrammingError),  # the last two: parameters
    ((apsw.Error,), OperationalError),
)


class _Translated:
    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for types, meaning in _MEANINGS:
            if isinstance(error, types):
                text = f"no value for parameter {error}" if isinstance(error, KeyError) else str(error)
                raise meaning(text) from error


translated = _Translated()


def adapt(_cursor: apsw.Cursor, _number: int, value: Any) -> str:
    """Dates and times, as `sqlite3` writes them."""
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, date | time):
        return value.isoformat()
    message = f"type {type(value).__qualname__!r} is not supported"
    raise ProgrammingError(message)
