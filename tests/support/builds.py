"""A newer build of Mulligan: a copy of this one whose schema has one step more."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import mulligan
from support.worker import FAST, HERE

HEADER = "-- compatible_from: {admits}\n"
STEP = "0002_newer"


def make_newer_build(folder: Path, *, admits: int = 1) -> Path:
    """Copy the package and add a step that changes every table. Return what to put on the path."""
    package = folder / "newer" / "mulligan"
    source = Path(mulligan.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    steps = package / "storage" / "schema"
    for dialect in ("sqlite", "postgres"):
        initial = (steps / f"0001_initial.{dialect}.sql").read_text()
        text = HEADER.format(admits=admits) + _changes(initial, dialect)
        (steps / f"{STEP}.{dialect}.sql").write_text(text)
    return package.parent


def _changes(initial: str, dialect: str) -> str:
    """Return a column for each table, and an index on the jobs."""
    tables = re.findall(r"^CREATE TABLE \{p\}(\w+) \(", initial, re.MULTILINE)
    column = "newer TEXT NOT NULL DEFAULT 'x'"
    if dialect == "sqlite":
        lines = [f"ALTER TABLE {{p}}{table} ADD COLUMN {column};" for table in tables]
        return "\n".join([*lines, "CREATE INDEX {p}job_newer ON {p}job (newer);\n"])
    lines = [f"ALTER TABLE {{p}}{table} ADD COLUMN IF NOT EXISTS {column};" for table in tables]
    index = [
        "DROP INDEX CONCURRENTLY IF EXISTS {p}job_newer;",
        "CREATE INDEX CONCURRENTLY job_newer ON {p}job (newer);\n",
    ]
    return "\n".join(["-- commit each statement", *lines, *index])


class Build:
    """Programs of one build on one database: the installed one, or a copy on the path."""

    def __init__(self, url: str, folder: Path, path: Path | None = None) -> None:
        self._folder = folder
        paths = [str(HERE.parent)] if path is None else [str(path), str(HERE.parent)]
        self.environ: Mapping[str, str] = {
            **FAST,
            "MULLIGAN_DATABASE_URL": url,
            "MULLIGAN_WORKER__STATE_DIR": str(folder / "state"),
            "PYTHONPATH": os.pathsep.join(paths),
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `mulligan` with arguments to its end."""
        return subprocess.run(
            [sys.executable, "-m", "mulligan", *arguments],
            env={**os.environ, **self.environ},
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def start_load(self) -> subprocess.Popen[str]:
        """Start a program that enqueues until its standard input is closed."""
        load = subprocess.Popen(
            [sys.executable, "-m", "support.rolling_load"],
            env={**os.environ, **self.environ},
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert load.stdout is not None
        assert load.stdout.readline() == "ready\n"
        return load


def end_load(load: subprocess.Popen[str]) -> int:
    """Let the program end. Return how many jobs it has enqueued."""
    out, _ = load.communicate("", timeout=30)
    assert load.returncode == 0
    return int(out)
