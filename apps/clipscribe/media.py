"""A video, its length, its frames; what a model sees in them."""

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
MOST_BYTES = 10 * 1024**3
CHUNK = 600.0  # seconds
PARTS = 8  # of a very long video, however long
LENGTH = re.compile(r"Duration: (\d+):(\d\d):(\d\d(?:\.\d+)?)")
logging.getLogger("httpx2").setLevel(logging.WARNING)  # addresses of videos are nobody's business
PRICES = {"gemini-pro": 0.02, "gemini-flash": 0.002}  # dollars for each chunk


class Unavailable(Exception):
    """The other side answers, and what it says is no video."""


class ModelError(Exception):
    """In the words of the model's API; the answer itself is its cause."""


def refuse_large(size: int | None) -> None:
    if size is not None and size >= MOST_BYTES:
        raise Fail("VideoExceedsLimits", f"video too large: {size} bytes", final=True)


@cache
def web() -> httpx2.Client:
    """One for the process: it keeps its connections, and loads its certificates once."""
    return httpx2.Client(follow_redirects=True)


def fetch(url: str, file: Path) -> Path:
    with web().stream("GET", url, timeout=CONFIG.download_timeout) as answer:
        answer.raise_for_status()
        length = answer.headers.get("content-length", "")
        refuse_large(int(length) if length.isdecimal() else None)
        if not answer.headers.get("content-type", "").startswith("video/"):
            answer.read()
            raise Unavailable(answer.text[:200])
        with file.open("wb") as out:
            for part in answer.iter_bytes():
                out.write(part)
                refuse_large(out.tell())
    return file


@cache
def ffmpeg() -> str:
    return shutil.which("ffmpeg") or imageio_ffmpeg.get_ffmpeg_exe()


def length(ctx: Context, video: Path) -> float:
    """In seconds. Asked for no output, ffmpeg tells what it was given and then complains."""
    try:
        ctx.run([ffmpeg(), "-nostdin", "-hide_banner", "-i", str(video)])
    except ProcessFailed as failed:
        if found := LENGTH.search(failed.stderr):
            hours, minutes, seconds = found.groups()
            return int(hours) * HOUR + int(minutes) * 60 + float(seconds)
        raise
    return 0.0


def chunk_seconds(seconds: float, *, adaptive: bool) -> float:
    return max(CHUNK, seconds / PARTS) if adaptive else CHUNK


def frames(ctx: Context, video: Path, chunk: float) -> list[Path]:
    """The first one, and one for each chunk."""
    pick = f"select='isnan(prev_selected_t)+gte(t-prev_selected_t,{chunk:g})',scale=320:-2"
    quiet = ["-nostdin", "-hide_banner", "-loglevel", "error", "-y"]
    out = ["-vf", pick, "-fps_mode", "vfr", "-q:v", "5", str(ctx.workdir / "frame-%04d.jpg")]
    ctx.run([ffmpeg(), *quiet, "-i", str(video), *out])
    return sorted(ctx.workdir.glob("frame-*.jpg"))


def look(model: str, frame: Path, video: str) -> str:
    """What the model says of one frame."""
    address = f"{CONFIG.model_url}/{model}:generateContent"
    said = {"headers": {"x-video": video}, "timeout": CONFIG.model_timeout}
    answer = web().post(address, content=frame.read_bytes(), **said)
    try:
        answer.raise_for_status()
    except httpx2.HTTPStatusError as error:
        raise ModelError(_said(answer)) from error
    try:
        return str(answer.json()["text"])
    except (ValueError, KeyError, TypeError):
        message = f"{len(answer.content)} bytes that are no answer"
        raise ModelError(message) from None


def _said(answer: httpx2.Response) -> str:
    try:
        body: Any = answer.json()
        return f"{body['error']['status']}: {body['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"the model answered {answer.status_code}"
