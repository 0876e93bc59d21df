"""promtool: from PATH, else out of Debian's package."""

from __future__ import annotations

import shutil

from support.debian import unpacked

MISSING = "no promtool: not on PATH, and apt-get cannot fetch Debian's package prometheus"
PROGRAM = "usr/bin/promtool"


def promtool() -> str | None:
    found = shutil.which("promtool")
    if found:
        return found
    folder = unpacked("promtool", lambda: ["prometheus"], PROGRAM, f"./{PROGRAM}")
    return str(folder / PROGRAM) if folder else None
