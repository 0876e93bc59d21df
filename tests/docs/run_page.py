"""Execute the examples of a page in order, in an empty directory: `python run_page.py PAGE`.

A block that begins with `# name.py` (or another file name, also with a folder) is saved as that file;
`# name.py, at the end` appends to it. Other ```python blocks run one after the other in one namespace;
`print(…)  # output` at the left margin must print exactly that. In ```console blocks each line that
begins with `$ ` is run in one shell, and the lines below it must appear in its output, in order. `…`
matches anything. A command that serves (worker, up, web, demo, or a web server) runs in the background
until the end of the page. Port 8000 is replaced by a free one, and `django.tasks` by its backport on a
Django without it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import random
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
TIMEOUT = 100.0  # seconds; a busy machine starts a worker slowly


class WrongExample(Exception):
    """An example of the page does not work as shown."""


class Shell:
    """One shell for the whole page, so that exports persist."""

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
                    raise WrongExample(
                        f"$ {command}\n{''.join(lines)}\nended with {line.split()[-1]}"
                    )
                return "".join(lines).removesuffix("\n")
            lines.append(line)
        raise WrongExample(f"$ {command}\nended the shell")

    def serve(self, command: str) -> str:
        """Start a command in the background. Return its output once it is ready."""
        log = Path(f"served-{len(self._served)}.log")
        log.touch()
        self._served.append(
            int(self.run(f"{command.partition('#')[0]} > {log} 2>&1 & echo $!").split()[-1])
        )
        deadline = time.monotonic() + TIMEOUT
        while not READY.search(log.read_text()):
            if time.monotonic() > deadline:
                raise WrongExample(f"$ {command}\nis not ready:\n{log.read_text()}")
            time.sleep(0.05)
        return log.read_text()

    def close(self) -> None:
        """Stop the background commands and the shell."""
        for pid in self._served:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        for pid in self._served:
            self.run(f"wait {pid} || true")
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        self._bash.wait(TIMEOUT)


def main() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    page = Path(sys.argv[1])
    sys.path.insert(0, str(Path.cwd()))
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = Shell()
    try:
        port = free_port()
        for block in blocks(page):
            text = block.text.replace(PORT, port).replace("django.tasks", tasks_module())
            run_block(block._replace(text=text), page, names, shell)
    finally:
        shell.close()


def tasks_module() -> str:
    """Return where this Django has its task API."""
    found = importlib.util.find_spec("django") and importlib.util.find_spec("django.tasks")
    return "django.tasks" if found else "django_tasks"


def run_block(block: Block, page: Path, names: dict[str, Any], shell: Shell) -> None:
    saved = SAVED.match(block.text)
    if saved is not None:
        save(Path(saved[1]), block.text, append=bool(saved[2]))
    elif block.language == "python":
        run_python(block, page, names)
    elif block.language in {"console", "sh"}:
        run_console(block, shell)


def save(path: Path, text: str, *, append: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text() if append else "") + text)


def free_port() -> str:
    """Return a port below those that the system gives to outgoing connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return str(port)


def run_python(block: Block, page: Path, names: dict[str, Any]) -> None:
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, names)  # noqa: S102 - the purpose of this script
    expected = SHOWN.findall(block.text)
    if expected:
        compare(f"the block at line {block.line}", expected, output.getvalue())


def run_console(block: Block, shell: Shell) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        while command.endswith("\\"):
            more, _, expected = expected.partition("\n")
            command = f"{command[:-1]} {more}"
        output = shell.serve(command) if SERVES.search(command) else shell.run(command)
        compare(f"$ {command}", [line for line in expected.splitlines() if line.strip()], output)


def compare(what: str, expected: list[str], output: str) -> None:
    """Check that the output contains all expected lines in order."""
    lines = iter(output.splitlines())
    for line_expected in expected:
        shape = re.compile(
            ".*".join(re.escape(" ".join(part.split())) for part in line_expected.split("…"))
        )
        if not any(shape.fullmatch(" ".join(line.split())) for line in lines):
            raise WrongExample(f"{what}\nshould show: {line_expected}\nit shows:\n{output}")


if __name__ == "__main__":
    main()
