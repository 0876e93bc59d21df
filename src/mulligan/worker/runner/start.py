"""Start runner processes, directly or by forking: the fork server of a worker.

`python -m mulligan.worker.runner.start …` is the fork server; only a supervisor starts it. It has
imported what every runner imports and nothing of the app, has one thread, and waits for requests. A
forked runner becomes a child of the supervisor and runs `run_runner`, like one that was started as
a new process.
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
from mulligan.worker.protocol import Wire
from mulligan.worker.runner.main import Runner
from mulligan.worker.runner.outcomes import warm_up
from mulligan.worker.stacks import DUMP_SIGNAL
from mulligan.worker.startup import freeze_loaded, load_app, reduce_gc
from mulligan.worker.status_page import StatusPage

# --- A runner process ---

PR_SET_PDEATHSIG = 1


def configure_basic_logging(log: LogSection) -> None:
    """Log to stderr in the format of the standard library."""
    logging.basicConfig(level=log.level, format="%(asctime)s %(levelname)s %(name)s %(message)s")


def run_runner(configure_logging: Callable[[LogSection], None] = configure_basic_logging) -> int:
    """Load the app and run attempts until the supervisor closes the connection."""
    args = _parse_runner_arguments()
    exit_with_supervisor(args.supervisor)
    faulthandler.enable()
    faulthandler.register(DUMP_SIGNAL, file=args.status_page, all_threads=True)
    configure_logging(LogSection(level=args.log_level, format=args.log_format))
    wire = Wire.for_runner(socket.socket(fileno=args.wire))
    try:
        app: Any = load_app(args.app)
    except BaseException as error:  # noqa: BLE001 - the supervisor must hear of any error
        if not isinstance(error, SystemExit) and not args.quiet:
            traceback.print_exc()
        wire.send(["load_failed", f"{type(error).__name__}: {error}"])
        return 1
    wire.send(["settings", dict(app.settings.values())])
    runner = Runner(
        app.registry,
        wire,
        StatusPage(args.status_page, args.slots),
        mark=args.mark,
        folder=Path(args.folder),
        settings=app.settings,
        delivery_slots=args.delivery_slots,
        hooks_off=tuple(filter(None, args.hooks_off.split(","))),
    )
    asyncio.run(runner.serve(app.manifest(args.app).to_json()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # do not wait for threads of handlers that were given up


def _parse_runner_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("app")
    for name in ("wire", "status-page", "slots", "supervisor"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--delivery-slots", type=int, default=0)
    parser.add_argument("--mark", required=True)
    parser.add_argument("--hooks-off", default="")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--log-level", default="INFO")
    parser.add_argument("--log-format", default="text")
    parser.add_argument("--quiet", action="store_true")
    return parser.parse_args()


def exit_with_supervisor(supervisor: int) -> None:
    """Let the kernel kill this process when the supervisor dies. Exit if it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(1)


# --- Process title: the command line and the mark that `ps` and /proc show ---

# Fields of /proc/self/stat after the name: where each area begins. The next field is its end.
_ARGUMENTS_FIELD = 45
_ENVIRONMENT_FIELD = 47


class ProcessTitle(NamedTuple):
    """Addresses in the memory of this process."""

    command: range
    mark: range  # the value of the environment variable

    def write(self, command: Sequence[str], mark: str) -> None:
        """Overwrite both. A long command line is cut; a mark that does not fit is refused."""
        if len(mark) > len(self.mark):
            message = f"the mark {mark!r} is longer than {len(self.mark)} bytes"
            raise ValueError(message)
        _write_memory(self.command, os.fsencode("\0".join(command))[: len(self.command) - 1])
        _write_memory(self.mark, mark.encode())


def locate_title() -> ProcessTitle:
    """Find the addresses. Raise LookupError if the kernel does not show them."""
    text = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()
    command = range(int(fields[_ARGUMENTS_FIELD]), int(fields[_ARGUMENTS_FIELD + 1]))
    environment = range(int(fields[_ENVIRONMENT_FIELD]), int(fields[_ENVIRONMENT_FIELD + 1]))
    entries = b""
    if environment.start:
        entries = b"\0" + ctypes.string_at(environment.start, len(environment))
    name = f"{MARK}=".encode()
    found = entries.find(b"\0" + name)
    if found < 0 or not command.start:
        message = "the kernel does not show the addresses of arguments and environment"
        raise LookupError(message)
    begin = found + len(name)
    end = entries.index(b"\0", begin + 1) - 1
    return ProcessTitle(command, range(environment.start + begin, environment.start + end))


