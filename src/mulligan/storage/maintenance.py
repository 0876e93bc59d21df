"""Schema migrations, and backups of a SQLite file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import apsw

from mulligan.core.errors import Refused, SchemaError, StoreUnavailable
from mulligan.storage.sqlite_handle import UNAVAILABLE, ApswHandle

# --- Migrations: numbered SQL files with stored checksums, applied in one transaction ---

SCHEMA_FOLDER = Path(__file__).parent / "schema"


class Step(NamedTuple):
    """One numbered file, such as `0002_add_tags.sqlite.sql`, with the prefix filled in."""

    number: int
    name: str
    checksum: str
    text: str


def load_steps(dialect: str, prefix: str) -> list[Step]:
    """Load all steps that this version of Mulligan has for a database, in order."""
    return [_step(path, prefix) for path in sorted(SCHEMA_FOLDER.glob(f"*.{dialect}.sql"))]


def _step(path: Path, prefix: str) -> Step:
    text = path.read_text(encoding="utf-8")
    checksum = hashlib.sha256(text.encode()).hexdigest()[:16]
    name = path.name.split(".")[0]
    return Step(int(name[:4]), name, checksum, text.replace("{p}", prefix))


def pending_steps(known: list[Step], applied: list[tuple[int, str, str]]) -> list[Step]:
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


def apply_steps(
    todo: list[Step], run: Callable[[list[Step]], list[str]], *, dry_run: bool
) -> list[str]:
    """Apply the steps with `run` and return the names of those it applied.

    `run` takes the lock and skips steps that another process has applied in the meantime.
    """
    if dry_run or not todo:
        return [step.name for step in todo]
    return run(todo)


# --- Backup of a live SQLite file ---

PAGES_PER_STEP = 2000  # pages copied between two calls of `progress`
Progress = Callable[[int, int], None]  # pages done, pages in total


def copy_database(source: Path, target: Path, progress: Progress) -> None:
    """Copy a database while others write to it. The copy is complete and checked, or absent."""
    part = target.with_name(f".{target.name}.part")
    _create_part(target, part)
    try:
        _copy_pages(source, part, progress)
        _check_integrity(part)
        _sync(part)
        _link(part, target)
        _sync(target.parent)
    except FileExistsError:
        raise Refused(_already_exists(target)) from None
    except UNAVAILABLE as error:
        message = f"cannot copy {source} to {target}: {type(error).__name__}: {error}"
        raise StoreUnavailable(message) from error
    finally:
        for file in (part, Path(f"{part}-journal"), Path(f"{part}-wal"), Path(f"{part}-shm")):
            file.unlink(missing_ok=True)


def _link(part: Path, target: Path) -> None:
    """Give the copy its name, but never replace a file.

    A link cannot replace a file that was created meanwhile; a rename could. Some file systems have
    no links.
    """
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        part.replace(target)


def _create_part(target: Path, part: Path) -> None:
    """Create the file to copy into, readable by its owner only: it will contain payloads."""
    if target.exists():
        raise Refused(_already_exists(target))
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        message = (
            f"{part} exists: another backup is writing it, or one was killed. "
            "If no backup is running, remove the file."
        )
        raise Refused(message) from None
    except OSError as error:
        message = f"cannot write {part}: {error.strerror}"
        raise Refused(message) from error


def _already_exists(target: Path) -> str:
    return f"{target} already exists. A backup replaces no file; choose another name."


def _copy_pages(source: Path, part: Path, progress: Progress) -> None:
    handle = ApswHandle.open(str(source))
    copy = apsw.Connection(str(part))
    try:
        # An open read transaction fixes the snapshot. Without it a write would restart the copy.
        handle.execute("BEGIN")
        handle.execute("SELECT count(*) FROM sqlite_master")
        with copy.backup("main", handle.connection, "main") as backup:
            while not backup.done:
                backup.step(PAGES_PER_STEP)
                progress(backup.page_count - backup.remaining, backup.page_count)
    finally:
        copy.close()
        handle.close()


def _check_integrity(part: Path) -> None:
    connection = apsw.Connection(str(part))
    try:
        found = connection.execute("PRAGMA integrity_check").fetchall()
    finally:
        connection.close()
    if found != [("ok",)]:
        message = f"the copy is damaged, so the database may be damaged too: {found[0][0]}"
        raise StoreUnavailable(message)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
