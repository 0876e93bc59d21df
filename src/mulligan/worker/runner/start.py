"""The process runners are forked from: python -m mulligan.worker.runner.start …, started by a supervisor only.

It has imported what every runner imports, and nothing of the app; it has one thread and waits for requests. A runner
that was forked here is a child of the supervisor, like one that was started from nothing, and begins like it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import json
import logging
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mulligan.config import LogSection, read_settings
from mulligan.worker.liveness import MARK
from mulligan.worker.protocol import StatusPage, Wire
from mulligan.worker.runner.main import Runner
from mulligan.worker.runner.outcomes import rehearse
from mulligan.worker.startup import load_app, load_quickly

# A runner process from its arguments to its end.

PR_SET_PDEATHSIG = 1


def plain(log: LogSection) -> None:
    logging.basicConfig(level=log.level, format="%(asctime)s %(levelname)s %(name)s %(message)s")


def begin(begin_log: Callable[[LogSection], None] = plain) -> int:
    args = _arguments()
    die_with(args.supervisor)
    faulthandler.enable()
    begin_log(LogSection(level=args.log_level, format=args.log_format))
    wire = Wire.of_runner(socket.socket(fileno=args.wire))
    try:
        app: Any = load_app(args.app)
    except BaseException as error:  # noqa: BLE001 - whatever importing the app raised, the supervisor must hear it
        if not isinstance(error, SystemExit) and not args.quiet:
            traceback.print_exc()
        wire.send(["broken", f"{type(error).__name__}: {error}"])
        return 1
    wire.send(["settings", dict(app.settings.values())])
    runner = Runner(
        app.registry,
        wire,
        StatusPage(args.board, args.slots),
        mark=args.mark,
        folder=Path(args.folder),
        settings=app.settings,
        tellers=args.tellers,
    )
    asyncio.run(runner.serve(app.manifest(args.app).to_json()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of handlers that were given up must not hold the process


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("app")
    for name in ("wire", "board", "slots", "supervisor"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--tellers", type=int, default=0)
    parser.add_argument("--mark", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--log-level", default="INFO")
    parser.add_argument("--log-format", default="text")
    parser.add_argument("--quiet", action="store_true")
    return parser.parse_args()


def die_with(supervisor: int) -> None:
    """Ask the kernel to kill us when the supervisor dies; if it died before we asked, go now."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(1)


# What `ps` and /proc show of this process, written anew.

_ARGUMENTS, _ENVIRONMENT = (
    45,
    47,
)  # fields of /proc/self/stat after the name: where it begins, then where it ends


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
    fields = (
        Path("/proc/self/stat")
        .read_text(encoding="utf-8", errors="replace")
        .rpartition(")")[2]
        .split()
    )
    command, environment = (
        range(int(fields[at]), int(fields[at + 1])) for at in (_ARGUMENTS, _ENVIRONMENT)
    )
    name = f"{MARK}=".encode()
    entries = (
        b"\0" + ctypes.string_at(environment.start, len(environment)) if environment.start else b""
    )
    found = entries.find(b"\0" + name)
    if found < 0 or not command.start:
        message = "the kernel does not tell where arguments and environment lie"
        raise LookupError(message)
    begin = found + len(name)
    return Title(
        command,
        range(environment.start + begin, environment.start + entries.index(b"\0", begin + 1) - 1),
    )


def _write(place: range, told: bytes) -> None:
    ctypes.memmove(place.start, told.ljust(len(place), b"\0"), len(place))


# The process runners are forked from: python -m mulligan.worker.runner.start …, started by a supervisor only.

READY = b"ready"
LONGEST = 1 << 16  # bytes of a request
STDERR, WIRE, BOARD = 2, 3, 4  # descriptors of a runner
ABOVE = 10  # of them all


class ForkRequest(NamedTuple):
    """What makes a runner of a fork."""

    mark: str
    command: list[str]
    descriptors: list[int]  # stderr, wire, board


def main() -> None:
    """Returns at its end; in a runner, never."""
    load_quickly()
    args = _fork_server_arguments()
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


def _fork_server_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("control", "supervisor"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--runner", required=True)
    parser.add_argument("room", help="blanks, where the command line of a runner will be written")
    return parser.parse_args()


def _load(runner: str, supervisor: int) -> None:
    die_with(supervisor)
    runpy.run_module(runner)["prepared"]()
    importlib.import_module("mulligan.app.mulligan")  # by name: it lives above us
    read_settings(
        {}, environ={}, file=Path(os.devnull)
    )  # the first time takes much longer than the next
    rehearse()
    gc.collect()
    gc.freeze()  # or looking for garbage would write on every page that runners share with us


def _serve(control: socket.socket, supervisor: int) -> ForkRequest | None:
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
                return ForkRequest(mark, command, descriptors)
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


def _become(birth: ForkRequest, place: Title) -> None:
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
