"""An application started as its README says: the worker and the web, without a demo's environment.

The commands are the lines after `$ ` in the first `console` block of the README. The test supplies
only values of the variables that the README exports, and settings that the README names.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import IO, Self

import httpx2

from support.postgres import free_port
from support.waiting import until

APPS = Path(__file__).parents[2] / "apps"
INHERITED = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TMPDIR")
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Readme:
    """The documented way to run an application."""

    def __init__(self, application: str) -> None:
        self.text = (APPS / application / "README.md").read_text(encoding="utf-8")
        block = _CONSOLE.search(self.text)
        assert block, f"the README of {application} has no console block"
        self.commands = [
            line.removeprefix("$ ").partition(" #")[0].strip()
            for line in block[1].splitlines()
            if line.startswith("$ ")
        ]

    def command(self, start: str) -> list[str]:
        """Return the words of the command that starts with this text."""
        [found] = [command for command in self.commands if command.startswith(start)]
        return shlex.split(found)

    @property
    def exported(self) -> set[str]:
        """Names of the variables that the README exports."""
        words = [
            word
            for command in self.commands
            if command.startswith("export ")
            for word in shlex.split(command)[1:]
        ]
        return {word.partition("=")[0] for word in words}


class Deployment:
    """A worker and a web server of an application, started by the commands of its README."""

    def __init__(self, application: str, folder: Path, **environ: str) -> None:
        self.readme = Readme(application)
        unknown = {name for name in environ if name not in self.readme.text}
        assert not unknown, f"the README does not name {sorted(unknown)}"
        missing = self.readme.exported - set(environ)
        assert not missing, f"the README exports {sorted(missing)} too"
        self.folder = folder
        self.environ = environ
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: list[IO[bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, start: str) -> str:
        """Run a command of the README to its end. Return what it prints."""
        return subprocess.run(
            self._program(start), cwd=self.folder, env=self._environ(), check=True,
            capture_output=True, text=True, timeout=120,
        ).stdout  # fmt: skip

    def start(self, *names: str) -> Self:
        """Start `mulligan worker`, `uvicorn` or both."""
        for name in names or ("mulligan worker", "uvicorn"):
            log = (self.folder / f"{name.split()[-1]}.log").open("ab")
            self._logs.append(log)
            self.processes[name] = subprocess.Popen(
                self._program(name), cwd=self.folder, env=self._environ(), stdout=log, stderr=log
            )
        if "uvicorn" in self.processes:
            until(self._answers, 120, "the web answers")
        return self

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL, without warning."""
        process = self.processes.pop(name)
        process.kill()
        process.wait(60)

    def stop(self, *names: str) -> None:
        """Stop processes with SIGTERM."""
        stopped = [self.processes.pop(name) for name in names or list(self.processes)]
        for process in stopped:
            process.terminate()
        for process in stopped:
            process.wait(60)

    def restart(self, **environ: str) -> None:
        """Start both processes again, with other settings."""
        self.stop()
        self.environ |= environ
        self.start()

    def log(self, name: str) -> str:
        """Return the log of "worker" or "uvicorn"."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _program(self, start: str) -> list[str]:
        words = [word.replace("8000", str(self.port)) for word in self.readme.command(start)]
        return [str(Path(sys.executable).parent / words[0]), *words[1:]]

    def _environ(self) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        return {**inherited, "XDG_STATE_HOME": str(self.folder), **self.environ}

    def _answers(self) -> bool:
        try:
            return httpx2.get(self.url, timeout=5).status_code < 500
        except httpx2.TransportError:
            assert self.processes["uvicorn"].poll() is None, self.log("uvicorn")
            return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        for log in self._logs:
            log.close()
