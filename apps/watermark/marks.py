"""Marks a video, or finds the mark in one: `python -m watermark.marks embed|detect …`, a program of its own.

The invisible mark is in the luma: in every 16 × 16 block, how much brighter its left half is than its right one is
moved to the nearest multiple of `STEP` that is even for a 0 and odd for a 1. Every bit is in many blocks of every
frame, so that it outlives an encoder.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import imageio_ffmpeg
import numpy as np
from PIL import Image, ImageDraw

BLOCK, STEP = 16, 6.0
BITS = 48  # 32 of the mark, 16 to know it by
SURE = 0.2  # of 1: how far votes must lean to one side


class Broken(SystemExit):
    """Ends the program as ffmpeg ended: its exit code, or 128 + the signal that killed it."""

    def __init__(self, code: int) -> None:
        super().__init__(code if code >= 0 else 128 - code)


def ffmpeg() -> str:
    return (
        os.environ.get("WATERMARK_FFMPEG")
        or shutil.which("ffmpeg")
        or imageio_ffmpeg.get_ffmpeg_exe()
    )


# -- bits ----------------------------------------------------------------------------------------
def bits_of(mark: str) -> np.ndarray:
    raw = bytes.fromhex(mark)
    return np.unpackbits(np.frombuffer(raw + _check(raw), np.uint8))


def mark_of(bits: np.ndarray) -> str | None:
    raw = np.packbits(bits).tobytes()
    return raw[:4].hex() if _check(raw[:4]) == raw[4:] else None


def _check(raw: bytes) -> bytes:
    return (zlib.crc32(raw) & 0xFFFF).to_bytes(2, "big")


def _places(shape: tuple[int, int]) -> np.ndarray:
    """Which bit each block of a frame holds: neighbours hold different ones, everywhere in the picture."""
    blocks = np.random.default_rng(7).permutation(shape[0] * shape[1])
    return (blocks % BITS).reshape(shape)


def _leaning(luma: np.ndarray) -> np.ndarray:
    """Of each block: how much brighter its left half is."""
    rows, columns = luma.shape[0] // BLOCK, luma.shape[1] // BLOCK
    cut = luma[: rows * BLOCK, : columns * BLOCK].astype(np.float32)
    halves = cut.reshape(rows, BLOCK, columns, 2, BLOCK // 2).mean(axis=(1, 4))
    return halves[..., 0] - halves[..., 1]


def embedded(luma: np.ndarray, bits: np.ndarray) -> np.ndarray:
    lean = _leaning(luma)
    wanted = bits[_places(lean.shape)]
    target = (2 * np.round((lean / STEP - wanted) / 2) + wanted) * STEP
    half = (target - lean) / 2
    pattern = np.repeat([1.0, -1.0], BLOCK // 2)
    change = np.kron(half, np.tile(pattern, (BLOCK, 1)))
    out = luma.astype(np.float32)
    out[: change.shape[0], : change.shape[1]] += change
    return np.clip(np.round(out), 0, 255).astype(np.uint8)


def votes(luma: np.ndarray) -> np.ndarray:
    """For each bit, from −1 (a 0) to 1 (a 1), summed over its blocks; and how many blocks there were."""
    lean = _leaning(luma)
    places = _places(lean.shape).ravel()
    leaning = -np.cos(np.pi * lean / STEP).ravel()
    return np.stack([np.bincount(places, leaning, BITS), np.bincount(places, minlength=BITS)])


# -- video ---------------------------------------------------------------------------------------
class Video:
    """What ffmpeg reads, frame by frame, as the lines of YUV4MPEG2 tell."""

    def __init__(self, source: Path, overlay: Path | None = None) -> None:
        even = "scale=trunc(iw/2)*2:trunc(ih/2)*2"
        graph = f"[0:v]{even}[v];[v][1:v]overlay=16:16" if overlay else f"[0:v]{even}"
        inputs = ["-i", str(source), *(["-i", str(overlay)] if overlay else [])]
        self.process = subprocess.Popen(
            [
                ffmpeg(),
                "-nostdin",
                "-hide_banner",
                "-loglevel",
                "error",
                *inputs,
                "-filter_complex",
                graph,
                "-pix_fmt",
                "yuv420p",
                "-f",
                "yuv4mpegpipe",
                "pipe:1",
            ],
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None  # noqa: S101 - it was asked for
        self.stream: IO[bytes] = self.process.stdout
        self.head = self.stream.readline()
        if not self.head:
            self.stream.close()
            raise Broken(self.process.wait() or 1)
        words = {word[:1]: word[1:] for word in self.head.decode().split()[1:]}
        self.width, self.height = int(words["W"]), int(words["H"])

    def frames(self) -> Iterator[tuple[np.ndarray, bytes]]:
        """Luma, and the colours as they are."""
        size = self.width * self.height
        with self.process:
            while self.stream.readline():
                raw = self.stream.read(size * 3 // 2)
                yield (
                    np.frombuffer(raw[:size], np.uint8).reshape(self.height, self.width),
                    raw[size:],
                )
        if self.process.returncode:
            raise Broken(self.process.returncode)


def embed(source: Path, target: Path, mark: str | None, label: str | None) -> None:
    """`mark`: the invisible one; `label`: what the visible one says."""
    overlay = _overlay(label, target.with_suffix(".png")) if label else None
    video = Video(source, overlay)
    writer = subprocess.Popen(
        [
            ffmpeg(),
            "-nostdin",
            "-hide_banner",
            "-loglevel",
            "error",
            "-y",
            "-f",
            "yuv4mpegpipe",
            "-i",
            "pipe:0",
            "-i",
            str(source),
            "-map",
            "0:v",
            "-map",
            "1:a?",
            "-c:v",
            "libx264",
            "-preset",
            "veryfast",
            "-crf",
            "20",
            "-c:a",
            "copy",
            "-movflags",
            "+faststart",
            str(target),
        ],
        stdin=subprocess.PIPE,
    )
    assert writer.stdin is not None  # noqa: S101 - it was asked for
    bits = bits_of(mark) if mark else None
    try:
        writer.stdin.write(video.head)
        for number, (luma, colours) in enumerate(video.frames(), 1):
            marked = luma if bits is None else embedded(luma, bits)
            writer.stdin.write(b"FRAME\n" + marked.tobytes() + colours)
            print(f"frame {number}", flush=True)
        writer.stdin.close()
    except BrokenPipeError:
        pass  # its exit code says more
    if code := writer.wait():
        raise Broken(code)


def detect(source: Path) -> str | None:
    """The mark, if there is one."""
    seen = sum((votes(luma) for luma, _ in Video(source).frames()), np.zeros((2, BITS)))
    sums, counts = seen
    lean = np.divide(sums, counts, out=np.zeros(BITS), where=counts > 0)
    return mark_of((lean > 0).astype(np.uint8)) if np.abs(lean).mean() > SURE else None


def _overlay(label: str, file: Path) -> Path:
    """The bundled ffmpeg has no drawtext."""
    picture = Image.new("RGBA", (16 + 9 * len(label), 32), (0, 0, 0, 110))
    ImageDraw.Draw(picture).text((8, 8), label, fill=(255, 255, 255, 220), font_size=14)
    picture.save(file)
    return file


def frames_in(source: Path) -> int:
    """About how many, for the progress; 0: nobody knows."""
    told = subprocess.run(
        [ffmpeg(), "-nostdin", "-hide_banner", "-i", str(source)],
        capture_output=True,
        text=True,
        check=False,
    ).stderr
    length, rate = (
        re.search(r"Duration: (\d+):(\d+):([\d.]+)", told),
        re.search(r"([\d.]+) fps", told),
    )
    if not length or not rate:
        return 0
    hours, minutes, seconds = (float(part) for part in length.groups())
    return round((hours * 3600 + minutes * 60 + seconds) * float(rate[1]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="watermark.marks")
    parser.add_argument("what", choices=["embed", "detect"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--mark")
    parser.add_argument("--label")
    said = parser.parse_args()
    if said.what == "detect":
        print(detect(said.source) or "")
    else:
        embed(said.source, said.target, said.mark, said.label)


if __name__ == "__main__":
    main()
