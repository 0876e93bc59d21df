"""The command `mulligan doctor --verify`."""

import json
import os
import subprocess
import sys

import pytest

from mulligan import Mulligan
from mulligan.doctor.verify import Clients

pytestmark = pytest.mark.processes


@pytest.fixture
def app(store_url):
    app = Mulligan(store_url)

    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    yield app
    app.close()


def run_verify(url, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "mulligan", "doctor", "--verify", "--database", url, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": ""},
    )
    return done.returncode, done.stdout, done.stderr


def test_a_correct_database_exits_with_0(app, store_url, tmp_path):
    clients = Clients(tmp_path / "clients.jsonl")
    with clients.call("enqueue", kind="add", payload={"a": 1, "b": 2}) as call:
        call.ok(app.enqueue("add", {"a": 1, "b": 2}))
    app.run_inline()
    code, _, stderr = run_verify(store_url, "--clients", str(clients.path), "--settled")
    assert (code, "invariants hold" in stderr) == (0, True), stderr


def test_a_violation_is_printed_with_evidence_and_exits_with_7(app, store_url, tmp_path):
    clients = Clients(tmp_path / "clients.jsonl", "web-1")
    with clients.call("enqueue", kind="add") as call:
        call.ok("01-missing")
    code, stdout, stderr = run_verify(store_url, "--clients", str(clients.path), "-o", "json")
    (found,) = json.loads(stdout)["violations"]
    assert (code, found["invariant"], found["subject"]) == (7, "S1", "01-missing")
    assert "web-1 enqueue" in found["evidence"]["clients"][0]
    assert "S1 × 1" in stderr
