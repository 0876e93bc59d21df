"""This run of this kernel, named. Monotonic times mean nothing under another name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_id() -> str:
    return _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else "unknown-boot"
