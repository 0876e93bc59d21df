"""Save the database of a storm and verify it again, also with a later version of the checker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storm.world import FAST_SETTINGS, World

from mulligan.config import read_settings
from mulligan.doctor.verify.checker import VerifyReport, verify
from support import postgres

DUMP = "kept.sql"  # name of the dump in the folder of a storm


def save_database(world: World) -> None:
    """Dump the PostgreSQL database before its server stops. `world` copies a SQLite file."""
    if world.server is not None:
        _run(world.server._bin / "pg_dump", "--no-owner", "-f", world.folder / DUMP, world.url)  # noqa: SLF001 - no public name


def verify_folder(folder: Path) -> VerifyReport:
    """Run the checker on the folder that a storm left behind."""
    with _database(folder) as url:
        return verify_database(url, folder)


def verify_database(url: str, folder: Path) -> VerifyReport:
    """Run the checker on a database and the records in a folder."""
    settings = read_settings(
        environ={**FAST_SETTINGS, "MULLIGAN_DATABASE_URL": url}, file=folder / "none.toml"
    )
    return verify(
        url,
        clients=[*folder.glob("clients.jsonl")],
        witness=[*folder.glob("witness.jsonl")],
        settled=True,
        slack=60,
        settings=settings,
    )


@contextmanager
def _database(folder: Path) -> Iterator[str]:
    if (file := folder / "kept" / "mulligan.db").exists():
        yield f"sqlite:///{file}"
        return
    server = postgres.PostgresServer(None)
    try:
        url = server.create_database()
        _run(server._bin / "psql", "-q", "-f", folder / DUMP, url)  # noqa: SLF001 - no public name
        yield url
    finally:
        server.close()


def _run(*command: Any) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=300)


def format_violations(report: VerifyReport) -> list[str]:
    return [
        f"{violation.invariant} {violation.subject}: {violation.what}"
        for violation in report.violations
    ]


def write_report(report: VerifyReport, folder: Path) -> None:
    (folder / "report.json").write_text(json.dumps(report.to_dict(), indent=1))
