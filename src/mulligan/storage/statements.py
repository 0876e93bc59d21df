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
- `{part:name}`: the text of a fragment. If a set has one row, `name_single` replaces it.
- `{matching}`: the conditions of a filter.
- `{if:unique_hash} … {end}` (PostgreSQL): a text that is left out if no row of the set has a value
  in that column.
- `{set:StatRow}` (PostgreSQL): a set of rows, passed as one array per column. Columns of texts are
  passed as joined texts, which need no quotes and are split by the server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import cache, lru_cache
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from mulligan.core.errors import StoreUnavailable

SQLITE_PREFIX = "mulligan_"  # of all names on SQLite

_PACKAGE = Path(__file__).parent.parent
_HEADING = re.compile(r"^-- (name|fragment): (\w+)$", re.MULTILINE)
_ROW = re.compile(r"\{([A-Z]\w+)\}")
_IN = re.compile(r"\{in:(\w+)(?: (\w+))?\}")
_LOCK = re.compile(r"\s*\{lock:([^}]+)\}")
_PART = re.compile(r"\{part:(\w+)\}")
_SET = re.compile(r"\{set:(\w+)\}")
_IF = re.compile(r"\{if:(\w+)\}(.*?)\{end\}", re.DOTALL)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_NOW = re.compile(r"(?<![:\w]):now\b")


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


# --- Files ---


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


def statement_names(dialect: str) -> list[str]:
    """Return the names of all statements of a database."""
    catalog = load_catalog(dialect)
    return sorted(name for name, statement in catalog.items() if not statement.is_fragment)


def statement_path(name: str, dialect: str) -> str:
    """Return the path of a statement's file in the package."""
    return load_catalog(dialect)[name].file


def _parse(file: Path) -> Iterator[Statement]:
    path = str(file.relative_to(_PACKAGE))
    _, *sections = _HEADING.split(_read_sql(file))
    for kind, name, text in zip(sections[::3], sections[1::3], sections[2::3], strict=True):
        yield Statement(name, kind == "fragment", path, text.strip())


def _refuse_duplicate(statement: Statement, known: dict[str, Statement]) -> None:
    if statement.name in known:
        message = (
            f"statement {statement.name!r} is in {known[statement.name].file} and "
            f"in {statement.file}. Rename one of them."
        )
        raise ValueError(message)


def _read_sql(file: Path) -> str:
    """Read a file of statements."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:  # for example, no file descriptor is left
        message = f"cannot read {file.name}: {error.strerror}"
        raise StoreUnavailable(message) from error


# --- Texts ---


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
    `defaulted`: columns that have their default in all rows. `is_transaction`: the statement is a
    transaction. `matching`: the conditions of its filter.
    """
    statement = load_catalog(dialect)[name]
    text = expand_rows(name, dialect).replace("{matching}", matching)
    while _PART.search(text):  # a fragment may contain fragments
        text = _PART.sub(lambda part: _part_text(part[1], dialect, single_row=single_row), text)
    text = _IF.sub(lambda match: "" if match[1] in defaulted else match[2], text)
    text = _SET.sub(
        lambda match: _set(row_type(statement, match[1]), single_row, shared, defaulted), text
    )
    if is_transaction:
        text = text.replace("{p}mark_events()", _MARK_EVENTS_ONCE)
    text = expand_dialect(text, dialect)
    if dialect == SqlDialect.POSTGRES:
        text = _NOW.sub("{p}now_us()", text)
        text = _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%"))
    return text.replace("{p}", prefix)


# In a statement that is a transaction no earlier mark can exist, so the lock alone is enough. It is
# a tenth of the work of mark_events().
_MARK_EVENTS_ONCE = (
    "pg_advisory_xact_lock_shared({p}event_lock_base() "
    "+ COALESCE(pg_sequence_last_value('{p}event_id_seq'), 0))"
)


