"""SQL has its own files, one verb each. `claim.sqlite.sql` beside `claim.postgres.sql`; a verb that reads
the same in both exists once, as `claim.sql`.

In the files: `:name` is a parameter, `:now` the clock that rules (on PostgreSQL the database's own), `{p}` the prefix
of every name of ours (a schema on PostgreSQL, letters on SQLite), `{lease}` and its like the columns of that value in
order (`{no:lease}`: as many NULLs; `{as_lease}`: of a job's row), `{part:…}` the text of that part, `{matching}` the
conditions of a filter,
`{set:…}` (PostgreSQL) a set of rows passed as one array per column, or the only row as it is, `{alike:…}` the columns
in which all of them are alike, once.
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
    Gate,
    GuardRow,
    JobRow,
    LimitRow,
    MarkRow,
    State,
    WorkerRow,
)
from mulligan.storage.access_queries import KeyRow, SessionRow
from mulligan.storage.base import BatchRow, ScheduleRow, Settlement
from mulligan.storage.notification_queries import (
    IncidentRow,
    NotifiedRow,
    ReaderRow,
    SubscriptionRow,
)
from mulligan.storage.operation_queries import ItemRow, OperationRow
from mulligan.storage.rows import Again, ClaimCandidate, Done, InsertRow, Lying, Own
from mulligan.storage.search_queries import Shape
from mulligan.storage.stat_queries import AlertRow, StatRow

_HERE = Path(__file__).parent
_PART = re.compile(r"\{part:(\w+)\}")
_SET = re.compile(r"\{set:(\w+)\}")
_ALIKE = re.compile(r"\{alike:(\w+)\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_NOW = re.compile(r"(?<![:\w]):now\b")
_TYPES = {"str": "text", "int": "bigint", "bool": "boolean", "float": "double precision"}
_COLUMNS: dict[str, type[Any]] = {
    "lease": Lease,
    "row": JobRow,
    "attempt": AttemptRow,
    "worker": WorkerRow,
    "gate": Gate,
    "guard": GuardRow,
    "limit": LimitRow,
    "mark": MarkRow,
    "schedule": ScheduleRow,
    "batch": BatchRow,
    "operation": OperationRow,
    "item": ItemRow,
    "key": KeyRow,
    "session": SessionRow,
    "reader": ReaderRow,
    "subscription": SubscriptionRow,
    "incident": IncidentRow,
    "notified": NotifiedRow,
    "stat": StatRow,
    "alert": AlertRow,
}
_SETS: dict[str, type[Any]] = {
    "settlement": Settlement,
    "insert": InsertRow,
    "wanted": ClaimCandidate,
    "stat": StatRow,
    "done": Done,
    "own": Own,
    "lying": Lying,
    "again": Again,
}


@lru_cache(maxsize=4096)  # filters have many shapes
def load(  # noqa: PLR0913 - each says one thing about the statement
    verb: str,
    dialect: str,
    prefix: str,
    *,
    lone: bool = False,
    same: frozenset[str] = frozenset(),
    blank: frozenset[str] = frozenset(),
    free: bool = False,
    alone: bool = False,
    shape: Shape = (),
) -> str:
    """The statement for a verb in a dialect, ready to execute.

    `lone`: its set is a single row; `same`: columns of it in which all rows are alike; `blank`: columns in which
    nothing is said; `free`: no row of it has a unique key; `alone`: it is a transaction; `shape`: its filter.
    """
    text = _terse(_find(verb, dialect))
    conditions = [_condition(name, values, dialect) for name, values in shape]
    text = text.replace("{matching}", "\n  AND ".join(conditions) or "1 = 1")
    while _PART.search(text):  # a part may have parts
        text = _PART.sub(lambda part: _terse(_part(part[1], lone=lone)), text)
    text = text.replace(
        "{as_lease}", f"{', '.join(Lease._fields[:-1])}, {_LIES_AT[dialect]} AS lies_at"
    )
    for name, value in _COLUMNS.items():
        text = text.replace(f"{{{name}}}", ", ".join(value._fields))
        text = text.replace(f"{{no:{name}}}", ", ".join(["NULL"] * len(value._fields)))
    text = _SET.sub(lambda found: _set(_SETS[found[1]], lone, same, blank), text)
    text = _ALIKE.sub(lambda found: _alike(_SETS[found[1]], same, blank), text)
    text = text.replace(_UNLESS_TAKEN, "") if free else text
    text = text.replace("{p}mark_events()", _MARK_ALONE) if alone else text
    if dialect == "postgres":
        text = _NOW.sub("{p}now_us()", text)
        text = _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%"))
    return text.replace("{p}", prefix)


# Where a row lies, which on PostgreSQL saves who ends it the way to it.
_LIES_AT = {"postgres": "CAST(ctid AS text)", "sqlite": "NULL"}
# What a row with a unique key is asked, which costs every row a look.
_UNLESS_TAKEN = "ON CONFLICT (unique_hash) WHERE unique_hash IS NOT NULL DO NOTHING"
# Nobody can have marked before, and nobody will ask: the lock is enough, a tenth of the work of the function.
_MARK_ALONE = "pg_advisory_xact_lock_shared({p}event_lock_base() + COALESCE(pg_sequence_last_value('{p}event_id_seq'), 0))"


@cache
def numbered(
    verb: str, prefix: str, names: tuple[str, ...]
) -> tuple[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]]:
    """The same for SQLite with its parameters by their places, which is bound in a third of the time; and what of a row
    with these names it wants: each value that is bound is copied.
    """
    text = load(verb, "sqlite", prefix)
    used = list(dict.fromkeys(_PARAMETER.findall(text)))
    places = {name: place for place, name in enumerate(used, 1)}
    numbers = _PARAMETER.sub(lambda found: f"?{places[found[1]]}", text)
    return numbers, itemgetter(*(names.index(name) for name in used))


@cache
def numbered_without(verb: str, prefix: str, blank: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """The same for an insert without the columns in which nothing is said; the names of its places."""
    text = _without(verb, prefix, blank)
    used = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    return _placed(text, used), used


@cache
def numbered_lone(
    verb: str, prefix: str, blank: frozenset[str], own: tuple[str, ...]
) -> tuple[str, list[str]]:
    """The same for one row: what is `own` of it has the first places; the names of the other places."""
    text = _without(verb, prefix, blank)
    rest = [name for name in dict.fromkeys(_PARAMETER.findall(text)) if name not in own]
    return _placed(text, (*own, *rest)), rest


def _without(verb: str, prefix: str, blank: frozenset[str]) -> str:
    hints = get_type_hints(InsertRow)
    text = load(verb, "sqlite", prefix)
    return _PARAMETER.sub(
        lambda found: _literal(hints[found[1]]) if found[1] in blank else found[0], text
    )


def _placed(text: str, names: Sequence[str]) -> str:
    return _PARAMETER.sub(lambda found: f"?{names.index(found[1]) + 1}", text)


@cache
def _conditions() -> dict[str, str]:
    lines = _terse(_HERE / "matching.part.sql").splitlines()
    return {name: condition for name, _, condition in (line.partition(": ") for line in lines)}


def _condition(name: str, values: int | tuple[str, ...], dialect: str) -> str:
    """Any of the values; of none: never. `+name`: not to be used by an index, `in.name`: gathered."""
    field = name.removeprefix("+")
    said = [line.replace("?", value) for line, value in _lines(field, values, dialect)]
    if name.startswith("in.") and said:
        gathered = "\nUNION ALL ".join(said)
        return f"id IN ({gathered})" if dialect == "sqlite" else f"id = ANY (ARRAY({gathered}))"
    text = f"({' OR '.join(said)})" if said else "1 = 0"
    return text.replace("{+}", "+" if name != field and dialect == "sqlite" else "")


def _lines(field: str, values: int | tuple[str, ...], dialect: str) -> list[tuple[str, str]]:
    """The text of each value's condition, and what stands in it for the value."""
    known, bare = _conditions(), field.removeprefix("in.")
    if field in {"others", "waiting_others", "owned"}:
        return [(known[field], "")]
    if isinstance(values, int):
        return [(known[field], f":{bare}_{place}") for place in range(values)]
    if bare == "phase":
        return [(known[f"phase.{value}"], "") for value in values]
    if bare == "near":
        return [(known[f"{field}.{value}"], f":near_{place}") for place, value in enumerate(values)]
    if bare == "state":
        return [(known[field] + _ENDED.get(value, ""), f"'{State(value)}'") for value in values]
    line = known[f"{field}.{dialect}"] if field == "arg" else known[field]
    return [(line, f":{value}") for value in values]


