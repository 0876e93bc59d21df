"""Log records, lines of output and stacks that are kept with a failed attempt. For operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mulligan.core.durations import Micros, to_datetime
from mulligan.core.json import decode


class AttemptLog(NamedTuple):
    """Log of an attempt as it is stored."""

    records: str  # JSON, without secrets; empty: none
    stacks: str  # of its threads and tasks when it was stopped


class LogLine(NamedTuple):
    """A log record, or a line of output."""

    at: Micros
    level: str  # empty for a line of output
    source: str  # the logger, stdout, stderr, or a program
    message: str

    def __str__(self) -> str:
        time = f"{to_datetime(self.at):%H:%M:%S.%f}"[:-3]
        head = " ".join(filter(None, (time, self.level, self.source)))
        return f"{head}  {self.message}"


class LogOfAttempt(NamedTuple):
    """Last log records of a failed attempt, and its stacks if it was stopped."""

    job_id: str
    token: int
    records: tuple[LogLine, ...]
    stacks: str

    def to_json(self) -> dict[str, Any]:
        """Return the log as JSON values."""
        records = [
            {**line._asdict(), "at": to_datetime(line.at).isoformat()} for line in self.records
        ]
        return {**self._asdict(), "records": records}

    def lines(self) -> Iterator[str]:
        """Yield the log as text, records first."""
        for record in self.records:
            yield from str(record).split("\n")
        if self.stacks:
            yield from self.stacks.split("\n")


def to_log_line(fields: Any) -> LogLine | None:
    """Build a record, if the fields have the types of one. A handler may have forged them."""
    match fields:
        case [int(at), str(level), str(source), str(message)]:
            return LogLine(at, level, source, message)
    return None


def decode_records(text: str) -> tuple[LogLine, ...]:
    """Return stored records, oldest first."""
    found = decode(text) if text else ()
    return tuple(line for fields in found if (line := to_log_line(fields)))
