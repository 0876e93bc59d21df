"""What a hard time costs: processor time and log lines of a worker while it lasts."""

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

RECOVERY = 30.0  # seconds after it is over
CORE = 0.2  # of one core
LINES = 5.0  # log lines a second
ROOM = 8 * 1024 * 1024


def family(pid: int) -> list[int]:
    with suppress(OSError):
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *(one for child in below for one in family(int(child)))]
    return []


def cpu_seconds(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def patient(worker: Worker) -> Worker:
    """It is at work, however busy the machine is."""
    until(worker._is_ready, 180, "worker ready")
    return worker


def rested(worker: Worker) -> Worker:
    """Its start is over: in a second it has used a tenth of one, or less."""
    seen = [(time.monotonic(), -1.0)]

    def calm() -> bool:
        now, spent = time.monotonic(), sum(cpu_seconds(pid) for pid in family(worker.pid))
        seen.append((now, spent))
        then = next((used for at, used in reversed(seen) if at <= now - 1.0), -1.0)
        return then >= 0.0 and spent - then <= 0.1

    until(calm, 60, "a worker at rest")
    return worker


@contextmanager
def bounded(worker: Worker) -> Iterator[None]:
    """While the block lasts the worker and its runners stay what they are, quiet and cheap."""
    before = {pid: cpu_seconds(pid) for pid in family(worker.pid)}
    lines, began = len(worker.text().splitlines()), time.monotonic()
    yield
    took = time.monotonic() - began
    spent = sum(cpu_seconds(pid) - at for pid, at in before.items())
    said = len(worker.text().splitlines()) - lines
    assert spent < CORE * took, f"{spent:.1f} s of processor time in {took:.0f} s"
    assert said < LINES * took, f"{said} lines in {took:.0f} s: {worker.text()[-2000:]}"
    assert set(before) <= set(family(worker.pid)), "somebody had to be started again"


def last(seconds: float) -> None:
    """The hardship's own length."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() > end, seconds + 10)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, small enough to be filled; None can be made: the test cannot be run here."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """All the room there is, to the last page."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (64 * 1024, 4096):
            with suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
    return ballast


def can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None
