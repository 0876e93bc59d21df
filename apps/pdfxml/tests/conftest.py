"""The whole of it around a test: a gateway in a process of its own, files in a folder, the app inline, visitors."""

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

from mulligan.testing import advance, drain
from pdfxml.tests.making import a_pdf
from stage import ServiceProcess

GATEWAY = "pdfxml.gateway"
HTTP = httpx2.Client(verify=False)
MODULES = ("settings", "rules", "files", "jobs", "intake", "views", "web")


class Visitor:
    """A browser of its own."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def post(
        self, pdf: bytes | None = None, name: str = "report.pdf", mapping: str = "text"
    ) -> Any:
        return self.client.post(
            "/api/upload", files={"file": (name, pdf or a_pdf())}, data={"mapping": mapping}
        )

    def upload(self, *lines: str, mapping: str = "text") -> str:
        answer = self.post(a_pdf(*lines), mapping=mapping)
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
    """Everything a test may ask of the outside and of the inside."""

    def __init__(
        self, held: dict[str, ServiceProcess], files: Path, modules: dict[str, ModuleType]
    ) -> None:
        self.held = held
        self.gateway = held["gateway"]
        self.place = files
        self.__dict__.update(modules)
        self.app = self.jobs.app  # type: ignore[attr-defined]
        self._clients: list[TestClient] = []

    def visitor(self) -> Visitor:
        client = TestClient(self.web.web, raise_server_exceptions=False)  # type: ignore[attr-defined]
        client.__enter__()
        client.get("/")
        self._clients.append(client)
        return Visitor(client)

    def tell(self, do: str | int, **said: Any) -> None:
        HTTP.post(f"{self.gateway.url}/orders", json={"do": str(do), **said}).raise_for_status()

    def forget(self) -> None:
        HTTP.delete(f"{self.gateway.url}/orders").raise_for_status()

    def calls(self) -> list[dict[str, Any]]:
        return list(HTTP.get(f"{self.gateway.url}/calls").json())

    def run(self, *, all_of_it: bool = False) -> Any:
        """What is due; or all of it, with the clock moved on to whatever waits but the removal of files."""
        found = drain(self.app, anywhere=True, seed=7)
        while all_of_it and (wait := self.soonest()) is not None:
            advance(self.app, wait, anywhere=True)
            drain(self.app, anywhere=True, seed=7)
        return found

    def soonest(self) -> float | None:
        """Seconds until the next of those that wait for a time, else a look at what holds the others."""
        waiting = self.app.jobs.list("kind:convert state:queued")
        waits = [
            (job.run_at - self.now()).total_seconds() for job in waiting if job.phase != "held"
        ]
        return max(0.01, min(waits)) if waits else 10.0 if waiting else None

    def now(self) -> Any:
        from mulligan.testing import now

        return now(self.app)

    def later(self, seconds: float) -> None:
        advance(self.app, seconds, anywhere=True)

    def xml(self) -> list[Path]:
        return sorted(self.place.glob("results/*"))

    def sources(self) -> list[Path]:
        return sorted(self.place.glob("uploads/*"))

    def close(self) -> None:
        for client in self._clients:
            client.__exit__(None, None, None)


@pytest.fixture(scope="session")
def one_gateway() -> Iterator[dict[str, ServiceProcess]]:
    """One for the whole session; a test may kill it, the next finds another."""
    held = {"gateway": ServiceProcess(GATEWAY)}
    yield held
    held["gateway"].close()
    HTTP.close()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the application keeps them; empty for every test."""
    return tmp_path_factory.mktemp("files")


_imported: dict[tuple[tuple[str, str], ...], dict[str, ModuleType]] = {}


def imported(environ: dict[str, str]) -> dict[str, ModuleType]:
    """Its modules as they are under these settings: they read them once, so they are imported once for each."""
    key = tuple(sorted(environ.items()))
    if key not in _imported:
        for name in MODULES:
            sys.modules.pop(f"pdfxml.{name}", None)
        _imported[key] = {name: importlib.import_module(f"pdfxml.{name}") for name in MODULES}
    return _imported[key]


@pytest.fixture
def make_world(
    store_url: str,
    tmp_path: Path,
    files: Path,
    one_gateway: dict[str, ServiceProcess],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., World]]:
    """The application under these settings of its environment."""
    with ExitStack() as stack:

        def make(**environ: str) -> World:
            if one_gateway["gateway"].process.poll() is not None:
                one_gateway["gateway"] = ServiceProcess(
                    GATEWAY, "--port", str(one_gateway["gateway"].port)
                )
            shutil.rmtree(files, ignore_errors=True)
            said = {"GATEWAY_URL": one_gateway["gateway"].url, "STORAGE_URL": str(files), **environ}
            for name, value in said.items():
                monkeypatch.setenv(name, value)
            world = World(one_gateway, files, imported(said))
            own = world.app.settings
            worker = own.worker.model_copy(update={"state_dir": str(tmp_path / "state")})
            stack.enter_context(
                world.app.redirected(
                    own.model_copy(update={"database_url": store_url, "worker": worker})
                )
            )
            stack.callback(world.close)
            world.forget()
            return world

        yield make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.fixture
def ann(world: World) -> Visitor:
    return world.visitor()
