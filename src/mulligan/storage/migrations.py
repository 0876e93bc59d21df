"""Schema steps: numbered SQL files, and which builds of Mulligan may use a database.

Rules for a step after 0001, so that old and new builds run at the same time:

- It only adds: tables, columns with a default, indexes. What it replaces stays until a later step.
- Its first line names the oldest schema whose builds may use the database after it:
  `-- compatible_from: 1`. A build with an older schema is refused.
- On PostgreSQL it waits at most `LOCK_TIMEOUT` for a lock and tries again: a waiting ALTER TABLE
  blocks all statements that come after it.
- A line `-- commit each statement` runs each statement by itself: one with CONCURRENTLY outside a
  transaction, any other in its own. Then NOT VALID and VALIDATE do not share a lock. Such a step
  may be interrupted between two statements, so each must be repeatable (IF EXISTS, IF NOT EXISTS).
  Each ends with a semicolon at the end of a line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mulligan.core.errors import SchemaError

SCHEMA_FOLDER = Path(__file__).parent / "schema"
LOCK_TIMEOUT = 2.0  # seconds that one try of a step waits for a lock
LOCK_TRIES = 30
COMMIT_EACH = "-- commit each statement"
# Columns of the table `schema`, which the stores create before the first step.
COLUMNS = "number, name, checksum, compatible_from"

_COMPATIBLE_FROM = re.compile(r"-- compatible_from: (\d+)\n")
_STATEMENT_END = re.compile(r";[ \t]*(?:\n|\Z)")
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


class AppliedStep(NamedTuple):
    """Row of the table `schema`."""

    number: int
    name: str
    checksum: str
    compatible_from: int  # the oldest schema whose builds may use the database after this step


class Step(NamedTuple):
    """One numbered file, such as `0002_add_tags.sqlite.sql`, with the prefix filled in."""

    row: AppliedStep
    text: str

    @property
    def commits_each(self) -> bool:
        """True if each statement is committed by itself."""
        return COMMIT_EACH in self.text

    @property
    def statements(self) -> list[str]:
        """Statements of a step that commits each."""
        parts = (_COMMENT.sub("", part).strip() for part in _STATEMENT_END.split(self.text))
        return [part for part in parts if part]


def load_steps(dialect: str, prefix: str) -> list[Step]:
    """Load all steps that this version of Mulligan has for a database, in order."""
    return [_load_step(path, prefix) for path in sorted(SCHEMA_FOLDER.glob(f"*.{dialect}.sql"))]


def _load_step(path: Path, prefix: str) -> Step:
    text = path.read_text(encoding="utf-8")
    checksum = hashlib.sha256(text.encode()).hexdigest()[:16]
    name = path.name.split(".")[0]
    compatible_from = _COMPATIBLE_FROM.match(text)
    if compatible_from is None:
        message = f"{path} must begin with '-- compatible_from: N', the oldest schema it admits."
        raise SchemaError(message)
    row = AppliedStep(int(name[:4]), name, checksum, int(compatible_from[1]))
    return Step(row, text.replace("{p}", prefix))


def pending_steps(known: Sequence[Step], applied: Sequence[AppliedStep]) -> list[Step]:
    """Return the known steps that are not applied.

    Raise SchemaError if a step was applied from a different file, or if the database has a newer
    step that does not admit this version.
    """
    by_number = {step.row.number: step.row for step in known}
    ours = max(by_number)
    for row in applied:
        step = by_number.get(row.number)
        if step is None:
            _check_admitted(row, ours)
        else:
            _check_unchanged(row, step)
    done = {row.number for row in applied}
    return [step for step in known if step.row.number not in done]


def newer_steps(known: Sequence[Step], applied: Sequence[AppliedStep]) -> list[str]:
    """Return the names of applied steps that this version does not know."""
    numbers = {step.row.number for step in known}
    return [row.name for row in applied if row.number not in numbers]


def _check_admitted(row: AppliedStep, ours: int) -> None:
    if ours >= row.compatible_from:
        return
    message = (
        f"the schema is newer than this version of Mulligan: step {row.name} admits versions with "
        f"schema {row.compatible_from} or newer, this one has {ours}. Upgrade Mulligan."
    )
    raise SchemaError(message)


def _check_unchanged(row: AppliedStep, step: AppliedStep) -> None:
    if step.checksum == row.checksum:
        return
    message = (
        f"step {row.name} of the schema has changed since it was applied: its checksum was "
        f"{row.checksum}, now it is {step.checksum}. Use the version of Mulligan that applied it, "
        "or add a new step."
    )
    raise SchemaError(message)


def group_steps(steps: Sequence[Step]) -> list[list[Step]]:
    """Return the steps that are applied together, in one transaction each.

    An empty database gets the whole schema at once: other processes must not find a part of it.
    """
    if steps and steps[0].row.number == 1:
        return [list(steps)]
    return [[step] for step in steps]
