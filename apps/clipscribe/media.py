"""Download videos, extract frames, and let a model describe them."""

from __future__ import annotations

import base64
import logging
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import imageio_ffmpeg

from mulligan import Context, Fail, ProcessFailed
from mulligan.apps.addresses import AddressRefused, GuardedTransport
from mulligan.apps.clipscribe.config import CONFIG

HOUR = 3600
MAX_BYTES = 10 * 1024**3
CHUNK_SECONDS = 600.0
MAX_CHUNKS = 8  # of a very long video
DURATION = re.compile(r"Duration: (\d+):(\d\d):(\d\d(?:\.\d+)?)")
logging.getLogger("httpx2").setLevel(logging.WARNING)  # do not log addresses of videos
MODELS = {"gemini-pro": CONFIG.pro_model, "gemini-flash": CONFIG.flash_model}
PRICES = {"gemini-pro": CONFIG.pro_price, "gemini-flash": CONFIG.flash_price}


class NotAVideo(Exception):
    """The server answered with something other than a video."""


class ModelError(Exception):
    """The model's API answered with an error. The message is its text."""


# --- Video ---------------------------------------------------------------------------------------
def refuse_large(size: int | None) -> None:
    if size is not None and size >= MAX_BYTES:
        raise Fail("VideoExceedsLimits", f"video too large: {size} bytes", final=True)


@cache
def download_client() -> httpx2.Client:
    """Return the client for users' addresses. It connects to public addresses only."""
    if CONFIG.allow_private:
        return httpx2.Client(follow_redirects=True)
    return httpx2.Client(follow_redirects=True, transport=GuardedTransport(), trust_env=False)


def download(url: str, file: Path) -> Path:
    try:
        return _download(url, file)
    except AddressRefused as error:
        raise Fail("InvalidInput", str(error), final=True) from error


def _download(url: str, file: Path) -> Path:
    with download_client().stream("GET", url, timeout=CONFIG.download_timeout) as answer:
        if answer.is_error:
            answer.read()  # the text says more than the status
            raise httpx2.HTTPStatusError(answer.text[:200], request=answer.request, response=answer)
        content_length = answer.headers.get("content-length", "")
        refuse_large(int(content_length) if content_length.isdecimal() else None)
        if not answer.headers.get("content-type", "").startswith("video/"):
            answer.read()
            raise NotAVideo(answer.text[:200])
        with file.open("wb") as output:
            for part in answer.iter_bytes():
                output.write(part)
                refuse_large(output.tell())
    return file


@cache
def find_ffmpeg() -> str:
    return shutil.which("ffmpeg") or imageio_ffmpeg.get_ffmpeg_exe()


def read_duration(ctx: Context, video: Path) -> float:
    """Return the duration in seconds. Without an output file ffmpeg prints it and fails."""
    try:
        ctx.run([find_ffmpeg(), "-nostdin", "-hide_banner", "-i", str(video)])
    except ProcessFailed as failed:
        found = DURATION.search(failed.stderr)
        if found:
            hours, minutes, seconds = found.groups()
            return int(hours) * HOUR + int(minutes) * 60 + float(seconds)
        raise
    return 0.0


def extract_frames(ctx: Context, video: Path, chunk: float) -> list[Path]:
    """Extract the first frame and one per chunk."""
    selection = f"select='isnan(prev_selected_t)+gte(t-prev_selected_t,{chunk:g})',scale=320:-2"
    flags = ["-nostdin", "-hide_banner", "-loglevel", "error", "-y"]
    frames = str(ctx.workdir / "frame-%04d.jpg")
    output = ["-vf", selection, "-fps_mode", "vfr", "-q:v", "5", frames]
    ctx.run([find_ffmpeg(), *flags, "-i", str(video), *output])
    return sorted(ctx.workdir.glob("frame-*.jpg"))


# --- Model: Gemini's REST API --------------------------------------------------------------------
@cache
def model_client() -> httpx2.Client:
    return httpx2.Client(headers={"x-goog-api-key": CONFIG.model_key})


def check_model_health() -> None:
    """List the models, which costs nothing."""
    model_client().get(CONFIG.model_url, timeout=5).raise_for_status()


def describe_frame(model: str, frame: Path, video: str) -> str:
    """Return the model's description of one frame."""
    image = {"mime_type": "image/jpeg", "data": base64.b64encode(frame.read_bytes()).decode()}
    prompt = {"text": f"Describe this frame of the video {video}."}
    answer = model_client().post(
        f"{CONFIG.model_url}/{MODELS[model]}:generateContent",
        json={"contents": [{"parts": [prompt, {"inline_data": image}]}]},
        timeout=CONFIG.model_timeout,
    )
    try:
        answer.raise_for_status()
    except httpx2.HTTPStatusError as error:
        raise ModelError(_error_message(answer)) from error
    return _read_description(answer)


def _read_description(answer: httpx2.Response) -> str:
    try:
        body: Any = answer.json()
        refusal = body.get("promptFeedback", {}).get("blockReason")
        if refusal:
            raise ModelError(f"Response blocked: {refusal}")
        return str(body["candidates"][0]["content"]["parts"][0]["text"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise ModelError(f"answer without a text ({len(answer.content)} bytes)") from None


def _error_message(answer: httpx2.Response) -> str:
    try:
        body: Any = answer.json()
        return f"{body['error']['status']}: {body['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"the model answered {answer.status_code}"
