"""Where a scenario plays: a database, workers and clients with the engine under trial, and the checker from outside."""

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
from mulligan.doctor.verify.records import read
from support.waiting import until
from support.worker import Worker

TESTS = Path(__file__).parent.parent
PATIENCE = 150.0  # on a machine that has much else to do


class Stage:
    def __init__(self, url: str, folder: Path, source: Path) -> None:
        self.url, self.folder, self.source = url, folder, source
        self.clients = Clients(folder / "clients.jsonl", "scenario")
        self.seen = folder / "witness.jsonl"
        self.app = Mulligan(url)
        self.extra: dict[str, str] = {}
        self._workers: list[Worker] = []

    # -- processes --------------------------------------------------------------------------------
    @property
    def environ(self) -> dict[str, str]:
        return {
            "PYTHONPATH": f"{self.source}{os.pathsep}{TESTS}",
            "MUTANT_WITNESS": str(self.seen),
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

    def client(self, *words: str) -> int:
        """`python -m mutants.client …`, until it has ended."""
        env = {**os.environ, **self.environ, "MULLIGAN_DATABASE_URL": self.url}
        return subprocess.run(
            [sys.executable, "-m", "mutants.client", *words], env=env, check=False
        ).returncode

    def close(self) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.kill()
        self.app.close()

    # -- what happens -----------------------------------------------------------------------------
    def enqueue(self, kind: str, payload: dict[str, Any] | None = None, **options: Any) -> str:
        with self.clients.call("enqueue", kind=kind, payload=payload or {}) as call:
            job = self.app.enqueue(kind, payload or {}, **options)
            call.ok(job)
        return job.id

    def told(self, what: str, job: str, call: Callable[..., Any], **said: Any) -> None:
        with self.clients.call(what, job=job) as told:
            call(job, **said)
            told.ok(job)

    def state(self, job: str) -> str:
        return str(self.app.jobs.get(job).state)

    def lines(self, what: str = "start") -> list[dict[str, Any]]:
        if not self.seen.exists():
            return []
        return [line for line in read(self.seen) if line is not None and line["what"] == what]

    def wait(self, moment: Callable[[], Any], what: str, patience: float = PATIENCE) -> None:
        until(moment, patience, what)

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
        witness = [self.seen] if self.seen.exists() else []
        clients = [self.clients.path] if Path(self.clients.path).exists() else []
        return verify(
            self.app.store, clients=clients, witness=witness, settled=settled, slack=slack
        )
