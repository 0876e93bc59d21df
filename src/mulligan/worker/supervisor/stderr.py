"""Write to stderr without ever blocking. If nothing reads stderr, output is dropped."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from queue import Empty, Queue

from mulligan.failures.redact import remove_secrets

MAX_PENDING = 8 * 1024 * 1024  # bytes; output beyond that is dropped while nothing reads


class StderrForwarder:
    """A daemon thread that does the writes, which may block."""

    def __init__(self) -> None:
        self._queue: Queue[bytes] = Queue()
        self._pending = 0  # bytes
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def write(self, chunk: bytes) -> None:
        """Queue output; drop it if too much is pending."""
        self._start()
        with self._lock:
            if self._pending + len(chunk) > MAX_PENDING:
                return
            self._pending += len(chunk)
        self._queue.put(chunk)

    def _start(self) -> None:
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="mulligan-stderr", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            chunk = self._queue.get()
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.buffer.write(chunk)
                sys.stderr.buffer.flush()
            with self._lock:
                self._pending -= len(chunk)
            self._queue.task_done()

    def flush(self, timeout: float = 1.0) -> None:
        """Wait until everything is written, but not longer than `timeout`; then drop the rest."""
        waiter = threading.Thread(target=self._queue.join, daemon=True)
        waiter.start()
        waiter.join(timeout)
        with contextlib.suppress(Empty):
            while True:
                self._queue.get_nowait()


stderr_forwarder = StderrForwarder()


class StderrHandler(logging.Handler):
    """Log handler that never blocks.

    Removes secrets, unless the formatter has an attribute `clean` and has done so.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        line = self.format(record)
        if not getattr(self.formatter, "clean", False):
            line = remove_secrets(line)
        stderr_forwarder.write(f"{line}\n".encode("utf-8", "replace"))
