"""Fixtures: an account, a video, campaigns, a mail server and a web server, on each store."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import psutil
import pytest
import uvicorn

from mulligan import Fail, testing
from mulligan.apps.watermark.demo.mailbox import Mailbox
from mulligan.testing import Helper
from support.waiting import until


class WebhookReceiver(BaseHTTPRequestHandler):
    """Keep the bodies that the application sends to its webhook."""

    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


# The application reads the address of its webhook when it is imported, so the port is taken here.
WEBHOOK = HTTPServer(("127.0.0.1", 0), WebhookReceiver)
atexit.register(WEBHOOK.server_close)
os.environ["WATERMARK_WEBHOOK"] = f"http://127.0.0.1:{WEBHOOK.server_port}/campaigns"

from mulligan.apps.watermark import campaigns, data, jobs, marks, views  # noqa: E402 - reads WATERMARK_WEBHOOK
from mulligan.apps.watermark.web import web  # noqa: E402 - reads WATERMARK_WEBHOOK


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a video of half a second with sound."""
    file = tmp_path_factory.mktemp("clip") / "clip.mp4"
    picture = "testsrc2=duration=0.5:size=320x192:rate=20"
    sound = "sine=duration=0.5"
    inputs = ["-f", "lavfi", "-i", picture, "-f", "lavfi", "-i", sound]
    subprocess.run(
        [marks.find_ffmpeg(), "-loglevel", "error", *inputs, "-preset", "ultrafast", str(file)],
        check=True,
    )
    return file


class World:
    """One account with its assets, on the store of a test."""

    def __init__(
        self, mulligan: Helper, clip: Path, folder: Path, mailbox: Mailbox, hooks: list[Any]
    ) -> None:
        self.mulligan = mulligan
        self.clip = clip
        self.folder = folder
        self.mailbox = mailbox
        self.hooks = hooks
        jobs.app.open()
        self.account = self.add(data.Account(name="Olga", email="olga@example.com"))

    def add(self, thing: Any) -> Any:
        with jobs.db() as session:
            session.add(thing)
        return thing

    def asset(self, content: bytes | None = None) -> data.Asset:
        file = self.folder / f"{data.new_id()}.mp4"
        if content is None:
            shutil.copyfile(self.clip, file)
        else:
            file.write_bytes(content)
        return self.add(data.Asset(account_id=self.account.id, name="talk.mp4", path=str(file)))

    def campaign(self, *names: str, asset: data.Asset | None = None, **fields: Any) -> str:
        """Create a draft. Return its id."""
        asset = asset or self.asset()
        with jobs.db() as session:
            recipients = [
                data.Recipient(account_id=self.account.id, name=name, email=f"{name}@x.org")
                for name in names
            ]
            fields = {"name": "Spring", **fields}
            campaign = data.Campaign(account_id=self.account.id, asset_id=asset.id, **fields)
            campaign.tokens = [data.Token(recipient=recipient) for recipient in recipients]
            session.add(campaign)
        return campaign.id

    def publish(self, campaign_id: str) -> str:
        with jobs.db() as session:
            campaigns.publish(session, session.get_one(data.Campaign, campaign_id))
        return campaign_id

    def views(self, campaign_id: str) -> tuple[views.CampaignView, list[views.TokenView]]:
        with jobs.db() as session:
            campaign = session.get_one(data.Campaign, campaign_id)
            campaign_view = views.campaign_view(campaign)
            return campaign_view, views.token_views(campaign, campaign_view.state)

    def state(self, campaign_id: str) -> str:
        return self.views(campaign_id)[0].state

    def token(self, campaign_id: str, recipient: str = "ada") -> views.TokenView:
        return next(token for token in self.views(campaign_id)[1] if token.recipient == recipient)

    def drain(self) -> None:
        """Drain on another thread: the browser runs its event loop in this one."""
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self.mulligan.drain).result()

    def job(self, campaign_id: str, recipient: str = "ada") -> Any:
        with jobs.db() as session:
            found = session.get(data.Token, self.token(campaign_id, recipient).id)
        return jobs.app.jobs.get(found.job_id)

    def run_campaign(self, *endings: Any, names: tuple[str, ...] = (), **fields: Any) -> str:
        """Publish a campaign and force the endings of its copies, in order. Return its id."""
        campaign = self.publish(
            self.campaign(*(names or tuple("abcdefgh"[: len(endings)])), **fields)
        )
        with self.mulligan.force(jobs.watermark, *endings):
            self.drain()
        return campaign

    def sent_mails(self) -> list[Any]:
        """Return every mail, once the incidents had time to collect failures."""
        self.mulligan.advance(10)
        self.drain()
        return list(self.mailbox.mails)


