"""Fixtures: a video host, a model, a mailbox, and the service on each store."""

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

from mulligan import Job
from mulligan.apps.clipscribe.demo import world as external
from mulligan.testing import advance, drain, force
from support.receivers import MailReceiver, WebReceiver, open_receiver

MODULES = (
    "config",
    "media",
    "storage",
    "notices",
    "views",
    "records",
    "jobs",
    "metrics",
    "web",
)
ADMIN = "admin@clipscribe.example"
USER = "ann@example.com"
HTTP = httpx2.Client(verify=False, timeout=30)  # certificates are slow to load


@contextmanager
def serve(application: Any) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            application, log_level="error", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


async def latest_service(scope: Any, receive: Any, send: Any) -> None:
    """Serve the service that was imported last."""
    await sys.modules["mulligan.apps.clipscribe.web"].web(scope, receive, send)


@pytest.fixture(scope="session")
def addresses() -> Iterator[dict[str, str]]:
    with serve(external.external_services) as videos, serve(latest_service) as service:
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
    """A client of the service for users and the admin, with a test clock."""

    def __init__(
        self, addresses: dict[str, str], mailbox: MailReceiver, receiver: WebReceiver
    ) -> None:
        self.addresses = addresses
        self.box = mailbox
        self.receiver = receiver
        for module in MODULES:
            setattr(self, module, importlib.import_module(f"mulligan.apps.clipscribe.{module}"))
        self.app = self.jobs.app  # type: ignore[attr-defined]
        self.keys: dict[str, str] = {}
        mailbox.received.clear()
        receiver.received.clear()
        external.requests_by_name.clear()
        self.run()  # a worker has stored the manifest

    def key_of(self, user: str) -> str:
        """Return the key of a user; `*` is the admin."""
        if user not in self.keys:
            role = "admin" if user == "*" else "viewer"
            self.keys[user] = self.app.keys.create(user, role).text
        return self.keys[user]

    # --- Users ------------------------------------------------------------------------------------
    http = HTTP

    def post(self, video: str = "talk.mp4", *, user: str = USER, **options: Any) -> Any:
        url = video if "://" in video else f"{self.addresses['videos']}/{video}"
        return HTTP.post(
            f"{self.addresses['service']}/jobs",
            json={"url": url, **options},
            headers={"authorization": f"Bearer {self.key_of(user)}"},
        )

    def order(self, video: str = "talk.mp4", **options: Any) -> str:
        answer = self.post(video, **options)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["job_id"])

    def request_as_owner(self, method: str, path: str, job: str, **options: Any) -> Any:
        key = self.notices.sign_job_id(job)  # type: ignore[attr-defined]
        return HTTP.request(
            method, f"{self.addresses['service']}{path}", params={"key": key}, **options
        )

    def fetch(self, job: str) -> dict[str, Any]:
        answer = self.request_as_owner("GET", f"/jobs/{job}", job)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def page(self, job: str) -> str:
        return str(self.request_as_owner("GET", f"/status/{job}", job).text)

    def run_order(self, video: str = "talk.mp4", **options: Any) -> dict[str, Any]:
        job = self.order(video, **options)
        self.run(until_done=True)
        return self.fetch(job)

    # --- Admin --------------------------------------------------------------------------------
    def admin(self, method: str, path: str, **options: Any) -> Any:
        headers = {"authorization": f"Bearer {self.key_of('*')}"}
        return HTTP.request(
            method, f"{self.addresses['service']}{path}", headers=headers, **options
        )

    def letters(self, **params: Any) -> list[dict[str, Any]]:
        return list(self.admin("GET", "/dlq", params=params).json())

    def mails(self, to: str = ADMIN) -> list[str]:
        return [
            " ".join(str(mail.body["subject"]).split())
            for mail in self.box.received
            if mail.to == to
        ]

    def manifest(self, job: str) -> dict[str, Any]:
        return dict(self.storage.read(f"jobs/{job}/manifest.json"))  # type: ignore[attr-defined]

    # --- Time -------------------------------------------------------------------------------------
    def run(self, *, until_done: bool = False) -> Any:
        return drain(self.app, scheduled=until_done, seed=7, anywhere=True)

    def advance(self, seconds: float) -> None:
        advance(self.app, seconds, anywhere=True)
        self.run()

    def force(self, *endings: Any, times: int = 1) -> Any:
        kind = self.jobs.process_job  # type: ignore[attr-defined]
        return force(self.app, kind, *endings, times=times)

    def job(self, job: str) -> Job:
        return self.app.jobs.get(job)

    def events(self, job: str, event_type: str) -> list[Any]:
        return [event for event in self.app.jobs.history(job) if event.type == event_type]

    def retry_delays(self, job: str) -> list[float]:
        """Return the seconds from the end of each attempt to the earliest start of the next."""
        return [
            (attempt.next_run_at - attempt.ended_at) / 1e6
            for attempt in self.app.jobs.attempts(job)
            if attempt.next_run_at
        ]


@pytest.fixture
def make_world(
    store_url: str,
    tmp_path: Path,
    addresses: dict[str, str],
    mailbox: MailReceiver,
    receiver: WebReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., World]]:
    """Start the application with settings of its environment."""
    worlds: list[World] = []

    def start_world(**environ: str) -> World:
        variables = {
            "MULLIGAN_DATABASE_URL": store_url,
            "MULLIGAN_WORKER__STATE_DIR": str(tmp_path / "state"),
            "MULLIGAN_MAIL__HOST": "127.0.0.1",
            "MULLIGAN_MAIL__PORT": str(mailbox.port),
            "MULLIGAN_MAIL__TLS": "none",
            "MULLIGAN_MAIL__SENDER": "ClipScribe <clips@example.com>",
            "CLIPSCRIBE_URL": addresses["service"],
            "CLIPSCRIBE_MODEL_URL": addresses["model"],
            "CLIPSCRIBE_STORAGE_URL": f"file://{tmp_path}/objects",
            "CLIPSCRIBE_SECRET": "of this test",
            "CLIPSCRIBE_ALLOW_PRIVATE": "1",  # the videos are on this host
        }
        settings = {f"CLIPSCRIBE_{name}": value for name, value in environ.items()}
        for name, value in (variables | settings).items():
            monkeypatch.setenv(name, value)
        for module in MODULES:
            monkeypatch.delitem(sys.modules, f"mulligan.apps.clipscribe.{module}", raising=False)
        worlds.append(World(addresses, mailbox, receiver))
        return worlds[-1]

    yield start_world
    for world in worlds:
        world.media.download_client().close()
        world.media.model_client().close()
        world.app.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()
