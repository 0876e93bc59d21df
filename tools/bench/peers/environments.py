"""Create a virtual environment per system in build/bench, with pinned versions from PyPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distributions
from pathlib import Path

from bench.world import ROOT

ENVIRONMENTS = ROOT / "build" / "bench" / "environments"
PINS = Path(__file__).parent / "pins"
TIMEOUT = 600  # seconds for one installation


class CannotInstall(RuntimeError):
    """The installation failed; the report names the reason."""


def python(name: str | None) -> Path:
    """Return the interpreter of an environment. Create it if it is missing or its pins changed."""
    if name is None:
        return Path(sys.executable)
    folder, pins = ENVIRONMENTS / name, PINS / f"{name}.txt"
    stamp = folder / "pins.txt"
    if not (stamp.exists() and stamp.read_text() == pins.read_text()):
        _make(folder, pins)
        shutil.copy(pins, stamp)
    return folder / "bin" / "python"


def _make(folder: Path, pins: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    command = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    try:
        subprocess.run(
            [*command, "--requirement", pins],
            check=True,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env=clean(),
        )
    except (subprocess.SubprocessError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        message = getattr(error, "stderr", "") or str(error)
        raise CannotInstall(message.strip().splitlines()[-1][:300]) from error


def versions(name: str | None) -> list[str]:
    """Return the installed versions of an environment."""
    found = distributions(
        path=[str(path) for path in python(name).parent.parent.glob("lib/python*/site-packages")]
    )
    return sorted(f"{one.name}=={one.version}" for one in found)


def clean() -> dict[str, str]:
    """Return the environment variables without those that configure Python, Mulligan or the bench."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "MULLIGAN_", "BENCH_"))
    }
