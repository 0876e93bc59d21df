"""Keep reports in a folder until the database has them, so that the host queue never waits for it.

A report is one file, complete because it was renamed. Any process of the host may deliver it:
delivery is repeated until it succeeded, and recording a report twice changes nothing.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

from mulligan.core.errors import StoreUnavailable
from mulligan.integrations.bridge.report import TaskReport
from mulligan.worker.liveness import ensure_private_folder

log = logging.getLogger("mulligan.bridge")

SUFFIX = ".json"
REFUSED_FOLDER = "refused"
READ_AT_ONCE = 200
MAX_TRIES = 20  # of a report that the database accepts but that cannot be recorded

Deliver = Callable[[TaskReport], bool]  # False: not now


class Spool:
    """A folder of reports that are not in the database yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, report: TaskReport) -> None:
        """Store a report. A reader never sees half of one."""
        ensure_private_folder(self.folder)
        partial = self.folder / f"{report.id}.part"
        partial.write_text(report.to_json(), encoding="utf-8")
        partial.rename(partial.with_suffix(SUFFIX))

    def files(self) -> list[Path]:
        """Return the oldest reports."""
        with suppress(FileNotFoundError):
            return sorted(self.folder.glob(f"*{SUFFIX}"))[:READ_AT_ONCE]
        return []

    @property
    def is_empty(self) -> bool:
        return not self.files()

    def refuse(self, file: Path) -> None:
        """Move a file that cannot be recorded out of the way. A person may look at it."""
        target = ensure_private_folder(self.folder / REFUSED_FOLDER) / file.name
        file.rename(target)
        log.error("a report of the host queue cannot be recorded; it is kept in %s", target)

    @contextmanager
    def delivery_lock(self) -> Iterator[bool]:
        """Yield whether this process may deliver. Processes that die release the lock."""
        ensure_private_folder(self.folder)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True


class Courier:
    """Writes reports to the spool and delivers them, each on a thread of its own.

    The threads start with the first report of a process, so that a forked child has its own.
    """

    INTERVAL = 2.0  # seconds between two looks into the folder
    LONGEST_PAUSE = 30.0  # seconds after the database was away

    def __init__(
        self, spool: Spool, deliver: Deliver, flush: Callable[[], None], wait: float
    ) -> None:
        self.spool = spool
        self._deliver = deliver
        self._flush = flush  # called every few seconds
        self.wait = wait  # longest time that the host may be kept
        self._tries: dict[str, int] = {}
        self._pid = 0
        self._starting = threading.Lock()

    def start(self) -> None:
        """Start the threads of this process."""
        if self._pid == os.getpid():
            return
        if not self._starting.acquire(timeout=self.wait):
            return  # held by a thread that this forked child does not have, or by a slow disk
        try:
            if self._pid == os.getpid():
                return
            self._outbox: SimpleQueue[tuple[TaskReport, threading.Event]] = SimpleQueue()
            self._wake = threading.Event()
            threading.Thread(target=self._write, name="mulligan-spool", daemon=True).start()
            threading.Thread(target=self._run, name="mulligan-courier", daemon=True).start()
            self._pid = os.getpid()
        finally:
            self._starting.release()

    def send(self, report: TaskReport) -> bool:
        """Write a report to the spool. False: not within the time that the host may be kept."""
        self.start()
        written = threading.Event()
        self._outbox.put((report, written))
        return written.wait(self.wait)

    def _write(self) -> None:
        while True:
            report, written = self._outbox.get()
            try:
                self.spool.write(report)
            except Exception:  # a full disk must not stop the reports that follow
                log.exception("a report of task %s was not written", report.task_id)
            written.set()
            self._wake.set()

    def _run(self) -> None:
        pause = 0.0
        while True:
            self._wake.wait(pause or self.INTERVAL)
            self._wake.clear()
            try:
                pause = 0.0 if self.deliver_all() else 0.2
                self._flush()
            except StoreUnavailable as error:
                pause = min(max(2 * pause, 1.0), self.LONGEST_PAUSE)
                log.warning(
                    "the database is away: %s. Reports wait in %s", error, self.spool.folder
                )
                time.sleep(pause)
            except Exception:  # the thread must survive
                pause = self.LONGEST_PAUSE
                log.exception("reports of the host queue were not delivered")

    def deliver_all(self) -> bool:
        """Deliver what is in the spool. False: something is left, or another process delivers."""
        while True:
            files = self.spool.files()
            if not files:
                return True
            with self.spool.delivery_lock() as mine:
                if not mine or not self._deliver_files(files):
                    return False

    def _deliver_files(self, files: Sequence[Path]) -> bool:
        """Deliver these files. False: none could be delivered now."""
        delivered = False
        for file in files:
            delivered |= self._deliver_file(file)
        return delivered

    def _deliver_file(self, file: Path) -> bool:
        try:
            report = TaskReport.from_json(file.read_text(encoding="utf-8"))
            done = self._deliver(report)
        except FileNotFoundError:
            return True
        except StoreUnavailable:
            raise
        except ValueError:
            self.spool.refuse(file)
            return True
        except Exception:  # one report must not stop the others
            log.exception("report %s was not recorded", file.name)
            self._tries[file.name] = self._tries.get(file.name, 0) + 1
            if self._tries[file.name] >= MAX_TRIES:
                self.spool.refuse(file)
            return False
        if done:
            file.unlink(missing_ok=True)
        return done
