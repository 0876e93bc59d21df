"""A world to test in: a server of pictures, a server that speaks S3, the service itself on a store of each kind."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi.testclient import TestClient
from moto.server import ThreadedMotoServer

from mulligan.testing import Helper
from render import jobs, pictures, web, world


@pytest.fixture(scope="session")
def hosted() -> Iterator[str]:
    """Where pictures are."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(world.images, log_level="error", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    httpx2.put(f"http://{host}:{port}/videos", timeout=60).raise_for_status()
    yield f"http://{host}:{port}"
    server.stop()


class Service:
    """The service as its callers see it, with a clock that can be moved."""

    def __init__(self, mulligan: Helper, hosted: str, s3: str) -> None:
        self.mulligan, self.hosted, self.s3 = mulligan, hosted, s3
        self.client = TestClient(web.web)

    def clip(self, picture: str = "photo.jpg", **said: Any) -> dict[str, Any]:
        image = picture if "://" in picture else f"{self.hosted}/{picture}"
        return {"image": image, "text": "Hello", "duration": 1, **said}

    def order(self, *clips: dict[str, Any]) -> str:
        answer = self.client.post("/jobs", json={"timeline": {"clips": clips or [self.clip()]}})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def look(self, job: str) -> dict[str, Any]:
        answer = self.client.get(f"/jobs/{job}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def ended(self, *clips: dict[str, Any]) -> dict[str, Any]:
        """One that was ordered, after all its tries."""
        job = self.order(*clips)
        self.mulligan.drain(scheduled=True)
        return self.look(job)


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Other values than the environment's, for this test."""

    def to(**said: Any) -> None:
        changed = replace(jobs.CONFIG, **said)
        monkeypatch.setattr(jobs, "CONFIG", changed)
        monkeypatch.setattr(web, "CONFIG", changed)

    return to


@pytest.fixture
def service(
    on_store: Callable[..., Helper],
    hosted: str,
    s3: str,
    configured: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> Service:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "render")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "render")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    configured(storage_url="s3://videos", storage_endpoint=s3)
    world.asked.clear()
    return Service(on_store(jobs.app, "render.jobs:app"), hosted, s3)


@pytest.fixture
def instead_of_ffmpeg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """A program of that name that does something else."""

    def does(script: str) -> Path:
        program = tmp_path / "bin" / "ffmpeg"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(pictures, "ffmpeg", lambda: str(program))
        return program

    return does
