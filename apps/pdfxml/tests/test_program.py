"""`mulligan demo pdfxml` prints its address and leaves no process behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from mulligan.apps.pdfxml.tests.pdf_maker import make_pdf
from support.waiting import until

pytestmark = pytest.mark.processes


def descendants(pid):
    """Return the ids of all processes below this one."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *descendants(int(child))]
    return found


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_demo_starts_all_processes_and_sigterm_ends_them(store_url, tmp_path):
    command = [sys.executable, "-m", "mulligan", "demo", "pdfxml", "--database", store_url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, text=True)
    try:
        address = re.fullmatch(r"(http://127.0.0.1:\d+)/", process.stdout.readline().strip())[1]
        with httpx2.Client(base_url=address, verify=False) as ann:
            ann.get("/").raise_for_status()
            job = ann.post("/api/upload", files={"file": ("a.pdf", make_pdf("Hello"))}).json()["id"]
            until(lambda: ann.get(f"/api/jobs/{job}/download").status_code == 200, 60, "a result")
            assert "<line>Hello</line>" in ann.get(f"/api/jobs/{job}/download").text
        started = descendants(process.pid)
        assert len(started) >= 3  # the gateway, the worker, its runners
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), 20, "nothing is left"
        )
    finally:
        process.kill()
        process.communicate()
