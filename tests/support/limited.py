"""App with a kind that calls a rate-limited server; the address is in CALLED."""

import os
import urllib.request

from mulligan import Fixed, Mulligan, Policy

app = Mulligan()
app.queue("pages", concurrency=10)


@app.job(name="fetch", queue="pages", policy=Policy(max_retries=1000, backoff=Fixed(0.3)))
def fetch() -> int:
    with urllib.request.urlopen(os.environ["CALLED"], timeout=10) as answer:  # noqa: S310 - the test's own server
        return int(answer.status)
