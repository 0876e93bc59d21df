"""Tracebacks as plain text and names: where it happened, without source lines and without values."""

from __future__ import annotations

import sysconfig
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from mulligan.policy.redact import safe

FRAMES = 30  # of a traceback
OWN = 8  # of them, those of the job's own code

_PYTHON = tuple(
    f"{path}/"
    for name in ("stdlib", "platstdlib")
    if (path := sysconfig.get_path(name)) and not path.endswith("-packages")
)
_OURS = f"{Path(__file__).parents[2]}/"


class Place(NamedTuple):
    """A function in a file, as it is told."""

    file: str
    function: str
    name: str  # module:function
    package: str
    ours: bool  # Python's own, or Mulligan's: never part of a story
    installed: bool  # somebody's library, or the app itself where it is installed as one


@lru_cache(maxsize=4096)
def _place(file: str, function: str, qualified: str, module: str) -> Place:
    installed = "/site-packages/" in file or "/dist-packages/" in file
    ours = file.startswith((_OURS, "<frozen ")) or (not installed and file.startswith(_PYTHON))
    name = safe(f"{module}:{qualified}", 300)
    return Place(f"  {safe(file, 500)}:", f" in {safe(function, 300)}", name, module.partition(".")[0], ours, installed)


def walk(trace: TracebackType | None, home: str = "") -> tuple[list[str], list[str], str]:
    """(lines of a trace, `module:function` of the job's own frames, its top package).

    The outermost frame that is neither Python's nor ours belongs to the job, so its package does, wherever it is
    installed; for causes `home` tells that package.
    """
    steps: list[TracebackType] = []
    while trace is not None:
        steps.append(trace)
        trace = trace.tb_next
    lines: list[str] = []
    own: list[str] = []
    for step in steps[-FRAMES:]:
        frame = step.tb_frame
        code = frame.f_code
        module = frame.f_globals.get("__name__")
        place = _place(code.co_filename, code.co_name, code.co_qualname, module if type(module) is str else "?")
        lines.append(f"{place.file}{step.tb_lineno}{place.function}")
        if place.ours:
            continue
        home = home or place.package
        if (not place.installed or place.package == home) and (not own or own[-1] != place.name):
            own.append(place.name)
    return lines, own[-OWN:], home
