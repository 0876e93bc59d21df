"""Fixtures: the gateway as a process, files in a folder, the app inline, and visitors."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from mulligan.apps.pdfxml.tests.pdf_maker import make_pdf
from mulligan.apps.stage import ServiceProcess
from mulligan.testing import advance, drain

GATEWAY = "mulligan.apps.pdfxml.demo.gateway"
HTTP = httpx2.Client(verify=False)
MODULES = ("settings", "rules", "files", "jobs", "intake", "views", "web")


class Visitor:
    """A visitor with a session of their own."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def post(
        self, pdf: bytes | None = None, name: str = "report.pdf", mapping: str = "text"
    ) -> Any:
        return self.client.post(
            "/api/upload", files={"file": (name, pdf or make_pdf())}, data={"mapping": mapping}
        )

    def upload(self, *lines: str, mapping: str = "text") -> str:
        answer = self.post(make_pdf(*lines), mapping=mapping)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> SimpleNamespace:
        return SimpleNamespace(**self.client.get(f"/api/jobs/{job_id}").json())

    def download(self, job_id: str) -> Any:
        return self.client.get(f"/api/jobs/{job_id}/download")

    def retry(self, job_id: str) -> Any:
        return self.client.post(f"/api/jobs/{job_id}/retry")

    def events(self, job_id: str) -> list[dict[str, Any]]:
        return list(self.client.get(f"/api/jobs/{job_id}/events").json())

    def page(self) -> str:
        return str(self.client.get("/").text)


class World:
    """The application, its gateway and its files."""

    def __init__(
        self, held: dict[str, ServiceProcess], files: Path, modules: dict[str, ModuleType]
    ) -> None:
        self.services = held
        self.gateway = held["gateway"]
        self.folder = files
        self.__dict__.update(modules)
        self.app = self.jobs.app  # type: ignore[attr-defined]
        self._clients: list[TestClient] = []

    def visitor(self) -> Visitor:
        service = self.web.web  # type: ignore[attr-defined]
        client = TestClient(service, raise_server_exceptions=False)
        client.__enter__()
        client.get("/")
        self._clients.append(client)
        return Visitor(client)

    def operator(self) -> TestClient:
        """Return a client that sends a key for all owners."""
        client = self.visitor().client
        client.headers["Authorization"] = f"Bearer {self.app.keys.create('*', 'viewer').text}"
        return client

    def add_order(self, do: str | int, **options: Any) -> None:
        """Order the gateway to fail, e.g. `add_order(503, times=2)`."""
        order = {"do": str(do), **options}
        HTTP.post(f"{self.gateway.url}/orders", json=order).raise_for_status()

    def clear_orders(self) -> None:
        HTTP.delete(f"{self.gateway.url}/orders").raise_for_status()

    def calls(self) -> list[dict[str, Any]]:
        return list(HTTP.get(f"{self.gateway.url}/calls").json())

    def run(self, *, until_done: bool = False) -> Any:
        """Run the due jobs. With `until_done`, advance the clock until no conversion is queued."""
        found = drain(self.app, anywhere=True, seed=7)
        delay = self.next_delay() if until_done else None
        while delay is not None:
            advance(self.app, delay, anywhere=True)
            drain(self.app, anywhere=True, seed=7)
            delay = self.next_delay()
        return found

    def next_delay(self) -> float | None:
        """Return the seconds to the next attempt, 10 if all jobs are held, None if none waits."""
        waiting = self.app.jobs.list("kind:convert state:queued")
        delays = [
            (job.run_at - self.now()).total_seconds() for job in waiting if job.phase != "held"
        ]
        if delays:
            return max(0.01, min(delays))
        return 10.0 if waiting else None

    def now(self) -> Any:
        from mulligan.testing import now

        return now(self.app)

    def advance(self, seconds: float) -> None:
        advance(self.app, seconds, anywhere=True)

    def xml(self) -> list[Path]:
        return sorted(self.folder.glob("results/*"))

    def sources(self) -> list[Path]:
        return sorted(self.folder.glob("uploads/*"))

    def close(self) -> None:
        for client in self._clients:
            client.__exit__(None, None, None)


@pytest.fixture(scope="session")
def one_gateway() -> Iterator[dict[str, ServiceProcess]]:
    """Start one gateway for the whole session. If a test kills it, the next test restarts it."""
    held = {"gateway": ServiceProcess(GATEWAY)}
    yield held
    held["gateway"].close()
    HTTP.close()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the application's files. It is emptied before every test."""
    return tmp_path_factory.mktemp("files")


_imported: dict[tuple[tuple[str, str], ...], dict[str, ModuleType]] = {}


def import_application(environ: dict[str, str]) -> dict[str, ModuleType]:
    """Import the modules anew for these settings: they read the settings at import."""
    key = tuple(sorted(environ.items()))
    if key not in _imported:
        for name in MODULES:
            sys.modules.pop(f"mulligan.apps.pdfxml.{name}", None)
        _imported[key] = {
            name: importlib.import_module(f"mulligan.apps.pdfxml.{name}") for name in MODULES
        }
    return _imported[key]


@pytest.fixture
def make_world(
    store_url: str,
    tmp_path: Path,
    files: Path,
    one_gateway: dict[str, ServiceProcess],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., World]]:
    """Start the application with settings of its environment."""
    with ExitStack() as stack:

        def start_world(**environ: str) -> World:
            if one_gateway["gateway"].process.poll() is not None:
                one_gateway["gateway"] = ServiceProcess(
                    GATEWAY, "--port", str(one_gateway["gateway"].port)
                )
            shutil.rmtree(files, ignore_errors=True)
            settings = {
                "GATEWAY_URL": one_gateway["gateway"].url,
                "STORAGE_URL": str(files),
                **environ,
            }
            for name, value in settings.items():
                monkeypatch.setenv(name, value)
            world = World(one_gateway, files, import_application(settings))
            app_settings = world.app.settings
            worker = app_settings.worker.model_copy(update={"state_dir": str(tmp_path / "state")})
            stack.enter_context(
                world.app.redirected(
                    app_settings.model_copy(update={"database_url": store_url, "worker": worker})
                )
            )
            stack.callback(world.close)
            world.clear_orders()
            return world

        yield start_world


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.fixture
def ann(world: World) -> Visitor:
    return world.visitor()
