"""`mulligan doctor --verify`, as an operator uses it."""

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


def doctor(url, *words):
    done = subprocess.run(
        [sys.executable, "-m", "mulligan", "doctor", "--verify", "--database", url, *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": ""},
    )
    return done.returncode, done.stdout, done.stderr


def test_what_is_well_is_said_to_be_well(app, store_url, tmp_path):
    clients = Clients(tmp_path / "clients.jsonl")
    with clients.call("enqueue", kind="add", payload={"a": 1, "b": 2}) as call:
        call.ok(app.enqueue("add", {"a": 1, "b": 2}))
    app.run_inline()
    code, _, talk = doctor(store_url, "--clients", str(clients.path), "--settled")
    assert (code, "invariants hold" in talk) == (0, True), talk


def test_a_broken_promise_is_told_with_its_evidence_and_an_exit_code_of_its_own(
    app, store_url, tmp_path
):
    clients = Clients(tmp_path / "clients.jsonl", "web-1")
    with clients.call("enqueue", kind="add") as call:
        call.ok("01-never-was")
    code, out, talk = doctor(store_url, "--clients", str(clients.path), "-o", "json")
    (found,) = json.loads(out)["violations"]
    assert (code, found["invariant"], found["subject"]) == (7, "S1", "01-never-was")
    assert "web-1 enqueue" in found["evidence"]["clients"][0]
    assert "S1 × 1" in talk
