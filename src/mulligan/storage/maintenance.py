"""A copy of a live SQLite file: one moment of it, whole, while others go on writing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import apsw

from mulligan.core.errors import Refused, SchemaError, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.storage.base import Store
from mulligan.storage.sqlite_handle import UNAVAILABLE, ApswHandle

# Migrate the schema: numbered SQL files, stored checksums, one lock, one transaction.

FOLDER = Path(__file__).parent / "schema"


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


# A copy of a live SQLite file: one moment of it, whole, while others go on writing.

PAGES = 2000  # copied between two words about progress
Progress = Callable[[int, int], None]  # pages done, pages in all


def copy(source: Path, target: Path, progress: Progress) -> None:
    """`target` is there whole and checked, on disk, or not at all."""
    part = target.with_name(f".{target.name}.part")
    _claim(target, part)
    try:
        _copy_pages(source, part, progress)
        _check_integrity(part)
        _to_disk(part)
        _name(part, target)
        _to_disk(target.parent)
    except FileExistsError:
        raise Refused(_there(target)) from None
    except UNAVAILABLE as error:
        message = f"cannot copy {source} to {target}: {type(error).__name__}: {error}"
        raise StoreUnavailable(message) from error
    finally:
        for left in (part, Path(f"{part}-journal"), Path(f"{part}-wal"), Path(f"{part}-shm")):
            left.unlink(missing_ok=True)


def _name(part: Path, target: Path) -> None:
    """A link, unlike a rename, never replaces a file that came meanwhile. Some file systems have none."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        part.replace(target)


def _claim(target: Path, part: Path) -> None:
    """Private from its first byte: it holds payloads."""
    if target.exists():
        raise Refused(_there(target))
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        message = (
            f"{part} is there: another backup writes it, or one was killed. If none runs, remove it"
        )
        raise Refused(message) from None
    except OSError as error:
        message = f"cannot write {part}: {error.strerror}"
        raise Refused(message) from error


def _there(target: Path) -> str:
    return f"{target} exists already; a backup replaces nothing"


def _copy_pages(source: Path, part: Path, progress: Progress) -> None:
    handle = ApswHandle.open(str(source))
    into = apsw.Connection(str(part))
    try:
        handle.execute(
            "BEGIN"
        )  # held open, it keeps one moment in sight; without it each write would start us again
        handle.execute("SELECT count(*) FROM sqlite_master")
        with into.backup("main", handle.connection, "main") as backup:
            while not backup.done:
                backup.step(PAGES)
                progress(backup.page_count - backup.remaining, backup.page_count)
    finally:
        into.close()
        handle.close()


def _check_integrity(part: Path) -> None:
    connection = apsw.Connection(str(part))
    try:
        found = connection.execute("PRAGMA integrity_check").fetchall()
    finally:
        connection.close()
    if found != [("ok",)]:
        message = f"the copy is damaged, and so perhaps the file: {found[0][0]}"
        raise StoreUnavailable(message)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# After a database was restored from a backup: what it remembers of workers and tokens is too old.

LIFT = 1_000_000  # more claims than one job has between a backup and its restore


class Restored(NamedTuple):
    workers: int  # closed: whoever they were, they do not hold these jobs any more
    jobs: int  # with a higher token


def restored(store: Store, actor: str = "python", reason: str = "") -> Restored:
    """Close every worker of before, and give out no token twice: systems outside may have seen the lost ones."""
    with store.begin() as unit:
        workers = unit.workers(closed=False)
        alive = [worker.id for worker in workers if not unit.expired(worker)]
        if alive:
            message = (
                f"workers may be alive: {', '.join(alive)}. Stop them. If they are those of the backup, wait until "
                "their lease is over, and say it again"
            )
            raise Refused(message)
        closed = [
            unit.close_worker(worker.id, "from before a restore", seen=None) for worker in workers
        ]
        done = Restored(sum(closed), unit.lift_tokens(LIFT))
        seen = {"before": {"workers": done.workers}, "after": {"workers": 0}}
        news = {**done._asdict(), "reason": reason, **seen}
        unit.write_events([NewEvent(EventType.DATABASE_RESTORED, actor=actor, data=news)])
        return done
