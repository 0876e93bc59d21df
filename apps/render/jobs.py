"""One job: download the pictures, render them with their texts, store the video."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import obstore
from obstore.store import ObjectStore, from_url

from mulligan import Context, Exponential, Fail, Mulligan, Policy, ProcessFailed, Rule, pack
from render.config import MS_PER_SECOND, read_config
from render.pictures import build_command, draw_text, is_picture, rendered_seconds
from render.timeline import Clip, Timeline

CONFIG = read_config()
REASON = re.compile(r": ([A-Z][^:\[\]/]+)$", re.MULTILINE)
MAX_PICTURE_BYTES = 25 * 1024 * 1024

app = Mulligan()
rule_pack = pack("render")
timeout_rule = Rule(
    "render/limit",
    verdict="TIMEOUT",
    code="FFMPEG_TIMEOUT",
    cls="timeout",
    public=f"FFmpeg timeout after {CONFIG.job_timeout_ms}ms",
)
# The download may have been corrupted, so the picture is downloaded once more.
unreadable_picture_rule = Rule(
    "render/bad-picture",
    program="ffmpeg",
    verdict=["BAD_FILE", "INVALID_INPUT"],
    code="FFMPEG_ERROR",
    cls="transient",
    max_retries=1,
)
RULES = [timeout_rule, unreadable_picture_rule, *rule_pack.rules]
policy = Policy(
    max_retries=CONFIG.max_retries,
    backoff=Exponential(
        CONFIG.initial_backoff_ms / MS_PER_SECOND, factor=CONFIG.backoff_multiplier, jitter="none"
    ),
    max_losses=CONFIG.max_stalled_count,
)


@app.job(
    name="render",
    queue="render",
    timeout=CONFIG.job_timeout_ms / MS_PER_SECOND,
    policy=policy,
    rules=RULES,
)
async def render(ctx: Context, timeline: Timeline) -> dict[str, str]:
    """Render a timeline. Return the name of the video."""
    ctx.progress(0.0, "downloading the pictures")
    pictures = [
        await _fetch(clip, ctx.workdir / f"picture-{number}")
        for number, clip in enumerate(timeline.clips)
    ]
    video = await _render(ctx, timeline, pictures)
    ctx.progress(0.95, "storing the video")
    return {"video": await _store(video, f"{ctx.job.id}.mp4")}


# --- Pictures ------------------------------------------------------------------------------------
async def _fetch(clip: Clip, file: Path) -> Path:
    try:
        async with asyncio.timeout(CONFIG.download_timeout_ms / MS_PER_SECOND):
            await asyncio.to_thread(file.write_bytes, await _download(clip.image))
    except TimeoutError as error:
        raise _download_failure(
            clip, f"timeout of {CONFIG.download_timeout_ms}ms exceeded"
        ) from error
    except httpx2.HTTPStatusError as error:
        raise _download_failure(
            clip, f"the server answered {error.response.status_code}"
        ) from error
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
        raise _download_failure(clip, type(error).__name__) from error
    return file


async def _download(url: str) -> bytes:
    content = bytearray()
    async with (
        httpx2.AsyncClient(follow_redirects=True, timeout=None) as client,
        client.stream("GET", url) as answer,
    ):
        answer.raise_for_status()
        async for part in answer.aiter_bytes():
            content += part
            if len(content) > MAX_PICTURE_BYTES:
                raise Fail(
                    "IMAGE_DOWNLOAD_FAILED",
                    public="Failed to download image: it is too large",
                    final=True,
                )
    if not is_picture(bytes(content[:16])):
        raise Fail(
            "IMAGE_DOWNLOAD_FAILED",
            public="Failed to download image: this is not an image",
            final=True,
        )
    return bytes(content)


def _download_failure(clip: Clip, reason: str) -> Fail:
    message = f"Failed to download image: {reason}"
    return Fail(
        "IMAGE_DOWNLOAD_FAILED",
        message,
        detail=json.dumps({"url": _strip_credentials(clip.image)}),
        public=message,
    )


def _strip_credentials(url: str) -> str:
    """Remove user name, password and query from a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


# --- Video ---------------------------------------------------------------------------------------
async def _render(ctx: Context, timeline: Timeline, pictures: list[Path]) -> Path:
    video = ctx.workdir / "video.mp4"
    clips = [
        (picture, _draw_text(clip, picture), clip.duration)
        for clip, picture in zip(timeline.clips, pictures, strict=True)
    ]

    def report_progress(line: str) -> None:
        seconds = rendered_seconds(line)
        if seconds is not None:
            ctx.progress(0.1 + 0.85 * min(seconds / timeline.seconds, 1), "rendering")

    try:
        await ctx.run_async(build_command(clips, video), on_line=report_progress)
        if not video.exists() or not video.stat().st_size:
            raise ProcessFailed("ffmpeg", exit_code=0)
    except ProcessFailed as failed:
        exit_code = -failed.signal if failed.signal else failed.exit_code
        raise _render_failure(exit_code, failed.stderr) from failed
    return video


def _draw_text(clip: Clip, picture: Path) -> Path:
    text_picture = picture.with_suffix(".words.png")
    draw_text(clip.text, text_picture)
    return text_picture


def _render_failure(exit_code: int | None, stderr: str) -> Fail:
    """Return the failure with ffmpeg's reason: the text after the last colon of a line."""
    reasons = REASON.findall(stderr)
    message = f"FFmpeg exited with code {exit_code}: {reasons[-1] if reasons else 'no output file'}"
    return Fail("FFMPEG_ERROR", message, public=message)


# --- Storage -------------------------------------------------------------------------------------
def storage() -> ObjectStore:
    """Open the storage. Its client retries for seconds; after that, the job is retried."""
    if not CONFIG.storage_url.startswith("s3:"):
        return from_url(CONFIG.storage_url, mkdir=True)
    retry_config: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=5)}
    options: Any = {"allow_http": True, "timeout": timedelta(minutes=1)}
    endpoint: Any = {"endpoint": CONFIG.storage_endpoint} if CONFIG.storage_endpoint else {}
    return from_url(
        CONFIG.storage_url, retry_config=retry_config, client_options=options, **endpoint
    )


async def _store(video: Path, name: str) -> str:
    try:
        await obstore.put_async(storage(), name, video)
    except (obstore.exceptions.BaseError, OSError) as error:
        message = f"Failed to upload video: {type(error).__name__}"
        raise Fail("STORAGE_UPLOAD_FAILED", message, public=message) from error
    return name
