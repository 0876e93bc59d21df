"""An app whose jobs die at once. `MAIL_TO` gets a mail per death, `MAIL_CAUSE` per cause."""

from __future__ import annotations

import os
import time

from mulligan import Email, Fail, Mulligan, Policy

app = Mulligan()


@app.job(name="dies", policy=Policy(max_retries=0))
def dies(n: int = 0) -> Fail:
    return Fail("BROKEN", "it broke", public="It broke.", final=True)


if os.environ.get("MAIL_TO"):
    app.notify(on="job.died", to=Email(os.environ["MAIL_TO"]), form="each", name="each")
if os.environ.get("MAIL_CAUSE"):
    app.notify(on="job.died", to=Email(os.environ["MAIL_CAUSE"]), name="cause")


@app.job(name="lasts")
def lasts(seconds: float) -> None:
    time.sleep(seconds)
