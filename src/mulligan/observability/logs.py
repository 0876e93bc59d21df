"""Log lines: text for people, or a JSON object each; one line a record, whatever is in it.

Anything may be in a message: newlines that would forge a second record, control characters, secrets, a megabyte. All of
it becomes one well-formed line of bounded length. A traceback follows its line indented (text) or is a field (JSON).
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
from mulligan.core.tracing import attempt_now
from mulligan.failures.redact import scrub
from mulligan.observability.tracing import ids_now

MESSAGE = 16_384  # characters
TRACE = 32_768
FIELD = 2048
NAME = 60
FIELDS = 40  # of a record, beside ours

OURS = (
    "job",
    "kind",
    "queue",
    "attempt",
    "token",
    "worker",
    "trace_id",
    "span_id",
)  # in this order, where known
_HEAD = ("time", "level", "logger", "message")
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "stack"}
_ENCODE = json.JSONEncoder(
    separators=(",", ":")
).encode  # all but ASCII is escaped: no separator of lines is left


class AttemptFilter(logging.Filter):
    """Puts the ids of the attempt that runs here on whatever is logged meanwhile, by whomever."""

    def filter(self, record: logging.LogRecord) -> bool:
        lease = attempt_now()
        if lease is not None:
            record.job, record.kind, record.queue = lease.id, lease.kind, lease.queue
            record.attempt, record.token, record.worker = lease.attempt, lease.token, lease.worker
        for name, value in ids_now().items():
            setattr(record, name, value)
        return True


class JsonForm(logging.Formatter):
    clean = True  # nothing needs to be hidden afterwards, which might break the form

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        line: dict[str, Any] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": _short(str(record.name)),
            "message": _said(record),
        }
        line |= {name: fields.pop(name) for name in OURS if name in fields}
        line |= {name: value for name, value in fields.items() if name not in _HEAD}
        trace = _trace(self, record)
        if trace:
            line["trace"] = trace
        return _ENCODE(line)


class TextForm(logging.Formatter):
    """`time LEVEL logger message key=value …`"""

    clean = True

    def format(self, record: logging.LogRecord) -> str:
        found = vars(record)
        ids = [
            f"{name}={_word(_value(found[name]))}" for name in OURS if found.get(name) is not None
        ]
        named = _one_line(_short(str(record.name)))
        line = " ".join([_moment(record), record.levelname, named, _one_line(_said(record)), *ids])
        trace = _trace(self, record)
        below = [f"    {_one_line(part)}" for part in trace.splitlines()] if trace else []
        return "\n".join([line, *below])


def handler_for(log: LogSection, handler: logging.Handler) -> logging.Handler:
    handler.setFormatter(JsonForm() if log.format == "json" else TextForm())
    handler.addFilter(AttemptFilter())
    return handler


def log_to(log: LogSection, handler: logging.Handler | None = None) -> None:
    """From now on whatever this process logs goes there (stderr), in this form."""
    logging.basicConfig(
        level=log.level, handlers=[handler_for(log, handler or logging.StreamHandler(sys.stderr))]
    )


def _moment(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def _said(record: logging.LogRecord) -> str:
    """A record whose arguments do not fit, or cannot be shown, still says what it can."""
    try:
        text = record.getMessage()
    except Exception as error:  # noqa: BLE001 - whatever `str` of an argument raises
        text = f"{record.msg!s:.1000} ({type(error).__name__} while its arguments were put in)"
    return scrub(text, MESSAGE)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    more = [
        (name, value)
        for name, value in vars(record).items()
        if name not in _PLAIN and value is not None
    ]
    return {_name(name): _value(value) for name, value in more[: FIELDS + len(OURS)]}


@lru_cache(maxsize=1024)  # the same few with every record
def _name(name: str) -> str:
    return scrub(name, NAME)


@lru_cache(maxsize=4096)  # kinds, queues, workers, codes
def _short(text: str) -> str:
    return scrub(text, FIELD)


def _value(value: Any) -> Any:
    if type(value) is str:  # most are
        return _leaf(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value if not isinstance(value, int) or abs(value) < 2**63 else str(value)[:NAME]
    if isinstance(value, Mapping):
        return {_name(str(name)): _leaf(part) for name, part in list(value.items())[:FIELDS]}
    if isinstance(value, list | tuple):
        return [_leaf(part) for part in value[:FIELDS]]
    return _leaf(value)


def _leaf(value: Any) -> Any:
    if isinstance(value, bool | int | float | None):
        return _value(value)
    text = _shown(value)
    return _short(text) if len(text) <= NAME else scrub(text, FIELD)


def _shown(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - the same
        return f"({type(error).__name__} while it was shown)"


def _trace(form: logging.Formatter, record: logging.LogRecord) -> str:
    """The exception or stack of a record; what a runner found of a failure comes as a field of its own."""
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(_safely(lambda: form.formatException(record.exc_info)))  # type: ignore[arg-type]
    elif record.exc_text:
        parts.append(record.exc_text)
    if record.stack_info:
        parts.append(record.stack_info)
    return scrub("\n".join(parts), TRACE) if parts else ""


def _safely(make: Callable[[], str]) -> str:
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - an exception whose `str` raises
        return f"(a traceback that cannot be shown: {type(error).__name__})"


_ESCAPES = {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
    0x85: "\\x85",
}


def _one_line(text: str) -> str:
    return text.translate(_ESCAPES)


def _word(value: Any) -> str:
    """A value beside its name; one with spaces in quotes, so that it cannot pass for another pair."""
    text = str(value)
    if text and text.isprintable() and not set(text) & set(' "='):
        return text
    return _ENCODE(text)
