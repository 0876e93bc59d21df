"""Find the release of an app: the Git commit of its code, or else the version of its package.

A worker does this once, when it starts. Files of Git are read; no program is run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

COMMIT_LENGTH = 12  # characters of a commit that are kept


def find_release(files: Iterable[str]) -> str:
    """Return the release of the code in these files; empty if it cannot be found."""
    for file in files:
        path = Path(file)
        if not path.is_file():
            continue  # typed into a shell, or read from a zip archive
        return _find_commit(path.resolve().parent) or _find_version(file)
    return ""


def _find_version(file: str) -> str:
    """Return `__version__` of the top-level package that a file belongs to."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == file:
            package = sys.modules.get(name.partition(".")[0])
            return str(getattr(package, "__version__", ""))
    return ""


def _find_commit(folder: Path) -> str:
    """Return the commit that is checked out in the first repository above a folder."""
    for parent in (folder, *folder.parents):
        git = parent / ".git"
        if git.exists():
            try:
                return _read_commit(git)[:COMMIT_LENGTH]
            except (OSError, UnicodeDecodeError):
                return ""
    return ""


def _read_commit(git: Path) -> str:
    if git.is_file():  # a worktree or a submodule: "gitdir: /path"
        git = git.parent / _read(git).removeprefix("gitdir:").strip()
    head = _read(git / "HEAD")
    if not head.startswith("ref:"):
        return head
    ref = head.removeprefix("ref:").strip()
    common = git
    if (git / "commondir").is_file():
        common = git / _read(git / "commondir")
    for place in (git, common):
        if (place / ref).is_file():
            return _read(place / ref)
    return _find_packed(common / "packed-refs", ref)


def _find_packed(packed: Path, ref: str) -> str:
    for line in _read(packed).splitlines():
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return ""


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
