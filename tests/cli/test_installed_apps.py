"""The applications from a wheel in a fresh environment: `pip install 'mulligan[apps]'`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from mulligan.cli import demo
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent.parent
BUILD = "from hatchling.build import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
# What an application refuses to start without.
REQUIRED = {"clipscribe": {"CLIPSCRIBE_SECRET": "a secret of at least thirty-two characters"}}

PAGE_OR_SIGN_IN = (200, 302, 303, 401)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment in which a wheel is installed with extra `apps`."""
    folder = tmp_path_factory.mktemp("installed")
    built = subprocess.check_output([sys.executable, "-c", BUILD, folder], cwd=ROOT, text=True)
    wheel = folder / built.split()[-1]
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    programs = folder / "venv" / "bin"
    constraints = ROOT / "constraints.txt"
    requirement = f"mulligan[apps] @ {wheel.as_uri()}"
    subprocess.run([programs / "pip", "install", "-q", "-c", constraints, requirement], check=True)
    return programs


@contextmanager
def running(
    command: list[str | Path], folder: Path, env: dict[str, str], fd: int
) -> Iterator[Path]:
    """Run a program and yield the file with its output. It must end well on SIGTERM."""
    output = folder / f"{Path(command[0]).name}.log"
    with (
        output.open("wb") as log,
        subprocess.Popen(
            command, cwd=folder, env=env, stdout=log, stderr=log, pass_fds=[fd]
        ) as ran,
    ):
        try:
            yield output
        finally:
            ran.send_signal(signal.SIGTERM)
            code = ran.wait(60)
    assert code in (0, -signal.SIGTERM), output.read_text()


def environment(name: str, folder: Path) -> dict[str, str]:
    """Variables of a deployment: the database, and what the application requires."""
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("MULLIGAN_", "PYTHON", "VIRTUAL_ENV"))
    }
    url = f"sqlite:///{folder / 'jobs.db'}"
    return {**inherited, "MULLIGAN_DATABASE_URL": url, **REQUIRED.get(name, {})}


@pytest.mark.parametrize("name", demo.applications())
def test_worker_and_page_of_an_application_start_as_documented(name, installed, tmp_path):
    module = f"mulligan.apps.{name}"
    env = environment(name, tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        fd = listener.fileno()
        worker = [installed / "mulligan", "worker", f"{module}.jobs:app"]
        page = [installed / "uvicorn", f"{module}.web:web", "--fd", str(fd)]
        with (
            running(worker, tmp_path, env, fd) as worker_log,
            running(page, tmp_path, env, fd) as page_log,
        ):
            until(lambda: is_ready(worker_log), 90, f"the worker: {worker_log}")
            until(lambda: serves(address, page_log), 90, f"the page: {page_log}")


def is_ready(log: Path) -> bool:
    assert "Traceback" not in log.read_text(), log.read_text()
    return re.search(r"\d+ kinds?, concurrency", log.read_text()) is not None


def serves(address: str, log: Path) -> bool:
    assert "Traceback" not in log.read_text(), log.read_text()
    with suppress(httpx2.TransportError):
        return httpx2.get(address, timeout=5).status_code in PAGE_OR_SIGN_IN
    return False


def test_the_installed_program_lists_and_describes_the_applications(installed, tmp_path):
    env = environment("", tmp_path)
    answer = subprocess.run(
        [installed / "mulligan", "demo", "nothing"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Available: " + ", ".join(demo.applications()) in answer.stderr
