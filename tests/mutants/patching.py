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
    """Yield the old and the new lines of each hunk."""
    for hunk in re.split(r"(?m)^@@.*@@.*\n", text)[1:]:
        old = []
        new = []
        for line in hunk.splitlines():
            sign = line[:1]
            if sign == "\\":  # "No newline at end of file"
                continue
            if sign != "+":
                old.append(line[1:])
            if sign != "-":
                new.append(line[1:])
        yield old, new


def _apply_hunk(lines: list[str], old: list[str], new: list[str], where: str) -> list[str]:
    places = []
    for place in range(len(lines) - len(old) + 1):
        if lines[place : place + len(old)] == old:
            places.append(place)
    if len(places) != 1:
        raise DoesNotApply(f"{where}: a hunk fits at {len(places)} places:\n" + "\n".join(old))
    (start,) = places
    return [*lines[:start], *new, *lines[start + len(old) :]]


def copy_source(name: str | None, folder: Path) -> Path:
    """Copy the source with this defect (None: without) and return the folder for PYTHONPATH."""
    target = folder / "source"
    # Compile once; otherwise every process of a scenario would compile everything again.
    compileall.compile_dir(ROOT / "src", quiet=2)
    shutil.copytree(ROOT / "src", target)
    for path, text in patched(name) if name else ():
        (target / Path(path).relative_to("src")).write_text(text, encoding="utf-8")
    return target
