"""The process runners are forked from: python -m mulligan.engine.runner.nursery …, started by a supervisor only.

It has imported what every runner imports, and nothing of the app; it has one thread and waits for requests. A runner
that was forked here is a child of the supervisor, like one that was started from nothing, and begins like it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from pathlib import Path
from typing import NamedTuple

from mulligan.config import read_settings
from mulligan.engine.life import MARK
from mulligan.engine.litter import load_quickly
from mulligan.engine.runner.begin import die_with
from mulligan.engine.runner.outcomes import rehearse
from mulligan.engine.runner.title import Title, title

READY = b"ready"
LONGEST = 1 << 16  # bytes of a request
STDERR, WIRE, BOARD = 2, 3, 4  # descriptors of a runner
ABOVE = 10  # of them all


class Birth(NamedTuple):
    """What makes a runner of a fork."""

    mark: str
    command: list[str]
    descriptors: list[int]  # stderr, wire, board


def main() -> None:
    """Returns at its end; in a runner, never."""
    load_quickly()
    args = _arguments()
    control = socket.socket(fileno=args.control)
    _load(args.runner, args.supervisor)
    try:
        place = title()
    except LookupError as error:
        sys.exit(f"no nursery: {error}")
    if _threads() > 1:
        sys.exit("no nursery: there is another thread")
    control.send(READY)
    birth = _serve(control, args.supervisor)
    if birth is not None:
        _become(birth, place)
        runpy.run_module(args.runner, run_name="__main__", alter_sys=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("control", "supervisor"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--runner", required=True)
    parser.add_argument("room", help="blanks, where the command line of a runner will be written")
    return parser.parse_args()


def _load(runner: str, supervisor: int) -> None:
    die_with(supervisor)
    runpy.run_module(runner)["prepared"]()
    importlib.import_module("mulligan.app")  # by name: it lives above us
    read_settings({}, environ={}, file=Path(os.devnull))  # the first time takes much longer than the next
    rehearse()
    gc.collect()
    gc.freeze()  # or looking for garbage would write on every page that runners share with us


def _serve(control: socket.socket, supervisor: int) -> Birth | None:
    """None: it is over. Everything else is said in the runner."""
    while True:
        told, descriptors, _, _ = socket.recv_fds(control, LONGEST, 3, socket.MSG_CMSG_CLOEXEC)
        if not told or _threads() > 1:  # what another thread holds, a fork would hold for ever
            return None
        try:
            if _forked():
                control.detach()
                if os.getppid() != supervisor:
                    os._exit(1)
                mark, command = json.loads(told)
                return Birth(mark, command, descriptors)
        except OSError:
            return None
        for descriptor in descriptors:
            os.close(descriptor)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _forked() -> bool:
    """True in the runner: a child of one that has ended, hence of the supervisor, who takes orphans in meanwhile."""
    gone, held = os.pipe()
    between = os.fork()
    if between:
        os.close(gone)
        os.waitpid(between, 0)
        os.close(held)
        return False
    try:
        os.close(held)
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    os.read(gone, 1)  # ends when the one between has
    return True


def _become(birth: Birth, place: Title) -> None:
    os.setsid()
    _settle(birth.descriptors)
    os.environ[MARK] = birth.mark
    sys.argv = [*birth.command[2:], "--wire", str(WIRE), "--board", str(BOARD)]
    sys.orig_argv = [*birth.command[:2], *sys.argv]
    place.write(sys.orig_argv, birth.mark)
    os.write(WIRE, os.getpid().to_bytes(4))
    if not os.read(WIRE, 1):  # nobody waits for us any more
        os._exit(1)


def _settle(descriptors: list[int]) -> None:
    """Each in its place, and no other left open."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, ABOVE) for descriptor in descriptors]
    for descriptor, place in zip(high, (STDERR, WIRE, BOARD), strict=True):
        os.dup2(descriptor, place, inheritable=place == STDERR)
    for name in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if name > BOARD:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(name)


if __name__ == "__main__":
    main()
