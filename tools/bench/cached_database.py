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
    cached = CACHE / f"crowd-{jobs}-{sample_database.digest()}.{store}"
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="mulligan-bench-", dir=CACHE))
    url = f"sqlite:///{folder}/bench.db" if store == "sqlite" else _start_from_cache(cached)
    if store == "sqlite" and cached.exists():
        _copy(cached, folder / "bench.db")
    if not cached.exists():
        _make(url, jobs, cached, folder)
        url = url if store == "sqlite" else _start_from_cache(cached)
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


def _make(url: str, jobs: int, cached: Path, folder: Path) -> None:
    place = World(url, folder)
    sample_database.fill(place, jobs)
    place.app.close()
    if url.startswith("sqlite"):
        _copy(folder / "bench.db", cached)
        return
    running = server()
    running.stop("fast")
    _copy(running._folder, cached)  # noqa: SLF001 - no public name
    (cached / "url").write_text(url)
    running.start()


def _start_from_cache(cached: Path) -> str:
    """Start the server with the cached data folder, if there is one. Return the database URL."""
    running = server()
    if not cached.exists():
        return running.create_database()
    running.stop("fast")
    mine, data = urlsplit(str(running._admin_url)), running._data  # noqa: SLF001 - no public name
    shutil.rmtree(data)
    _copy(cached / "data", data)
    with (data / "postgresql.conf").open("a") as file:
        file.write(f"port = '{mine.port}'\n")
    was = urlsplit((cached / "url").read_text())
    here = was._replace(netloc=f"{was.username}:{was.password}@{mine.hostname}:{mine.port}")
    running._admin_url = urlunsplit(here._replace(path="/postgres"))  # noqa: SLF001 - the password changed
    running.start()
    return urlunsplit(here)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or folder with its owner, atomically."""
    part = target.with_name(f"{target.name}.part{os.getpid()}")
    subprocess.run([shutil.which("cp") or "cp", "-Rp", source, part], check=True)
    part.rename(target)
