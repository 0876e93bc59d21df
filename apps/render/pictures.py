"""Texts drawn on transparent pictures, and the ffmpeg command that makes the video."""

from __future__ import annotations

import io
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
OPTIONS = ["-nostdin", "-hide_banner", "-loglevel", "error", "-xerror"]
MAX_PIXELS = 50_000_000
SIGNATURES = {
    "JPEG": b"\xff\xd8\xff",
    "PNG": b"\x89PNG\r\n\x1a\n",
    "GIF": b"GIF8",
    "WEBP": b"RIFF",
}


class NotAPicture(Exception):
    """The content is no picture of a known format, or a too large one."""


class DamagedPicture(Exception):
    """A part of the picture is missing or unreadable."""


def decode_picture(content: bytes) -> None:
    """Decode a picture to its last pixel. ffmpeg fills the missing part of a JPEG with grey."""
    if not content.startswith(tuple(SIGNATURES.values())):
        raise NotAPicture("this is not an image")
    try:
        with Image.open(io.BytesIO(content), formats=tuple(SIGNATURES)) as picture:
            too_large = picture.width * picture.height > MAX_PIXELS
            if not too_large:
                picture.load()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        too_large = True
    except Exception as error:  # decoders raise whatever the damage leads to
        raise DamagedPicture(str(error)) from error
    if too_large:
        raise NotAPicture("it is too large")


@cache
def find_ffmpeg() -> str:
    return shutil.which("ffmpeg") or imageio_ffmpeg.get_ffmpeg_exe()


def draw_text(text: str, file: Path) -> Path:
    """Draw a text into a file. Not done by ffmpeg, so that user input is never part of a filter."""
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
    return file


def build_command(clips: Sequence[tuple[Path, Path, float]], video: Path) -> list[str]:
    """Build the ffmpeg command. Each clip has two inputs: the picture and its text."""
    inputs: list[str] = []
    for picture, text_picture, _ in clips:
        inputs += ["-i", str(picture), "-i", str(text_picture)]
    steps = [_clip_filter(number, seconds) for number, (_, _, seconds) in enumerate(clips)]
    clip_labels = "".join(f"[c{number}]" for number in range(len(clips)))
    steps.append(f"{clip_labels}concat=n={len(clips)}:v=1[all]")
    encoder = ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p"]
    output = ["-map", "[all]", *encoder, "-progress", "pipe:1", "-y", str(video)]
    return [find_ffmpeg(), *OPTIONS, *inputs, "-filter_complex", ";".join(steps), *output]


def build_check(picture: Path) -> list[str]:
    """Build the command that only reads a picture."""
    return [find_ffmpeg(), *OPTIONS, "-i", str(picture), "-f", "null", "-"]


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
