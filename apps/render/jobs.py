"""One job: download the pictures, render them with their texts, store the video."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import obstore
from obstore.store import ObjectStore, from_url

from mulligan import Context, Exponential, Fail, Mulligan, Policy, ProcessFailed, Rule, pack
from mulligan.apps.addresses import AddressRefused, GuardedAsyncTransport
from mulligan.apps.alerts import send_alerts
from mulligan.apps.render.config import MS_PER_SECOND, read_config
from mulligan.apps.render.pictures import (
    DamagedPicture,
    NotAPicture,
    build_check,
    build_command,
    decode_picture,
    draw_text,
    rendered_seconds,
)
from mulligan.apps.render.timeline import Clip, Timeline

CONFIG = read_config()
REASON = re.compile(r": ([A-Z][^:\[\]/]+)$", re.MULTILINE)
MAX_PICTURE_BYTES = 25 * 1024 * 1024
STOP_SECONDS = 10  # after its limit an attempt has so long to stop, then its processes are killed

app = Mulligan(name="render", settings=CONFIG.mulligan)
send_alerts(app, CONFIG.alerts_to)
rule_pack = pack("render")
# The attempt did not stop by itself at its limit, so what it was doing is unknown.
limit_rule = Rule(
    "render/limit",
    verdict="TIMEOUT",
    code="JOB_TIMEOUT",
    cls="timeout",
    public=f"Timeout after {CONFIG.job_timeout_ms}ms",
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
damaged_picture_rule = Rule(
    "render/damaged-picture",
    message=r"\bthe image is damaged\b",
    code="IMAGE_DOWNLOAD_FAILED",
    cls="transient",
    max_retries=1,
)
RULES = [limit_rule, unreadable_picture_rule, damaged_picture_rule, *rule_pack.rules]
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
    timeout=CONFIG.job_timeout_ms / MS_PER_SECOND + STOP_SECONDS,
    policy=policy,
    rules=RULES,
)
async def render(ctx: Context, timeline: Timeline) -> dict[str, str]:
    """Render a timeline. Return the name of the video."""
    failure: Callable[[str], Fail] = _ffmpeg_timeout  # of the current step
    pictures: list[Path] = []
    try:
        async with asyncio.timeout(CONFIG.job_timeout_ms / MS_PER_SECOND):
            ctx.progress(0.0, "downloading the pictures")
            for number, clip in enumerate(timeline.clips):
                failure = partial(_download_failure, clip)
                pictures.append(await _fetch(clip, ctx.workdir / f"picture-{number}"))
            failure = _ffmpeg_timeout
            video = await _render(ctx, timeline, pictures)
            failure = _upload_failure
            ctx.progress(0.95, "storing the video")
            return {"video": await _store(video, f"{ctx.job.id}.mp4")}
    except TimeoutError as error:
        raise failure(f"timeout after {CONFIG.job_timeout_ms}ms") from error


# --- Pictures ------------------------------------------------------------------------------------
async def _fetch(clip: Clip, file: Path) -> Path:
    try:
        async with asyncio.timeout(CONFIG.download_timeout_ms / MS_PER_SECOND):
            content = await _download(clip)
    except TimeoutError as error:
        reason = f"timeout of {CONFIG.download_timeout_ms}ms exceeded"
        raise _download_failure(clip, reason) from error
    except httpx2.HTTPStatusError as error:
        reason = f"the server answered {error.response.status_code}"
        raise _download_failure(clip, reason) from error
    except AddressRefused:
        raise _download_failure(clip, "its address is not public", final=True) from None
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
        raise _download_failure(clip, type(error).__name__) from error
    await asyncio.to_thread(_check_picture, clip, content)
    await asyncio.to_thread(file.write_bytes, content)
    return file


async def _download(clip: Clip) -> bytes:
    content = bytearray()
    async with _http_client() as client, client.stream("GET", clip.image) as answer:
        answer.raise_for_status()
        async for part in answer.aiter_bytes():
            content += part
            if len(content) > MAX_PICTURE_BYTES:
                raise _download_failure(clip, "it is too large", final=True)
    return bytes(content)


def _http_client() -> httpx2.AsyncClient:
    """Open a client that fetches from public addresses only, unless the settings allow others."""
    transport = None if CONFIG.allow_private_addresses else GuardedAsyncTransport()
    return httpx2.AsyncClient(
        transport=transport, trust_env=False, follow_redirects=True, max_redirects=5, timeout=None
    )


def _check_picture(clip: Clip, content: bytes) -> None:
    """Refuse what is no picture, and a picture of which a part is missing or damaged."""
    try:
        decode_picture(content)
    except NotAPicture as error:
        raise _download_failure(clip, str(error), final=True) from None
    except DamagedPicture as error:
        raise _download_failure(clip, "the image is damaged") from error


def _download_failure(clip: Clip, reason: str, *, final: bool = False) -> Fail:
    return _failure(
        "IMAGE_DOWNLOAD_FAILED", f"Failed to download image: {reason}", clip, final=final
    )


def _failure(code: str, message: str, clip: Clip | None = None, *, final: bool = False) -> Fail:
    """Return a failure with the URL of the picture that caused it."""
    detail = json.dumps({"url": _strip_credentials(clip.image)}) if clip else None
    return Fail(code, message, detail=detail, public=message, final=final)


def _strip_credentials(url: str) -> str:
    """Remove user name, password and query from a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


# --- Video ---------------------------------------------------------------------------------------
async def _render(ctx: Context, timeline: Timeline, pictures: list[Path]) -> Path:
    video = ctx.workdir / "video.mp4"
    texts = [
        await asyncio.to_thread(draw_text, clip.text, picture.with_suffix(".words.png"))
        for clip, picture in zip(timeline.clips, pictures, strict=True)
    ]
    seconds = [clip.duration for clip in timeline.clips]
    command = build_command(list(zip(pictures, texts, seconds, strict=True)), video)

    def report_progress(line: str) -> None:
        rendered = rendered_seconds(line)
        if rendered is not None:
            ctx.progress(0.1 + 0.85 * min(rendered / timeline.seconds, 1), "rendering")

    try:
        await ctx.run_async(command, on_line=report_progress)
        if not video.exists() or not video.stat().st_size:
            raise ProcessFailed("ffmpeg", exit_code=0)
    except ProcessFailed as failed:
        number = await _find_unreadable(ctx, pictures)
        clip = None if number is None else timeline.clips[number]
        raise _failure("FFMPEG_ERROR", _ffmpeg_message(failed), clip) from failed
    return video


async def _find_unreadable(ctx: Context, pictures: list[Path]) -> int | None:
    """Return the number of the first picture that ffmpeg cannot read alone, or None."""
    for number, picture in enumerate(pictures):
        try:
            await ctx.run_async(build_check(picture))
        except ProcessFailed as failed:
            return None if failed.signal else number
    return None


def _ffmpeg_message(failed: ProcessFailed) -> str:
    """Return the message with ffmpeg's reason: the text after the last colon of a line."""
    exit_code = -failed.signal if failed.signal else failed.exit_code
    reasons = REASON.findall(failed.stderr)
    return f"FFmpeg exited with code {exit_code}: {reasons[-1] if reasons else 'no output file'}"


def _ffmpeg_timeout(reason: str) -> Fail:
    return _failure("FFMPEG_TIMEOUT", f"FFmpeg {reason}")


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
        raise _upload_failure(type(error).__name__) from error
    return name


def _upload_failure(reason: str) -> Fail:
    return _failure("STORAGE_UPLOAD_FAILED", f"Failed to upload video: {reason}")
