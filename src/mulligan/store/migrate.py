"""Migrate the schema: numbered SQL files, stored checksums, one lock, one transaction.

All pending steps are applied in one transaction, so a killed process leaves either all of them or
none, and no other process sees a partial schema. A database that has an unknown step, or whose
applied step has another checksum than the file, is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mulligan.errors import SchemaError

FOLDER = Path(__file__).parent / "migrations"


class Step(NamedTuple):
    """One numbered file, such as `0002_add_tags.sqlite.sql`, with the prefix filled in."""

    number: int
    name: str
    checksum: str
    text: str


def steps(dialect: str, prefix: str) -> list[Step]:
    """Load all steps that this version of Mulligan has for a database, in order."""
    return [_step(path, prefix) for path in sorted(FOLDER.glob(f"*.{dialect}.sql"))]


def _step(path: Path, prefix: str) -> Step:
    text = path.read_text(encoding="utf-8")
    checksum = hashlib.sha256(text.encode()).hexdigest()[:16]
    name = path.name.split(".")[0]
    return Step(int(name[:4]), name, checksum, text.replace("{p}", prefix))


def pending(known: list[Step], applied: list[tuple[int, str, str]]) -> list[Step]:
    """Return the known steps that are not applied.

    Raise SchemaError if the database has a step that this version does not know, or one that was
    applied from a different file.
    """
    by_number = {step.number: step for step in known}
    for number, name, checksum in applied:
        _check(by_number.get(number), name, checksum)
    done = {number for number, _, _ in applied}
    return [step for step in known if step.number not in done]


def _check(step: Step | None, name: str, checksum: str) -> None:
    if step is None:
        message = (
            f"the schema is newer than this version of Mulligan: it has step {name}. "
            "Upgrade Mulligan."
        )
        raise SchemaError(message)
    if step.checksum != checksum:
        message = (
            f"step {name} of the schema has changed since it was applied: its checksum was "
            f"{checksum}, now it is {step.checksum}. Use the version of Mulligan that applied it, "
            "or add a new step."
        )
        raise SchemaError(message)


def apply(todo: list[Step], run: Callable[[list[Step]], list[str]], *, dry_run: bool) -> list[str]:
    """Apply the steps with `run` and return the names of those it applied.

    `run` takes the lock and skips steps that another process has applied in the meantime.
    """
    if dry_run or not todo:
        return [step.name for step in todo]
    return run(todo)