# What every such job has, said so that the index of those that have ended can count them.
_ENDED = {State.SUCCEEDED.value: " AND finished_at IS NOT NULL"}


def _part(name: str, *, lone: bool) -> Path:
    own = _HERE / f"{name}_lone.part.sql"
    return own if lone and own.exists() else _HERE / f"{name}.part.sql"


def _find(verb: str, dialect: str) -> Path:
    own = _HERE / f"{verb}.{dialect}.sql"
    return own if own.exists() else _HERE / f"{verb}.sql"


def _terse(file: Path) -> str:
    """Without comments and indentation: the driver reads a long statement anew each time it is sent."""
    try:
        lines = map(str.strip, file.read_text(encoding="utf-8").splitlines())
    except OSError as error:  # no descriptor is left, say: the same to whoever asks as a database that does not answer
        message = f"cannot read {file.name}: {error.strerror}"
        raise StoreUnavailable(message) from error
    return "\n".join(line for line in lines if not line.startswith("--"))


def _set(value: type, lone: bool, same: frozenset[str], blank: frozenset[str]) -> str:  # noqa: FBT001 - as in load
    hints = get_type_hints(value)
    return (
        _lone(hints, _values(hints, frozenset(), blank))
        if lone
        else _unnest(hints, _values(hints, same, blank))
    )


