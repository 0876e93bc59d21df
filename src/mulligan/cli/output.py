"""Rows for people (a table), for pipes (TSV) and for programs (JSON).

What jobs carry may be hostile: control characters are taken out before a terminal sees them, and rich gets plain
text, never markup.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

import click

from mulligan.core.event import Event
from mulligan.core.format import safe
from mulligan.core.job import AttemptRow, Job, to_datetime

# Small charts of text: a bar for a share, a line of bars for a row of them.

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"


def bar(share: float | None, width: int = 20) -> str:
    """A share of `width` characters, to an eighth of one; what is more than nothing is seen."""
    if share is None:
        return "·" * width
    eighths = min(
        width * 8, max(1 if share > 0 else 0, round(min(max(share, 0.0), 1.0) * width * 8))
    )
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[part] if part else "")).ljust(width)


def spark(values: Sequence[float | None], most: float | None = None) -> str:
    """One sign each; None is a dot."""
    top = most or max((value for value in values if value is not None), default=0.0) or 1.0
    return "".join(
        "·" if value is None else _LEVELS[min(7, int(value / top * 7.999))] for value in values
    )


# Rows for people (a table), for pipes (TSV) and for programs (JSON).

Record = Mapping[str, Any]
LONGEST = 200_000
_UNSAFE = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
LEAST = 8  # characters of a column that is cut
UNBROKEN = frozenset(
    {
        "id",
        "phase",
        "age",
        "name",
        "status",
        "check",
        "life",
        "attempt",
        "code",
        "kind",
        "host",
        "renewed",
        "group",
        "action",
        "done",
        "count",
        "last",
        "24 h",
    }
)
NUMBERS = frozenset({"attempt", "pid", "running", "age", "renewed", "count", "last"})


def chosen(output: str | None) -> str:
    return output or ("table" if sys.stdout.isatty() else "tsv")


def show_rows(
    records: Sequence[Record],
    columns: Sequence[str],
    output: str | None,
    *,
    empty: str = "",
    short: str = "",
) -> None:
    """All of them. JSON carries every field, tables and TSV the columns; in a table `short` is cut to one line."""
    form = chosen(output)
    if form == "json":
        click.echo(as_json(list(records), indent=2))
    elif form == "jsonl":
        for record in records:
            click.echo(as_json(record))
    elif form == "tsv":
        for record in records:
            click.echo("\t".join(cell(record.get(column)) for column in columns))
    elif records:
        _table(records, columns, short)
    if not records and empty and form == "table":
        click.echo(empty, err=True)


def show_record(record: Record, output: str | None) -> None:
    click.echo(as_json(record, 2 if output == "json" else None))


def _table(records: Sequence[Record], columns: Sequence[str], short: str) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(table_of(records, columns, console.width, short))


def table_of(records: Sequence[Record], columns: Sequence[str], width: int, short: str = "") -> Any:
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    rows = [{column: cell(record.get(column)) for column in columns} for record in records]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        justify: Any = "right" if column in NUMBERS else "left"
        unbroken = column in UNBROKEN or column == short
        table.add_column(heading(column), no_wrap=unbroken, justify=justify, overflow="fold")
    widths = [
        max(cell_len(row[column]) for row in [*rows, {column: heading(column)}])
        for column in columns
    ]
    taken = sum(wide + 2 for column, wide in zip(columns, widths, strict=True) if column != short)
    for row in rows:
        texts = {column: Text(value, style=style(value)) for column, value in row.items()}
        if short:
            texts[short].truncate(max(LEAST, width - taken), overflow="ellipsis")
        table.add_row(*texts.values())
    return table


def heading(column: str) -> str:
    return "TRY" if column == "attempt" else column.upper().replace("_", " ")


_STYLES: dict[str, str] = {
    "dead": "red",
    "fail": "bold red",
    "silent": "red",
    "parked": "yellow",
    "failed": "red",
    "partial": "yellow",
    "processing": "cyan",
    "warn": "yellow",
    "held": "yellow",
    "backing_off": "yellow",
    "over_budget": "yellow",
    "no_worker": "yellow",
    "draining": "yellow",
    "regressed": "bold red",
    "new": "red",
    "muted": "dim",
    "resolved": "green",
    "running": "cyan",
    "succeeded": "green",
    "live": "green",
    "ok": "green",
    "cancelled": "dim",
    "left": "dim",
    "default": "dim",
}


def style(value: str) -> str:
    return _STYLES.get(value, "")


def cell(value: Any) -> str:
    """One value on one line."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else as_json(value)
    return " ".join(safe(text, LONGEST).split())


def lines(text: str) -> str:
    """A text of several lines, fit for a terminal."""
    return safe(text, LONGEST)


def as_json(value: Any, indent: int | None = None) -> str:
    """What a terminal would obey, or cannot write, is escaped: to a program it is the same."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def job_record(job: Job) -> dict[str, Any]:
    names = (field.name for field in fields(job) if not field.name.startswith("_"))
    return {name: _plain(getattr(job, name)) for name in names}


def attempt_record(attempt: AttemptRow) -> dict[str, Any]:
    record = attempt._asdict()
    for name in ("started_at", "ended_at", "next_run_at"):
        record[name] = None if record[name] is None else to_datetime(record[name]).isoformat()
    for name in ("evidence", "private", "judged"):
        record[name] = json.loads(record[name] or "{}")
    return record


def event_record(event: Event) -> dict[str, Any]:
    return {**event._asdict(), "at": to_datetime(event.at).isoformat()}


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
