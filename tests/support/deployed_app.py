"""App whose jobs name the release that ran them; under the release "broken" most of them die."""

from __future__ import annotations

import time

from mulligan import Mulligan, Policy

app = Mulligan()


@app.job(policy=Policy(max_retries=0))
def bind(page: int) -> str:
    if app.settings.release == "broken" and page % 3:
        raise KeyError("codec")
    return app.settings.release


@app.job
def count(page: int) -> str:
    time.sleep(0.05)  # other workers find jobs too
    return app.settings.release
