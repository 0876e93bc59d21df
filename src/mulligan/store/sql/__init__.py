"""SQL has its own files, one verb each. `claim.sqlite.sql` beside `claim.postgres.sql`; a verb that reads
the same in both exists once, as `claim.sql`.

In the files: `:name` is a parameter, `:now` the clock that rules (on PostgreSQL the database's own), `{p}` the prefix
of every name of ours (a schema on PostgreSQL, letters on SQLite), `{lease}` and its like the columns of that value in
order (`{no:lease}`: as many NULLs), `{part:…}` the text of that part, `{set:…}` (PostgreSQL) a set of rows passed as
one array per column, or the only row as it is.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from mulligan.job import AttemptRow, Gate, GuardRow, JobRow, Lease, LimitRow, WorkerRow
from mulligan.store.base import ScheduleRow, Settlement
from mulligan.store.rows import InsertRow, Wanted

_HERE = Path(__file__).parent
_PART = re.compile(r"\{part:(\w+)\}")
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
    "schedule": ScheduleRow,
}
_SETS: dict[str, type[Any]] = {"settlement": Settlement, "insert": InsertRow, "wanted": Wanted}


@cache
def load(verb: str, dialect: str, prefix: str, *, lone: bool = False) -> str:
    """The statement for a verb in a dialect, ready to execute; `lone`: its set is a single row."""
    text = _PART.sub(lambda part: _terse(_HERE / f"{part[1]}.part.sql"), _terse(_find(verb, dialect)))
    for name, value in _COLUMNS.items():
        text = text.replace(f"{{{name}}}", ", ".join(value._fields))
        text = text.replace(f"{{no:{name}}}", ", ".join(["NULL"] * len(value._fields)))
    for name, value in _SETS.items():
        text = text.replace(f"{{set:{name}}}", _lone(value) if lone else _unnest(value))
    if dialect == "postgres":
        text = _NOW.sub("{p}now_us()", text)
        text = _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%"))
    return text.replace("{p}", prefix)


def _find(verb: str, dialect: str) -> Path:
    own = _HERE / f"{verb}.{dialect}.sql"
    return own if own.exists() else _HERE / f"{verb}.sql"


def _terse(file: Path) -> str:
    """Without comments and indentation: the driver reads a long statement anew each time it is sent."""
    lines = map(str.strip, file.read_text(encoding="utf-8").splitlines())
    return "\n".join(line for line in lines if not line.startswith("--"))


def _unnest(value: type) -> str:
    """Numbered, so that the server knows their order and may stop when it has enough of them."""
    hints = get_type_hints(value)
    arrays = ", ".join(f"CAST(:{name} AS {_type_of(hints[name])}[])" for name in hints)
    return f"unnest({arrays}) WITH ORDINALITY AS i({', '.join(hints)}, place)"


def _lone(value: type) -> str:
    """Of an array the server never knows the length, so it would plan anew each time; of one row it keeps its plan."""
    hints = get_type_hints(value)
    columns = ", ".join(f"CAST(:{name} AS {_type_of(hints[name])}) AS {name}" for name in hints)
    return f"(SELECT {columns}, 1 AS place) AS i"


def _type_of(hint: object) -> str:
    text = getattr(hint, "__name__", None) or str(hint)
    return _TYPES[text.split(" | ")[0]]
