"""The whole of it around a test: the providers in a process of their own, the app inline, callers with keys."""

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

from mulligan.testing import advance, drain, now
from stage import ServiceProcess

HTTP = httpx2.Client(verify=False)
MODULES = ("settings", "rules", "providers", "jobs", "report", "tasks", "web")
TASKS = "/v1/videos/generations/tasks"


class Caller:
    """Somebody with a virtual key."""

    def __init__(self, client: TestClient, key: str) -> None:
        self.client, self.headers = client, {"Authorization": f"Bearer {key}"}

    def post(self, path: str, **body: Any) -> Any:
        return self.client.post(path, headers=self.headers, **({"json": body} if body else {}))

    def get(self, path: str) -> Any:
        return self.client.get(path, headers=self.headers)

    def order(self, prompt: str = "a cat", **said: Any) -> str:
        body = {"model": "nimbus-1", "seconds": 1, **said}
        answer = self.post("/v1/videos/generations", prompt=prompt, **body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["taskId"])

    def look(self, task: str) -> Any:
        return self.get(f"{TASKS}/{task}")

    def task(self, task: str) -> SimpleNamespace:
        answer = self.look(task)
        assert answer.status_code == 200, answer.text
        return SimpleNamespace(**answer.json())

    def tasks(self) -> list[str]:
        return [one["taskId"] for one in self.get(TASKS).json()["data"]]

    def retry(self, task: str) -> Any:
        return self.post(f"{TASKS}/{task}/retry")

    def archive(self, task: str) -> Any:
        return self.client.delete(f"{TASKS}/{task}", headers=self.headers)

    def video(self, task: str) -> Any:
        return self.get(f"{TASKS}/{task}/content")


class World:
    """Everything a test may ask of the outside and of the inside."""

    def __init__(self, emulator: ServiceProcess, folder: Path) -> None:
        self.emulator, self.folder = emulator, folder
        for module in MODULES:
            setattr(self, module, importlib.import_module(f"videogen.{module}"))
        self.app = self.jobs.app  # type: ignore[attr-defined]
        self.client = TestClient(self.web.web, raise_server_exceptions=False)  # type: ignore[attr-defined]
        self.client.__enter__()
        drain(self.app, anywhere=True)  # a worker has seen the app, with its webhooks

    def caller(self, owner: str = "acme", role: str = "operator") -> Caller:
        return Caller(self.client, self.app.keys.create(owner, role).text)

    def tell(self, provider: str, do: str) -> None:
        HTTP.post(
            f"{self.emulator.url}/orders", json={"provider": provider, "do": do}
        ).raise_for_status()

    def calls(self) -> list[dict[str, Any]]:
        return list(HTTP.get(f"{self.emulator.url}/calls").json())

    def run(self, *, all_of_it: bool = False) -> Any:
        """What is due; or all of it, with the clock moved on to whatever waits."""
        return drain(self.app, scheduled=all_of_it, anywhere=True, seed=7)

    def later(self, seconds: float) -> None:
        advance(self.app, seconds, anywhere=True)

    def job(self, task: str) -> Any:
        return self.app.jobs.get(task.removeprefix("task_"))

    def wait_of(self, task: str) -> float:
        """Seconds until its retry."""
        return float((self.job(task).next_retry_at - now(self.app)).total_seconds())

    def close(self) -> None:
        self.client.__exit__(None, None, None)
        self.app.close()


@pytest.fixture(scope="session")
def providers() -> Iterator[ServiceProcess]:
    running = ServiceProcess("videogen.emulator")
    yield running
    running.close()
    HTTP.close()


@pytest.fixture
def make_world(
    store_url: str, tmp_path: Path, providers: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., World]]:
    """The application under these settings of its environment: `make_world(MaxRetries="5")`."""
    made: list[World] = []

    def make(**said: str) -> World:
        own = {"ProviderUrl": providers.url, "Folder": str(tmp_path / "videos"), **said}
        monkeypatch.setenv("MULLIGAN_DATABASE_URL", store_url)
        monkeypatch.setenv("MULLIGAN_WORKER__STATE_DIR", str(tmp_path / "state"))
        for name, value in own.items():
            monkeypatch.setenv(f"VideoGeneration__{name}", value)
        for name in MODULES:
            monkeypatch.delitem(sys.modules, f"videogen.{name}", raising=False)
        HTTP.delete(f"{providers.url}/orders").raise_for_status()
        made.append(World(providers, tmp_path))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.fixture
def ann(world: World) -> Caller:
    return world.caller()
