"""All of it: `python -m pdfxml`. The gateway, a worker and the page, on one database."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import uvicorn

from pdfxml.gateway import Gateway


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pdfxml", description=__doc__)
    parser.add_argument("--database", help="sqlite:///… or postgresql://…; without it a file in the folder")
    parser.add_argument("--folder", help="for files and the database; without it a temporary one")
    parser.add_argument("--port", type=int, default=8081)
    return parser.parse_args()


def started(stack: ExitStack, *command: str) -> None:
    process = subprocess.Popen([sys.executable, "-m", *command])
    stack.callback(process.wait)
    stack.callback(process.terminate)


def main() -> None:
    said = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="pdfxml-", ignore_cleanup_errors=True)
        folder = Path(said.folder or stack.enter_context(made)).absolute()
        gateway = Gateway()
        stack.callback(gateway.kill)
        os.environ.setdefault("STORAGE_URL", str(folder / "files"))
        os.environ["MULLIGAN_DATABASE_URL"] = said.database or f"sqlite:///{folder}/pdfxml.db"
        os.environ["GATEWAY_URL"] = gateway.url
        from pdfxml.jobs import app  # noqa: PLC0415 - it reads what was set above
        from pdfxml.web import web  # noqa: PLC0415 - the same

        app.open()
        started(stack, "mulligan", "worker", "pdfxml.jobs:app", "--log-level", "WARNING")
        print(f"http://127.0.0.1:{said.port}/", flush=True)
        print(f"the gateway, to be told to fail: {gateway.url}/", file=sys.stderr)
        uvicorn.run(web, host="127.0.0.1", port=said.port, log_level="warning")


if __name__ == "__main__":
    main()
