"""An app whose jobs die of three causes until a file marks the cause as fixed.

Each attempt appends a line to the file WITNESS.
"""

from __future__ import annotations

import os
from pathlib import Path

from mulligan import Context, Fail, Mulligan, Policy

app = Mulligan()
CODES = {"gateway": "GW_5XX", "moov": "BAD_FILE", "disk": "DISK_FULL"}


def folder() -> Path:
    return Path(os.environ["WITNESS"]).parent


@app.job(policy=Policy(max_retries=0, max_losses=50))
def work(ctx: Context, cause: str) -> str | Fail:
    fd = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{ctx.job.id} {ctx.job.generation}\n".encode())
    os.close(fd)
    if (folder() / f"fixed-{cause}").exists():
        return "done"
    return Fail(CODES[cause], f"the {cause} again", public=f"It is the {cause}.", final=True)
