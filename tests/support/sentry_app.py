"""App whose jobs die in several ways, with the real Sentry SDK, which writes events to a file."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from pathlib import Path

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from mulligan import Fixed, Mulligan, Policy, Rule
from mulligan.integrations.sentry import attach

NEVER = Policy(max_retries=0, max_losses=0)


class FileTransport(Transport):
    """Append each event to the file WITNESS instead of sending it."""

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            with Path(os.environ["WITNESS"]).open("a", encoding="utf-8") as witness:
                witness.write(json.dumps(event, default=str) + "\n")


sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=FileTransport())
app = Mulligan(release="r42")
attach(app)
app.rules.add(Rule("expected", type="LookupError", code="GONE", cls="permanent", alarm="none"))


@app.job(policy=NEVER)
def raises(order: int) -> None:
    logging.getLogger("shop").warning("order %d", order)
    raise ValueError(order)


@app.job(policy=Policy(max_retries=1, backoff=Fixed(0)))
async def raises_twice() -> None:
    raise ConnectionRefusedError


@app.job(policy=NEVER)
def is_expected() -> None:
    raise LookupError


@app.job(policy=NEVER, timeout=1)
def hangs() -> None:
    time.sleep(600)


@app.job(policy=NEVER)
def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.job
def succeeds() -> None: ...
