"""The Mulligan app: one kind, `process_job`; how often and how long apart is in the rule pack."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit

from clipscribe import media, notices, storage
from clipscribe.config import CONFIG
from clipscribe.media import HOUR, PRICES
from mulligan import Context, Fail, Fixed, Job, Mulligan, Park, Policy, Rule, Then, classify, pack

HIGH_MEMORY = "compute-engine-high-memory"
SUPPORT = "Please contact support for videos over 8 hours"
TWO_HOURS = 2 * HOUR

known = pack("clipscribe")
LAST = {"chunk_strategy": "adaptive", "model": "gemini-flash", "last": True}
ultra_long = Rule(  # its length is known when it is there: the next attempt is on the other machines, and the last
    "clipscribe/ultra-long",
    provider_code="UltraLongVideo",
    code="UltraLongVideo",
    cls="resource",
    max_retries=1,
    backoff=Fixed(0),
    then=Then(queue=HIGH_MEMORY, settings=LAST),
    public="This is a very long video.",
    promise="It is processed on larger machines.",
)
RULES = [ultra_long, *known.rules]
LINES = {rule.code: rule.public for rule in reversed(RULES)}
long_policy = Policy(max_retries=1, backoff=known.policy.backoff, then=Then(queue=HIGH_MEMORY))


class Analysis(TypedDict):
    chunks: list[str]
    duration: float
    processing_tier: str
    chunk_strategy: str
    model: str


app = Mulligan()


def model_is_well() -> None:
    media.web().get(f"{CONFIG.model_url}/health", timeout=5).raise_for_status()


app.dependency("model", probe=model_is_well, max_concurrency=CONFIG.model_concurrency)
notices.subscribe(app)


@app.job(
    name="process_job",
    queue="clips",
    uses="model",
    timeout=TWO_HOURS,
    policy=known.policy,
    rules=RULES,
    editable=("model",),
)
def process_job(
    ctx: Context,
    url: str,
    duration: float | None = None,
    size: int | None = None,
    model: str = "gemini-pro",
) -> Analysis | Park:
    media.refuse_large(size)
    try:
        return _process(ctx, url, duration or 0, model)
    except Exception as error:
        if "last" not in ctx.settings or isinstance(error, Fail):
            raise
        found = classify(error, rules=RULES)
        raise Fail(found.code, str(error), public=found.public, final=True) from error


def _process(ctx: Context, url: str, declared: float, model: str) -> Analysis | Park:
    if declared >= 8 * HOUR and not ctx.choice:
        return Park(SUPPORT, choices=("process", "refuse"))
    video = media.fetch(url, ctx.workdir / "video")
    seconds = media.length(ctx, video)
    storage.write(
        f"jobs/{ctx.job.id}/video.json", {"duration": seconds, "size": video.stat().st_size}
    )
    if seconds >= 8 * HOUR and not ctx.choice:
        return Park(SUPPORT, choices=("process", "refuse"))
    if ctx.choice == "refuse":
        raise Fail("VideoExceedsLimits", f"{seconds / HOUR:.1f} hours", final=True)
    is_long = seconds >= 6 * HOUR
    if is_long and ctx.job.queue != HIGH_MEMORY and not ctx.choice:
        raise Fail("UltraLongVideo", f"{seconds / HOUR:.1f} hours")
    return _analyse(ctx, url, video, seconds, "gemini-flash" if is_long else model)


def _analyse(ctx: Context, url: str, video: Path, seconds: float, model: str) -> Analysis:
    """What was paid for is kept: the next attempt begins with the first frame that nobody has looked at."""
    adaptive = seconds >= 6 * HOUR
    frames = media.frames(ctx, video, media.chunk_seconds(seconds, adaptive=adaptive))
    seen: list[str] = ctx.checkpoints.get(f"seen by {model}", [])
    for number in range(len(seen), len(frames)):
        ctx.progress(number / len(frames), f"frame {number + 1} of {len(frames)}")
        ctx.cost(PRICES[model])
        seen = [*seen, media.look(model, frames[number], urlsplit(url).path.rpartition("/")[2])]
        ctx.checkpoint(f"seen by {model}", seen)
    return Analysis(
        chunks=seen,
        duration=seconds,
        processing_tier=ctx.job.queue,
        chunk_strategy="adaptive" if adaptive else "fixed",
        model=model,
    )


# -- intake --------------------------------------------------------------------------------------
def submit(user: str, url: str, duration: float | None, size: int | None, model: str) -> Job:
    """A job in any case: what cannot be processed ends at once, with its sentence, for its owner to see."""
    said = {"url": url, "duration": duration, "size": size, "model": model}
    whose = process_job.options(owner=user)
    if size is not None and size >= media.MOST_BYTES:
        return whose.reject(Fail("VideoExceedsLimits", f"video too large: {size} bytes"), **said)
    if storage.used(user) >= CONFIG.plan_videos:
        return whose.reject(Fail("QuotaExceeded", "tier limit reached"), **said)
    if 6 * HOUR <= (duration or 0) < 8 * HOUR:
        whose = process_job.options(owner=user, queue=HIGH_MEMORY, policy=long_policy)
    job = whose.enqueue(**said)
    storage.use(user, job.id)
    return job
