"""An old database is brought up to date, step by step, each whole or not at all. A new one is made as it should be."""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect

STEPS = Path(__file__).parent / "migrations"


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


def upgrade(engine: Engine, folder: Path = STEPS) -> None:
    todo = steps(folder)
    tables = inspect(engine).get_table_names()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS schema_steps (number INTEGER PRIMARY KEY, name TEXT)")
        taken = set(connection.exec_driver_sql("SELECT number FROM schema_steps").scalars())
        for number, file in todo.items():
            if number not in taken:
                _take(connection, number, file, run="jobs" in tables)


def _take(connection: Connection, number: int, file: Path, *, run: bool) -> None:
    """`run=False`: the tables are new, so there is nothing to change."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")  # or dropping a table would take its children along
    connection.exec_driver_sql("BEGIN")
    try:
        for statement in _statements(file) if run else ():
            connection.exec_driver_sql(statement)
        if run and (broken := connection.exec_driver_sql("PRAGMA foreign_key_check").all()):
            raise CannotUpgrade(f"{file.name}: {len(broken)} rows would point nowhere")
        connection.exec_driver_sql(f"INSERT INTO schema_steps VALUES ({number}, '{file.name}')")  # noqa: S608 - our own
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA foreign_keys = ON")


def _statements(file: Path) -> list[str]:
    plain = re.sub(r"--.*", "", file.read_text(encoding="utf-8"))
    return [one for one in plain.split(";") if one.strip()]
