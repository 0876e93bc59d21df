"""An old database is brought up to date, whole or not at all. A new one is made as it should be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect

STEPS = Path(__file__).parent / "migrations"
LOCK = 6_000_006  # any number that no other program locks


class CannotUpgrade(Exception):
    """With the reason; the database is as it was."""


def steps(folder: Path = STEPS) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for file in sorted(folder.glob("*.sql")):
        number = int(re.match(r"\d+", file.name)[0])  # type: ignore[index] - a name without a number is our mistake
        if number in found:
            message = f"two steps have the number {number}: {found[number].name} and {file.name}; rename one of them"
            raise CannotUpgrade(message)
        found[number] = file
    return found


def upgrade(
    engine: Engine, folder: Path = STEPS, create: Callable[[Connection], None] = lambda _: None
) -> None:
    """All steps that are missing, then `create`. Who comes meanwhile waits, and finds it done."""
    todo = steps(folder)
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        _alone(connection),
    ):
        old = (
            "jobs" in inspect(connection).get_table_names()
        )  # new tables are made as they should be
        connection.exec_driver_sql(
            "CREATE TABLE IF NOT EXISTS schema_steps (number INTEGER PRIMARY KEY, name TEXT)"
        )
        taken = set(connection.exec_driver_sql("SELECT number FROM schema_steps").scalars())
        for number, file in todo.items():
            if number not in taken:
                _take(connection, number, file, run=old)
        create(connection)


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """One transaction, and no other process at it."""
    sqlite = connection.dialect.name == "sqlite"
    if sqlite:
        connection.exec_driver_sql(
            "PRAGMA foreign_keys = OFF"
        )  # or dropping a table would take its children along
    connection.exec_driver_sql("BEGIN IMMEDIATE" if sqlite else "BEGIN")
    try:
        if not sqlite:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        yield
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")
    if sqlite:
        connection.exec_driver_sql("PRAGMA foreign_keys = ON")


def _take(connection: Connection, number: int, file: Path, *, run: bool) -> None:
    for statement in _statements(file) if run else ():
        connection.exec_driver_sql(statement)
    if run and (broken := connection.exec_driver_sql("PRAGMA foreign_key_check").all()):
        raise CannotUpgrade(f"{file.name}: {len(broken)} rows would point nowhere")
    connection.exec_driver_sql(f"INSERT INTO schema_steps VALUES ({number}, '{file.name}')")  # noqa: S608 - our own


def _statements(file: Path) -> list[str]:
    plain = re.sub(r"--.*", "", file.read_text(encoding="utf-8"))
    return [one for one in plain.split(";") if one.strip()]
