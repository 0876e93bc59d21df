"""Unpack programs from Debian packages into build/, without installing them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build"


def unpack_packages(
    name: str, packages: Callable[[], list[str]], program: str, *members: str
) -> Path | None:
    """Return the folder build/NAME that contains `program`; None if it cannot be fetched.

    With `members`, only these files are unpacked.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return None
    folder = BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # only one of several test runs fetches it
        if not (folder / program).exists() and _download(folder, packages):
            for package in sorted(folder.glob("*.deb")):
                _unpack(folder, package, members)
        return folder if (folder / program).exists() else None


def with_missing_dependencies(*packages: str) -> list[str]:
    """Return the packages and their dependencies that this machine lacks."""
    plan = subprocess.run(
        ["apt-get", "install", "--simulate", "--no-install-recommends", *packages],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    missing = [line.split()[1] for line in plan.stdout.splitlines() if line.startswith("Inst ")]
    return list(dict.fromkeys([*packages, *missing])) if plan.returncode == 0 else []


def _download(folder: Path, packages: Callable[[], list[str]]) -> bool:
    """Download packages, if necessary after an update of the package lists."""

    def download() -> bool:
        names = packages()
        return bool(names) and _run(folder, ["apt-get", "download", *names])

    if download():
        return True
    if os.geteuid() != 0 or not _run(folder, ["apt-get", "update", "-q"]):
        return False
    return download()


def _run(folder: Path, command: list[str]) -> bool:
    ended = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=180)
    return ended.returncode == 0


def _unpack(folder: Path, package: Path, members: tuple[str, ...]) -> None:
    with subprocess.Popen(["dpkg", "--fsys-tarfile", package], stdout=subprocess.PIPE) as tar:
        subprocess.run(["tar", "-x", *members], cwd=folder, stdin=tar.stdout, check=True)
    package.unlink()
