"""What a storm left in its folder: kept so that it can be judged again, by a later version of the checker too."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storm.world import FAST, World, postgres

from mulligan.config import read_settings
from mulligan.doctor.verify.checker import VerifyReport, verify

DUMP = "kept.sql"


def keep(world: World) -> None:
    """The database of a server that is about to end. A SQLite file is copied with its folder."""
    if world.server is not None:
        _run(world.server._bin / "pg_dump", "--no-owner", "-f", world.folder / DUMP, world.url)  # noqa: SLF001 - ours


def judged_again(folder: Path) -> VerifyReport:
    with _database(folder) as url:
        return checked(url, folder)


def checked(url: str, folder: Path) -> VerifyReport:
    """The checker's word on what is in a folder and in its database."""
    settings = read_settings(
        environ={**FAST, "MULLIGAN_DATABASE_URL": url}, file=folder / "none.toml"
    )
    files = {
        name: [path] if (path := folder / f"{name}.jsonl").exists() else []
        for name in ("clients", "witness")
    }
    return verify(
        url,
        clients=files["clients"],
        witness=files["witness"],
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
        _run(server._bin / "psql", "-q", "-f", folder / DUMP, url)  # noqa: SLF001 - as above
        yield url
    finally:
        server.close()


def _run(*command: Any) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True, timeout=300)


def told(report: VerifyReport) -> list[str]:
    return [f"{one.invariant} {one.subject}: {one.what}" for one in report.violations]


def written(report: VerifyReport, folder: Path) -> None:
    (folder / "report.json").write_text(json.dumps(report.to_plain(), indent=1))
