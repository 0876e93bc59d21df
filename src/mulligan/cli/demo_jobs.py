"""The demo's jobs: one for each way a job can go."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from typing import Any

from mulligan import Context, Exponential, Fail, Fixed, Hold, Mulligan, Park, Policy, Rule, Snooze

app = Mulligan(release="demo")
SOON = Exponential(base=2, factor=2, cap=12, jitter="equal")

app.queue("partner", rate="40/m")  # the partner's own limit, kept for the whole fleet
app.dependency("payments", max_concurrency=2)
app.dependency("gateway", min_calls=8, cool_down=5)
DOWN = range(40, 55)  # seconds of every minute for which the gateway does not work
BEGAN = int(os.environ.get("DEMO_BEGAN", "0"))

app.rules.add(
    Rule(
        "corrupt-video",
        message=r"\bmoov atom not found\b",
        code="CORRUPT_FILE",
        cls="invalid_input",
    ),
    Rule(
        "feed-not-there", type="KeyError", code="FEED_MISSING", cls="transient", shadow=True
    ),  # would it help?
)


@app.job
def resize_photo(photo: str) -> dict[str, Any]:
    """Succeeds."""
    time.sleep(random.uniform(0.1, 1.5))
    return {"photo": photo, "width": 800}


@app.job(queue="mail", policy=Policy(max_retries=4, backoff=SOON))
async def send_receipt(ctx: Context, order: int, fails: int) -> str:
    """Meets a mail server that does not answer, and recovers."""
    await asyncio.sleep(0.3)
    if ctx.attempt <= fails:
        message = f"mail.example.com refused the connection for order {order}"
        raise ConnectionRefusedError(message)
    return "sent"


@app.job(queue="media", timeout=90)
async def encode_video(ctx: Context, clip: int, seconds: float) -> dict[str, Any]:
    """Takes a while and says how far it is."""
    steps = 20
    for step in range(steps):
        ctx.progress(step / steps, f"frame {step * 120} of {steps * 120}")
        await asyncio.sleep(seconds / steps)
    return {"clip": clip}


@app.job(editable="file")
def import_table(ctx: Context, file: str) -> Fail | None:
    """Does not succeed before somebody has seen to the file, and retries it, or names another one."""
    if ctx.job.generation > 1 or file.endswith(".mended.csv"):
        return None
    return Fail(
        "BAD_FILE",
        f"{file}: row 17 has 5 columns, not 6",
        public="This file could not be read.",
        final=True,
    )


@app.job(policy=Policy(max_retries=3, backoff=SOON))
def parse_feed(feed: str) -> int:
    """Has a defect: no number of retries would help, and none is made."""
    entries: dict[str, int] = {}
    return entries[feed]


@app.job(timeout=3, policy=Policy(max_retries=1, backoff=Fixed(4)))
async def build_report(month: str) -> None:  # noqa: ARG001 - only to be seen
    """Never ends within its time limit."""
    await asyncio.sleep(3600)


@app.job(queue="media")
def convert_raw(photo: str) -> None:  # noqa: ARG001 - same
    """Kills the process it runs in, as a broken library would."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(queue="partner", policy=Policy(max_snoozes=20))
def sync_contacts(ctx: Context, page: int) -> int | Snooze:
    """The partner allows a call now and then: not yet is no failure."""
    if ctx.attempt < 3:
        return Snooze(random.uniform(3, 8), reason="the partner allows one page every few seconds")
    return page


@app.job(uses="payments")
def charge_card(ctx: Context, order: int) -> int | Hold:
    """Finds the payment provider down: all who need it wait, nobody is charged a retry."""
    if ctx.attempt == 1:
        return Hold("payments", until=8, reason="the provider is down for maintenance")
    return order


class GatewayError(Exception):
    """What a client raises for an answer of 500 and above."""

    status_code = 503


@app.job(queue="render", uses="gateway", policy=Policy(max_retries=3, backoff=SOON))
async def render_page(ctx: Context, page: int, early: bool = False) -> int:  # noqa: FBT001, FBT002 - a payload
    """Calls a gateway that is down for a while in every minute: its breaker opens, jobs wait, and it recovers."""
    await asyncio.sleep(random.uniform(0.05, 0.2))
    if int(time.time() - BEGAN) % 60 in DOWN or (early and ctx.attempt == 1):
        message = f"503 Service Unavailable: no upstream for page {page}"
        raise GatewayError(message)
    return page


class TooManyRequests(Exception):
    """What a client raises for an answer of 429."""

    status_code = 429
    headers = {"retry-after": "3"}  # noqa: RUF012 - as clients have it


@app.job(queue="render", uses="model-api", cost=0.004, policy=Policy(max_retries=5, backoff=SOON))
async def translate(ctx: Context, text: str, busy: bool = False) -> str:  # noqa: FBT001, FBT002 - a payload
    """Calls a paid interface that asks for patience now and then."""
    await asyncio.sleep(random.uniform(0.1, 0.4))
    if ctx.attempt == 1 and (busy or random.random() < 0.3):
        message = "429 Too Many Requests"
        raise TooManyRequests(message)
    return text.upper()


@app.job(queue="media", policy=Policy(max_retries=1, backoff=Fixed(2)))
async def watermark(ctx: Context, token: int, broken: int) -> str | Fail:
    """One recipient of a campaign; some of the files cannot be read, for so many generations."""
    await asyncio.sleep(random.uniform(0.1, 0.6))
    if ctx.job.generation <= broken:
        return Fail(
            "CORRUPT_FILE",
            f"token {token}: moov atom not found",
            public="This video could not be read.",
            final=True,
        )
    return f"token-{token}.mp4"


@app.job
def tell_owner(batch: str) -> str:
    """What follows when a campaign is over."""
    return app.batches.get(batch).state


@app.job
def count_stock() -> int:
    """Comes by itself, every minute."""
    return random.randrange(1000)


app.schedule("stock", "* * * * *", count_stock)
app.schedule("weekly-report", "0 6 * * 1", count_stock, timezone="Europe/Berlin")


@app.job
def publish_post(ctx: Context, post: str) -> str | Park:  # noqa: ARG001 - same
    """Needs a person."""
    if ctx.choice is None:
        return Park("somebody must approve this post", choices=("publish", "drop"))
    return ctx.choice
