"""Private work directories of attempts, named by job and token so that anybody can find and remove them."""

from __future__ import annotations

import shutil
from pathlib import Path

from mulligan.core.attempt import Lease
from mulligan.engine.life import private_folder


def workdir(folder: Path, lease: Lease) -> Path:
    return folder / f"{lease.id}-{lease.token}"


def make_workdir(folder: Path, lease: Lease) -> Path:
    return private_folder(workdir(folder, lease))


def remove_workdir(folder: Path, lease: Lease) -> None:
    shutil.rmtree(workdir(folder, lease), ignore_errors=True)
