"""App with one job: two failures, a hold, a defect; once repaired, it succeeds."""

from __future__ import annotations

from pathlib import Path

from mulligan import Context, Exponential, Hold, Mulligan, Policy

app = Mulligan()


@app.job(
    uses="gateway",
    policy=Policy(max_retries=3, backoff=Exponential(base=0.2, factor=2, jitter="none")),
)
def fetch(ctx: Context, repaired: str) -> dict[str, int] | Hold:
    if Path(repaired).exists():
        return {"pages": 3}
    if ctx.attempt <= 2:
        raise TimeoutError("a text for our eyes only")
    if ctx.attempt == 3:
        return Hold("gateway", until=3, reason="maintenance")
    return {}["page"]
