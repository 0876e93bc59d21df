"""One job: fetch the pictures, render them with their words, store the video."""

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
from render.config import MS, read_config
from render.pictures import command, draw_text, is_picture, rendered_seconds
from render.timeline import Clip, Timeline

CONFIG = read_config()
REASON = re.compile(r": ([A-Z][^:\[\]/]+)$", re.MULTILINE)
MOST_BYTES = 25 * 1024 * 1024  # of one picture

app = Mulligan()
known = pack("render")
too_long = Rule(
    "render/limit",
    verdict="TIMEOUT",
    code="FFMPEG_TIMEOUT",
    cls="timeout",
    public=f"FFmpeg timeout after {CONFIG.job_timeout_ms}ms",
)
bad_picture = Rule(  # perhaps it was only fetched badly: it is fetched again, once
    "render/bad-picture",
    program="ffmpeg",
    verdict=["BAD_FILE", "INVALID_INPUT"],
    code="FFMPEG_ERROR",
    cls="transient",
    max_retries=1,
)
RULES = [too_long, bad_picture, *known.rules]
policy = Policy(
    max_retries=CONFIG.max_retries,
    backoff=Exponential(
        CONFIG.initial_backoff_ms / MS, factor=CONFIG.backoff_multiplier, jitter="none"
    ),
    max_losses=CONFIG.max_stalled_count,
)


@app.job(
    name="render", queue="render", timeout=CONFIG.job_timeout_ms / MS, policy=policy, rules=RULES
)
async def render(ctx: Context, timeline: Timeline) -> dict[str, str]:
    ctx.progress(0.0, "fetching the pictures")
    pictures = [
        await _fetch(clip, ctx.workdir / f"picture-{number}")
        for number, clip in enumerate(timeline.clips)
    ]
    video = await _render(ctx, timeline, pictures)
    ctx.progress(0.95, "storing the video")
    return {"video": await _store(video, f"{ctx.job.id}.mp4")}


# -- pictures ------------------------------------------------------------------------------------
async def _fetch(clip: Clip, file: Path) -> Path:
    try:
        async with asyncio.timeout(CONFIG.download_timeout_ms / MS):
            await asyncio.to_thread(file.write_bytes, await _bytes(clip.image))
    except TimeoutError as error:
        raise _not_fetched(clip, f"timeout of {CONFIG.download_timeout_ms}ms exceeded") from error
    except httpx2.HTTPStatusError as error:
        raise _not_fetched(clip, f"the server answered {error.response.status_code}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
        raise _not_fetched(clip, type(error).__name__) from error
    return file


async def _bytes(url: str) -> bytes:
    found = bytearray()
    async with (
        httpx2.AsyncClient(follow_redirects=True, timeout=None) as client,
        client.stream("GET", url) as answer,
    ):
        answer.raise_for_status()
        async for part in answer.aiter_bytes():
            found += part
            if len(found) > MOST_BYTES:
                raise Fail(
                    "IMAGE_DOWNLOAD_FAILED",
                    public="Failed to download image: it is too large",
                    final=True,
                )
    if not is_picture(bytes(found[:16])):
        raise Fail(
            "IMAGE_DOWNLOAD_FAILED",
            public="Failed to download image: this is not an image",
            final=True,
        )
    return bytes(found)


def _not_fetched(clip: Clip, why: str) -> Fail:
    said = f"Failed to download image: {why}"
    return Fail(
        "IMAGE_DOWNLOAD_FAILED",
        said,
        detail=json.dumps({"url": _without_secrets(clip.image)}),
        public=said,
    )


def _without_secrets(url: str) -> str:
    """Names and passwords stand before the host, keys behind the question mark."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


# -- video ---------------------------------------------------------------------------------------
async def _render(ctx: Context, timeline: Timeline, pictures: list[Path]) -> Path:
    video = ctx.workdir / "video.mp4"
    clips = [
        (picture, _drawn(clip, picture), clip.duration)
        for clip, picture in zip(timeline.clips, pictures, strict=True)
    ]

    def so_far(line: str) -> None:
        if (seconds := rendered_seconds(line)) is not None:
            ctx.progress(0.1 + 0.85 * min(seconds / timeline.seconds, 1), "rendering")

    try:
        await ctx.run_async(command(clips, video), on_line=so_far)
        if not video.exists() or not video.stat().st_size:
            raise ProcessFailed("ffmpeg", exit_code=0)
    except ProcessFailed as failed:
        raise _not_rendered(-(failed.signal or 0) or failed.exit_code, failed.stderr) from failed
    return video


def _drawn(clip: Clip, picture: Path) -> Path:
    words = picture.with_suffix(".words.png")
    draw_text(clip.text, words)
    return words


def _not_rendered(exit_code: int | None, stderr: str) -> Fail:
    """With ffmpeg's own reason, which stands behind the last colon of a line; before it are names of files."""
    reasons = REASON.findall(stderr)
    said = f"FFmpeg exited with code {exit_code}: {reasons[-1] if reasons else 'no output file'}"
    return Fail("FFMPEG_ERROR", said, public=said)


# -- storage -------------------------------------------------------------------------------------
def storage() -> ObjectStore:
    """Its client tries again by itself, for seconds; after that the job does."""
    if not CONFIG.storage_url.startswith("s3:"):
        return from_url(CONFIG.storage_url, mkdir=True)
    patience: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=5)}
    options: Any = {"allow_http": True, "timeout": timedelta(minutes=1)}
    endpoint: Any = {"endpoint": CONFIG.storage_endpoint} if CONFIG.storage_endpoint else {}
    return from_url(CONFIG.storage_url, retry_config=patience, client_options=options, **endpoint)


async def _store(video: Path, name: str) -> str:
    try:
        await obstore.put_async(storage(), name, video)
    except (obstore.exceptions.BaseError, OSError) as error:
        said = f"Failed to upload video: {type(error).__name__}"
        raise Fail("STORAGE_UPLOAD_FAILED", said, public=said) from error
    return name
