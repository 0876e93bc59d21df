"""Loader of SQL statements. Each statement has a file of its name in this directory.

`name.sql` is for both databases, `name.sqlite.sql` and `name.postgres.sql` for one of them.
`name.part.sql` is a fragment. The files contain placeholders:

- `:name`: a parameter. `:now` is the current time; on PostgreSQL it becomes the server's clock.
- `{p}`: prefix of all names: a schema on PostgreSQL, `mulligan_` on SQLite.
- `{job}`, `{lease}` …: the columns of that row type. `{no:lease}`: as many NULLs.
- `{part:name}`: the text of a fragment.
- `{matching}`: the conditions of a filter.
- `{set:name}` (PostgreSQL): a set of rows, passed as one array per column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, get_type_hints

from mulligan.core.attempt import Lease
from mulligan.core.job import AttemptRow, JobRow, NewJob
from mulligan.storage.base import Settlement
from mulligan.storage.rows import ClaimCandidate, LaneShare
from mulligan.storage.statements import (
    expand_dialect,
    expand_rows,
    load_catalog,
    read_sql,
    row_type,
    strip_comments,
)

_HERE = Path(__file__).parent
_PART = re.compile(r"\{part:(\w+)\}")
_SET = re.compile(r"\{set:(\w+)\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_NOW = re.compile(r"(?<![:\w]):now\b")
_TYPES = {"str": "text", "int": "bigint", "bool": "boolean", "float": "double precision"}
_COLUMNS: dict[str, type[Any]] = {
    "lease": Lease,
    "job": JobRow,
    "attempt": AttemptRow,
}
_SETS: dict[str, type[Any]] = {
    "settlement": Settlement,
    "new_job": NewJob,
    "candidate": ClaimCandidate,
    "lane_share": LaneShare,
}


@lru_cache(maxsize=4096)  # filters have many shapes
def load_statement(
    name: str,
    dialect: str,
    prefix: str,
    *,
    single_row: bool = False,
    shared: frozenset[str] = frozenset(),
    defaulted: frozenset[str] = frozenset(),
    is_transaction: bool = False,
    matching: str = "1 = 1",
) -> str:
    """Return the text of a statement, ready to execute.

    `single_row`: its set has one row. `shared`: columns that are equal in all rows of its set.
    `defaulted`: columns that are empty in all rows. `is_transaction`: the statement is a
    transaction. `matching`: the conditions of its filter.
    """
    text = _statement_text(name, dialect).replace("{matching}", matching)
    while _PART.search(text):  # a fragment may contain fragments
        text = _PART.sub(lambda part: _part_text(part[1], dialect, single_row=single_row), text)
    text = _insert_columns(text)
    text = _SET.sub(
        lambda match: _set(_set_type(name, dialect, match[1]), single_row, shared, defaulted), text
    )
    if is_transaction:
        text = text.replace("{p}mark_events()", _MARK_EVENTS_ONCE)
    text = expand_dialect(text, dialect)
    if dialect == "postgres":
        text = _NOW.sub("{p}now_us()", text)
        text = _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%"))
    return text.replace("{p}", prefix)


# In a statement that is a transaction no earlier mark can exist, so the lock alone is enough. It is
# a tenth of the work of mark_events().
_MARK_EVENTS_ONCE = (
    "pg_advisory_xact_lock_shared({p}event_lock_base() "
    "+ COALESCE(pg_sequence_last_value('{p}event_id_seq'), 0))"
)


def _insert_columns(text: str) -> str:
    for name, columns in _COLUMNS.items():
        text = text.replace(f"{{{name}}}", ", ".join(columns._fields))
        text = text.replace(f"{{no:{name}}}", ", ".join(["NULL"] * len(columns._fields)))
    return text


# --- Statements for SQLite with positional parameters, which are bound three times as fast ---


@cache
def load_positional(
    name: str, prefix: str, fields: tuple[str, ...]
) -> tuple[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]]:
    """Return a statement, and a function that selects its parameters from a row."""
    text = load_statement(name, "sqlite", prefix)
    used = list(dict.fromkeys(_PARAMETER.findall(text)))
    return _number(text, used), itemgetter(*(fields.index(parameter) for parameter in used))


def _number(text: str, parameters: Sequence[str]) -> str:
    places = {name: place for place, name in enumerate(parameters, 1)}
    return _PARAMETER.sub(lambda match: f"?{places[match[1]]}", text)


# --- Files ---


def statement_names(dialect: str) -> list[str]:
    """Return the names of all statements of a database."""
    catalog = load_catalog(dialect)
    names = {name for name, statement in catalog.items() if not statement.is_fragment}
    for pattern in ("*.sql", f"*.{dialect}.sql"):
        files = (file.name.split(".") for file in _HERE.glob(pattern))
        names |= {parts[0] for parts in files if parts[1:] in (["sql"], [dialect, "sql"])}
    return sorted(names)


def statement_path(name: str, dialect: str) -> str:
    """Return the path of a statement's file in the package."""
    known = load_catalog(dialect).get(name)
    if known is not None:
        return known.file
    return f"storage/sql/{_statement_file(name, dialect).name}"


