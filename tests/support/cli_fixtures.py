"""Fixtures that run `mulligan` commands in a folder with an app, as a user does."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from mulligan import Mulligan
from mulligan.cli import main
from mulligan.storage import postgres
from mulligan.worker.startup import load_app
from support.waiting import until

APP = """
import time
from pathlib import Path
from mulligan import Context, Fail, Mulligan, Park, Policy

app = Mulligan()

@app.job
def add(a: int, b: int) -> int:
    return a + b

@app.job
def refuse(text: str = "") -> Fail:
    return Fail("BAD_FILE", text, public="This file could not be read.", final=True)

@app.job
def crash(text: str) -> None:
    raise KeyError(text)

@app.job
def wait_for(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.02)
    return "it came"

@app.job
def ask(ctx: Context) -> str | Park:
    return ctx.choice or Park("a person must choose", choices=("left", "right"))
"""


class CommandResult(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class Program:
    """A `mulligan` process. Its output goes to files, so that tests can read it while it runs."""

    def __init__(
        self, folder: Path, number: int, arguments: tuple[str, ...], env: dict[str, str]
    ) -> None:
        self._out = folder / f"{number}.out"
        self._err = folder / f"{number}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mulligan", *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def output(self) -> str:
        return self.out + self.err

    def wait_for_output(self, text: str, timeout: float = 20.0) -> str:
        """Wait until the text is printed. Return the whole output so far."""
        until(lambda: text in self.output or self.process.poll() is not None, timeout, text)
        assert text in self.output
        return self.output

    def sign_in_url(self) -> str:
        """Return the printed URL that signs in."""
        self.wait_for_output("http://")
        return self.out.split()[0]

    def address(self) -> str:
        return self.sign_in_url().partition("sign-in?")[0]

    def wait_for_exit(self, timeout: float = 20.0) -> CommandResult:
        """Wait for the exit. Abort a program that hangs, so that it prints every thread's stack."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGABRT)
            self.process.wait()
            pytest.fail(f"still running after {timeout} s:\n{self.output}")
        return CommandResult(code, self.out, self.err)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> CommandResult:
        self.signal(signal.SIGTERM)
        return self.wait_for_exit()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: it has an app, and no MULLIGAN_ variables are set."""
    for name in [name for name in os.environ if name.startswith("MULLIGAN_")]:
        monkeypatch.delenv(name)
    directory = tmp_path / "here"
    directory.mkdir()
    (directory / "jobs.py").write_text(APP)
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Program]]:
    """Start `mulligan …` in the background. It is killed at the end of the test."""
    programs: list[Program] = []

    def run(*arguments: str, **env: str) -> Program:
        programs.append(Program(folder, len(programs), arguments, env))
        return programs[-1]

    yield run
    for program in programs:
        program.close()


@pytest.fixture
def terminal(folder: Path) -> Callable[..., CommandResult]:
    """Run `mulligan …` to its end on a terminal of 100 columns."""

    def run(
        *arguments: str, timeout: float = 20.0, out: Path | None = None, keys: str = "", **env: str
    ) -> CommandResult:
        controller, terminal = pty.openpty()
        os.write(controller, keys.encode())  # typed ahead
        stdout = terminal if out is None else os.open(out, os.O_CREAT | os.O_WRONLY)
        program = subprocess.Popen(
            [sys.executable, "-m", "mulligan", *arguments],
            cwd=folder,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **env},
            stdin=terminal,
            stdout=stdout,
            stderr=terminal,
            start_new_session=True,
        )
        for descriptor in {terminal, stdout}:
            os.close(descriptor)
        killer = threading.Timer(timeout, program.kill)
        killer.start()
        screen = b"".join(iter(lambda: _read(controller), b""))
        os.close(controller)
        code = program.wait()
        killer.cancel()
        return CommandResult(code, screen.decode(), "")

    return run


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the other end of the terminal is closed
        return b""


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """Run `mulligan …` to its end in this process, without starting an interpreter."""

    def run(*arguments: str) -> CommandResult:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return CommandResult(code, *capsys.readouterr())

    return run


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up on an unreachable server after one second."""
    monkeypatch.setattr(postgres, "CONNECT_PATIENCE", 1.0)


@pytest.fixture
def app(folder: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mulligan]:
    """The app of `folder` on a fresh store, which the commands find in the environment."""
    with app_on(store_url, folder, monkeypatch) as app:
        yield app


@pytest.fixture
def file_app(folder: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mulligan]:
    """The app of `folder` on SQLite, for tests that do not depend on the store."""
    with app_on(sqlite_url, folder, monkeypatch) as app:
        yield app


@contextmanager
def app_on(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mulligan]:
    """Load the app of `folder` on this database."""
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", url)
    monkeypatch.delitem(sys.modules, "jobs", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    app: Mulligan = load_app("jobs:app")
    yield app
    app.close()
    sys.modules.pop("jobs", None)
