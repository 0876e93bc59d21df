"""Tracebacks as plain text and names: where it happened, without source lines and without values."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import CodeType, FrameType, TracebackType
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


# By identity: equality of code compares its constants. The code is kept with its place, so no other gets its number.
_known: dict[int, tuple[CodeType, Place]] = {}
_MOST = 4096


def _place(frame: FrameType) -> Place:
    code = frame.f_code
    known = _known.get(id(code))
    if known is None:
        if len(_known) >= _MOST:
            _known.clear()
        known = _known[id(code)] = code, _describe(code, frame.f_globals.get("__name__"))
    return known[1]


def _describe(code: CodeType, module: object) -> Place:
    file = code.co_filename
    installed = "/site-packages/" in file or "/dist-packages/" in file
    ours = file.startswith((_OURS, "<frozen ")) or (not installed and file.startswith(_PYTHON))
    package = module if type(module) is str else "?"
    name = safe(f"{package}:{code.co_qualname}", 300)
    return Place(
        file=f"  {safe(file, 500)}:",
        function=f" in {safe(code.co_name, 300)}",
        name=name,
        package=package.partition(".")[0],
        ours=ours,
        installed=installed,
    )


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
        place = _place(step.tb_frame)
        lines.append(f"{place.file}{step.tb_lineno}{place.function}")
        if place.ours:
            continue
        home = home or place.package
        if (not place.installed or place.package == home) and (not own or own[-1] != place.name):
            own.append(place.name)
    return lines, own[-OWN:], home
