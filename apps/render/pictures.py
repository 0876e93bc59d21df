"""Texts drawn on transparent pictures, and the ffmpeg command that makes the video."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import imageio_ffmpeg
from PIL import Image, ImageDraw, ImageFont

WIDTH = 640
HEIGHT = 360
COLUMNS = 36
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF")  # JPEG, PNG, GIF, WebP


def is_picture(head: bytes) -> bool:
    return head.startswith(SIGNATURES)


@cache
def find_ffmpeg() -> str:
    return shutil.which("ffmpeg") or imageio_ffmpeg.get_ffmpeg_exe()


def draw_text(text: str, file: Path) -> None:
    """Draw a text. Not done by ffmpeg, so that user input is never part of a filter."""
    picture = Image.new("RGBA", (WIDTH, HEIGHT), (0, 0, 0, 0))
    printable = "".join(character if character.isprintable() else " " for character in text)
    lines = "\n".join(textwrap.wrap(printable, COLUMNS))
    pen = ImageDraw.Draw(picture)
    font = ImageFont.load_default(size=28)
    position = (WIDTH // 2, HEIGHT - 24)
    pen.text(
        position,
        lines,
        "white",
        font,
        anchor="md",
        align="center",
        stroke_width=3,
        stroke_fill="black",
    )
    picture.save(file)


def build_command(clips: Sequence[tuple[Path, Path, float]], video: Path) -> list[str]:
    """Build the ffmpeg command. Each clip has two inputs: the picture and its text."""
    inputs: list[str] = []
    for picture, text_picture, _ in clips:
        inputs += ["-i", str(picture), "-i", str(text_picture)]
    steps = [_clip_filter(number, seconds) for number, (_, _, seconds) in enumerate(clips)]
    clip_labels = "".join(f"[c{number}]" for number in range(len(clips)))
    steps.append(f"{clip_labels}concat=n={len(clips)}:v=1[all]")
    options = [
        "-nostdin",
        "-hide_banner",
        "-loglevel",
        "error",
        "-progress",
        "pipe:1",
        "-y",
        "-xerror",
    ]
    output = [
        "-map",
        "[all]",
        "-c:v",
        "libx264",
        "-preset",
        "ultrafast",
        "-pix_fmt",
        "yuv420p",
        str(video),
    ]
    return [find_ffmpeg(), *options, *inputs, "-filter_complex", ";".join(steps), *output]


def _clip_filter(number: int, seconds: float) -> str:
    """Return the filter of a clip. It repeats the frame, as `-loop` hangs on broken pictures."""
    scale = f"scale={WIDTH}:{HEIGHT}:force_original_aspect_ratio=decrease"
    pad = f"pad={WIDTH}:{HEIGHT}:(ow-iw)/2:(oh-ih)/2"
    repeat = f"loop=loop=-1:size=1,fps=25,trim=duration={seconds:g},setpts=PTS-STARTPTS"
    background = f"[{2 * number}:v]{scale},{pad},setsar=1[b{number}]"
    return f"{background};[b{number}][{2 * number + 1}:v]overlay,{repeat}[c{number}]"


def rendered_seconds(line: str) -> float | None:
    """Return the rendered seconds from a line of `-progress`, or None."""
    name, _, value = line.partition("=")
    if name != "out_time_us" or not value.strip().isdigit():
        return None
    return int(value) / 1_000_000
