"""Fixtures: real workers that are always ended, and the app that they run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mulligan import Mulligan
from mulligan.config import read_settings
from support.outage import OutageScenario, OutageStage, open_stage
from support.worker import FAST, Worker


@pytest.fixture
def start(store_url: str, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Start workers on this test's store."""
    workers: list[Worker] = []

    def make(*, wait: bool = True, **settings: str) -> Worker:
        worker = Worker(store_url, tmp_path, **settings)
        workers.append(worker)
        return worker.ready() if wait else worker

    yield make
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()


@pytest.fixture
def app(store_url: str, tmp_path: Path) -> Iterator[Mulligan]:
    """App without handlers, to enqueue, read and repair jobs."""
    environ = {**FAST, "MULLIGAN_DATABASE_URL": store_url, "WITNESS": str(tmp_path / "witness")}
    app = Mulligan(settings=read_settings(environ=environ, file=tmp_path / "none.toml"))
    yield app
    app.close()


@pytest.fixture
def on(store_url: str, tmp_path: Path) -> Iterator[Callable[[OutageScenario], OutageStage]]:
    """Open a gateway and workers whose jobs call it, on this test's store."""
    with ExitStack() as stack:
        yield lambda world: stack.enter_context(open_stage(store_url, tmp_path, world))


@pytest.fixture
def starts(tmp_path: Path) -> Callable[[str], list[str]]:
    """Return the witness lines of one job, in order."""

    def of(job_id: str, what: str = "start") -> list[str]:
        witness = tmp_path / "witness"
        lines = witness.read_text().splitlines() if witness.exists() else []
        return [line for line in lines if line.startswith(f"{what} {job_id} ")]

    return of


os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
