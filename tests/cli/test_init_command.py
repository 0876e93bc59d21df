"""`mulligan init` writes an example that runs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_app_that_init_writes_fails_once_and_succeeds(call, start, folder):
    first = call("init", "shop")
    assert first.code == 0
    assert first.out.split() == ["shop/jobs.py", "shop/mulligan.toml"]
    assert "mulligan worker jobs:app" in first.err

    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = """
        cd shop; mulligan worker jobs:app & worker=$!
        ID=$(mulligan enqueue greet name=Ada)
        mulligan jobs watch $ID --timeout 25; echo "code $?"
        mulligan jobs explain $ID
        kill $worker; wait $worker
    """
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    for expected in (
        "code 0",
        "Succeeded at",
        "Attempt 1",
        "with CONNECTION (class transient",
        "Retry 1 of",
        "Attempt 2",
    ):
        assert expected in done.stdout


def test_init_never_overwrites_a_file(call, folder):
    original = (folder / "jobs.py").read_text()
    answer = call("init")
    assert answer.code == 5
    assert "jobs.py already exists" in answer.err
    assert (folder / "jobs.py").read_text() == original
    assert not (folder / "mulligan.toml").exists()


def test_an_unwritable_directory_is_reported_in_one_line(call, folder):
    answer = call("init", str(folder / "jobs.py" / "below"))
    assert answer.code == 1
    assert len(answer.err.splitlines()) == 1


# --- Completion ---
def complete_in_bash(*words: str) -> list[str]:
    """Return what bash suggests for the last of these words."""
    script = f"""
        source <({shlex.quote(sys.executable)} -m mulligan completion bash 2>/dev/null)
        COMP_WORDS=(mulligan {shlex.join(words)}); COMP_CWORD={len(words)}
        _mulligan_completion mulligan; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
def test_bash_completes_commands_options_kinds_and_queues(file_app):
    file_app.enqueue("add", {"a": 1, "b": 2})
    file_app.run_inline()
    assert complete_in_bash("jobs", "re") == ["retry", "release"]
    assert "--cursor" in complete_in_bash("jobs", "list", "--")
    assert complete_in_bash("enqueue", "a") == ["add", "ask"]
    assert complete_in_bash("worker", "jobs:app", "--queues", "mail,def") == ["mail,default"]
    assert complete_in_bash("jobs", "show", "") == [job.id for job in file_app.jobs.list()]


def test_completion_creates_no_database_and_prints_nothing(folder):
    assert complete_in_bash("enqueue", "a") == []
    assert not (folder / "mulligan.db").exists()


def test_every_shell_has_its_script(call):
    for shell, expected in (
        ("bash", "complete -o"),
        ("zsh", "compdef"),
        ("fish", "complete --no-files"),
    ):
        answer = call("completion", shell)
        assert answer.code == 0
        assert expected in answer.out
        assert "_MULLIGAN_COMPLETE" in answer.out
    assert call("completion", "cmd").code == 2
