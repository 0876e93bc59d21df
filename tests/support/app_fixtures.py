"""Fixtures: apps whose jobs run inline, and workers for tests that need processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mulligan import Kind, Mulligan, Policy, Table
from mulligan.config import read_settings
from support.flaky_service import RETRIES, FlakyService
from support.worker import FAST, Worker

STRANGE_APP = "support.strange:app"


@pytest.fixture
def make_app(store_url: str, tmp_path: Path) -> Iterator[Callable[..., Mulligan]]:
    """Make apps on this test's store. Keywords are settings: retry__max_retries="5"."""
    made: list[Mulligan] = []

    def make(**settings: str) -> Mulligan:
        environ = {
            **FAST,
            "MULLIGAN_DATABASE_URL": store_url,
            "MULLIGAN_WORKER__STATE_DIR": str(tmp_path / "state"),
            **{f"MULLIGAN_{name.upper()}": value for name, value in settings.items()},
        }
        made.append(Mulligan(settings=read_settings(environ=environ, file=tmp_path / "none.toml")))
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(make_app: Callable[..., Mulligan]) -> Mulligan:
    return make_app()


@pytest.fixture
def render(app: Mulligan) -> Kind[[int], str]:
    """Register a handler that records its calls in `app.calls`."""
    calls: list[int] = []
    app.calls = calls  # type: ignore[attr-defined]

    @app.job(name="render", uses="gateway", policy=Policy(max_retries=2, backoff=Table([60, 300])))
    def render(clip: int) -> str:
        calls.append(clip)
        return f"clip {clip}"

    return render


@pytest.fixture
def line() -> FlakyService:
    return FlakyService()


@pytest.fixture
def call(app: Mulligan, line: FlakyService) -> Kind[[int], int]:
    @app.job(name="call", uses="gateway", policy=RETRIES)
    def call(n: int = 0) -> int:
        return line.call(n)

    return call


@pytest.fixture
def start(store_url: str, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Start workers of the strange app on this test's store."""
    workers: list[Worker] = []

    def make(*, app: str = STRANGE_APP, **settings: str) -> Worker:
        workers.append(Worker(store_url, tmp_path, app=app, **settings))
        return workers[-1].ready()

    yield make
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()
