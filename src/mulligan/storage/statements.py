"""Catalog of the named SQL statements of all features.

A feature keeps its statements in `queries.sql` in its package. `queries.sqlite.sql` and
`queries.postgres.sql` next to it hold those that one database needs in another form. Every
statement begins with a line `-- name: get_batch`, every part of statements with a line
`-- fragment: all_members_ended`; a comment says what it does. Names are unique in the package.

The texts contain macros:

- `:name`: a parameter. `:now` is the current time; on PostgreSQL it becomes the server's clock.
- `{p}`: prefix of all names: a schema on PostgreSQL, `mulligan_` on SQLite.
- `{BatchRow}`: the columns of that row type, which the feature's module `queries` must know.
- `{in:ids}`: the column before it equals one element of the parameter, an array of texts.
  `{in:places bigint}`: an array of numbers.
- `{lock:FOR UPDATE SKIP LOCKED}`: a row lock on PostgreSQL. SQLite has one writer and needs none.
- `{part:name}`: the text of a fragment.
- `{matching}`: the conditions of a filter.
- `{set:StatRow}` (PostgreSQL): a set of rows, passed as one array per column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from mulligan.core.errors import StoreUnavailable

SQLITE_PREFIX = "mulligan_"  # of all names on SQLite

_PACKAGE = Path(__file__).parent.parent
_HEADING = re.compile(r"^-- (name|fragment): (\w+)$", re.MULTILINE)
_ROW = re.compile(r"\{([A-Z]\w+)\}")
_IN = re.compile(r"\{in:(\w+)(?: (\w+))?\}")
_LOCK = re.compile(r"\s*\{lock:([^}]+)\}")


class SqlDialect(StrEnum):
    """The SQL of one database."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


class Statement(NamedTuple):
    """A named statement or fragment as it is written in a file."""

    name: str
    is_fragment: bool
    file: str  # path in the package
    text: str


@cache
def load_catalog(dialect: str) -> dict[str, Statement]:
    """Read the statements of all features. Those of the database replace the general ones."""
    catalog: dict[str, Statement] = {}
    for pattern in ("queries.sql", f"queries.{dialect}.sql"):
        added: dict[str, Statement] = {}
        for file in sorted(_PACKAGE.rglob(pattern)):
            for statement in _parse(file):
                _refuse_duplicate(statement, added)
                added[statement.name] = statement
        catalog |= added
    return catalog


def _parse(file: Path) -> Iterator[Statement]:
    path = str(file.relative_to(_PACKAGE))
    _, *sections = _HEADING.split(read_sql(file))
    for kind, name, text in zip(sections[::3], sections[1::3], sections[2::3], strict=True):
        yield Statement(name, kind == "fragment", path, text.strip())


def _refuse_duplicate(statement: Statement, known: dict[str, Statement]) -> None:
    if statement.name in known:
        message = (
            f"statement {statement.name!r} is in {known[statement.name].file} and "
            f"in {statement.file}. Rename one of them."
        )
        raise ValueError(message)


def read_sql(file: Path) -> str:
    """Read a file of statements."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:  # for example, no file descriptor is left
        message = f"cannot read {file.name}: {error.strerror}"
        raise StoreUnavailable(message) from error


def strip_comments(text: str) -> str:
    """Remove comments and indentation: the driver parses long texts on every call."""
    lines = map(str.strip, text.splitlines())
    return "\n".join(line for line in lines if not line.startswith("--"))


@cache
def expand_rows(name: str, dialect: str) -> str:
    """Return the text of a statement or fragment with the columns of its row types."""
    statement = load_catalog(dialect)[name]
    text = strip_comments(statement.text)
    return _ROW.sub(lambda match: ", ".join(row_type(statement, match[1])._fields), text)


def row_type(statement: Statement, name: str) -> Any:
    """Return a row type by its name, from the module `queries` next to the statement's file."""
    package = ".".join(Path(statement.file).parent.parts)
    return getattr(import_module(f"mulligan.{package}.queries"), name)


def expand_dialect(text: str, dialect: str) -> str:
    """Replace the macros whose text depends on the database alone."""
    if dialect == SqlDialect.SQLITE:
        return _LOCK.sub("", _IN.sub(r"IN (SELECT value FROM json_each(:\1))", text))
    text = _IN.sub(lambda match: f"= ANY (CAST(:{match[1]} AS {match[2] or 'text'}[]))", text)
    return _LOCK.sub(r" \1", text)
