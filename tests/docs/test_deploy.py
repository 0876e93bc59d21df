"""The unit and the container file of docs/operate/deploy.md, as far as one machine can try them."""

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
    return {word: [rest for key, rest in lines if key == word] for word, _ in lines}


def environ_of(words: list[str]) -> dict[str, str]:
    return dict(pair.split("=", 1) for line in words for pair in shlex.split(line))


def settings_of(environ: dict[str, str], folder: Path) -> Settings:
    return read_settings(environ=environ, file=folder / "none.toml")


def seconds_before_the_kill(settings: Settings) -> float:
    return settings.worker.shutdown_grace + settings.worker.kill_grace


# -- what they say -------------------------------------------------------------------------------
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="no systemd here; the unit is parsed all the same",
)
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
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
    said = unit()
    settings = settings_of(environ_of(said["Environment"]), tmp_path)
    assert float(said["TimeoutStopSec"][0]) > seconds_before_the_kill(settings)
    assert (said["KillMode"], said["KillSignal"]) == (["mixed"], ["SIGTERM"])


def test_docker_waits_longer_than_the_worker_needs(tmp_path):
    settings = settings_of(environ_of(container()["ENV"]), tmp_path)
    waits = re.findall(
        r"--stop-timeout (\d+)|terminationGracePeriodSeconds: (\d+)|stop_grace_period: (\d+)s",
        PAGE.read_text(),
    )
    assert len(waits) == 4
    assert all(float("".join(wait)) > seconds_before_the_kill(settings) for wait in waits)


def test_every_setting_in_the_files_exists(tmp_path):
    env_file = environ_of(file("worker.env").splitlines()[1:])
    settings = settings_of(
        env_file | environ_of(unit()["Environment"]) | environ_of(container()["ENV"]), tmp_path
    )
    assert settings.origin_of("worker.runners") == "environment MULLIGAN_WORKER__RUNNERS"


def healthy(folder: Path, environ: dict[str, str]) -> bool:
    """What the container's own health check says."""
    _, _, check = container()["HEALTHCHECK"][0].partition("CMD ")
    program, *words = json.loads(check)
    done = subprocess.run(
        [BIN / program, *words], cwd=folder, env=environ, check=False, capture_output=True
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.returncode == 0


# -- what they do --------------------------------------------------------------------------------
def test_what_the_image_runs_while_it_is_built_is_right(tmp_path):
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
    }  # all of it is here already
    subprocess.run(["sh", "-ec", f"python -m {installs[0]}"], cwd=tmp_path, env=environ, check=True)
    for line in container()["RUN"]:
        subprocess.run(["sh", "-n", "-c", line], check=True)


def from_the_unit() -> list[str]:
    return shlex.split(unit()["ExecStart"][0])


def from_the_image() -> list[str]:
    return json.loads(container()["CMD"][0])


def in_a_namespace(command: list[str]) -> list[str]:
    """As process 1 of its own PID namespace, where we may make one."""
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGTERM"]
    allowed = (
        shutil.which("unshare")
        and not subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode
    )
    return [*namespace, *command] if allowed else command


@pytest.mark.parametrize("command", [from_the_unit, from_the_image])
def test_their_command_runs_jobs_and_gives_back_what_is_not_done_when_it_is_stopped(
    command, tmp_path, sqlite_url
):
    words = command()
    assert Path(words[0]).name == "mulligan"
    words = [str(BIN / "mulligan"), *words[1:]]
    if command is from_the_image:
        words = in_a_namespace(words)
    (tmp_path / "jobs.py").write_text(JOBS)
    environ = os.environ | {
        "MULLIGAN_DATABASE_URL": sqlite_url,
        "MULLIGAN_WORKER__STATE_DIR": str(tmp_path / "state"),
        "MULLIGAN_WORKER__SHUTDOWN_GRACE": "0.5",
        "MULLIGAN_WORKER__KILL_GRACE": "0.5",
    }
    with closing(Mulligan(sqlite_url)) as app, (tmp_path / "log").open("wb") as log:
        quick, slow = app.enqueue("naps", {"seconds": 0}), app.enqueue("naps", {"seconds": 600})
        with subprocess.Popen(words, cwd=tmp_path, env=environ, stdout=log, stderr=log) as worker:
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
        given_back = slow.refresh()
        assert (given_back.state, given_back.failures, given_back.losses) == (State.QUEUED, 0, 0)


def supervisor(pid: int) -> int:
    """The worker's own process, below `unshare` if that is around it."""
    if b"unshare" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        return pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
