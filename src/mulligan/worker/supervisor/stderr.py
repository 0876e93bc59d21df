"""Words on their way to stderr. If nobody reads them there, they are dropped; a supervisor waits for no reader."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from queue import Empty, Queue

from mulligan.failures.redact import without_secrets

WAITING = 8 * 1024 * 1024  # bytes; what comes after them while nobody reads is lost


class StderrForwarder:
    """One daemon thread does the writing that may block."""

    def __init__(self) -> None:
        self._queue: Queue[bytes] = Queue()
        self._waiting = 0  # bytes
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def write(self, chunk: bytes) -> None:
        self._start()
        with self._lock:
            if self._waiting + len(chunk) > WAITING:
                return
            self._waiting += len(chunk)
        self._queue.put(chunk)

    def _start(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="mulligan-relay", daemon=True
                    )
                    self._thread.start()

    def _run(self) -> None:
        while True:
            chunk = self._queue.get()
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.buffer.write(chunk)
                sys.stderr.buffer.flush()
            with self._lock:
                self._waiting -= len(chunk)
            self._queue.task_done()

    def flush(self, patience: float = 1.0) -> None:
        """Before the end: give the last words a moment."""
        done = threading.Thread(target=self._queue.join, daemon=True)
        done.start()
        done.join(patience)
        with contextlib.suppress(Empty):
            while True:
                self._queue.get_nowait()


relay = StderrForwarder()


class StderrHandler(logging.Handler):
    """Logging that never waits for a reader either. A formatter that says it is `clean` leaves no secrets in."""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if not getattr(self.formatter, "clean", False):
            line = without_secrets(line)
        relay.write(f"{line}\n".encode("utf-8", "replace"))
