"""`mulligan worker APP --reload`: restart the worker when a source file of the app changes.

This process imports no user code. It polls the Python files in the folders that the app was
imported from. After a change the worker is stopped: jobs that do not end within a second are given
back uncharged. If the app cannot be imported, the error is printed and the next change tries again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from mulligan.app.background import close_stdin, start_command
from mulligan.cli.app_facts import AppFacts, AppImportFailed
from mulligan.cli.database import print_notice
from mulligan.core.errors import ConfigError
from mulligan.core.settings import DEFAULT_FILE, PASSED_SETTINGS

POLL_INTERVAL = 0.5  # seconds
STOP_GRACE = 1.0  # seconds that running jobs may take to finish before a restart

Snapshot = Mapping[str, tuple[int, int]]  # path: time of the last change, size


class Reloader:
    """Runs one worker process after another."""

    def __init__(self, load: Callable[[], AppFacts], command: Sequence[str]) -> None:
        """Create it. `load` imports the app; `command` starts a worker without --reload."""
        self._load = load
        self._command = tuple(command)
        self._folders: Sequence[str] = (str(Path.cwd()),)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()

    def run(self) -> int:
        """Run workers until one ends with exit code 0 or this process is stopped."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._start(is_first=True)
        while not self._stopping.wait(POLL_INTERVAL):
            if self._process is not None and self._process.poll() == 0:
                return 0  # it was drained
            self._report_failure()
            changed = self._changed_file()
            if changed:
                print_notice(f"{changed} has changed: restarting the worker")
                self._stop()
                self._start()
        return 0 if self._process is None else self._process.wait()

    def _on_signal(self, *_: object) -> None:
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()  # a second signal ends it without waiting for jobs

    # --- The worker process ---

    def _start(self, *, is_first: bool = False) -> None:
        """Start a worker. If the app cannot be imported, print why and wait for the next change."""
        before = take_snapshot(self._folders)
        try:
            facts = self._load()
        except AppImportFailed as error:
            self._remember(before, error.folders)
            print_notice(f"{error}. The next change of a file tries again.")
        except ConfigError as error:
            if is_first:
                raise  # the name of the app is wrong, or a setting
            self._remember(before, ())
            print_notice(f"{error}. The next change of a file tries again.")
        else:
            self._remember(before, facts.folders)
            if not self._stopping.is_set():
                passed = {PASSED_SETTINGS: facts.settings.to_json()}
                self._process = start_command(self._command, passed)

    def _remember(self, before: Snapshot, folders: Iterable[str]) -> None:
        """Store the state of the files. One that changed during the import counts as changed."""
        self._folders = tuple(dict.fromkeys([*self._folders, *folders]))
        self._known = {**take_snapshot(self._folders), **before}

    def _report_failure(self) -> None:
        """Print that the worker has ended with an error, if it has."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            print_notice(
                f"The worker ended with exit code {code}. The next change starts it again."
            )
            self._close()

    def _stop(self) -> None:
        """Stop the worker. Jobs that still run after a second are given back."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_GRACE)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        if self._process is not None:
            close_stdin(self._process)
            self._process = None

    # --- Files ---

    def _changed_file(self) -> str:
        """Return the name of a file that was changed, added or removed; empty if there is none."""
        now = take_snapshot(self._folders)
        for path in sorted({*now, *self._known}):
            if now.get(path) != self._known.get(path):
                return os.path.relpath(path)
        return ""


def take_snapshot(folders: Iterable[str]) -> Snapshot:
    """Return the state of the Python files in these folders, and of `mulligan.toml`."""
    found: dict[str, tuple[int, int]] = {}
    for folder in folders:
        try:
            entries = [*os.scandir(folder)]
        except OSError:  # it was removed
            continue
        for entry in entries:
            if entry.name.endswith(".py") or entry.name == DEFAULT_FILE:
                try:
                    status = entry.stat()
                except OSError:
                    continue
                found[entry.path] = (status.st_mtime_ns, status.st_size)
    return found
