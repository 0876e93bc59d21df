"""Behind a transaction pooler everything works by polling, with one warning."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from mulligan import Mulligan, State
from mulligan.config import read_settings
from mulligan.doctor import run_checks
from support.postgres import free_port, unprivileged_user
from support.waiting import until
from support.worker import FAST, Worker

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("pgbouncer") is None, reason="install pgbouncer to prove the pooler promise"
    ),
]

CONFIG = """
[databases]
pooled = host={host} port={port} dbname={name} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
auth_type = any
pool_mode = transaction
default_pool_size = 5
max_client_conn = 200
"""


@pytest.fixture
def pooled_url(postgres_url: str, tmp_path: Path) -> Iterator[str]:
    parts, listen = urlsplit(postgres_url), free_port()
    file = Path("/tmp") / f"pgbouncer-{os.getpid()}-{listen}.ini"
    file.write_text(
        CONFIG.format(
            host=parts.hostname,
            port=parts.port,
            name=parts.path.lstrip("/"),
            user=parts.username,
            password=parts.password,
            listen=listen,
        )
    )
    file.chmod(0o644)
    with (tmp_path / "pgbouncer.log").open("wb") as log:
        pooler = subprocess.Popen(
            ["pgbouncer", str(file)], stdout=log, stderr=log, **unprivileged_user()
        )
    try:
        until(lambda: b"process up" in (tmp_path / "pgbouncer.log").read_bytes(), 10)
        yield f"postgresql://anybody@127.0.0.1:{listen}/pooled"
    finally:
        pooler.terminate()
        pooler.wait()
        file.unlink()


@pytest.mark.parametrize("direct", [False, True], ids=["polling", "listen_url"])
def test_workers_and_clients_work_behind_a_transaction_pooler(
    pooled_url: str, postgres_url: str, tmp_path: Path, direct: bool
) -> None:
    app = Mulligan(
        settings=read_settings(
            environ={**FAST, "MULLIGAN_DATABASE_URL": pooled_url}, file=tmp_path / "no"
        )
    )
    extra = {"listen_url": postgres_url} if direct else {}
    worker = Worker(pooled_url, tmp_path, **extra).ready()
    try:
        if not direct:
            until(lambda: "LISTEN does not reach this process" in worker.text(), 10)
        for _ in range(3):
            jobs = [app.enqueue("nap", {"seconds": 0}) for _ in range(40)]
            assert {app.jobs.wait(job.id, 20).state for job in jobs} == {State.SUCCEEDED}
        done = app.jobs.wait(app.enqueue("snoozes", {}).id, 20)
        assert done.result == "awake"
        assert worker.end() == 0
        assert worker.text().count("LISTEN does not reach") == (0 if direct else 1)
    finally:
        app.close()
        worker.process.kill()
        worker.process.wait()


@pytest.fixture
def web(pooled_url: str, tmp_path: Path) -> Iterator[str]:
    """Run `mulligan web` behind the pooler. Yields the address of its API."""
    port = free_port()
    environ = {**os.environ, **FAST, "MULLIGAN_DATABASE_URL": pooled_url}
    command = [sys.executable, "-m", "mulligan", "web", "--port", str(port)]
    with (tmp_path / "web.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        until(lambda: is_ready(address), 30)
        yield f"{address}/api/v1"
    finally:
        process.terminate()
        process.wait()


def is_ready(address: str) -> bool:
    try:
        return httpx2.get(f"{address}/livez").status_code == HTTPStatus.OK
    except httpx2.TransportError:
        return False


def test_two_workers_the_web_and_clients_share_a_pool_of_five(
    pooled_url: str, web: str, tmp_path: Path
) -> None:
    settings = read_settings(
        environ={**FAST, "MULLIGAN_DATABASE_URL": pooled_url}, file=tmp_path / "no"
    )
    app = Mulligan(settings=settings)
    headers = {"Authorization": f"Bearer {app.keys.create('*', 'operator').text}"}
    workers = [Worker(pooled_url, tmp_path).ready() for _ in range(2)]
    body = {"kind": "nap", "payload": {"seconds": 0}}
    try:
        with (
            httpx2.Client(headers=headers, timeout=30) as client,
            client.stream("GET", f"{web}/events?filter=type:job.succeeded") as stream,
        ):
            answers = [client.post(f"{web}/jobs", json=body) for _ in range(30)]
            ids = {answer.json()["id"] for answer in answers}
            assert {app.jobs.wait(job_id, 30).state for job_id in ids} == {State.SUCCEEDED}
            events = (line for line in stream.iter_lines() if line.startswith("data:"))
            succeeded = {json.loads(line[5:])["job_id"] for line in islice(events, len(ids))}
            assert succeeded == ids
        assert [worker.end() for worker in workers] == [0, 0]
    finally:
        app.close()
        for worker in workers:
            worker.process.kill()
            worker.process.wait()


def test_doctor_detects_the_pooler_and_explains_its_effect(
    pooled_url: str, postgres_url: str, tmp_path: Path
) -> None:
    def found(**more: str) -> tuple[str, str]:
        environ = {"MULLIGAN_DATABASE_URL": pooled_url, **more}
        facts, checks = run_checks(read_settings(environ=environ, file=tmp_path / "no"))
        return facts["pooler"], next(check.status for check in checks if check.check == "wake-ups")

    assert found() == ("yes, by the server's process id", "warn")
    assert found(MULLIGAN_LISTEN_URL=postgres_url) == ("yes, by the server's process id", "ok")
