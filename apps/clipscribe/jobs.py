"""The Mulligan app: one kind, `process_job`. Its retry policy is in the rule pack."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit

from mulligan import Context, Fail, Job, Mulligan, Park, Policy, Snooze, Then, classify, pack
from mulligan.apps.clipscribe import media, notices, records, storage
from mulligan.apps.clipscribe.config import CONFIG, SUPPORT
from mulligan.apps.clipscribe.media import CHUNK_SECONDS, HOUR, MAX_CHUNKS, PRICES

HIGH_MEMORY = "compute-engine-high-memory"

rule_pack = pack("clipscribe")
MESSAGES = {rule.code: rule.public for rule in reversed(rule_pack.rules)}
long_policy = Policy(max_retries=1, backoff=rule_pack.policy.backoff, then=Then(queue=HIGH_MEMORY))


class Analysis(TypedDict):
    """Result of a job."""

    chunks: list[str]
    duration: float
    processing_tier: str
    chunk_strategy: str
    model: str


if not CONFIG.secret:
    raise ValueError(
        "CLIPSCRIBE_SECRET is missing. Set it: links to status pages are signed with it."
    )
app = Mulligan(name="clipscribe", settings=CONFIG.mulligan)
app.dependency("model", probe=media.check_model_health, max_concurrency=CONFIG.model_concurrency)
notices.subscribe(app)
records.subscribe(app)


@app.job(
    name="process_job",
    queue="clips",
    uses="model",
    timeout=CONFIG.time_limit,
    policy=rule_pack.policy,
    rules=rule_pack.rules,
    editable=("model",),
)
def process_job(
    ctx: Context,
    url: str,
    duration: float | None = None,
    size: int | None = None,
    model: str = "gemini-pro",
) -> Analysis | Park | Snooze:
    """Analyse a video. A very long one has one retry on the larger machines."""
    media.refuse_large(size)
    failures_before_move = ctx.checkpoints.get(_move_name(ctx), ctx.job.failures)
    retries_left = 1 + failures_before_move - ctx.job.failures
    if retries_left < 0 and ctx.previous:  # the process was killed, twice
        raise Fail(ctx.previous["code"], "no retry left", final=True)
    try:
        return _process(ctx, url, duration or 0, model)
    except Exception as error:
        if retries_left > 0 or isinstance(error, Fail):
            raise
        failure = classify(error, rules=rule_pack.rules)
        raise Fail(failure.code, str(error), public=failure.public, final=True) from error


def _move_name(ctx: Context) -> str:
    return f"failures before the move, generation {ctx.job.generation}"


def _process(ctx: Context, url: str, declared: float, model: str) -> Analysis | Park | Snooze:
    if declared >= 8 * HOUR and not ctx.choice:
        return Park(SUPPORT, choices=("process", "refuse"))
    video = media.download(url, ctx.workdir / "video")
    seconds = media.read_duration(ctx, video)
    facts = {"duration": seconds, "size": video.stat().st_size}
    storage.write(f"jobs/{ctx.job.id}/video.json", facts)
    if seconds >= 8 * HOUR and not ctx.choice:
        return Park(SUPPORT, choices=("process", "refuse"))
    if ctx.choice == "refuse":
        raise Fail("VideoExceedsLimits", f"{seconds / HOUR:.1f} hours", final=True)
    is_long = seconds >= 6 * HOUR
    if is_long and ctx.job.queue != HIGH_MEMORY and not ctx.choice:
        if _move_name(ctx) not in ctx.checkpoints:
            ctx.checkpoint(_move_name(ctx), ctx.job.failures)
        return Snooze(0, f"{seconds / HOUR:.1f} hours", queue=HIGH_MEMORY)
    return _analyse(ctx, url, video, seconds, "gemini-flash" if is_long else model)


def _analyse(ctx: Context, url: str, video: Path, seconds: float, model: str) -> Analysis:
    """Describe every frame. A retry continues after the last described frame, which is paid."""
    adaptive = seconds >= 6 * HOUR
    video_name = urlsplit(url).path.rpartition("/")[2]
    chunk = max(CHUNK_SECONDS, seconds / MAX_CHUNKS) if adaptive else CHUNK_SECONDS
    frames = media.extract_frames(ctx, video, chunk)
    descriptions: list[str] = ctx.checkpoints.get(f"descriptions by {model}", [])
    for number in range(len(descriptions), len(frames)):
        ctx.progress(number / len(frames), f"frame {number + 1} of {len(frames)}")
        ctx.cost(PRICES[model])
        descriptions = [*descriptions, media.describe_frame(model, frames[number], video_name)]
        ctx.checkpoint(f"descriptions by {model}", descriptions)
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
