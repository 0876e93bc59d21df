"""Create an empty database and real workers for one measurement."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from mulligan import Mulligan  # noqa: E402 - after the path
from mulligan.config import read_settings  # noqa: E402 - after the path
from mulligan.jobs.queries import SearchQueries  # noqa: E402 - after the path
from support import postgres  # noqa: E402 - after the path

_server: postgres.PostgresServer | None = None


def server() -> postgres.PostgresServer:
    """Return the PostgreSQL server, on a real disk, with every commit synced."""
    global _server  # noqa: PLW0603 - one per run
    if _server is None:
        postgres.SETTINGS.update(
            fsync="on", full_page_writes="on", max_wal_size="2GB", shared_buffers="512MB"
        )
        postgres.shared_memory_folder = lambda: None  # type: ignore[assignment]
        _server = postgres.PostgresServer.for_session()
    return _server


class World:
    """A database, an app on it and its workers."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.app = Mulligan(
            settings=read_settings(environ={"MULLIGAN_DATABASE_URL": url}, file=folder / "none")
        )
        self.workers: list[subprocess.Popen[bytes]] = []

    def enqueue(self, kind: str, payloads: list[dict[str, object]], **options: object) -> None:
        from bench import app as module  # noqa: PLC0415 - handlers, for their payload rules

        handle = getattr(module, kind)
        handle._app = self.app  # noqa: SLF001 - enqueue into this database
        for start in range(0, len(payloads), 5000):
            handle.options(**options).enqueue_many(payloads[start : start + 5000])

    def start(
        self,
        *,
        concurrency: int = 10,
        ready: bool = True,
        module: str = "mulligan",
        **settings: str,
    ) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            "MULLIGAN_DATABASE_URL": self.url,
            "MULLIGAN_WORKER__STATE_DIR": str(self.folder / "state"),
            **{f"MULLIGAN_{name.upper()}": value for name, value in settings.items()},
        }
        log = self.folder / f"worker-{len(self.workers)}.log"
        with log.open("wb") as out:
            worker = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    module,
                    "worker",
                    "bench.app:app",
                    "--concurrency",
                    str(concurrency),
                ],
                cwd=ROOT / "tools",
                env=env,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.workers.append(worker)
        if ready:
            until(lambda: b"concurrency" in log.read_bytes(), 30)
        return worker

    def stop(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            try:
                worker.wait(15)
            except subprocess.TimeoutExpired:
                worker.kill()
        self.workers = []

    def count(self, state: str) -> int:
        with self.app.store.read() as tx:
            return SearchQueries(tx).count_jobs({"state": state}, 10_000_000)


@contextmanager
def world(store: str) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="mulligan-bench-"))
    url = f"sqlite:///{folder}/bench.db" if store == "sqlite" else server().create_database()
    made = World(url, folder)
    try:
        yield made
    finally:
        made.stop()
        made.app.close()
        if store == "postgres":
            server().drop_database(url)
        shutil.rmtree(folder, ignore_errors=True)


def until(condition: Callable[[], object], timeout: float, every: float = 0.005) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            message = f"not within {timeout} s"
            raise TimeoutError(message)
        time.sleep(every)


def process_tree(pid: int) -> list[int]:
    """Return the pids of a process and all its descendants."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    children = [int(child) for child in path.read_text().split()] if path.exists() else []
    return [pid, *(below for child in children for below in process_tree(child))]


def cpu_seconds(pids: list[int]) -> float:
    tick = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(f[11]) + int(f[12]) for f in fields) / tick


def pss_megabytes(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024