def _write_memory(area: range, data: bytes) -> None:
    ctypes.memmove(area.start, data.ljust(len(area), b"\0"), len(area))


# --- The fork server ---

READY = b"ready"
MAX_REQUEST = 1 << 16  # bytes
# Descriptors of a runner.
STDERR_FD = 2
WIRE_FD = 3
STATUS_PAGE_FD = 4
FIRST_TEMPORARY_FD = 10


class ForkRequest(NamedTuple):
    """Request to fork a runner."""

    mark: str
    command: list[str]
    descriptors: list[int]  # stderr, wire, status page


def main() -> None:
    """Serve fork requests. Returns when the supervisor is done; in a forked runner, never."""
    reduce_gc()
    args = _parse_fork_server_arguments()
    control = socket.socket(fileno=args.control)
    _import_everything(args.runner, args.supervisor)
    try:
        title = locate_title()
    except LookupError as error:
        sys.exit(f"cannot start a fork server: {error}")
    if _count_threads() > 1:
        sys.exit("cannot start a fork server: an import has started a thread")
    control.send(READY)
    request = _serve(control, args.supervisor)
    if request is not None:
        _become_runner(request, title)
        runpy.run_module(args.runner, run_name="__main__", alter_sys=True)


def _parse_fork_server_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("control", "supervisor"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--runner", required=True)
    parser.add_argument("padding", help="blanks, to be replaced by the command line of a runner")
    return parser.parse_args()


def _import_everything(runner: str, supervisor: int) -> None:
    """Import and warm up what every runner needs."""
    exit_with_supervisor(supervisor)
    runpy.run_module(runner)["prepare"]()
    importlib.import_module("mulligan.app.mulligan")  # by name: it is in a higher layer
    read_settings({}, environ={}, file=Path(os.devnull))  # the first call is slow
    warm_up()
    gc.collect()
    freeze_loaded()  # otherwise a collection in a runner would copy every shared page


def _serve(control: socket.socket, supervisor: int) -> ForkRequest | None:
    """Fork a runner for each request. Returns its request in a runner, None at the end."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST, 3, socket.MSG_CMSG_CLOEXEC)
        # With a second thread a fork is unsafe: a lock that it holds would never be released.
        if not data or _count_threads() > 1:
            return None
        try:
            if _fork_orphan():
                control.detach()
                if os.getppid() != supervisor:
                    os._exit(1)
                mark, command = json.loads(data)
                return ForkRequest(mark, command, descriptors)
        except OSError:
            return None
        for descriptor in descriptors:
            os.close(descriptor)


def _count_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _fork_orphan() -> bool:
    """Fork twice, so that the runner is an orphan and becomes a child of the supervisor.

    Returns True in the runner. The supervisor is the subreaper during a request.
    """
    read_end, write_end = os.pipe()
    parent = os.fork()
    if parent:
        os.close(read_end)
        os.waitpid(parent, 0)
        os.close(write_end)
        return False
    try:
        os.close(write_end)
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    os.read(read_end, 1)  # returns when the fork server has reaped our parent
    return True


def _become_runner(request: ForkRequest, title: ProcessTitle) -> None:
    """Turn a fork into the runner process that was requested."""
    os.setsid()
    _move_descriptors(request.descriptors)
    os.environ[MARK] = request.mark
    descriptors = ["--wire", str(WIRE_FD), "--status-page", str(STATUS_PAGE_FD)]
    sys.argv = [*request.command[2:], *descriptors]
    sys.orig_argv = [*request.command[:2], *sys.argv]
    title.write(sys.orig_argv, request.mark)
    os.write(WIRE_FD, os.getpid().to_bytes(4))
    if not os.read(WIRE_FD, 1):  # the supervisor has given up on this runner
        os._exit(1)


def _move_descriptors(descriptors: list[int]) -> None:
    """Give each descriptor its number, and close all others."""
    copies = [
        fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_TEMPORARY_FD)
        for descriptor in descriptors
    ]
    for copy, number in zip(copies, (STDERR_FD, WIRE_FD, STATUS_PAGE_FD), strict=True):
        os.dup2(copy, number, inheritable=number == STDERR_FD)
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number > STATUS_PAGE_FD:
            with contextlib.suppress(OSError):  # the one that listed them is closed already
                os.close(number)


if __name__ == "__main__":
    main()
