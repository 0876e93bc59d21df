"""A world to test in: a host of videos and a model, mailboxes, the service itself on a store of each kind."""

from __future__ import annotations

import importlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn

from clipscribe import world as outside
from clipscribe.config import read_config
from mulligan import Job
from mulligan.testing import advance, drain, force
from support.receivers import MailReceiver, WebReceiver, open_receiver

MODULES = ("config", "media", "storage", "notices", "jobs", "metrics", "web")
ADMIN, USER = "admin@clipscribe.example", "ann@example.com"
HTTP = httpx2.Client(verify=False, timeout=30)  # without TLS: certificates take a while to load


@contextmanager
def served(application: Any) -> Iterator[str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            application, log_level="error", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


async def current(scope: Any, receive: Any, send: Any) -> None:
    """The service as it was imported last."""
    await sys.modules["clipscribe.web"].web(scope, receive, send)


@pytest.fixture(scope="session")
def places() -> Iterator[dict[str, str]]:
    with served(outside.outside) as videos, served(current) as service:
        yield {"videos": f"{videos}/videos", "model": f"{videos}/model", "service": service}
        HTTP.close()


@pytest.fixture(scope="session")
def mailbox() -> Iterator[MailReceiver]:
    with open_receiver(MailReceiver) as box:
        yield box


@pytest.fixture(scope="session")
def receiver() -> Iterator[WebReceiver]:
    with open_receiver() as box:
        yield box


class World:
    """The service as its users and its admin see it, with a clock that can be moved."""

    def __init__(
        self, places: dict[str, str], mailbox: MailReceiver, receiver: WebReceiver
    ) -> None:
        self.places, self.box, self.receiver = places, mailbox, receiver
        for module in MODULES:
            setattr(self, module, importlib.import_module(f"clipscribe.{module}"))
        self.app = self.jobs.app  # type: ignore[attr-defined]
        mailbox.received.clear()
        receiver.received.clear()
        outside.asked.clear()
        self.run()  # from now on a worker has seen the app

    # -- users ------------------------------------------------------------------------------------
    http = HTTP

    def post(self, video: str = "talk.mp4", **said: Any) -> Any:
        url = video if "://" in video else f"{self.places['videos']}/{video}"
        return HTTP.post(f"{self.places['service']}/jobs", json={"url": url, "user": USER, **said})

    def order(self, video: str = "talk.mp4", **said: Any) -> str:
        answer = self.post(video, **said)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["job_id"])

    def ask(self, method: str, path: str, job: str, **said: Any) -> Any:
        key = self.web.key_of(job)  # type: ignore[attr-defined]
        return HTTP.request(method, f"{self.places['service']}{path}", params={"key": key}, **said)

    def look(self, job: str) -> dict[str, Any]:
        answer = self.ask("GET", f"/jobs/{job}", job)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def page(self, job: str) -> str:
        return str(self.ask("GET", f"/status/{job}", job).text)

    def ended(self, video: str = "talk.mp4", **said: Any) -> dict[str, Any]:
        job = self.order(video, **said)
        self.run(all_of_it=True)
        return self.look(job)

    # -- the admin --------------------------------------------------------------------------------
    def admin(self, method: str, path: str, **said: Any) -> Any:
        headers = {"authorization": "Bearer open sesame"}
        return HTTP.request(method, f"{self.places['service']}{path}", headers=headers, **said)

    def letters(self, **params: Any) -> list[dict[str, Any]]:
        return list(self.admin("GET", "/dlq", params=params).json())

    def mails(self, to: str = ADMIN) -> list[str]:
        return [
            " ".join(str(one.body["subject"]).split()) for one in self.box.received if one.to == to
        ]

    def manifest(self, job: str) -> dict[str, Any]:
        return dict(self.storage.read(f"jobs/{job}/manifest.json"))  # type: ignore[attr-defined]

    # -- time -------------------------------------------------------------------------------------
    def run(self, *, all_of_it: bool = False) -> Any:
        return drain(self.app, scheduled=all_of_it, seed=7, anywhere=True)

    def later(self, seconds: float) -> None:
        advance(self.app, seconds, anywhere=True)
        self.run()

    def force(self, *endings: Any, times: int = 1) -> Any:
        return force(self.app, self.jobs.process_job, *endings, times=times)  # type: ignore[attr-defined]

    def job(self, job: str) -> Job:
        return self.app.jobs.get(job)

    def waits(self, job: str) -> list[float]:
        """Between the end of each attempt and the earliest start of the next, in seconds."""
        return [
            (one.next_run_at - one.ended_at) / 1e6
            for one in self.app.jobs.attempts(job)
            if one.next_run_at
        ]


@pytest.fixture
def make_world(
    store_url: str,
    tmp_path: Path,
    places: dict[str, str],
    mailbox: MailReceiver,
    receiver: WebReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., World]]:
    """The application under these settings of its environment."""
    made: list[World] = []

    def make(**environ: str) -> World:
        own = {
            "MULLIGAN_DATABASE_URL": store_url,
            "MULLIGAN_WORKER__STATE_DIR": str(tmp_path / "state"),
            "MULLIGAN_MAIL__HOST": "127.0.0.1",
            "MULLIGAN_MAIL__PORT": str(mailbox.port),
            "MULLIGAN_MAIL__TLS": "none",
            "MULLIGAN_MAIL__SENDER": "ClipScribe <clips@example.com>",
            "CLIPSCRIBE_URL": places["service"],
            "CLIPSCRIBE_MODEL_URL": places["model"],
            "CLIPSCRIBE_SAMPLES": places["videos"],
            "CLIPSCRIBE_STORAGE_URL": f"file://{tmp_path}/objects",
            "CLIPSCRIBE_ADMIN_KEY": "open sesame",
            "CLIPSCRIBE_SECRET": "of this test",
        }
        said = {f"CLIPSCRIBE_{name}": value for name, value in environ.items()}
        for name, value in (own | said | read_config(said).mulligan).items():
            monkeypatch.setenv(name, value)
        for module in MODULES:
            monkeypatch.delitem(sys.modules, f"clipscribe.{module}", raising=False)
        made.append(World(places, mailbox, receiver))
        return made[-1]

    yield make
    for world in made:
        world.media.web().close()
        world.app.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()
