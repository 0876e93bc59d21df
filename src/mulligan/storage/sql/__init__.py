"""Loader of SQL statements. Each statement has a file of its name in this directory.

`name.sql` is for both databases, `name.sqlite.sql` and `name.postgres.sql` for one of them.
`name.part.sql` is a fragment. The files contain placeholders:

- `:name`: a parameter. `:now` is the current time; on PostgreSQL it becomes the server's clock.
- `{p}`: prefix of all names: a schema on PostgreSQL, `mulligan_` on SQLite.
- `{job}`, `{lease}` …: the columns of that row type. `{no:lease}`: as many NULLs. `{as_lease}`: the
  columns of a lease, selected from a job's row.
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
from mulligan.core.errors import StoreUnavailable
from mulligan.core.job import (
    AttemptRow,
    FailureGroupRow,
    Gate,
    GuardRow,
    JobRow,
    LimitRow,
    NewJob,
    State,
    WorkerRow,
)
from mulligan.storage.access_queries import ApiKeyRow, SessionRow
from mulligan.storage.base import BatchRow, ScheduleRow, Settlement
from mulligan.storage.notification_queries import (
    IncidentRow,
    MessageCountRow,
    ReaderRow,
    SubscriptionRow,
)
from mulligan.storage.operation_queries import ItemRow, OperationRow
from mulligan.storage.rows import (
    ClaimCandidate,
    LocatedSuccessColumns,
    PerAttemptColumns,
    RetryColumns,
    SuccessColumns,
)
from mulligan.storage.search_queries import ArgRow, Shape
from mulligan.storage.stat_queries import AlertRow, StatRow

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
    "worker": WorkerRow,
    "gate": Gate,
    "guard": GuardRow,
    "limit": LimitRow,
    "failure_group": FailureGroupRow,
    "schedule": ScheduleRow,
    "batch": BatchRow,
    "operation": OperationRow,
    "item": ItemRow,
    "api_key": ApiKeyRow,
    "session": SessionRow,
    "reader": ReaderRow,
    "subscription": SubscriptionRow,
    "incident": IncidentRow,
    "message_count": MessageCountRow,
    "stat": StatRow,
    "alert": AlertRow,
}
_SETS: dict[str, type[Any]] = {
    "settlement": Settlement,
    "new_job": NewJob,
    "arg": ArgRow,
    "candidate": ClaimCandidate,
    "stat": StatRow,
    "success": SuccessColumns,
    "per_attempt": PerAttemptColumns,
    "located_success": LocatedSuccessColumns,
    "retry": RetryColumns,
}


@lru_cache(maxsize=4096)  # filters have many shapes
def load_statement(
    name: str,
    dialect: str,
    prefix: str,
    *,
    single_row: bool = False,
    shared: frozenset[str] = frozenset(),
    is_transaction: bool = False,
    shape: Shape = (),
) -> str:
    """Return the text of a statement, ready to execute.

    `single_row`: its set has one row. `shared`: columns that are equal in all rows of its set.
    `is_transaction`: the statement is a transaction. `shape`: the conditions of its filter.
    """
    text = _read(_statement_file(name, dialect))
    conditions = [_condition(field, values, dialect) for field, values in shape]
    text = text.replace("{matching}", "\n  AND ".join(conditions) or "1 = 1")
    while _PART.search(text):  # a fragment may contain fragments
        text = _PART.sub(lambda part: _read(_part_file(part[1], single_row=single_row)), text)
    text = _insert_columns(text, dialect)
    text = _SET.sub(lambda match: _set(_SETS[match[1]], single_row, shared), text)
    if is_transaction:
        text = text.replace("{p}mark_events()", _MARK_EVENTS_ONCE)
    if dialect == "postgres":
        text = _NOW.sub("{p}now_us()", text)
        text = _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%"))
    return text.replace("{p}", prefix)


# On PostgreSQL a lease contains the location of its row, so that its settlement needs no lookup.
_ROW_LOCATION = {"postgres": "CAST(ctid AS text)", "sqlite": "NULL"}
# In a statement that is a transaction no earlier mark can exist, so the lock alone is enough. It is
# a tenth of the work of mark_events().
_MARK_EVENTS_ONCE = (
    "pg_advisory_xact_lock_shared({p}event_lock_base() "
    "+ COALESCE(pg_sequence_last_value('{p}event_id_seq'), 0))"
)


def _insert_columns(text: str, dialect: str) -> str:
    lease_columns = ", ".join(Lease._fields[:-1])
    text = text.replace("{as_lease}", f"{lease_columns}, {_ROW_LOCATION[dialect]} AS row_location")
    for name, row_type in _COLUMNS.items():
        text = text.replace(f"{{{name}}}", ", ".join(row_type._fields))
        text = text.replace(f"{{no:{name}}}", ", ".join(["NULL"] * len(row_type._fields)))
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


# --- Conditions of filters ---


@cache
def _conditions() -> dict[str, str]:
    """Read the SQL of each filter field."""
    lines = _read(_HERE / "filter_conditions.part.sql").splitlines()
    pairs = (line.partition(": ") for line in lines)
    return {name: condition for name, _, condition in pairs}


def _condition(name: str, values: int | tuple[str, ...], dialect: str) -> str:
    """Return the condition that a field has one of the values. Without values it is false.

    The prefix `+` keeps SQLite from using an index. The prefix `in.` selects the ids in a subquery.
    """
    field = name.removeprefix("+")
    lines = [line.replace("?", value) for line, value in _condition_lines(field, values, dialect)]
    if name.startswith("in.") and lines:
        union = "\nUNION ALL ".join(lines)
        return f"id IN ({union})" if dialect == "sqlite" else f"id = ANY (ARRAY({union}))"
    text = f"({' OR '.join(lines)})" if lines else "1 = 0"
    no_index = name != field and dialect == "sqlite"
    return text.replace("{+}", "+" if no_index else "")


def _condition_lines(
    field: str, values: int | tuple[str, ...], dialect: str
) -> list[tuple[str, str]]:
    """Return the condition of each value, and the text that replaces its `?`."""
    known = _conditions()
    bare = field.removeprefix("in.")
    if field in {"others", "waiting_others", "owned"}:
        return [(known[field], "")]
    if isinstance(values, int):
        return [(known[field], f":{bare}_{place}") for place in range(values)]
    if bare == "phase":
        return [(known[f"phase.{value}"], "") for value in values]
    if bare == "near":
        return [(known[f"{field}.{value}"], f":near_{place}") for place, value in enumerate(values)]
    if bare == "state":
        return [(known[field] + _FINISHED.get(value, ""), f"'{State(value)}'") for value in values]
    line = known[f"{field}.{dialect}"] if field == "arg" else known[field]
    return [(line, f":{value}") for value in values]


# True for every succeeded job. It lets the planner count them in the index of finished jobs.
_FINISHED = {State.SUCCEEDED.value: " AND finished_at IS NOT NULL"}


# --- Files ---


def _part_file(name: str, *, single_row: bool) -> Path:
    single = _HERE / f"{name}_single.part.sql"
    return single if single_row and single.exists() else _HERE / f"{name}.part.sql"


def _statement_file(name: str, dialect: str) -> Path:
    specific = _HERE / f"{name}.{dialect}.sql"
    return specific if specific.exists() else _HERE / f"{name}.sql"


def _read(file: Path) -> str:
    """Read a file without comments and indentation: the driver parses long texts on every call."""
    try:
        lines = map(str.strip, file.read_text(encoding="utf-8").splitlines())
    except OSError as error:  # for example, no file descriptor is left
        message = f"cannot read {file.name}: {error.strerror}"
        raise StoreUnavailable(message) from error
    return "\n".join(line for line in lines if not line.startswith("--"))


# --- Sets of rows (PostgreSQL) ---


def _set(row_type: type, single_row: bool, shared: frozenset[str]) -> str:  # noqa: FBT001 - as in load_statement
    hints = set_columns(row_type)
    constants = {name: f"CAST(:{name} AS {hints[name]}) AS {name}" for name in shared}
    return _single_row_set(hints) if single_row else _unnest(hints, constants)


@cache
def set_columns(row_type: type) -> dict[str, str]:
    """Return the SQL type of each field that a set of these rows sends. Tuples are not sent."""
    hints = get_type_hints(row_type)
    return {name: _type_of(hint) for name, hint in hints.items() if "tuple" not in str(hint)}


def _unnest(columns: dict[str, str], constants: dict[str, str]) -> str:
    """Return a table of arrays, numbered so that the server may stop at a limit."""
    varying = [name for name in columns if name not in constants]
    names = ", ".join(varying)
    arrays = ", ".join(f"CAST(:{name} AS {columns[name]}[])" for name in varying)
    if not constants:
        return f"unnest({arrays}) WITH ORDINALITY AS i({names}, place)"
    selected = ", ".join(constants.get(name, name) for name in columns)
    rows = f"unnest({arrays}) WITH ORDINALITY AS u({names}, place)"
    return f"(SELECT {selected}, place FROM {rows}) AS i"


def _single_row_set(columns: dict[str, str]) -> str:
    """Return one row. The server caches its plan, unlike that of arrays of unknown length."""
    values = [f"CAST(:{name} AS {sql_type}) AS {name}" for name, sql_type in columns.items()]
    return f"(SELECT {', '.join(values)}, 1 AS place) AS i"


def _type_of(hint: object) -> str:
    text = getattr(hint, "__name__", None) or str(hint)
    return _TYPES[text.split(" | ")[0]]
