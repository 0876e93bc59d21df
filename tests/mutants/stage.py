"""Environment of a scenario: a database, workers and clients with the patched source, and the checker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mulligan import Mulligan
from mulligan.doctor.verify import Clients, VerifyReport, verify
from mulligan.doctor.verify.records import read_lines
from support.waiting import until
from support.worker import Worker

TESTS = Path(__file__).parent.parent
TIMEOUT = 150.0  # seconds; the machine may be busy


class Stage:
    """A database with processes that run the patched source; this process runs the original."""

    def __init__(self, url: str, folder: Path, source: Path) -> None:
        self.url = url
        self.folder = folder
        self.source = source
        self.clients = Clients(folder / "clients.jsonl", "scenario")
        self.witness_file = folder / "witness.jsonl"
        self.app = Mulligan(url)
        self.extra: dict[str, str] = {}
        self._workers: list[Worker] = []

    # --- Processes ---
    @property
    def environ(self) -> dict[str, str]:
        return {
            "PYTHONPATH": f"{self.source}{os.pathsep}{TESTS}",
            "MUTANT_WITNESS": str(self.witness_file),
            "MUTANT_CLIENTS": str(self.clients.path),
            **self.extra,
        }

    def worker(self, environ: Mapping[str, str] | None = None, **settings: str) -> Worker:
        worker = Worker(
            self.url,
            self.folder,
            app="mutants.app:app",
            environ={**self.environ, **(environ or {})},
            **settings,
        )
        self._workers.append(worker)
        self.wait(
            lambda: "concurrency" in worker.text() or worker.process.poll() is not None,
            "a worker that is ready",
        )
        assert worker.process.poll() is None, worker.text()
        return worker

    def client(self, *arguments: str) -> int:
        """Run `python -m mutants.client …` and return its exit code."""
        env = {**os.environ, **self.environ, "MULLIGAN_DATABASE_URL": self.url}
        return subprocess.run(
            [sys.executable, "-m", "mutants.client", *arguments], env=env, check=False
        ).returncode

    def close(self) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.kill()
        self.app.close()

    # --- Calls and state ---
    def enqueue(self, kind: str, payload: dict[str, Any] | None = None, **options: Any) -> str:
        with self.clients.call("enqueue", kind=kind, payload=payload or {}) as call:
            job = self.app.enqueue(kind, payload or {}, **options)
            call.ok(job)
        return job.id

    def move(self, what: str, job: str, action: Callable[..., Any], **options: Any) -> None:
        """Call an action on a job and record it."""
        with self.clients.call(what, job=job) as call:
            action(job, **options)
            call.ok(job)

    def state(self, job: str) -> str:
        return str(self.app.jobs.get(job).state)

    def lines(self, what: str = "start") -> list[dict[str, Any]]:
        if not self.witness_file.exists():
            return []
        return [
            line
            for line in read_lines(self.witness_file)
            if line is not None and line["what"] == what
        ]

    def wait(self, condition: Callable[[], Any], what: str, timeout: float = TIMEOUT) -> None:
        until(condition, timeout, what)

    def started(self, job: str, token: int = 1) -> bool:
        return any(line["job"] == job and line["token"] == token for line in self.lines())

    def ended(self, *jobs: str) -> bool:
        return all(self.state(job) in {"succeeded", "dead", "cancelled"} for job in jobs)

    def sql(self, statement: str, **params: Any) -> list[tuple[Any, ...]]:
        from support.store import sql

        return sql(self.app.store, statement, params)

    @contextmanager
    def connection(self) -> Iterator[Any]:
        import psycopg

        with psycopg.connect(self.url) as connection:
            yield connection

    def report(self, *, settled: bool = False, slack: float = 5.0) -> VerifyReport:
        witness = [self.witness_file] if self.witness_file.exists() else []
        clients = [self.clients.path] if Path(self.clients.path).exists() else []
        return verify(
            self.app.store, clients=clients, witness=witness, settled=settled, slack=slack
        )
