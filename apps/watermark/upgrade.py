"""Migrate an old database in one transaction, and create the tables of a new one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect

STEPS = Path(__file__).parent / "migrations"
LOCK = 6_000_006  # key of the advisory lock; any number no other program uses


class CannotUpgrade(Exception):
    """The migration failed. The database is unchanged."""


def find_steps(folder: Path = STEPS) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for file in sorted(folder.glob("*.sql")):
        number = int(re.match(r"\d+", file.name)[0])  # type: ignore[index]
        if number in found:
            both = f"{found[number].name} and {file.name}. Rename one of them."
            raise CannotUpgrade(f"two steps have the number {number}: {both}")
        found[number] = file
    return found


def upgrade(
    engine: Engine, folder: Path = STEPS, create: Callable[[Connection], None] = lambda _: None
) -> None:
    """Apply all missing steps, then call `create`. Concurrent callers wait and find it done."""
    all_steps = find_steps(folder)
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        _exclusive_transaction(connection),
    ):
        # A new database is created by `create` with the current schema.
        is_old_database = "jobs" in inspect(connection).get_table_names()
        connection.exec_driver_sql(
            "CREATE TABLE IF NOT EXISTS schema_steps (number INTEGER PRIMARY KEY, name TEXT)"
        )
        applied = set(connection.exec_driver_sql("SELECT number FROM schema_steps").scalars())
        for number, file in all_steps.items():
            if number not in applied:
                _apply_step(connection, number, file, run=is_old_database)
        create(connection)


@contextmanager
def _exclusive_transaction(connection: Connection) -> Iterator[None]:
    """Run one transaction while all other upgrading processes wait."""
    sqlite = connection.dialect.name == "sqlite"
    if sqlite:
        # Otherwise dropping a table would delete its children.
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
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


def _apply_step(connection: Connection, number: int, file: Path, *, run: bool) -> None:
    """Record a step as applied. With `run`, execute its statements first."""
    if run:
        for statement in _statements(file):
            connection.exec_driver_sql(statement)
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        if broken:
            raise CannotUpgrade(f"{file.name}: {len(broken)} rows would violate a foreign key")
    record = f"INSERT INTO schema_steps VALUES ({number}, '{file.name}')"  # noqa: S608 - our names
    connection.exec_driver_sql(record)


def _statements(file: Path) -> list[str]:
    text = re.sub(r"--.*", "", file.read_text(encoding="utf-8"))
    return [statement for statement in text.split(";") if statement.strip()]
