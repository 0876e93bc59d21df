"""Measure the CPU time and the log lines of a worker during an outage."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.waiting import until
from support.worker import Worker

RECOVERY = 30.0  # seconds to recover after an outage
MAX_CORE_SHARE = 0.2
MAX_LINES_PER_SECOND = 5.0
DISK_SIZE = 8 * 1024 * 1024


def family(pid: int) -> list[int]:
    """Return the pids of a process and all its descendants."""
    with suppress(OSError):
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *(one for child in below for one in family(int(child)))]
    return []


def cpu_seconds(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def wait_until_ready(worker: Worker) -> Worker:
    """Wait up to 180 s for a worker to be ready, also on a busy machine."""
    until(worker._is_ready, 180, "worker ready")
    return worker


def wait_until_idle(worker: Worker) -> Worker:
    """Wait until the worker is idle: at most 0.1 s of CPU time in one second."""
    samples = [(time.monotonic(), -1.0)]

    def is_idle() -> bool:
        now = time.monotonic()
        spent = sum(cpu_seconds(pid) for pid in family(worker.pid))
        samples.append((now, spent))
        then = next((used for at, used in reversed(samples) if at <= now - 1.0), -1.0)
        return then >= 0.0 and spent - then <= 0.1

    until(is_idle, 60, "an idle worker")
    return worker


@contextmanager
def assert_cheap(worker: Worker) -> Iterator[None]:
    """Assert that during the block no process of the worker is replaced, logs much or uses much CPU."""
    before = {pid: cpu_seconds(pid) for pid in family(worker.pid)}
    lines = len(worker.text().splitlines())
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    spent = sum(cpu_seconds(pid) - start for pid, start in before.items())
    new_lines = len(worker.text().splitlines()) - lines
    assert spent < MAX_CORE_SHARE * took, f"{spent:.1f} s of processor time in {took:.0f} s"
    assert new_lines < MAX_LINES_PER_SECOND * took, (
        f"{new_lines} lines in {took:.0f} s: {worker.text()[-2000:]}"
    )
    assert set(before) <= set(family(worker.pid)), "a process was restarted"


def wait_for(seconds: float) -> None:
    """Wait for the length of the outage."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() > end, seconds + 10)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a small file system that a test can fill. Needs root."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill_disk(folder: Path) -> Path:
    """Fill the file system to the last page."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (64 * 1024, 4096):
            with suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
    return ballast


def can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None
