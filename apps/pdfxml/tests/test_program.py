"""`mulligan demo pdfxml`: one command, one address, nothing left behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from pdfxml.tests.making import a_pdf
from support.waiting import until

pytestmark = pytest.mark.processes


def family(pid):
    """Those it has started, and those they have."""
    found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [below for one in found for below in family(one)]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_one_command_starts_all_of_it_and_a_signal_ends_all_of_it(store_url, tmp_path):
    command = [sys.executable, "-m", "mulligan", "demo", "pdfxml", "--database", store_url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, text=True)
    try:
        address = re.fullmatch(r"(http://127.0.0.1:\d+)/", process.stdout.readline().strip())[1]
        with httpx2.Client(base_url=address, verify=False) as ann:
            ann.get("/").raise_for_status()
            job = ann.post("/api/upload", files={"file": ("a.pdf", a_pdf("Hello"))}).json()["id"]
            until(lambda: ann.get(f"/api/jobs/{job}/download").status_code == 200, 60, "a result")
            assert "<line>Hello</line>" in ann.get(f"/api/jobs/{job}/download").text
        started = family(process.pid)
        assert len(started) >= 3  # the gateway, the worker, its runners
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), 20, "nothing is left"
        )
    finally:
        process.kill()
        process.communicate()
