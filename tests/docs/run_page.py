"""Does what a page says, in order: `python run_page.py PAGE`, in an empty directory.

A block that begins with `# name.py` (or another file, perhaps in a folder) is saved under that name, one that begins
with `# name.py, at the end` is put behind what is there. Other ```python blocks are run, one after the other in one
namespace; `print(…)  # what it shows` at the left margin must show just that. In ```console blocks every line that
begins with `$ ` is given to one shell, and the lines below it must appear in what it prints, in their order. `…`
stands for anything. A command that serves (worker, up, web, demo, or a web server) goes to the background and is ended
with the page. Port 8000 stands for one that is free.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from doc_pages import Block, blocks

SAVED = re.compile(
    r"# ((?:[\w-]+/)*(?:[\w-]+\.(?:py|toml|service|txt|html)|Dockerfile))(, at the end)?\n"
)
SHOWN = re.compile(r"^print\(.*\)  # (.+)$", re.MULTILINE)
SERVES = re.compile(
    r"mulligan (worker|up|web|demo)\b(?! check)|\buvicorn |\bflask .*\brun\b|manage\.py runserver"
)
READY = re.compile(r"concurrency \d+|http://\S+")
PORT = "8000"
DONE = "-- done --"
PATIENCE = 40.0  # seconds


class Wrong(Exception):
    """The page says something that is not so."""


class Shell:
    """One shell for the page: what it exports stays."""

    def __init__(self) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._served: list[int] = []

    def run(self, command: str) -> str:
        shell = self._bash
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(f"{command}\nended=$?; echo; echo '{DONE}' $ended\n")
        shell.stdin.flush()
        lines = []
        for line in shell.stdout:
            if line.startswith(DONE):
                if line.split()[-1] != "0":
                    raise Wrong(f"$ {command}\n{''.join(lines)}\nended with {line.split()[-1]}")
                return "".join(lines).removesuffix("\n")
            lines.append(line)
        raise Wrong(f"$ {command}\nended the shell")

    def serve(self, command: str) -> str:
        """In the background; what it has said once it is ready."""
        log = Path(f"served-{len(self._served)}.log")
        log.touch()
        self._served.append(
            int(self.run(f"{command.partition('#')[0]} > {log} 2>&1 & echo $!").split()[-1])
        )
        deadline = time.monotonic() + PATIENCE
        while not READY.search(log.read_text()):
            if time.monotonic() > deadline:
                raise Wrong(f"$ {command}\nis not ready:\n{log.read_text()}")
            time.sleep(0.05)
        return log.read_text()

    def close(self) -> None:
        """End what was started, by its id."""
        for pid in self._served:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        for pid in self._served:
            self.run(f"wait {pid} || true")
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        self._bash.wait(PATIENCE)


def main() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    page = Path(sys.argv[1])
    sys.path.insert(0, str(Path.cwd()))
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = Shell()
    try:
        port = free_port()
        for block in blocks(page):
            do(block._replace(text=block.text.replace(PORT, port)), page, names, shell)
    finally:
        shell.close()


def do(block: Block, page: Path, names: dict[str, Any], shell: Shell) -> None:
    saved = SAVED.match(block.text)
    if saved is not None:
        save(Path(saved[1]), block.text, behind=bool(saved[2]))
    elif block.language == "python":
        run_python(block, page, names)
    elif block.language in {"console", "sh"}:
        run_console(block, shell)


def save(path: Path, text: str, *, behind: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text() if behind else "") + text)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run_python(block: Block, page: Path, names: dict[str, Any]) -> None:
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, names)  # noqa: S102 - that is what a page is for
    expected = SHOWN.findall(block.text)
    if expected:
        compare(f"the block at line {block.line}", expected, said.getvalue())


def run_console(block: Block, shell: Shell) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        while command.endswith("\\"):
            more, _, expected = expected.partition("\n")
            command = f"{command[:-1]} {more}"
        said = shell.serve(command) if SERVES.search(command) else shell.run(command)
        compare(f"$ {command}", [line for line in expected.splitlines() if line.strip()], said)


def compare(what: str, expected: list[str], said: str) -> None:
    """Each expected line is somewhere in what was said, after the one before it."""
    lines = iter(said.splitlines())
    for wanted in expected:
        shape = re.compile(
            ".*".join(re.escape(" ".join(part.split())) for part in wanted.split("…"))
        )
        if not any(shape.fullmatch(" ".join(line.split())) for line in lines):
            raise Wrong(f"{what}\nshould show: {wanted}\nit shows:\n{said}")


if __name__ == "__main__":
    main()
