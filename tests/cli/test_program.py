"""The program `mulligan`: help, exit codes, unknown commands, errors."""

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


# Lists start within 200 ms of CPU only without these: validation, event loop, rules and policies.
NOT_FOR_LISTS = (
    "pydantic",
    "asyncio",
    "rich",
    "psycopg",
    "fastapi",
    "mulligan.config",
    "mulligan.failures.matcher",
    "mulligan.jobs.explain",
    "mulligan.jobs.repair",
    "mulligan.retries.policy",
    "mulligan.worker.settle",
)


def test_a_command_imports_only_what_it_needs(file_app):
    file_app.enqueue("ask")
    for arguments, unwanted in (
        (["jobs", "--help"], ("pydantic", "rich", "apsw", "asyncio")),
        (["jobs", "list", "--help"], ("pydantic", "rich", "apsw", "asyncio")),
        (["jobs", "list", "-o", "tsv"], NOT_FOR_LISTS),
        (["failures", "list", "-o", "tsv"], NOT_FOR_LISTS),
        (["queues", "list", "-o", "tsv"], NOT_FOR_LISTS),
    ):
        heavy = f"[name for name in {unwanted!r} if name in sys.modules]"
        code = f"import sys, mulligan.cli; mulligan.cli.main({arguments!r}); print({heavy})"
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert answer.stdout.rstrip().endswith("[]"), arguments


def test_a_supervisor_does_not_load_the_built_in_rules():
    unwanted = ("mulligan.failures.builtin", "mulligan.failures.text_facts")
    code = "import sys, mulligan.worker.supervisor.main\n"
    code += f"print([name for name in {unwanted!r} if name in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\n", "runners classify; the rules take almost a megabyte"


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


def test_a_command_uses_the_database_that_an_app_names_in_its_code(call, folder):
    code = (folder / "jobs.py").read_text().replace("Mulligan()", 'Mulligan("sqlite:///own.db")')
    (folder / "jobs.py").write_text(code)
    assert call("--app", "jobs:app", "migrate").code == 0
    assert (folder / "own.db").exists()
    job = call("--app", "jobs:app", "enqueue", "add", "a=1", "b=2", "--force").out.strip()
    assert job in call("--app", "jobs:app", "jobs", "list").out
    assert "no database at" in call("jobs", "list").err  # nothing is left in the environment


def test_outside_settings_win_over_the_database_of_the_app(call, folder):
    code = (folder / "jobs.py").read_text().replace("Mulligan()", 'Mulligan("sqlite:///own.db")')
    (folder / "jobs.py").write_text(code)
    (folder / "mulligan.toml").write_text('database_url = "sqlite:///outside.db"\n')
    assert call("--app", "jobs:app", "migrate").code == 0
    assert (folder / "outside.db").exists()
    assert not (folder / "own.db").exists()


def test_an_app_that_cannot_be_loaded_is_named(call, folder):
    refused = call("--app", "jobs:ap", "jobs", "list")
    assert (refused.code, "cannot load jobs:ap" in refused.err) == (2, True)