def _alike(value: type, same: frozenset[str], blank: frozenset[str]) -> str:
    return f"(SELECT {', '.join(_values(get_type_hints(value), same, blank).values())}) AS alike"


def _values(hints: dict[str, Any], same: frozenset[str], blank: frozenset[str]) -> dict[str, str]:
    """The columns that need no array, each as a value."""
    texts = {name: f":{name}" for name in same} | {name: _literal(hints[name]) for name in blank}
    return {
        name: f"CAST({text} AS {_type_of(hints[name])}) AS {name}" for name, text in texts.items()
    }


def _unnest(hints: dict[str, Any], values: dict[str, str]) -> str:
    """Numbered, so that the server knows their order and may stop when it has enough of them."""
    own = [name for name in hints if name not in values]
    arrays = ", ".join(f"CAST(:{name} AS {_type_of(hints[name])}[])" for name in own)
    if not values:
        return f"unnest({arrays}) WITH ORDINALITY AS i({', '.join(own)}, place)"
    columns = ", ".join(values.get(name, name) for name in hints)
    rows = f"unnest({arrays}) WITH ORDINALITY AS u({', '.join(own)}, place)"
    return f"(SELECT {columns}, place FROM {rows}) AS i"


def _lone(hints: dict[str, Any], blank: dict[str, str]) -> str:
    """Of an array the server never knows the length, so it would plan anew each time; of one row it keeps its plan."""
    columns = [
        blank.get(name) or f"CAST(:{name} AS {_type_of(hints[name])}) AS {name}" for name in hints
    ]
    return f"(SELECT {', '.join(columns)}, 1 AS place) AS i"


def _literal(hint: object) -> str:
    """What such a column holds where nothing was said."""
    return "NULL" if "None" in str(hint) else _NOTHING[_type_of(hint)]


_NOTHING = {"text": "''", "bigint": "0", "boolean": "false", "double precision": "0"}


def _type_of(hint: object) -> str:
    text = getattr(hint, "__name__", None) or str(hint)
    return _TYPES[text.split(" | ")[0]]
