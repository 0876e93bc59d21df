"""What `ps` and /proc show of this process, written anew.

They show the memory in which the kernel once laid down arguments and environment, and whoever is forked shows those of
the process it came from. It must show its own: operators read the one, and sweeps of leftovers look for the mark in the
other. Only as much can be written as was there before.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mulligan.engine.life import MARK

_ARGUMENTS, _ENVIRONMENT = 45, 47  # fields of /proc/self/stat after the name: where it begins, then where it ends


class Title(NamedTuple):
    """Places in the memory of this process."""

    command: range
    mark: range  # the value in the environment

    def write(self, command: Sequence[str], mark: str) -> None:
        """A command line that is too long ends early; a mark would be another one."""
        if len(mark) > len(self.mark):
            message = f"no room for {mark}"
            raise ValueError(message)
        _write(self.command, os.fsencode("\0".join(command))[: len(self.command) - 1])
        _write(self.mark, mark.encode())


def title() -> Title:
    """Raises LookupError where the kernel does not tell the places."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    command, environment = (range(int(fields[at]), int(fields[at + 1])) for at in (_ARGUMENTS, _ENVIRONMENT))
    name = f"{MARK}=".encode()
    entries = b"\0" + ctypes.string_at(environment.start, len(environment)) if environment.start else b""
    found = entries.find(b"\0" + name)
    if found < 0 or not command.start:
        message = "the kernel does not tell where arguments and environment lie"
        raise LookupError(message)
    begin = found + len(name)
    return Title(command, range(environment.start + begin, environment.start + entries.index(b"\0", begin + 1) - 1))


def _write(place: range, told: bytes) -> None:
    ctypes.memmove(place.start, told.ljust(len(place), b"\0"), len(place))
