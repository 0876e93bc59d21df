"""Fixtures: a picture server, an S3 server, and the service on each store."""

from __future__ import annotations

import atexit
import os
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
from support.receivers import WebReceiver

# The application reads the address of its alerts when it is imported.
RECEIVER = WebReceiver()
atexit.register(RECEIVER.close)
os.environ["ALERTS_TO"] = RECEIVER.url("alerts")

from mulligan.apps.render import jobs, pictures, web  # noqa: E402 - reads ALERTS_TO
from mulligan.apps.render.demo import world  # noqa: E402 - after the environment

ALERTS_TO = os.environ.pop("ALERTS_TO")


@pytest.fixture(scope="session")
def picture_server() -> Iterator[str]:
    """Serve the pictures. Return the address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(world.images, log_level="error", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
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
    """A client of the service, with a test clock."""

    def __init__(self, mulligan: Helper, picture_server: str, s3: str) -> None:
        self.mulligan = mulligan
        self.picture_server = picture_server
        self.s3 = s3
        self.client = TestClient(web.web, client=("127.0.0.1", 50000))

    def clip(self, picture: str = "photo.jpg", **fields: Any) -> dict[str, Any]:
        image = picture if picture.startswith("http") else f"{self.picture_server}/{picture}"
        return {"image": image, "text": "Hello", "duration": 1, **fields}

    def order(self, *clips: dict[str, Any]) -> str:
        answer = self.client.post("/jobs", json={"timeline": {"clips": clips or [self.clip()]}})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def fetch(self, job: str) -> dict[str, Any]:
        answer = self.client.get(f"/jobs/{job}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def run_order(self, *clips: dict[str, Any]) -> dict[str, Any]:
        """Order a video and run all its attempts. Return the job."""
        job = self.order(*clips)
        self.mulligan.drain(scheduled=True)
        return self.fetch(job)


@pytest.fixture
def alerts() -> list[Any]:
    """Return the messages that the application has sent to its operators."""
    RECEIVER.received.clear()
    return RECEIVER.received


@pytest.fixture
def set_config(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Override settings of the environment for this test."""

    def override(**overrides: Any) -> None:
        changed = replace(jobs.CONFIG, **overrides)
        monkeypatch.setattr(jobs, "CONFIG", changed)
        monkeypatch.setattr(web, "CONFIG", changed)

    return override


@pytest.fixture
def service(
    on_store: Callable[..., Helper],
    picture_server: str,
    s3: str,
    set_config: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> Service:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "render")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "render")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("ALLOW_PRIVATE_ADDRESSES", "true")  # for workers
    set_config(storage_url="s3://videos", storage_endpoint=s3, allow_private_addresses=True)
    world.requests_by_name.clear()
    return Service(on_store(jobs.app, "mulligan.apps.render.jobs:app"), picture_server, s3)


@pytest.fixture
def fake_ffmpeg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Replace ffmpeg by a shell script."""

    def install(script: str) -> Path:
        program = tmp_path / "bin" / "ffmpeg"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(pictures, "find_ffmpeg", lambda: str(program))
        return program

    return install
