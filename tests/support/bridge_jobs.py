"""Functions that tests enqueue in RQ, which finds them by their import path."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def charge(folder: str, order: int) -> str:
    """Fail until the folder has a file `repaired`."""
    with (Path(folder) / "runs").open("a", encoding="utf-8") as runs:
        runs.write(f"{order}\n")
    if not (Path(folder) / "repaired").exists():
        raise ConnectionRefusedError(111, "the gateway refused the connection")
    return f"charged {order}"


def refuse() -> None:
    raise KeyError("a programming error is not retried")


def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
