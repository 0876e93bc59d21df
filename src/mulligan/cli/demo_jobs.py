"""Jobs of the demo: one for each outcome a job can have."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from typing import Any

from mulligan import Context, Exponential, Fail, Fixed, Hold, Mulligan, Park, Policy, Rule, Snooze

OLD_RELEASE, RELEASE = "r41", "r42"  # the history begins with the old one
app = Mulligan(release=RELEASE)
QUICK = Exponential(base=2, factor=2, cap=12, jitter="equal")

app.queue("partner", rate="40/m")  # the partner's limit, for the whole fleet
app.dependency("payments", max_concurrency=2)
app.dependency("gateway", min_calls=8, cool_down=5)
DOWN_SECONDS = range(40, 55)  # of every minute, when the gateway does not answer
STARTED = int(os.environ.get("DEMO_BEGAN", "0"))

app.rules.add(
    Rule(
        "corrupt-video",
        message=r"\bmoov atom not found\b",
        code="CORRUPT_FILE",
        cls="invalid_input",
    ),
    Rule("feed-not-there", type="KeyError", code="FEED_MISSING", cls="transient", shadow=True),
)


@app.job(title="{photo}")
def resize_photo(photo: str) -> dict[str, Any]:
    """Succeed."""
    time.sleep(random.uniform(0.1, 1.5))
    return {"photo": photo, "width": 800}


@app.job(queue="mail", title="order {order}", policy=Policy(max_retries=4, backoff=QUICK))
async def send_receipt(ctx: Context, order: int, fails: int) -> str:
    """Fail while the mail server does not answer, then recover."""
    await asyncio.sleep(0.3)
    if ctx.attempt <= fails:
        message = f"mail.example.com refused the connection for order {order}"
        raise ConnectionRefusedError(message)
    return "sent"


@app.job(queue="media", timeout=90, title="clip {clip}")
async def encode_video(ctx: Context, clip: int, seconds: float) -> dict[str, Any]:
    """Take a while and report progress."""
    steps = 20
    for step in range(steps):
        ctx.progress(step / steps, f"frame {step * 120} of {steps * 120}")
        await asyncio.sleep(seconds / steps)
    return {"clip": clip}


@app.job(editable="file", title="{file}")
def import_table(ctx: Context, file: str) -> Fail | None:
    """Fail until a person retries the job, or sets another file."""
    if ctx.job.generation > 1 or file.endswith(".fixed.csv"):
        return None
    return Fail(
        "BAD_FILE",
        f"{file}: row 17 has 5 columns, not 6",
        public="This file could not be read.",
        final=True,
    )


TAX_RATES = {"DE": 19, "FR": 20}
COUNTRIES = ("AT", "DE", "FR")


@app.job(title="{feed}", policy=Policy(max_retries=3, backoff=QUICK))
def parse_feed(feed: str, country: str) -> int:  # noqa: ARG001 - shown in the dashboard
    """Fail for a country that r42 has lost: retries would not help, and none is made."""
    return TAX_RATES[country]


@app.job(timeout=3, policy=Policy(max_retries=1, backoff=Fixed(4)))
async def build_report(month: str) -> None:  # noqa: ARG001 - shown in the dashboard
    """Exceed the time limit."""
    await asyncio.sleep(3600)


@app.job(queue="media", title="{photo}")
def convert_raw(photo: str) -> None:  # noqa: ARG001 - shown in the dashboard
    """Kill its own process, as a broken library would."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(queue="partner", policy=Policy(max_snoozes=20))
def sync_contacts(ctx: Context, page: int) -> int | Snooze:
    """Snooze while the partner allows no call. A snooze is not a failure."""
    if ctx.attempt < 3:
        return Snooze(random.uniform(3, 8), reason="the partner allows one page every few seconds")
    return page


@app.job(uses="payments")
def charge_card(ctx: Context, order: int) -> int | Hold:
    """Hold the payment provider: jobs that use it wait, and no retry is spent."""
    if ctx.attempt == 1:
        return Hold("payments", until=8, reason="the provider is down for maintenance")
    return order


class GatewayError(Exception):
    """Raised by a client for a 5xx response."""

    status_code = 503


@app.job(queue="render", uses="gateway", policy=Policy(max_retries=3, backoff=QUICK))
async def render_page(ctx: Context, page: int, early: bool = False) -> int:  # noqa: FBT001, FBT002 - a payload
    """Call a gateway that is down in every minute: its breaker opens, jobs wait, it recovers."""
    await asyncio.sleep(random.uniform(0.05, 0.2))
    is_down = int(time.time() - STARTED) % 60 in DOWN_SECONDS
    if is_down or (early and ctx.attempt == 1):
        message = f"503 Service Unavailable: no upstream for page {page}"
        raise GatewayError(message)
    return page


class TooManyRequests(Exception):
    """Raised by a client for a 429 response."""

    status_code = 429
    headers = {"retry-after": "3"}  # noqa: RUF012 - as HTTP clients do


@app.job(queue="render", uses="model-api", cost=0.004, policy=Policy(max_retries=5, backoff=QUICK))
async def translate(ctx: Context, text: str, busy: bool = False) -> str:  # noqa: FBT001, FBT002 - a payload
    """Call a paid API that sometimes answers 429."""
    await asyncio.sleep(random.uniform(0.1, 0.4))
    if ctx.attempt == 1 and (busy or random.random() < 0.3):
        message = "429 Too Many Requests"
        raise TooManyRequests(message)
    return text.upper()


@app.job(queue="media", title="video {video}", policy=Policy(max_retries=1, backoff=Fixed(2)))
async def watermark(ctx: Context, video: int, broken: int) -> str | Fail:
    """Mark a video for one recipient. Some files cannot be read for `broken` generations."""
    await asyncio.sleep(random.uniform(0.1, 0.6))
    if ctx.job.generation <= broken:
        return Fail(
            "CORRUPT_FILE",
            f"video {video}: moov atom not found",
            public="This video could not be read.",
            final=True,
        )
    return f"video-{video}.mp4"


@app.job
def notify_owner(batch: str) -> str:
    """Run when a campaign is complete."""
    return app.batches.get(batch).state


@app.job
def count_stock() -> int:
    """Run by a schedule, every minute."""
    return random.randrange(1000)


app.schedule("stock", "* * * * *", count_stock)
app.schedule("weekly-report", "0 6 * * 1", count_stock, timezone="Europe/Berlin")


@app.job(title="{post}")
def publish_post(ctx: Context, post: str) -> str | Park:  # noqa: ARG001 - shown in the dashboard
    """Wait for a person to decide."""
    if ctx.choice is None:
        return Park("a person must approve this post", choices=("publish", "drop"))
    return ctx.choice