def _part_text(name: str, dialect: str, *, single_row: bool) -> str:
    single = f"{name}_single"
    use_single = single_row and single in load_catalog(dialect)
    return expand_rows(single if use_single else name, dialect)


def _strip_comments(text: str) -> str:
    """Remove comments and indentation: the driver parses long texts on every call."""
    lines = map(str.strip, text.splitlines())
    return "\n".join(line for line in lines if not line.startswith("--"))


@cache
def expand_rows(name: str, dialect: str) -> str:
    """Return the text of a statement or fragment with the columns of its row types."""
    statement = load_catalog(dialect)[name]
    text = _strip_comments(statement.text)
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


# --- Statements for SQLite with positional parameters, which are bound three times as fast ---


@cache
def load_positional(
    name: str, prefix: str, fields: tuple[str, ...]
) -> tuple[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]]:
    """Return a statement, and a function that selects its parameters from a row."""
    text = load_statement(name, SqlDialect.SQLITE, prefix)
    used = list(dict.fromkeys(_PARAMETER.findall(text)))
    return _number(text, used), itemgetter(*(fields.index(parameter) for parameter in used))


def _number(text: str, parameters: Sequence[str]) -> str:
    places = {name: place for place, name in enumerate(parameters, 1)}
    return _PARAMETER.sub(lambda match: f"?{places[match[1]]}", text)


# --- Sets of rows (PostgreSQL) ---


def _set(
    row_type: type,
    single_row: bool,  # noqa: FBT001 - as in load_statement
    shared: frozenset[str],
    defaulted: frozenset[str],
) -> str:
    columns = set_columns(row_type)
    texts = {name: f":{name}" for name in columns if single_row or name in shared}
    texts |= {name: _literal(default_values(row_type)[name]) for name in defaulted}
    constants = {name: f"{text}::{columns[name]} AS {name}" for name, text in texts.items()}
    return _unnest(columns, constants)


# Parameters of a set: what separates its texts, and what stands for NULL.
SEPARATOR = "sep"
NULL_MARK = "nil"
_TYPES = {"str": "text", "int": "bigint", "bool": "boolean", "float": "double precision"}


@cache
def set_columns(row_type: type) -> dict[str, str]:
    """Return the SQL type of each field that a set of these rows sends. Tuples are not sent."""
    types = {name: _type_of(hint) for name, hint in get_type_hints(row_type).items()}
    return {name: sql_type for name, sql_type in types.items() if sql_type}


@cache
def default_values(row_type: Any) -> dict[str, Any]:
    """Return the defaults of the fields that a set of these rows sends."""
    defaults = row_type._field_defaults
    return {name: defaults[name] for name in set_columns(row_type) if name in defaults}


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) else str(value).lower()


def _unnest(columns: dict[str, str], constants: dict[str, str]) -> str:
    """Return a table of arrays, numbered so that the server may stop at a limit."""
    varying = [name for name in columns if name not in constants]
    if not varying:
        # The server caches the plan of one row, unlike that of arrays of unknown length.
        return f"(SELECT {', '.join(constants.values())}, 1 AS place) AS i"
    # Without spaces: the driver keeps the parsed form only of statements up to 4,096 characters.
    names = ",".join(varying)
    arrays = ",".join(_array(name, columns[name]) for name in varying)
    if not constants:
        return f"unnest({arrays}) WITH ORDINALITY AS i({names}, place)"
    rows = f"unnest({arrays}) WITH ORDINALITY AS u({names}, place)"
    return f"(SELECT u.*, {', '.join(constants.values())} FROM {rows}) AS i"


def _array(name: str, sql_type: str) -> str:
    if sql_type == "text":
        return f"string_to_array(:{name},:{SEPARATOR},:{NULL_MARK})"
    return f":{name}::{sql_type}[]"


def _type_of(hint: object) -> str:
    text = getattr(hint, "__name__", None) or str(hint)
    return _TYPES.get(text.split(" | ")[0], "")
