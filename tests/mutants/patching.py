"""Patches, and a copy of the source with one of them applied. A hunk is found by its text, wherever that has moved."""

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
    pass


def names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.patch"))


def says(name: str) -> str:
    """What is wrong with this one, in a sentence."""
    return (FOLDER / f"{name}.patch").read_text(encoding="utf-8").splitlines()[0]


def patched(name: str) -> list[Patched]:
    """The files it changes, as they are then."""
    text = (FOLDER / f"{name}.patch").read_text(encoding="utf-8")
    return [_file(name, part) for part in re.split(r"(?m)^--- a/", text)[1:]]


def _file(name: str, part: str) -> Patched:
    path, _, rest = part.partition("\n")
    lines = (ROOT / path.strip()).read_text(encoding="utf-8").splitlines()
    for old, new in _hunks(rest.partition("\n")[2]):
        lines = _applied(lines, old, new, f"{name}: {path}")
    return Patched(path.strip(), "\n".join(lines) + "\n")


def _hunks(text: str) -> Iterator[tuple[list[str], list[str]]]:
    for hunk in re.split(r"(?m)^@@.*@@.*\n", text)[1:]:
        lines = [line for line in hunk.splitlines() if not line.startswith("\\")]
        yield (
            [line[1:] for line in lines if line[:1] != "+"],
            [line[1:] for line in lines if line[:1] != "-"],
        )


def _applied(lines: list[str], old: list[str], new: list[str], where: str) -> list[str]:
    found = [at for at in range(len(lines) - len(old) + 1) if lines[at : at + len(old)] == old]
    if len(found) != 1:
        raise DoesNotApply(f"{where}: a hunk fits at {len(found)} places:\n" + "\n".join(old))
    return [*lines[: found[0]], *new, *lines[found[0] + len(old) :]]


def copy_of(name: str | None, folder: Path) -> Path:
    """A folder to put first on PYTHONPATH: all of the source, with this defect; None: with none."""
    target = folder / "source"
    compileall.compile_dir(
        ROOT / "src", quiet=2
    )  # once: every process of a scenario would compile all of it again
    shutil.copytree(ROOT / "src", target)
    for path, text in patched(name) if name else ():
        (target / Path(path).relative_to("src")).write_text(text, encoding="utf-8")
    return target
