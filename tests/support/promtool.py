"""Find promtool on PATH or unpack it from Debian's package."""

from __future__ import annotations

import shutil

from support.debian import unpack_packages

MISSING = "no promtool: not on PATH, and apt-get cannot fetch Debian's package prometheus"
PROGRAM = "usr/bin/promtool"


def promtool() -> str | None:
    found = shutil.which("promtool")
    if found:
        return found
    folder = unpack_packages("promtool", lambda: ["prometheus"], PROGRAM, f"./{PROGRAM}")
    return str(folder / PROGRAM) if folder else None
