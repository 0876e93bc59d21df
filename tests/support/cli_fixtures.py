"""The program as a person meets it: in a folder, with an app beside it."""

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


class Answer(NamedTuple):
    code: int
    out: str
    err: str


class Program:
    """A real process of ours; its output goes to files, so that it can be watched while it runs."""

    def __init__(
        self, folder: Path, number: int, arguments: tuple[str, ...], env: dict[str, str]
    ) -> None:
        self._out, self._err = folder / f"{number}.out", folder / f"{number}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mulligan", *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
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
    def said(self) -> str:
        return self.out + self.err

    def says(self, words: str, timeout: float = 20.0) -> str:
        """All it has said once these words are among it."""
        until(lambda: words in self.said or self.process.poll() is not None, timeout, words)
        assert words in self.said
        return self.said

    def way_in(self) -> str:
        """The line that signs somebody in."""
        self.says("http://")
        return self.out.split()[0]

    def address(self) -> str:
        return self.way_in().partition("sign-in?")[0]

    def ended(self, timeout: float = 20.0) -> Answer:
        return Answer(self.process.wait(timeout), self.out, self.err)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> Answer:
        self.signal(signal.SIGTERM)
        return self.ended()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the person is: an app, no settings from outside."""
    for name in [name for name in os.environ if name.startswith("MULLIGAN_")]:
        monkeypatch.delenv(name)
    here = tmp_path / "here"
    here.mkdir()
    (here / "jobs.py").write_text(APP)
    monkeypatch.chdir(here)
    return here


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Program]]:
    """Start `mulligan …`; whatever still runs at the end of the test is ended."""
    programs: list[Program] = []

    def run(*arguments: str, **env: str) -> Program:
        programs.append(Program(folder, len(programs), arguments, env))
        return programs[-1]

    yield run
    for program in programs:
        program.close()


@pytest.fixture
def terminal(folder: Path) -> Callable[..., Answer]:
    """`mulligan …` to its end where a person looks on: a terminal of 100 columns."""

    def run(
        *arguments: str, timeout: float = 20.0, out: Path | None = None, keys: str = "", **env: str
    ) -> Answer:
        ours, theirs = pty.openpty()
        os.write(ours, keys.encode())  # typed ahead
        stdout = theirs if out is None else os.open(out, os.O_CREAT | os.O_WRONLY)
        program = subprocess.Popen(
            [sys.executable, "-m", "mulligan", *arguments],
            cwd=folder,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **env},
            stdin=theirs,
            stdout=stdout,
            stderr=theirs,
            start_new_session=True,
        )
        for end in {theirs, stdout}:
            os.close(end)
        killer = threading.Timer(timeout, program.kill)
        killer.start()
        screen = b"".join(iter(lambda: _read(ours), b""))
        os.close(ours)
        code = program.wait()
        killer.cancel()
        return Answer(code, screen.decode(), "")

    return run


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # nobody writes to it any more
        return b""


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """`mulligan …` to its end, in this process: the same program, without the wait for an interpreter."""

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Answer(code, *capsys.readouterr())

    return run


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is away is given up after a second."""
    pool = postgres.ConnectionPool
    monkeypatch.setattr(
        postgres, "ConnectionPool", lambda dsn, **said: pool(dsn, **{**said, "timeout": 1})
    )


@pytest.fixture
def app(folder: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mulligan]:
    """The person's app on a fresh store, which the commands find in the environment."""
    with app_on(store_url, folder, monkeypatch) as app:
        yield app


@pytest.fixture
def file_app(folder: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mulligan]:
    """The same where it does not matter which store it is."""
    with app_on(sqlite_url, folder, monkeypatch) as app:
        yield app


@contextmanager
def app_on(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mulligan]:
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", url)
    monkeypatch.delitem(sys.modules, "jobs", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    app: Mulligan = load_app("jobs:app")
    yield app
    app.close()
    sys.modules.pop("jobs", None)
