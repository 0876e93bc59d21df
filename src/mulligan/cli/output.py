"""Print records: a table for people, TSV for pipes, JSON for programs.

Job data may be hostile: control characters are removed before a terminal sees them, and rich gets
`Text` objects, never markup.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import click

from mulligan.cli import unknown_name_message
from mulligan.cli.options import FIELDS_KEY, HEADER_KEY
from mulligan.core.durations import to_datetime
from mulligan.core.event import Event
from mulligan.core.format import format_duration, safe_text
from mulligan.core.job import AttemptRow, Job

Record = Mapping[str, Any]
T = TypeVar("T")

MAX_TEXT = 200_000  # characters of one value
MIN_TRUNCATED_WIDTH = 8  # characters
MIN_READABLE = 16  # characters of a column that is cut
MAX_WHOLE = 20  # characters of a cell that is not wrapped
NO_WRAP_COLUMNS = frozenset(
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
        "job",
        "owner",
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
RIGHT_ALIGNED_COLUMNS = frozenset({"attempt", "pid", "running", "age", "renewed", "count", "last"})

_ESCAPED_IN_JSON = re.compile(
    "[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)

# --- Output formats ---


def output_format(output: str | None) -> str:
    """Return the requested format. Default: a table on a terminal, else TSV."""
    if output is not None:
        return output
    return "table" if sys.stdout.isatty() else "tsv"


def is_json(output: str | None) -> bool:
    """Return True for json and jsonl, which carry every field of a record."""
    return output in {"json", "jsonl"}


def print_rows(
    records: Sequence[Record],
    columns: Sequence[str],
    output: str | None,
    *,
    empty: str = "",
    truncate: str = "",
) -> None:
    """Print records in the requested format.

    JSON carries every field, tables and TSV only `columns`. In a table the column `truncate` is cut
    to one line, and `empty` is printed to stderr if there are no records.
    """
    form = output_format(output)
    if form == "json":
        click.echo(to_json([select_fields(record) for record in records], indent=2))
    elif form == "jsonl":
        for record in records:
            click.echo(to_json(select_fields(record)))
    elif form == "tsv":
        if _context_value(HEADER_KEY):
            print_tsv(columns)
        for record in records:
            print_tsv(record.get(column) for column in columns)
    elif records:
        _print_table(records, columns, truncate)
    elif empty:
        click.echo(empty, err=True)


def print_record(record: Record, columns: Sequence[str], output: str | None) -> None:
    """Print one record: a JSON object rather than a list of one, else a row."""
    if is_json(output):
        print_json(record, output)
    else:
        print_rows([record], columns, output)


def print_json(value: Any, output: str | None) -> None:
    """Print a value as JSON: indented for json, on one line for jsonl."""
    indent = 2 if output == "json" else None
    click.echo(to_json(select_fields(value), indent))


def select_fields(record: Any) -> Any:
    """Return only the fields that --json names; the whole record without it."""
    fields = _context_value(FIELDS_KEY)
    if fields is None or not isinstance(record, Mapping):
        return record
    for field in fields:
        if field not in record:
            raise click.UsageError(unknown_name_message("field", field, list(record)))
    return {field: record[field] for field in fields}


def _context_value(key: str) -> Any:
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(key)


def print_tsv(values: Iterable[Any]) -> None:
    """Print values as one line of tab-separated cells."""
    click.echo("\t".join(format_cell(value) for value in values))


def print_facts(facts: Sequence[tuple[str, str]], output: str | None) -> None:
    """Print (name, value) pairs, one per line. Skip empty values."""
    shown = [(name, value) for name, value in facts if value]
    if output_format(output) != "table":
        for fact in shown:
            print_tsv(fact)
        return
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        click.echo(f"{name:<{width}}  {format_cell(value)}")


# --- Tables ---


def _print_table(records: Sequence[Record], columns: Sequence[str], truncate: str) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    shown = fit_columns(records, columns, console.width, truncate)
    console.print(build_table(records, shown, console.width, truncate))
    has_values = [
        column
        for column in columns
        if column not in shown and any(format_cell(record.get(column)) for record in records)
    ]
    if has_values:
        names = ", ".join(column.replace("_", " ") for column in has_values)
        click.echo(f"Too narrow for: {names}. Widen the terminal, or use -o json.", err=True)


def fit_columns(
    records: Sequence[Record], columns: Sequence[str], width: int, truncate: str = ""
) -> list[str]:
    """Return the columns that fit: without empty ones, then without those on the right.

    The first two and the column `truncate` always stay.
    """
    rows = [{column: format_cell(record.get(column)) for column in columns} for record in records]
    needed = {column: _needed_width(rows, column, truncate) + 2 for column in columns}
    shown = list(columns)
    may_go = [column for column in columns[2:] if column != truncate]
    empty = [column for column in may_go if not any(row[column] for row in rows)]
    for column in (*empty, *reversed([one for one in may_go if one not in empty])):
        if sum(needed[one] for one in shown) - 2 <= width:
            break
        shown.remove(column)
    return shown


def _needed_width(rows: Sequence[Mapping[str, str]], column: str, truncate: str) -> int:
    """Return the least width of a column: long texts are cut or wrapped, all else is whole."""
    width = _column_width(rows, column)
    if column == truncate:
        return min(width, MIN_READABLE)
    if column in NO_WRAP_COLUMNS:
        return width
    return min(width, max(MAX_WHOLE, len(column_heading(column))))


def terminal_width() -> int:
    """Return the width of the terminal that tables are printed to."""
    from rich.console import Console

    return Console().width


def build_table(
    records: Sequence[Record], columns: Sequence[str], width: int, truncate: str = ""
) -> Any:
    """Build a rich table that is at most `width` wide if the column `truncate` can be cut."""
    from rich.table import Table
    from rich.text import Text

    rows = []
    for record in records:
        rows.append({column: format_cell(record.get(column)) for column in columns})
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        justify: Any = "right" if column in RIGHT_ALIGNED_COLUMNS else "left"
        is_short = _column_width(rows, column) <= MAX_WHOLE
        no_wrap = is_short or column in NO_WRAP_COLUMNS or column == truncate
        table.add_column(column_heading(column), no_wrap=no_wrap, justify=justify, overflow="fold")
    other_columns = [column for column in columns if column != truncate]
    space_left = width - sum(_column_width(rows, column) + 2 for column in other_columns)
    for row in rows:
        texts = {column: Text(value, style=style_of(value)) for column, value in row.items()}
        if truncate:
            texts[truncate].truncate(max(MIN_TRUNCATED_WIDTH, space_left), overflow="ellipsis")
        table.add_row(*texts.values())
    return table


def _column_width(rows: Sequence[Mapping[str, str]], column: str) -> int:
    from rich.cells import cell_len

    values = [row[column] for row in rows]
    return max(cell_len(value) for value in [*values, column_heading(column)])


def column_heading(column: str) -> str:
    """Return the heading of a column in a table."""
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
    "waiting": "cyan",
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


def style_of(value: str) -> str:
    """Return the rich style of a state, or an empty string."""
    return _STYLES.get(value, "")


# --- Text charts ---

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"


def draw_bar(share: float | None, width: int = 20) -> str:
    """Draw a share between 0 and 1 as a bar. A share above 0 is always visible; None is dotted."""
    if share is None:
        return "·" * width
    bounded = min(max(share, 0.0), 1.0)
    eighths = round(bounded * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    whole, rest = divmod(eighths, 8)
    partial = _EIGHTHS[rest] if rest else ""
    return ("█" * whole + partial).ljust(width)


def draw_sparkline(values: Sequence[float | None]) -> str:
    """Draw one character per value, scaled to the largest. None is a dot."""
    known = [value for value in values if value is not None]
    largest = max(known, default=0.0) or 1.0
    return "".join(_spark(value, largest) for value in values)


def _spark(value: float | None, largest: float) -> str:
    if value is None:
        return "·"
    return _LEVELS[min(7, int(value / largest * 7.999))]


# --- Live display ---


class Frame(NamedTuple):
    """The current state of something that is watched."""

    text: str  # one line, for pipes and logs
    draw: Callable[[], Any]  # returns the rich renderable for a terminal
    key: str  # the line is printed again when this changes


ShowFrame = Callable[[Frame], None]


@contextmanager
def live_display() -> Iterator[ShowFrame]:
    """Redraw frames in place on a terminal. Elsewhere print a line whenever the key changes."""
    if not sys.stderr.isatty():
        yield _print_changes()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False)
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield lambda frame: live.update(frame.draw())


def _print_changes() -> ShowFrame:
    last_key = ""

    def show(frame: Frame) -> None:
        nonlocal last_key
        if frame.key != last_key:
            last_key = frame.key
            click.echo(frame.text, err=True)

    return show


# --- Values ---


def format_cell(value: Any) -> str:
    """Format a value on one line, safe for a terminal. None is empty."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else to_json(value)
    return " ".join(format_text(text).split())


