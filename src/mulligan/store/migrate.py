"""A small migrator: numbered files, checksummed, locked, all that are missing in one transaction.

A kill leaves either all of them or none, so running it again is always safe, and nobody meets a schema half made.
A schema that is newer, or whose applied steps were changed since, is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mulligan.errors import SchemaError

_HERE = Path(__file__).parent / "migrations"


class Step(NamedTuple):
    number: int
    name: str
    checksum: str
    text: str


def steps(dialect: str, prefix: str) -> list[Step]:
    """All steps this version knows, in order."""
    return [_step(path, prefix) for path in sorted(_HERE.glob(f"*.{dialect}.sql"))]


def _step(path: Path, prefix: str) -> Step:
    text = path.read_text(encoding="utf-8")
    checksum = hashlib.sha256(text.encode()).hexdigest()[:16]
    name = path.name.split(".")[0]
    return Step(int(name[:4]), name, checksum, text.replace("{p}", prefix))


def pending(known: list[Step], applied: list[tuple[int, str, str]]) -> list[Step]:
    """Steps still to take; raises SchemaError when what is there cannot be ours."""
    by_number = {step.number: step for step in known}
    for number, name, checksum in applied:
        step = by_number.get(number)
        if step is None:
            message = f"the schema is newer than this version of Mulligan (it has step {name}); upgrade Mulligan"
            raise SchemaError(message)
        if step.checksum != checksum:
            message = f"step {name} of the schema was applied from another text ({checksum}, here {step.checksum})"
            raise SchemaError(message)
    done = {number for number, _, _ in applied}
    return [step for step in known if step.number not in done]


def apply(todo: list[Step], run: Callable[[list[Step]], list[str]], *, dry_run: bool) -> list[str]:
    """Take the steps; `run` leaves out those that somebody else took meanwhile."""
    if dry_run or not todo:
        return [step.name for step in todo]
    return run(todo)
