"""`mulligan demo NAME`: the applications, in the repository and in a wheel."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from mulligan.cli import demo
from support.waiting import until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent.parent
NAMES = sorted(demo.applications())


def answers(address: str) -> bool:
    with suppress(httpx2.TransportError):
        return httpx2.get(address, follow_redirects=True).status_code == 200
    return False


def test_an_unknown_application_lists_the_available_ones(call):
    answer = call("demo", "watercolour")
    assert answer.code == 2
    assert "unknown application 'watercolour'. Available: " in answer.err
    assert "watermark" in answer.err


def test_an_application_replaces_the_process_and_gets_the_options(monkeypatch):
    started = []
    monkeypatch.setattr(demo.os, "execve", lambda *arguments: started.append(arguments))
    demo.run_application("watermark", "postgresql://db/x", None, 8400)
    ((program, arguments, environment),) = started
    assert program == sys.executable
    assert arguments == [
        program,
        "-m",
        "watermark",
        "--database",
        "postgresql://db/x",
        "--port",
        "8400",
    ]
    assert environment["PYTHONPATH"].split(":")[0] == str(ROOT / "apps")


@pytest.mark.slow
@pytest.mark.seed("000-14")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(120)
def test_an_application_runs_on_one_file_and_leaves_no_files(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "mulligan", "demo", name, "--port", str(port)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as demo:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+\S*", demo.stdout.readline())[0]
            until(lambda: answers(address), 60, "the page")
        finally:
            demo.terminate()
        assert demo.wait(60) in (0, -signal.SIGTERM)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("pytest")] == []


def descendants(pid):
    """Return the process ids of all children, recursively."""
    children = [int(id_) for id_ in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [below for child in children for below in descendants(child)]


def has_exited(pid):
    stat = Path(f"/proc/{pid}/stat")
    with suppress(FileNotFoundError, ProcessLookupError):
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(120)
def test_a_killed_application_leaves_no_processes(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("MULLIGAN_WORKER__SHUTDOWN_GRACE", "1")
    command = [sys.executable, "-m", "mulligan", "demo", name]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as demo:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+\S*", demo.stdout.readline())[0]
            until(lambda: answers(address), 60, "the page")
            until(lambda: len(descendants(demo.pid)) >= 2, 60, "a worker and its runners")
            started = descendants(demo.pid)
        finally:
            demo.kill()
    until(lambda: all(has_exited(pid) for pid in started), 30, "all processes to exit")


@pytest.mark.slow
def test_a_wheel_has_the_applications_without_their_tests(tmp_path):
    build = "from hatchling.build import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    name = subprocess.check_output(
        [sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, text=True
    ).split()[-1]
    inside = zipfile.ZipFile(tmp_path / name).namelist()
    for app in NAMES:
        assert f"mulligan/apps/{app}/__main__.py" in inside
    assert "mulligan/apps/stage.py" in inside
    assert "mulligan/apps/watermark/templates/campaigns.html" in inside
    assert "mulligan/__init__.py" in inside
    assert [path for path in inside if "/tests/" in path or "conftest" in path] == []