def format_text(text: str) -> str:
    """Make a text of several lines safe for a terminal."""
    return safe_text(text, MAX_TEXT)


def to_json(value: Any, indent: int | None = None) -> str:
    """Serialise to JSON. Escape characters that a terminal would obey or cannot encode."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    return _ESCAPED_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def json_value(value: Any) -> Any:
    """Return the value as JSON carries it: times in ISO format, everything else unchanged."""
    if isinstance(value, Mapping):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else value


def format_optional(format_value: Callable[[T], str], value: T | None) -> str | None:
    """Format a value. Return None, an empty cell, for None."""
    return None if value is None else format_value(value)


def time_since(at: datetime) -> str:
    """Format how long ago a time was: 5 min."""
    return _format_span(datetime.now(UTC) - at)


def time_left(at: datetime) -> str:
    """Format how long it is until a time: 5 min."""
    return _format_span(at - datetime.now(UTC))


def _format_span(span: timedelta) -> str:
    return format_duration(max(0, round(span.total_seconds())))


# --- Records ---


def job_record(job: Job) -> dict[str, Any]:
    """Return the public fields of a job."""
    names = (field.name for field in fields(job) if not field.name.startswith("_"))
    return {name: json_value(getattr(job, name)) for name in names}


def attempt_record(attempt: AttemptRow) -> dict[str, Any]:
    """Return an attempt with its times in ISO format and its JSON columns parsed."""
    record = attempt._asdict()
    for name in ("started_at", "ended_at", "next_run_at"):
        if record[name] is not None:
            record[name] = to_datetime(record[name]).isoformat()
    for name in ("evidence", "private", "judged"):
        record[name] = json.loads(record[name] or "{}")
    return record


def event_record(event: Event) -> dict[str, Any]:
    """Return an event with its time in ISO format."""
    return {**event._asdict(), "seq": event.seq, "at": to_datetime(event.at).isoformat()}
