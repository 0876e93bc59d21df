"""The systemd unit and the Dockerfile of docs/operate/deploy.md, as far as one machine can test them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from doc_pages import ROOT, blocks

from mulligan import Mulligan, State
from mulligan.config import Settings, read_settings
from support.waiting import until

pytestmark = pytest.mark.processes

PAGE = ROOT / "docs" / "operate" / "deploy.md"
BIN = Path(sys.executable).parent
JOBS = """
import time
from mulligan import Mulligan

app = Mulligan()

@app.job
def naps(seconds: float) -> None:
    time.sleep(seconds)
"""


def file(name: str) -> str:
    return next(block.text for block in blocks(PAGE) if block.text.startswith(f"# {name}\n"))


def unit() -> dict[str, list[str]]:
    pairs = [
        line.split("=", 1) for line in file("mulligan-worker.service").splitlines() if "=" in line
    ]
    return {name: [value for key, value in pairs if key == name] for name, _ in pairs}


def container() -> dict[str, list[str]]:
    lines = [line.split(" ", 1) for line in file("Dockerfile").splitlines()[1:]]
    return {
        instruction: [rest for key, rest in lines if key == instruction] for instruction, _ in lines
    }


def environ_of(lines: list[str]) -> dict[str, str]:
    return dict(pair.split("=", 1) for line in lines for pair in shlex.split(line))


def settings_of(environ: dict[str, str], folder: Path) -> Settings:
    return read_settings(environ=environ, file=folder / "none.toml")


def seconds_until_kill(settings: Settings) -> float:
    return settings.worker.shutdown_grace + settings.worker.kill_grace


# --- Contents ---
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="needs systemd-analyze",
)
def test_systemd_accepts_the_unit(tmp_path):
    here = tmp_path / "mulligan-worker.service"
    here.write_text(
        file("mulligan-worker.service").replace(
            "/srv/app/.venv/bin/mulligan", str(BIN / "mulligan")
        )
    )
    verified = subprocess.run(
        ["systemd-analyze", "verify", here], capture_output=True, text=True, check=False
    )
    assert (
        verified.returncode,
        [line for line in verified.stderr.splitlines() if here.name in line],
    ) == (0, [])


def test_systemd_waits_longer_than_the_worker_needs(tmp_path):
    options = unit()
    settings = settings_of(environ_of(options["Environment"]), tmp_path)
    assert float(options["TimeoutStopSec"][0]) > seconds_until_kill(settings)
    assert (options["KillMode"], options["KillSignal"]) == (["mixed"], ["SIGTERM"])


def test_docker_waits_longer_than_the_worker_needs(tmp_path):
    settings = settings_of(environ_of(container()["ENV"]), tmp_path)
    waits = re.findall(
        r"--stop-timeout (\d+)|terminationGracePeriodSeconds: (\d+)|stop_grace_period: (\d+)s",
        PAGE.read_text(),
    )
    assert len(waits) == 4
    assert all(float("".join(wait)) > seconds_until_kill(settings) for wait in waits)


def test_every_setting_in_the_files_exists(tmp_path):
    env_file = environ_of(file("worker.env").splitlines()[1:])
    settings = settings_of(
        env_file | environ_of(unit()["Environment"]) | environ_of(container()["ENV"]), tmp_path
    )
    assert settings.origin_of("worker.runners") == "environment MULLIGAN_WORKER__RUNNERS"


def healthy(folder: Path, environ: dict[str, str]) -> bool:
    """Run the health check of the container. True if it succeeds."""
    _, _, check = container()["HEALTHCHECK"][0].partition("CMD ")
    program, *arguments = json.loads(check)
    done = subprocess.run(
        [BIN / program, *arguments], cwd=folder, env=environ, check=False, capture_output=True
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.returncode == 0


# --- Behaviour ---
def test_the_build_steps_of_the_image_work(tmp_path):
    requirements = next(
        block.text for block in blocks(PAGE) if block.text.startswith("# requirements.txt")
    )
    (tmp_path / "requirements.txt").write_text(requirements)
    (tmp_path / "wheels").mkdir()
    installs = [line for line in container()["RUN"] if line.startswith("pip ")]
    assert len(installs) == 1
    environ = os.environ | {
        "PIP_NO_INDEX": "1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }  # everything is installed already
    subprocess.run(["sh", "-ec", f"python -m {installs[0]}"], cwd=tmp_path, env=environ, check=True)
    for line in container()["RUN"]:
        subprocess.run(["sh", "-n", "-c", line], check=True)


def unit_command() -> list[str]:
    return shlex.split(unit()["ExecStart"][0])


def image_command() -> list[str]:
    return json.loads(container()["CMD"][0])


def in_a_namespace(command: list[str]) -> list[str]:
    """Run a command as process 1 of a PID namespace, if that is allowed."""
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGTERM"]
    allowed = (
        shutil.which("unshare")
        and not subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode
    )
    return [*namespace, *command] if allowed else command


@pytest.mark.parametrize("command", [unit_command, image_command])
def test_their_command_runs_jobs_and_requeues_unfinished_ones_when_stopped(
    command, tmp_path, sqlite_url
):
    arguments = command()
    assert Path(arguments[0]).name == "mulligan"
    arguments = [str(BIN / "mulligan"), *arguments[1:]]
    if command is image_command:
        arguments = in_a_namespace(arguments)
    (tmp_path / "jobs.py").write_text(JOBS)
    environ = os.environ | {
        "MULLIGAN_DATABASE_URL": sqlite_url,
        "MULLIGAN_WORKER__STATE_DIR": str(tmp_path / "state"),
        "MULLIGAN_WORKER__SHUTDOWN_GRACE": "0.5",
        "MULLIGAN_WORKER__KILL_GRACE": "0.5",
    }
    with closing(Mulligan(sqlite_url)) as app, (tmp_path / "log").open("wb") as log:
        quick, slow = app.enqueue("naps", {"seconds": 0}), app.enqueue("naps", {"seconds": 600})
        with subprocess.Popen(
            arguments, cwd=tmp_path, env=environ, stdout=log, stderr=log
        ) as worker:
            until(
                lambda: (
                    quick.refresh().state == State.SUCCEEDED
                    and slow.refresh().state == State.RUNNING
                ),
                20,
            )
            assert healthy(tmp_path, environ)
            os.kill(supervisor(worker.pid), signal.SIGTERM)
            assert worker.wait(20) == 0, (tmp_path / "log").read_text()
        assert not healthy(tmp_path, environ)
        requeued = slow.refresh()
        assert (requeued.state, requeued.failures, requeued.losses) == (State.QUEUED, 0, 0)


def supervisor(pid: int) -> int:
    """Return the pid of the worker, which may be the child of `unshare`."""
    if b"unshare" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        return pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
