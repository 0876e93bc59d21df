"""promtool: from PATH, else out of Debian's package, unpacked below build/ and installed nowhere."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build" / "promtool"
MISSING = "no promtool: not on PATH, and apt-get cannot fetch Debian's package prometheus"


def promtool() -> str | None:
    return shutil.which("promtool") or _unpacked()


def _unpacked() -> str | None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return None
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of all that run tests side by side one fetches it
        tool = BUILD / "usr" / "bin" / "promtool"
        if not tool.exists() and _downloaded():
            _unpack(next(BUILD.glob("prometheus_*.deb")))
        return str(tool) if tool.exists() else None


def _downloaded() -> bool:
    download = ["apt-get", "download", "prometheus"]
    if _ran(download):
        return True
    return os.geteuid() == 0 and _ran(["apt-get", "update", "-q"]) and _ran(download)


def _ran(command: list[str]) -> bool:
    return subprocess.run(command, cwd=BUILD, capture_output=True, check=False, timeout=120).returncode == 0


def _unpack(package: Path) -> None:
    with subprocess.Popen(["dpkg", "--fsys-tarfile", package], stdout=subprocess.PIPE) as tar:
        subprocess.run(["tar", "-x", "./usr/bin/promtool"], cwd=BUILD, stdin=tar.stdout, check=True)
    package.unlink()
