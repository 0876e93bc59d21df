"""Format log records: one line each, as text or as a JSON object.

A message may contain newlines that would forge a second record, control characters, secrets or a
megabyte of text. It always becomes one well-formed line of bounded length. A traceback follows its
line indented (text) or is a field (JSON).
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from mulligan.config import LogSection
from mulligan.core.tracing import current_attempt
from mulligan.failures.facts import SOURCE_MARK
from mulligan.failures.redact import scrub
from mulligan.observability.tracing import current_trace_ids

MAX_MESSAGE = 16_384  # characters
MAX_TRACE = 32_768
MAX_FIELD = 2048
MAX_NAME = 60
MAX_FIELDS = 40  # extra fields of a record
TERMINAL_FRAMES = 10  # of a failure's trace on a terminal; `mulligan jobs show` has all
MIN_FRAMES = 3  # of each exception of a chain

# Ids of the attempt and the trace, printed in this order.
ID_FIELDS = (
    "job",
    "kind",
    "queue",
    "attempt",
    "token",
    "worker",
    "trace_id",
    "span_id",
)
_HEAD = ("time", "level", "logger", "message")
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "stack",
}
# Escapes everything but ASCII, so that no line separator is left.
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class AttemptFilter(logging.Filter):
    """Add the ids of the running attempt to every record, whichever library logs it."""

    def filter(self, record: logging.LogRecord) -> bool:
        lease = current_attempt()
        if lease is not None:
            record.job, record.kind, record.queue = lease.id, lease.kind, lease.queue
            record.attempt, record.token, record.worker = lease.attempt, lease.token, lease.worker
        for name, value in current_trace_ids().items():
            setattr(record, name, value)
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per record."""

    clean = True  # already redacted; redacting the JSON again could break it

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        line: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": _short(str(record.name)),
            "message": _message(record),
        }
        line |= {name: fields.pop(name) for name in ID_FIELDS if name in fields}
        line |= {name: value for name, value in fields.items() if name not in _HEAD}
        trace = _trace(self, record)
        if trace:
            line["trace"] = trace
        return _ENCODE(line)


class TextFormatter(logging.Formatter):
    """One line per record: `time LEVEL logger message key=value …`."""

    clean = True

    def __init__(self, max_frames: int | None = None) -> None:
        """Create it. `max_frames`: about so many frames of a failure's trace; None: all."""
        super().__init__()
        self._max_frames = max_frames

    def format(self, record: logging.LogRecord) -> str:
        found = vars(record)
        ids = [
            f"{name}={_quote(_value(found[name]))}"
            for name in ID_FIELDS
            if found.get(name) is not None
        ]
        logger = _one_line(_short(str(record.name)))
        message = _one_line(_message(record))
        line = " ".join([_timestamp(record), record.levelname, logger, message, *ids])
        # The failure of an attempt has its trace as a text: its exception stayed in the runner.
        text = _trace(self, record) or scrub(self._failure_trace(found), MAX_TRACE)
        # `splitlines` splits at every character that `_one_line` escapes, except the tab.
        return "\n    ".join([line, *text.replace("\t", "\\t").splitlines()])

    def _failure_trace(self, found: Mapping[str, Any]) -> str:
        trace = str(found.get("error_trace") or "")
        return trace if self._max_frames is None else shorten_trace(trace, self._max_frames)


def shorten_trace(trace: str, max_frames: int) -> str:
    """Keep the innermost frames: about `max_frames`, at least three of each exception."""
    sections: list[list[str]] = []  # of each exception: its title, then its frames
    for line in trace.splitlines():
        if not line.startswith(" "):
            sections.append([line])
        elif line.startswith(SOURCE_MARK) and sections:
            sections[-1][-1] += f"\n{line}"
        elif sections:
            sections[-1].append(line)
    kept = max(MIN_FRAMES, max_frames // max(1, len(sections)))
    return "\n".join(line for section in sections for line in _shorten_section(section, kept))


def _shorten_section(section: list[str], kept: int) -> list[str]:
    title, *frames = section
    left_out = len(frames) - kept
    if left_out <= 1:
        return section
    return [title, f"  … {left_out} more frames", *frames[left_out:]]


def configure_handler(log: LogSection, handler: logging.Handler) -> logging.Handler:
    """Set the formatter of the settings and add attempt ids."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    text = TextFormatter(TERMINAL_FRAMES if is_terminal else None)
    handler.setFormatter(JsonFormatter() if log.format == "json" else text)
    handler.addFilter(AttemptFilter())
    return handler


def configure_logging(log: LogSection, handler: logging.Handler | None = None) -> None:
    """Send everything this process logs to the handler (default stderr)."""
    logging.basicConfig(
        level=log.level,
        handlers=[configure_handler(log, handler or logging.StreamHandler(sys.stderr))],
    )


def _timestamp(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def _message(record: logging.LogRecord) -> str:
    """Return the message, also if its arguments do not fit or cannot be formatted."""
    try:
        text = record.getMessage()
    except Exception as error:  # noqa: BLE001 - whatever `str` of an argument raises
        text = f"{record.msg!s:.1000} ({type(error).__name__} while formatting its arguments)"
    return scrub(text, MAX_MESSAGE)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in vars(record).items():
        if name in _STANDARD_ATTRIBUTES or value is None:
            continue
        fields[_name(name)] = _value(value)
        if len(fields) >= MAX_FIELDS + len(ID_FIELDS):
            break
    return fields


@lru_cache(maxsize=1024)  # few names, in every record
def _name(name: str) -> str:
    return scrub(name, MAX_NAME)


@lru_cache(maxsize=4096)  # kinds, queues, workers, codes
def _short(text: str) -> str:
    return scrub(text, MAX_FIELD)


def _value(value: Any) -> Any:
    if type(value) is str:  # most are
        return _scalar(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and abs(value) >= 2**63:
        return str(value)[:MAX_NAME]
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        items = list(value.items())[:MAX_FIELDS]
        return {_name(str(name)): _scalar(part) for name, part in items}
    if isinstance(value, list | tuple):
        return [_scalar(part) for part in value[:MAX_FIELDS]]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, bool | int | float | None):
        return _value(value)
    text = _to_text(value)
    return _short(text) if len(text) <= MAX_NAME else scrub(text, MAX_FIELD)


def _to_text(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - whatever `str` raises
        return f"({type(error).__name__} while formatting it)"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the traceback or stack of a record."""
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(_format_safely(lambda: formatter.formatException(record.exc_info)))  # type: ignore[arg-type]
    elif record.exc_text:
        parts.append(record.exc_text)
    if record.stack_info:
        parts.append(record.stack_info)
    return scrub("\n".join(parts), MAX_TRACE) if parts else ""


def _format_safely(format_trace: Callable[[], str]) -> str:
    try:
        return format_trace()
    except Exception as error:  # noqa: BLE001 - an exception whose `str` raises
        return f"(traceback could not be formatted: {type(error).__name__})"


_ESCAPES = {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
    0x85: "\\x85",
}


def _one_line(text: str) -> str:
    return text if text.isprintable() else text.translate(_ESCAPES)


def _quote(value: Any) -> str:
    """Quote a value with spaces, so that it cannot look like another key=value pair."""
    text = str(value)
    is_bare = text.isprintable() and not (" " in text or '"' in text or "=" in text)
    return text if text and is_bare else _ENCODE(text)
