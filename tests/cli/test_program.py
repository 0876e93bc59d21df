from __future__ import annotations

import os
import signal
import subprocess
import sys

import psycopg

from mulligan.cli import COMMANDS, cli, main


def test_help_lists_every_command_without_importing_it(folder):
    heavy = "[name for name in ('rich', 'fastapi', 'jinja2') if name in sys.modules]"
    code = f"import sys, mulligan.cli; mulligan.cli.main(['--help']); print({heavy})"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert all(f"  {name} " in answer.stdout for name in COMMANDS)
    assert answer.stdout.rstrip().endswith("[]")


def test_a_command_imports_only_what_it_needs(file_app):
    file_app.enqueue("ask")
    for arguments, unwanted in (
        (["jobs", "--help"], ("pydantic", "rich", "apsw", "asyncio")),
        (["jobs", "list", "--help"], ("pydantic", "rich", "apsw", "asyncio")),
        (["jobs", "list", "-o", "tsv"], ("rich", "psycopg", "fastapi")),
    ):
        heavy = f"[name for name in {unwanted!r} if name in sys.modules]"
        code = f"import sys, mulligan.cli; mulligan.cli.main({arguments!r}); print({heavy})"
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert answer.stdout.rstrip().endswith("[]"), arguments


def test_loading_an_app_imports_no_database_code():
    code = "import sys, mulligan.worker.runner.start; from mulligan import Mulligan; app = Mulligan()\n"
    code += "@app.job\ndef ask(i: int): pass\n"
    unwanted = (
        "apsw",
        "psycopg",
        "mulligan.storage.base",
        "mulligan.jobs.service",
        "mulligan.batches.service",
        "mulligan.worker.settle",
        "mulligan.notifications.channels",
    )
    code += f"app.manifest(); print([name for name in {unwanted!r} if name in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\n", (
        "ten runners that start at once after a crash wait for each of these ten times"
    )


def test_every_command_has_help(call):
    for name in COMMANDS:
        answer = call(name, "--help")
        assert answer.code == 0
        assert "Usage: mulligan" in answer.out


def test_python_m_mulligan_is_the_same_program(start):
    answer = start("--version").wait_for_exit()
    assert answer.code == 0
    assert answer.out.startswith("mulligan, version ")


def test_an_unknown_command_is_a_usage_error(call):
    answer = call("jbos")
    assert answer.code == 2
    assert "jbos" in answer.err


def test_an_invalid_setting_is_refused_with_its_name(call, monkeypatch):
    monkeypatch.setenv("MULLIGAN_WORKER__LEASE", "-1")
    answer = call("jobs", "list")
    assert answer.code == 2
    assert "worker.lease" in answer.err
    assert answer.err.rstrip().endswith("[CONFIG]")


def test_ctrl_c_exits_with_130(app, start):
    job = app.jobs.get(app.enqueue("add", {"a": 1, "b": 2}).id)
    watching = start("jobs", "watch", job.id)
    watching.wait_for_output("no live worker")
    watching.signal(signal.SIGINT)
    assert watching.wait_for_exit().code == 130


def test_ctrl_c_during_a_statement_exits_with_130(monkeypatch):
    """The driver cannot clean up a connection that is busy, and says that instead."""

    def interrupted(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise psycopg.ProgrammingError("can't change 'autocommit' now")  # noqa: B904 - as the driver does it

    monkeypatch.setattr(cli, "main", interrupted)
    assert main([]) == 130


def test_a_closed_pipe_causes_no_traceback(app, folder):
    for _ in range(3):
        app.enqueue("add", {"a": 1, "b": 2})
    read, write = os.pipe()
    os.close(read)
    program = [sys.executable, "-m", "mulligan", "jobs", "list"]
    answer = subprocess.run(program, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert answer.stderr == b""
