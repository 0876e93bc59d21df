"""Apply a patch to a copy of the source. A hunk is located by its text, not by line numbers."""

from __future__ import annotations

import compileall
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FOLDER = HERE / "patches"


class Patched(NamedTuple):
    path: str
    text: str


class DoesNotApply(Exception):
    """A hunk fits nowhere, or at several places."""


def names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.patch"))


def describe(name: str) -> str:
    """Return the sentence that describes the defect."""
    return (FOLDER / f"{name}.patch").read_text(encoding="utf-8").splitlines()[0]


def patched(name: str) -> list[Patched]:
    """Return the changed files with their new text."""
    text = (FOLDER / f"{name}.patch").read_text(encoding="utf-8")
    return [_patch_file(name, part) for part in re.split(r"(?m)^--- a/", text)[1:]]


def _patch_file(name: str, part: str) -> Patched:
    path, _, rest = part.partition("\n")
    lines = (ROOT / path.strip()).read_text(encoding="utf-8").splitlines()
    for old, new in _hunks(rest.partition("\n")[2]):
        lines = _apply_hunk(lines, old, new, f"{name}: {path}")
    return Patched(path.strip(), "\n".join(lines) + "\n")


def _hunks(text: str) -> Iterator[tuple[list[str], list[str]]]:
    for hunk in re.split(r"(?m)^@@.*@@.*\n", text)[1:]:
        lines = [line for line in hunk.splitlines() if not line.startswith("\\")]
        yield (
            [line[1:] for line in lines if line[:1] != "+"],
            [line[1:] for line in lines if line[:1] != "-"],
        )


def _apply_hunk(lines: list[str], old: list[str], new: list[str], where: str) -> list[str]:
    found = [at for at in range(len(lines) - len(old) + 1) if lines[at : at + len(old)] == old]
    if len(found) != 1:
        raise DoesNotApply(f"{where}: a hunk fits at {len(found)} places:\n" + "\n".join(old))
    return [*lines[: found[0]], *new, *lines[found[0] + len(old) :]]


def copy_source(name: str | None, folder: Path) -> Path:
    """Copy the source with this defect (None: without) and return the folder for PYTHONPATH."""
    target = folder / "source"
    # Compile once; otherwise every process of a scenario would compile everything again.
    compileall.compile_dir(ROOT / "src", quiet=2)
    shutil.copytree(ROOT / "src", target)
    for path, text in patched(name) if name else ():
        (target / Path(path).relative_to("src")).write_text(text, encoding="utf-8")
    return target
