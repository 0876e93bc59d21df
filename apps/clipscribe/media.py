"""Download videos, extract frames, and let a model describe them."""

from __future__ import annotations

import logging
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import imageio_ffmpeg

from clipscribe.config import CONFIG
from mulligan import Context, Fail, ProcessFailed

HOUR = 3600
MAX_BYTES = 10 * 1024**3
CHUNK_SECONDS = 600.0  # seconds
MAX_CHUNKS = 8  # of a very long video
DURATION = re.compile(r"Duration: (\d+):(\d\d):(\d\d(?:\.\d+)?)")
logging.getLogger("httpx2").setLevel(logging.WARNING)  # do not log addresses of videos
PRICES = {"gemini-pro": 0.02, "gemini-flash": 0.002}  # dollars per chunk


class NotAVideo(Exception):
    """The server answered with something other than a video."""


class ModelError(Exception):
    """The model's API answered with an error. The message is its text."""


def refuse_large(size: int | None) -> None:
    if size is not None and size >= MAX_BYTES:
        raise Fail("VideoExceedsLimits", f"video too large: {size} bytes", final=True)


@cache
def http_client() -> httpx2.Client:
    """Return the client of this process. It reuses connections and certificates."""
    return httpx2.Client(follow_redirects=True)


def download(url: str, file: Path) -> Path:
    with http_client().stream("GET", url, timeout=CONFIG.download_timeout) as answer:
        answer.raise_for_status()
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


def chunk_seconds(seconds: float, *, adaptive: bool) -> float:
    return max(CHUNK_SECONDS, seconds / MAX_CHUNKS) if adaptive else CHUNK_SECONDS


def extract_frames(ctx: Context, video: Path, chunk: float) -> list[Path]:
    """Extract the first frame and one per chunk."""
    selection = f"select='isnan(prev_selected_t)+gte(t-prev_selected_t,{chunk:g})',scale=320:-2"
    flags = ["-nostdin", "-hide_banner", "-loglevel", "error", "-y"]
    output = [
        "-vf",
        selection,
        "-fps_mode",
        "vfr",
        "-q:v",
        "5",
        str(ctx.workdir / "frame-%04d.jpg"),
    ]
    ctx.run([find_ffmpeg(), *flags, "-i", str(video), *output])
    return sorted(ctx.workdir.glob("frame-*.jpg"))


def describe_frame(model: str, frame: Path, video: str) -> str:
    """Return the model's description of one frame."""
    address = f"{CONFIG.model_url}/{model}:generateContent"
    options = {"headers": {"x-video": video}, "timeout": CONFIG.model_timeout}
    answer = http_client().post(address, content=frame.read_bytes(), **options)
    try:
        answer.raise_for_status()
    except httpx2.HTTPStatusError as error:
        raise ModelError(_error_message(answer)) from error
    try:
        return str(answer.json()["text"])
    except (ValueError, KeyError, TypeError):
        message = f"answer without a text ({len(answer.content)} bytes)"
        raise ModelError(message) from None


def _error_message(answer: httpx2.Response) -> str:
    try:
        body: Any = answer.json()
        return f"{body['error']['status']}: {body['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"the model answered {answer.status_code}"