@pytest.fixture(scope="session")
def mail_server() -> Iterator[Mailbox]:
    with Mailbox() as mailbox:
        yield mailbox


@pytest.fixture(scope="session")
def hook_server() -> Iterator[list[dict[str, Any]]]:
    """Serve the webhook. Return the list of received bodies."""
    thread = threading.Thread(target=WEBHOOK.serve_forever)
    thread.start()
    yield WebhookReceiver.bodies
    WEBHOOK.shutdown()
    thread.join()


@pytest.fixture
def world(
    on_store: Callable[..., Helper],
    clip: Path,
    tmp_path: Path,
    mail_server: Mailbox,
    hook_server: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    monkeypatch.setenv("WATERMARK_FILES", str(tmp_path / "files"))
    server = {
        name.rpartition("__")[2].lower(): value for name, value in mail_server.settings.items()
    }
    mail = jobs.app.settings.mail.model_copy(update=server | {"port": int(server["port"])})
    monkeypatch.setattr(jobs.app, "settings", jobs.app.settings.model_copy(update={"mail": mail}))
    mulligan = on_store(jobs.app, "mulligan.apps.watermark.jobs:app")
    mail_server.mails.clear()
    hook_server.clear()
    world = World(mulligan, clip, tmp_path, mail_server, hook_server)
    world.drain()  # a worker has stored the manifest
    yield world
    data.engine(jobs.app.settings.database_url).dispose()
    data.engine.cache_clear()


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Replace ffmpeg by a shell script: `tool("kill -9 $$")`. `$FFMPEG` is the real program.

    The script writes its arguments to `tmp_path / "encodes"` when it reads or writes frames.
    """
    real = marks.find_ffmpeg()
    note = f'case "$*" in *yuv4mpegpipe*) echo "$*" >> "{tmp_path}/encodes";; esac'

    def put(script: str) -> Path:
        file = tmp_path / "ffmpeg"
        file.write_text(f"#!/bin/sh\nFFMPEG={real}\n{note}\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("WATERMARK_FFMPEG", str(file))
        return file

    return put


@pytest.fixture
def site(world: World) -> Iterator[str]:
    """Serve the pages. Return their address."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(web, log_level="warning", lifespan="off", timeout_graceful_shutdown=0)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    until(lambda: server.started, 10, "the pages")
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture
def owner(site: str, world: World) -> Iterator[httpx2.Client]:
    """Return an HTTP client that is signed in as the owner."""
    with httpx2.Client(
        base_url=site, cookies={"key": world.account.key}, follow_redirects=False
    ) as client:
        yield client


class EventLog(list[tuple[str, Any]]):
    """Received events: names and bodies. `last_id` is the position to resume at."""

    last_id = ""


@contextmanager
def collect_events(
    client: httpx2.Client, path: str, headers: dict[str, str] | None = None
) -> Iterator[EventLog]:
    """Collect the events of a stream. The block starts after the first event."""
    events = EventLog()
    stop = threading.Event()

    def listen() -> None:
        with (
            suppress(httpx2.TransportError),
            client.stream("GET", path, headers=headers, timeout=30) as answer,
        ):
            event = ""
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    events.last_id = value
                elif name == "event":
                    event = value
                elif name == "data":
                    events.append((event, json.loads(value)))
                if stop.is_set():
                    return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    until(lambda: events, 10, "the stream")
    yield events
    stop.set()


@contextmanager
def start_site(world: World) -> Iterator[tuple[str, psutil.Process]]:
    """Run the pages as the README says. Return their address and their process."""
    environment = {**os.environ, **testing.environ(jobs.app)}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-m", "uvicorn", "mulligan.apps.watermark.web:web"]
        options = ["--fd", str(listening.fileno()), "--log-level", "warning"]
        process = subprocess.Popen(
            [*command, *options], env=environment, pass_fds=[listening.fileno()]
        )
        site = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            yield site, psutil.Process(process.pid)
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def damaged() -> Fail:
    """Return the failure of a copy whose video cannot be read."""
    return Fail("BAD_FILE", "moov atom not found", public="The video file is damaged.", final=True)
