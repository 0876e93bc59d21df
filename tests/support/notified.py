"""An app whose jobs die at once. `MAIL_TO` gets a mail per death, `MAIL_CAUSE` per cause."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mulligan import Email, Event, Fail, Fixed, Mulligan, Policy

app = Mulligan()


@app.job(name="dies", policy=Policy(max_retries=0))
def dies(n: int = 0) -> Fail:
    return Fail("BROKEN", "it broke", public="It broke.", final=True)


@app.job(name="flaky", policy=Policy(max_retries=3, backoff=Fixed(0.01)))
def flaky() -> Fail:
    return Fail("HTTP_5XX", "it broke", public="It broke.")


if os.environ.get("MAIL_TO"):
    app.notify(on="job.died", to=Email(os.environ["MAIL_TO"]), form="each", name="each")
if os.environ.get("MAIL_CAUSE"):
    app.notify(on="job.died", to=Email(os.environ["MAIL_CAUSE"]), name="cause")


if os.environ.get("REACTIONS"):

    @app.on("job.*", filter="kind:flaky", name="witness")
    def witness(event: Event) -> None:
        with Path(os.environ["REACTIONS"]).open("a") as file:
            file.write(f"{event.job_id} {event.seq} {event.type}\n")
        time.sleep(0.1)  # time to be killed in


@app.job(name="lasts")
def lasts(seconds: float) -> None:
    time.sleep(seconds)
