"""Fixtures: the providers as a process, the app inline, and callers with keys."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from mulligan.apps.stage import ServiceProcess
from mulligan.testing import advance, drain, now

HTTP = httpx2.Client(verify=False)
MODULES = ("settings", "rules", "providers", "jobs", "report", "tasks", "web")
TASKS = "/v1/videos/generations/tasks"


class Caller:
    """An API client with a virtual key."""

    def __init__(self, client: TestClient, key: str) -> None:
        self.client = client
        self.headers = {"Authorization": f"Bearer {key}"}

    def post(self, path: str, **body: Any) -> Any:
        return self.client.post(path, headers=self.headers, **({"json": body} if body else {}))

    def get(self, path: str) -> Any:
        return self.client.get(path, headers=self.headers)

    def order(self, prompt: str = "a cat", **fields: Any) -> str:
        body = {"model": "nimbus-1", "seconds": 1, **fields}
        answer = self.post("/v1/videos/generations", prompt=prompt, **body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["taskId"])

    def fetch(self, task: str) -> Any:
        return self.get(f"{TASKS}/{task}")

    def task(self, task: str) -> SimpleNamespace:
        answer = self.fetch(task)
        assert answer.status_code == 200, answer.text
        return SimpleNamespace(**answer.json())

    def tasks(self) -> list[str]:
        return [task["taskId"] for task in self.get(TASKS).json()["data"]]

    def retry(self, task: str) -> Any:
        return self.post(f"{TASKS}/{task}/retry")

    def archive(self, task: str) -> Any:
        return self.client.delete(f"{TASKS}/{task}", headers=self.headers)

    def video(self, task: str) -> Any:
        return self.get(f"{TASKS}/{task}/content")


class World:
    """The application and the emulator of its providers."""

    def __init__(self, emulator: ServiceProcess, folder: Path) -> None:
        self.emulator = emulator
        self.folder = folder
        for module in MODULES:
            setattr(self, module, importlib.import_module(f"mulligan.apps.videogen.{module}"))
        self.app = self.jobs.app  # type: ignore[attr-defined]
        service = self.web.web  # type: ignore[attr-defined]
        self.client = TestClient(service, raise_server_exceptions=False)
        self.client.__enter__()
        drain(self.app, anywhere=True)  # a worker has stored the manifest and the webhooks

    def caller(self, owner: str = "acme", role: str = "operator") -> Caller:
        return Caller(self.client, self.app.keys.create(owner, role).text)

    def set_fault(self, provider: str, do: str) -> None:
        HTTP.post(
            f"{self.emulator.url}/orders", json={"provider": provider, "do": do}
        ).raise_for_status()

    def calls(self) -> list[dict[str, Any]]:
        return list(HTTP.get(f"{self.emulator.url}/calls").json())

    def run(self, *, until_done: bool = False) -> Any:
        """Run the due tasks. With `until_done`, advance the clock until nothing is scheduled."""
        return drain(self.app, scheduled=until_done, anywhere=True, seed=7)

    def advance(self, seconds: float) -> None:
        advance(self.app, seconds, anywhere=True)

    def job(self, task: str) -> Any:
        return self.app.jobs.get(task.removeprefix("task_"))

    def retry_delay(self, task: str) -> float:
        """Return the seconds until the retry of a task."""
        return float((self.job(task).next_retry_at - now(self.app)).total_seconds())

    def close(self) -> None:
        self.client.__exit__(None, None, None)
        self.app.close()


@pytest.fixture(scope="session")
def providers() -> Iterator[ServiceProcess]:
    process = ServiceProcess("mulligan.apps.videogen.demo.emulator")
    yield process
    process.close()
    HTTP.close()


@pytest.fixture
def make_world(
    store_url: str, tmp_path: Path, providers: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., World]]:
    """Start the application with settings of its environment: `make_world(MaxRetries="5")`."""
    worlds: list[World] = []

    def start_world(**settings: str) -> World:
        variables = {"ProviderUrl": providers.url, "Folder": str(tmp_path / "videos"), **settings}
        monkeypatch.setenv("MULLIGAN_DATABASE_URL", store_url)
        monkeypatch.setenv("MULLIGAN_WORKER__STATE_DIR", str(tmp_path / "state"))
        for name, value in variables.items():
            monkeypatch.setenv(f"VideoGeneration__{name}", value)
        for name in MODULES:
            monkeypatch.delitem(sys.modules, f"mulligan.apps.videogen.{name}", raising=False)
        HTTP.delete(f"{providers.url}/orders").raise_for_status()
        worlds.append(World(providers, tmp_path))
        return worlds[-1]

    yield start_world
    for world in worlds:
        world.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.fixture
def ann(world: World) -> Caller:
    return world.caller()
