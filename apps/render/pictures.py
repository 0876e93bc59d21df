"""Words on a transparent picture, and the command that makes a video of everything."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import imageio_ffmpeg
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT = 640, 360
COLUMNS = 36
KINDS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF")  # JPEG, PNG, GIF, WebP


def is_picture(head: bytes) -> bool:
    return head.startswith(KINDS)


@cache
def ffmpeg() -> str:
    return shutil.which("ffmpeg") or imageio_ffmpeg.get_ffmpeg_exe()


def draw_text(text: str, file: Path) -> None:
    """Drawn here and not by ffmpeg: nothing a user writes is ever part of a filter."""
    picture = Image.new("RGBA", (WIDTH, HEIGHT), (0, 0, 0, 0))
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    lines = "\n".join(textwrap.wrap(printable, COLUMNS))
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(size=28)
    place = (WIDTH // 2, HEIGHT - 24)
    pen.text(
        place,
        lines,
        "white",
        font,
        anchor="md",
        align="center",
        stroke_width=3,
        stroke_fill="black",
    )
    picture.save(file)


def command(clips: Sequence[tuple[Path, Path, float]], video: Path) -> list[str]:
    """One input for each picture, one for its words; each pair for its seconds, one after the other."""
    inputs = [
        part
        for picture, words, _ in clips
        for file in (picture, words)
        for part in ("-i", str(file))
    ]
    steps = [_clip(number, seconds) for number, (_, _, seconds) in enumerate(clips)]
    joined = "".join(f"[c{number}]" for number in range(len(clips)))
    steps.append(f"{joined}concat=n={len(clips)}:v=1[all]")
    quiet = [
        "-nostdin",
        "-hide_banner",
        "-loglevel",
        "error",
        "-progress",
        "pipe:1",
        "-y",
        "-xerror",
    ]
    out = [
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
    return [ffmpeg(), *quiet, *inputs, "-filter_complex", ";".join(steps), *out]


def _clip(number: int, seconds: float) -> str:
    """Repeated by a filter: `-loop` would read a picture that cannot be read for ever."""
    fit = f"scale={WIDTH}:{HEIGHT}:force_original_aspect_ratio=decrease,pad={WIDTH}:{HEIGHT}:(ow-iw)/2:(oh-ih)/2"
    last = f"loop=loop=-1:size=1,fps=25,trim=duration={seconds:g},setpts=PTS-STARTPTS"
    return f"[{2 * number}:v]{fit},setsar=1[b{number}];[b{number}][{2 * number + 1}:v]overlay,{last}[c{number}]"


def rendered_seconds(line: str) -> float | None:
    """From a line of `-progress`."""
    name, _, value = line.partition("=")
    return int(value) / 1_000_000 if name == "out_time_us" and value.strip().isdigit() else None
