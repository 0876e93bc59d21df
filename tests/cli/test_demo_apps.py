"""`mulligan demo NAME`: the applications, found in the repository and in a wheel."""

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

from mulligan.cli import demo as demo_apps
from support.waiting import until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent.parent
NAMES = sorted(demo_apps.applications())


def answers(address: str) -> bool:
    with suppress(httpx2.TransportError):
        return httpx2.get(address, follow_redirects=True).status_code == 200
    return False


def test_a_name_that_is_no_application_gets_those_that_are(call):
    answer = call("demo", "watercolour")
    assert answer.code == 2
    assert "there is no application 'watercolour'; there are: " in answer.err
    assert "watermark" in answer.err


def test_an_application_is_started_in_our_place_with_what_was_said(monkeypatch):
    started = []
    monkeypatch.setattr(demo_apps.os, "execve", lambda *said: started.append(said))
    demo_apps.run_application("watermark", "postgresql://db/x", None, 8400)
    ((program, words, environ),) = started
    assert program == sys.executable
    assert words == [
        program,
        "-m",
        "watermark",
        "--database",
        "postgresql://db/x",
        "--port",
        "8400",
    ]
    assert environ["PYTHONPATH"].split(":")[0] == str(ROOT / "apps")


@pytest.mark.slow
@pytest.mark.seed("000-14")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(120)
def test_an_application_runs_on_one_file_and_leaves_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    words = [sys.executable, "-m", "mulligan", "demo", name, "--port", str(port)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as demo:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+\S*", demo.stdout.readline())[0]
            until(lambda: answers(address), 60, "its page")
        finally:
            demo.terminate()
        assert demo.wait(60) in (0, -signal.SIGTERM)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("pytest")] == []


def family(pid):
    """Those it has started, and those they have."""
    found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [below for one in found for below in family(one)]


def gone(pid):
    stat = Path(f"/proc/{pid}/stat")
    with suppress(FileNotFoundError, ProcessLookupError):
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(120)
def test_an_application_that_is_killed_leaves_nobody_behind(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("MULLIGAN_WORKER__SHUTDOWN_GRACE", "1")
    words = [sys.executable, "-m", "mulligan", "demo", name]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as demo:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+\S*", demo.stdout.readline())[0]
            until(lambda: answers(address), 60, "its page")
            until(lambda: len(family(demo.pid)) >= 2, 60, "a worker and its runners")
            started = family(demo.pid)
        finally:
            demo.kill()
    until(lambda: all(gone(pid) for pid in started), 30, "nobody")


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
