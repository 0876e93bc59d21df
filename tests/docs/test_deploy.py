"""The systemd unit and the Dockerfile of docs/operate/deploy.md, as far as one machine can test them."""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from doc_pages import ROOT, blocks

from mulligan import Mulligan, State
from mulligan.cli import COMMANDS
from mulligan.config import Settings, read_settings
from support.helm import render_chart
from support.waiting import until

pytestmark = pytest.mark.processes

PAGE = ROOT / "docs" / "operate" / "deploy.md"
BIN = Path(sys.executable).parent
MAX_PROBE_CPU = 0.05  # seconds
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


@pytest.mark.seed("003-32")
def test_systemd_and_docker_start_a_dead_worker_again():
    assert (unit()["Restart"], unit()["RestartSec"]) == (["always"], ["2"])
    assert "docker run --init --restart unless-stopped " in PAGE.read_text()


def test_docker_waits_longer_than_the_worker_needs(tmp_path):
    settings = settings_of(environ_of(container()["ENV"]), tmp_path)
    waits = re.findall(
        r"--stop-timeout (\d+)|terminationGracePeriodSeconds: (\d+)|stop_grace_period: (\d+)s",
        PAGE.read_text(),
    )
    assert len(waits) == 5
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
    state = environ["MULLIGAN_WORKER__STATE_DIR"]
    command = [part.replace("/var/lib/mulligan", state) for part in json.loads(check)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, env=environ, check=False, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in {0, 1}, done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < MAX_PROBE_CPU
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
            for file in (tmp_path / "state").rglob("*.life"):
                os.utime(file, (0, 0))  # as if it had been touched long ago
            until(lambda: healthy(tmp_path, environ), 20, "the worker touches its file")
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


# --- Compose and Kubernetes ---
DEPLOY = ROOT / "deploy"


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    found = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def pod(kind: str, name: str) -> dict[str, Any]:
    return manifests()[kind, name]["spec"]["template"]["spec"]


def services() -> dict[str, dict[str, Any]]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


def test_kubernetes_has_a_migration_workers_and_a_dashboard():
    assert sorted(manifests()) == [
        ("Deployment", "jobs-web"),
        ("Deployment", "jobs-worker"),
        ("Job", "jobs-migrate"),
        ("Service", "jobs-web"),
    ]
    for (kind, name), manifest in manifests().items():
        assert manifest["apiVersion"] == {"Deployment": "apps/v1", "Job": "batch/v1"}.get(
            kind, "v1"
        )
        if kind == "Deployment":
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            assert labels == manifest["spec"]["selector"]["matchLabels"] == {"app": name}
    service = manifests()["Service", "jobs-web"]["spec"]
    assert service["selector"] == {"app": "jobs-web"}
    ports = pod("Deployment", "jobs-web")["containers"][0]["ports"]
    assert service["ports"][0]["targetPort"] in {port["name"] for port in ports}


def test_every_command_of_kubernetes_and_compose_exists():
    pods = [
        pod("Job", "jobs-migrate"),
        pod("Deployment", "jobs-worker"),
        pod("Deployment", "jobs-web"),
    ]
    commands = [container["command"] for one in pods for container in one["containers"]]
    commands += [service["command"] for service in services().values() if "command" in service]
    for program, name, *options in commands:
        assert program == "mulligan"
        module, _, attribute = COMMANDS[name].location.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {option for option in options if option.startswith("--")} <= known


def test_kubernetes_and_compose_wait_longer_than_the_worker_needs(tmp_path):
    worker = pod("Deployment", "jobs-worker")
    environ = {entry["name"]: entry["value"] for entry in worker["containers"][0]["env"]}
    settings = settings_of(environ, tmp_path)
    assert worker["terminationGracePeriodSeconds"] > seconds_until_kill(settings)
    assert settings.worker.state_dir == worker["containers"][0]["volumeMounts"][0]["mountPath"]
    grace = services()["worker"]["stop_grace_period"]
    defaults = settings_of(environ_of(container()["ENV"]), tmp_path)
    assert float(grace.removesuffix("s")) > seconds_until_kill(defaults)


def test_the_migration_comes_first():
    assert services()["worker"]["depends_on"] == services()["web"]["depends_on"]
    assert services()["web"]["depends_on"] == {
        "migrate": {"condition": "service_completed_successfully"}
    }
    annotations = manifests()["Job", "jobs-migrate"]["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"


def test_image_and_pod_use_one_health_check():
    worker = pod("Deployment", "jobs-worker")["containers"][0]
    _, _, check = container()["HEALTHCHECK"][0].partition("CMD ")
    assert worker["livenessProbe"]["exec"]["command"] == json.loads(check)
    assert worker["startupProbe"]["exec"]["command"] == json.loads(check)


def test_the_routes_of_the_probes_exist(sqlite_url):
    web = pod("Deployment", "jobs-web")["containers"][0]
    paths = {web[name]["httpGet"]["path"] for name in ("readinessProbe", "livenessProbe")}
    assert paths == {"/readyz", "/livez"}
    assert all(f"`GET {path}`" in (ROOT / "docs/reference/http.md").read_text() for path in paths)


def test_the_scaled_object_of_the_page_is_the_one_of_the_chart():
    block = next(block for block in blocks(PAGE) if block.text.startswith("# scaledobject.yaml"))
    [shown] = yaml.safe_load(block.text)["spec"]["triggers"]
    manifests = render_chart(DEPLOY / "helm" / "mulligan", scaling={"enabled": True})
    [made] = next(one for one in manifests if one["kind"] == "ScaledObject")["spec"]["triggers"]
    assert shown["metadata"] | {"url": ""} == made["metadata"] | {"url": ""}
    assert made["metadata"]["url"].startswith(shown["metadata"]["url"])
    assert "`mulligan_workers_wanted`" in (ROOT / "docs/reference/metrics.md").read_text()
