"""State and CPU time of processes, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; ["X"] if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X"]


def is_alive(pid: int) -> bool:
    """True unless the process is gone or a zombie."""
    return stat_fields(pid)[0] not in "ZX"


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a running process."""
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
