"""A runner process from its arguments to its end."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mulligan.config import Log
from mulligan.engine.board import Board
from mulligan.engine.loading import load_app
from mulligan.engine.runner.main import Runner
from mulligan.engine.wire import Wire

PR_SET_PDEATHSIG = 1


def plain(log: Log) -> None:
    logging.basicConfig(level=log.level, format="%(asctime)s %(levelname)s %(name)s %(message)s")


def begin(begin_log: Callable[[Log], None] = plain) -> int:
    args = _arguments()
    die_with(args.supervisor)
    faulthandler.enable()
    begin_log(Log(level=args.log_level, format=args.log_format))
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
        Board(args.board, args.slots),
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
