"""`mulligan demo NAME`: the applications, in the repository and in a wheel."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from mulligan.cli import demo
from support.proc import is_alive
from support.waiting import until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent.parent
NAMES = demo.applications()


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
    monkeypatch.setattr(demo.os, "execv", lambda *arguments: started.append(arguments))
    demo.run_application("watermark", "postgresql://db/x", None, 8400)
    ((program, arguments),) = started
    assert program == sys.executable
    assert arguments == [
        program,
        "-m",
        "mulligan.apps.watermark",
        "--database",
        "postgresql://db/x",
        "--port",
        "8400",
    ]


@pytest.mark.slow
@pytest.mark.seed("000-14")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(120)
def test_an_application_runs_on_one_file_and_leaves_no_files(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-m", "mulligan", "demo", name]
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
    """Return the process ids of all children, recursively. Any thread may have started them."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(id_) for thread in threads for id_ in thread.read_text().split()]
    return children + [below for child in children for below in descendants(child)]


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
    until(lambda: not any(is_alive(pid) for pid in started), 30, "all processes to exit")


def supervisors(pid):
    """Return the process ids of the workers below a process, with or without a dashboard."""
    with suppress(FileNotFoundError, ProcessLookupError):  # a process ends meanwhile
        return [child for child in descendants(pid) if is_supervisor(child)]
    return []


def is_supervisor(pid):
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return arguments[1:3] == [b"-m", b"mulligan"] and arguments[3] in (b"worker", b"up")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(120)
def test_an_application_replaces_a_killed_worker(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("MULLIGAN_WORKER__SHUTDOWN_GRACE", "1")
    command = [sys.executable, "-m", "mulligan", "demo", name]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as demo:
        try:
            demo.stdout.readline()
            (first,) = until(lambda: supervisors(demo.pid), 60, "a worker")
            os.kill(first, signal.SIGKILL)
            until(lambda: set(supervisors(demo.pid)) - {first}, 60, "another worker")
        finally:
            demo.terminate()
        demo.wait(60)


def files_of(app):
    """Return the templates, schemas and other files that an application reads."""
    folder = ROOT / "apps" / app
    read = {".css", ".html", ".js", ".sql", ".toml", ".txt"}
    files = [file.relative_to(folder) for file in folder.rglob("*") if file.suffix in read]
    return {f"mulligan/apps/{app}/{file}" for file in files if "tests" not in file.parts}


@pytest.mark.slow
def test_a_wheel_has_importable_applications_without_their_tests(tmp_path):
    build = "from hatchling.build import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    name = subprocess.check_output(
        [sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, text=True
    ).split()[-1]
    wheel = zipfile.ZipFile(tmp_path / name)
    inside = wheel.namelist()
    for app in NAMES:
        assert f"mulligan/apps/{app}/__main__.py" in inside
        assert files_of(app) <= set(inside)
    assert "mulligan/apps/stage.py" in inside
    assert "mulligan/__init__.py" in inside
    assert [path for path in inside if "/tests/" in path or "conftest" in path] == []
    wheel.extractall(tmp_path / "installed")
    for app in NAMES:
        load = f"from mulligan.apps.{app} import jobs, web; print(jobs.app, web.__file__)"
        environment = {
            **os.environ,
            "PYTHONPATH": str(tmp_path / "installed"),
            "CLIPSCRIBE_SECRET": "links",  # it refuses to start without
        }
        shown = subprocess.check_output(
            [sys.executable, "-c", load], cwd=tmp_path, text=True, env=environment
        )
        assert str(tmp_path / "installed") in shown
