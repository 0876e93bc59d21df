"""Create the sample database once and copy it from build/ for later runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from bench import sample_database
from bench.world import ROOT, World, server

from mulligan.storage import open_store

CACHE = ROOT / "build" / "bench"


@contextmanager
def cached_database(store: str, jobs: int) -> Iterator[World]:
    kept = CACHE / f"crowd-{jobs}-{sample_database.digest()}.{store}"
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="mulligan-bench-", dir=CACHE))
    url = f"sqlite:///{folder}/bench.db" if store == "sqlite" else _start_from_cache(kept)
    if store == "sqlite" and kept.exists():
        _copy(kept, folder / "bench.db")
    if not kept.exists():
        _make(url, jobs, kept, folder)
        url = url if store == "sqlite" else _start_from_cache(kept)
    with closing(open_store(url)) as opened:
        opened.migrate()
    place = World(url, folder)
    sample_database.store_manifest(place)
    try:
        yield place
    finally:
        place.stop()
        place.app.close()
        shutil.rmtree(folder, ignore_errors=True)


def _make(url: str, jobs: int, kept: Path, folder: Path) -> None:
    place = World(url, folder)
    sample_database.fill(place, jobs)
    place.app.close()
    if url.startswith("sqlite"):
        _copy(folder / "bench.db", kept)
        return
    running = server()
    running.stop("fast")
    _copy(running._folder, kept)  # noqa: SLF001 - no public name
    (kept / "url").write_text(url)
    running.start()


def _start_from_cache(kept: Path) -> str:
    """Start the server with the cached data folder, if there is one. Return the database URL."""
    running = server()
    if not kept.exists():
        return running.create_database()
    running.stop("fast")
    mine, data = urlsplit(str(running._admin_url)), running._data  # noqa: SLF001 - no public name
    shutil.rmtree(data)
    _copy(kept / "data", data)
    with (data / "postgresql.conf").open("a") as file:
        file.write(f"port = '{mine.port}'\n")
    was = urlsplit((kept / "url").read_text())
    here = was._replace(netloc=f"{was.username}:{was.password}@{mine.hostname}:{mine.port}")
    running._admin_url = urlunsplit(here._replace(path="/postgres"))  # noqa: SLF001 - the password changed
    running.start()
    return urlunsplit(here)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or folder with its owner, atomically."""
    part = target.with_name(f"{target.name}.part{os.getpid()}")
    subprocess.run([shutil.which("cp") or "cp", "-Rp", source, part], check=True)
    part.rename(target)
