"""The Mulligan app: one kind, `process_job`. Its retry policy is in the rule pack."""

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

rule_pack = pack("clipscribe")
LAST_ATTEMPT = {"chunk_strategy": "adaptive", "model": "gemini-flash", "last": True}
# The length is known after the download. The next attempt runs on larger machines and is last.
ultra_long = Rule(
    "clipscribe/ultra-long",
    provider_code="UltraLongVideo",
    code="UltraLongVideo",
    cls="resource",
    max_retries=1,
    backoff=Fixed(0),
    then=Then(queue=HIGH_MEMORY, settings=LAST_ATTEMPT),
    public="This is a very long video.",
    promise="It is processed on larger machines.",
)
RULES = [ultra_long, *rule_pack.rules]
MESSAGES = {rule.code: rule.public for rule in reversed(RULES)}
long_policy = Policy(max_retries=1, backoff=rule_pack.policy.backoff, then=Then(queue=HIGH_MEMORY))


class Analysis(TypedDict):
    """Result of a job."""

    chunks: list[str]
    duration: float
    processing_tier: str
    chunk_strategy: str
    model: str


app = Mulligan()


def check_model_health() -> None:
    media.http_client().get(f"{CONFIG.model_url}/health", timeout=5).raise_for_status()


app.dependency("model", probe=check_model_health, max_concurrency=CONFIG.model_concurrency)
notices.subscribe(app)


@app.job(
    name="process_job",
    queue="clips",
    uses="model",
    timeout=TWO_HOURS,
    policy=rule_pack.policy,
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
    """Analyse a video. On the last attempt every failure is final."""
    media.refuse_large(size)
    try:
        return _process(ctx, url, duration or 0, model)
    except Exception as error:
        if "last" not in ctx.settings or isinstance(error, Fail):
            raise
        failure = classify(error, rules=RULES)
        raise Fail(failure.code, str(error), public=failure.public, final=True) from error


def _process(ctx: Context, url: str, declared: float, model: str) -> Analysis | Park:
    if declared >= 8 * HOUR and not ctx.choice:
        return Park(SUPPORT, choices=("process", "refuse"))
    video = media.download(url, ctx.workdir / "video")
    seconds = media.read_duration(ctx, video)
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
    """Describe every frame. A retry continues after the last described frame, which is paid."""
    adaptive = seconds >= 6 * HOUR
    video_name = urlsplit(url).path.rpartition("/")[2]
    frames = media.extract_frames(ctx, video, media.chunk_seconds(seconds, adaptive=adaptive))
    descriptions: list[str] = ctx.checkpoints.get(f"seen by {model}", [])
    for number in range(len(descriptions), len(frames)):
        ctx.progress(number / len(frames), f"frame {number + 1} of {len(frames)}")
        ctx.cost(PRICES[model])
        descriptions = [*descriptions, media.describe_frame(model, frames[number], video_name)]
        ctx.checkpoint(f"seen by {model}", descriptions)
    return Analysis(
        chunks=descriptions,
        duration=seconds,
        processing_tier=ctx.job.queue,
        chunk_strategy="adaptive" if adaptive else "fixed",
        model=model,
    )


# --- Intake --------------------------------------------------------------------------------------
def submit(user: str, url: str, duration: float | None, size: int | None, model: str) -> Job:
    """Create a job. An unprocessable video gets a failed job, so that its owner sees the reason."""
    payload = {"url": url, "duration": duration, "size": size, "model": model}
    kind = process_job.options(owner=user)
    if size is not None and size >= media.MAX_BYTES:
        return kind.reject(Fail("VideoExceedsLimits", f"video too large: {size} bytes"), **payload)
    if storage.count_used_videos(user) >= CONFIG.plan_videos:
        return kind.reject(Fail("QuotaExceeded", "tier limit reached"), **payload)
    if 6 * HOUR <= (duration or 0) < 8 * HOUR:
        kind = process_job.options(owner=user, queue=HIGH_MEMORY, policy=long_policy)
    job = kind.enqueue(**payload)
    storage.record_video(user, job.id)
    return job