def _statement_text(name: str, dialect: str) -> str:
    if name in load_catalog(dialect):
        return expand_rows(name, dialect)
    return strip_comments(read_sql(_statement_file(name, dialect)))


def _part_text(name: str, dialect: str, *, single_row: bool) -> str:
    if name in load_catalog(dialect):
        return expand_rows(name, dialect)
    return strip_comments(read_sql(_part_file(name, single_row=single_row)))


def _set_type(statement: str, dialect: str, name: str) -> type:
    """Return the row type of a set: of the hot path by its short name, else by its class name."""
    known = load_catalog(dialect).get(statement)
    found: type = _SETS[name] if known is None else row_type(known, name)
    return found


def _part_file(name: str, *, single_row: bool) -> Path:
    single = _HERE / f"{name}_single.part.sql"
    return single if single_row and single.exists() else _HERE / f"{name}.part.sql"


def _statement_file(name: str, dialect: str) -> Path:
    specific = _HERE / f"{name}.{dialect}.sql"
    return specific if specific.exists() else _HERE / f"{name}.sql"


# --- Sets of rows (PostgreSQL) ---


def _set(
    row_type: type,
    single_row: bool,  # noqa: FBT001 - as in load_statement
    shared: frozenset[str],
    defaulted: frozenset[str],
) -> str:
    columns = set_columns(row_type)
    if single_row:
        return _single_row_set(columns)
    empty = _empty_values(row_type)
    texts = {name: f":{name}" for name in shared} | {name: empty[name] for name in defaulted}
    constants = {name: f"{text}::{columns[name]} AS {name}" for name, text in texts.items()}
    return _unnest(columns, constants)


@cache
def set_columns(row_type: type) -> dict[str, str]:
    """Return the SQL type of each field that a set of these rows sends. Tuples are not sent."""
    hints = get_type_hints(row_type)
    return {name: _type_of(hint) for name, hint in hints.items() if "tuple" not in str(hint)}


@cache
def _empty_values(row_type: type) -> dict[str, str]:
    """Return the SQL literal of the empty value of each field."""
    hints = get_type_hints(row_type)
    return {name: _literal(hints[name]) for name in set_columns(row_type)}


def _literal(hint: object) -> str:
    return "NULL" if "None" in str(hint) else _EMPTY_LITERALS[_type_of(hint)]


_EMPTY_LITERALS = {"text": "''", "bigint": "0", "boolean": "false", "double precision": "0"}


def _unnest(columns: dict[str, str], constants: dict[str, str]) -> str:
    """Return a table of arrays, numbered so that the server may stop at a limit."""
    varying = [name for name in columns if name not in constants]
    names = ", ".join(varying)
    arrays = ", ".join(f":{name}::{columns[name]}[]" for name in varying)
    if not constants:
        return f"unnest({arrays}) WITH ORDINALITY AS i({names}, place)"
    selected = ", ".join(constants.get(name, name) for name in columns)
    rows = f"unnest({arrays}) WITH ORDINALITY AS u({names}, place)"
    return f"(SELECT {selected}, place FROM {rows}) AS i"


def _single_row_set(columns: dict[str, str]) -> str:
    """Return one row. The server caches its plan, unlike that of arrays of unknown length."""
    values = [f":{name}::{sql_type} AS {name}" for name, sql_type in columns.items()]
    return f"(SELECT {', '.join(values)}, 1 AS place) AS i"


def _type_of(hint: object) -> str:
    text = getattr(hint, "__name__", None) or str(hint)
    return _TYPES[text.split(" | ")[0]]
