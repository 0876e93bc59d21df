"""Tracebacks as plain text and names: where it happened, without source lines and without values."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import CodeType, TracebackType

from mulligan.policy.redact import safe

FRAMES = 30  # of a traceback
OWN = 8  # of them, those of the job's own code

_PYTHON = tuple(
    f"{path}/"
    for name in ("stdlib", "platstdlib")
    if (path := sysconfig.get_path(name)) and not path.endswith("-packages")
)
_OURS = f"{Path(__file__).parents[2]}/"


# (its code, the file as told, the function as told, module:function, top package, whether it is Python's or ours and
# so never part of a story, whether it is installed: somebody's library, or the app itself)
Place = tuple[CodeType, str, str, str, str, bool, bool]

# By identity: equality of code compares its constants. The code is kept with its place, so no other gets its number.
_known: dict[int, Place] = {}
_MOST = 4096


def _learn(code: CodeType, module: object) -> Place:
    if len(_known) >= _MOST:
        _known.clear()
    _known[id(code)] = place = _describe(code, module)
    return place


def _describe(code: CodeType, module: object) -> Place:
    file = code.co_filename
    installed = "/site-packages/" in file or "/dist-packages/" in file
    ours = file.startswith((_OURS, "<frozen ")) or (not installed and file.startswith(_PYTHON))
    package = module if type(module) is str else "?"
    told = f"  {safe(file, 500)}:", f" in {safe(code.co_name, 300)}", safe(f"{package}:{code.co_qualname}", 300)
    return code, *told, package.partition(".")[0], ours, installed


Walk = tuple[list[str], list[str], str]

# Ways that were walked before, by their steps: many fail at one place. As above, their code is kept with them.
_walked: dict[tuple[str | int, ...], tuple[Walk, list[CodeType]]] = {}
_MOST_WAYS = 1024


def walk(trace: TracebackType | None, home: str = "") -> Walk:
    """(lines of a trace, `module:function` of the job's own frames, its top package).

    The outermost frame that is neither Python's nor ours belongs to the job, so its package does, wherever it is
    installed; for causes `home` tells that package.
    """
    way: list[str | int] = [home]
    step = trace
    while step is not None:
        way += (id(step.tb_frame.f_code), step.tb_lineno)
        step = step.tb_next
    known = _walked.get(tuple(way))
    if known is None:
        known = _learn_way(trace, home, tuple(way))
    return known[0]


def _learn_way(trace: TracebackType | None, home: str, way: tuple[str | int, ...]) -> tuple[Walk, list[CodeType]]:
    steps: list[TracebackType] = []
    while trace is not None:
        steps.append(trace)
        trace = trace.tb_next
    known = _walk(steps[-FRAMES:], home), [step.tb_frame.f_code for step in steps]
    if len(steps) <= FRAMES:
        if len(_walked) >= _MOST_WAYS:
            _walked.clear()
        _walked[way] = known
    return known


def _walk(steps: list[TracebackType], home: str) -> Walk:
    lines: list[str] = []
    own: list[str] = []
    for step in steps:
        frame = step.tb_frame
        code = frame.f_code
        place = _known.get(id(code)) or _learn(code, frame.f_globals.get("__name__"))
        _, file, function, name, package, ours, installed = place
        lines.append(f"{file}{step.tb_lineno}{function}")
        if ours:
            continue
        home = home or package
        if (not installed or package == home) and (not own or own[-1] != name):
            own.append(name)
    return lines, own[-OWN:], home
