"""Mark a video or detect its mark: the program `python marks.py SOURCE [TARGET --mark=…]`.

The invisible mark is in the luma. In every 16 × 16 block, the difference in brightness between the
left and the right half is moved to the nearest multiple of `STEP`: an even one for a 0, an odd one
for a 1. Every bit is repeated in many blocks of every frame, so that the mark survives an encoder.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import IO, cast

import imageio_ffmpeg
import numpy as np
from PIL import Image, ImageDraw

BLOCK = 16
STEP = 6.0
BITS = 48  # 32 of the mark, 16 of the checksum
MIN_CERTAINTY = 0.2  # of 1: mean absolute vote below which a video counts as unmarked


class FfmpegFailed(SystemExit):
    """End this program the way ffmpeg ended: its exit code, or 128 + the signal that killed it."""

    def __init__(self, code: int) -> None:
        super().__init__(code if code >= 0 else 128 - code)


def find_ffmpeg() -> str:
    installed = os.environ.get("WATERMARK_FFMPEG") or shutil.which("ffmpeg")
    return installed or imageio_ffmpeg.get_ffmpeg_exe()


# --- Bits ----------------------------------------------------------------------------------------
def encode_mark(mark: str) -> np.ndarray:
    raw = bytes.fromhex(mark)
    return np.unpackbits(np.frombuffer(raw + _checksum(raw), np.uint8))


def decode_mark(bits: np.ndarray) -> str | None:
    raw = np.packbits(bits).tobytes()
    return raw[:4].hex() if _checksum(raw[:4]) == raw[4:] else None


def _checksum(raw: bytes) -> bytes:
    return (zlib.crc32(raw) & 0xFFFF).to_bytes(2, "big")


def _bit_of_each_block(shape: tuple[int, int]) -> np.ndarray:
    """Return the number of the bit that each block holds. Neighbours hold different bits."""
    blocks = np.random.default_rng(7).permutation(shape[0] * shape[1])
    return (blocks % BITS).reshape(shape)


def _brightness_difference(luma: np.ndarray) -> np.ndarray:
    """Return for each block how much brighter its left half is."""
    rows, columns = luma.shape[0] // BLOCK, luma.shape[1] // BLOCK
    cut = luma[: rows * BLOCK, : columns * BLOCK].astype(np.float32)
    halves = cut.reshape(rows, BLOCK, columns, 2, BLOCK // 2).mean(axis=(1, 4))
    return halves[..., 0] - halves[..., 1]


def embed_bits(luma: np.ndarray, bits: np.ndarray) -> np.ndarray:
    difference = _brightness_difference(luma)
    bits_wanted = bits[_bit_of_each_block(difference.shape)]
    target = (2 * np.round((difference / STEP - bits_wanted) / 2) + bits_wanted) * STEP
    half = (target - difference) / 2
    pattern = np.repeat([1.0, -1.0], BLOCK // 2)
    change = np.kron(half, np.tile(pattern, (BLOCK, 1)))
    out = luma.astype(np.float32)
    out[: change.shape[0], : change.shape[1]] += change
    return np.clip(np.round(out), 0, 255).astype(np.uint8)


def count_votes(luma: np.ndarray) -> np.ndarray:
    """Sum the votes for each bit (−1 for a 0, 1 for a 1, per block), and count its blocks."""
    difference = _brightness_difference(luma)
    bit_of_block = _bit_of_each_block(difference.shape).ravel()
    vote_of_block = -np.cos(np.pi * difference / STEP).ravel()
    sums = np.bincount(bit_of_block, vote_of_block, BITS)
    return np.stack([sums, np.bincount(bit_of_block, minlength=BITS)])


# --- Video ---------------------------------------------------------------------------------------
QUIET = ["-nostdin", "-hide_banner", "-loglevel", "error"]
DAMAGED = "Invalid data found when processing input"  # ffmpeg's own sentence
OnFrame = Callable[[float], None]  # called after each frame with the share that is done


def _ignore(_: float) -> None: ...


class Video:
    """A video decoded by ffmpeg, read frame by frame as YUV4MPEG2.

    With `strict`, damage anywhere in pictures or sound makes ffmpeg fail. Without it, ffmpeg
    leaves out what it cannot read.
    """

    def __init__(self, source: Path, overlay: Path | None = None, *, strict: bool = False) -> None:
        even = "scale=trunc(iw/2)*2:trunc(ih/2)*2"
        graph = f"[0:v]{even}[v];[v][1:v]overlay=16:16" if overlay else f"[0:v]{even}"
        inputs = ["-i", str(source), *(["-i", str(overlay)] if overlay else [])]
        picture = ["-filter_complex", graph, "-pix_fmt", "yuv420p", "-f", "yuv4mpegpipe", "pipe:1"]
        options = [*QUIET, "-xerror"] if strict else QUIET
        sound = ["-map", "0:a?", "-f", "null", "-"] if strict else []
        command = [find_ffmpeg(), *options, *inputs, *picture, *sound]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.stream = cast("IO[bytes]", self.process.stdout)
        self.head = self.stream.readline()
        if not self.head:
            self.stream.close()
            raise FfmpegFailed(self.process.wait() or 1)
        header_fields = {field[:1]: field[1:] for field in self.head.decode().split()[1:]}
        self.width = int(header_fields["W"])
        self.height = int(header_fields["H"])
        self.rate = float(Fraction(header_fields["F"].replace(":", "/")))  # frames per second

    def frames(self) -> Iterator[tuple[np.ndarray, bytes]]:
        """Yield the luma of each frame as an array and its chroma as bytes."""
        size = self.width * self.height
        with self.process:
            while self.stream.readline():
                raw = self.stream.read(size * 3 // 2)
                luma = np.frombuffer(raw[:size], np.uint8).reshape(self.height, self.width)
                yield luma, raw[size:]
        if self.process.returncode:
            raise FfmpegFailed(self.process.returncode)


def embed(
    source: Path, target: Path, mark: str | None, label: str | None, on_frame: OnFrame = _ignore
) -> None:
    """Write a marked copy. `mark` is the invisible mark, `label` the text of the visible one.

    Fails unless the copy is as long as the source: a file may end early without any other error.
    """
    seconds = measure_seconds(source)
    overlay = _overlay(label, target.with_suffix(".png")) if label else None
    video = Video(source, overlay, strict=True)
    size = source.stat().st_size
    inputs = [
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
    ]
    encoder = ["-c:v", "libx264", "-preset", "veryfast", "-crf", "20", "-c:a", "copy"]
    output = [*encoder, "-movflags", "+faststart", str(target)]
    command = [find_ffmpeg(), *QUIET, "-y", "-xerror", *inputs, *output]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE)
    stream = cast("IO[bytes]", writer.stdin)
    bits = encode_mark(mark) if mark else None
    with suppress(BrokenPipeError):  # reported below, by the exit code
        stream.write(video.head)
        for number, (luma, colours) in enumerate(video.frames(), 1):
            marked = luma if bits is None else embed_bits(luma, bits)
            stream.write(b"FRAME\n" + marked.tobytes() + colours)
            on_frame(number / (seconds * video.rate) if seconds else 0)
        stream.close()
    if code := writer.wait():
        raise FfmpegFailed(code)
    if source.exists() and source.stat().st_size != size:
        raise SystemExit(f"{DAMAGED}: its size changed while it was read")
    copied = measure_seconds(target)
    # Containers round times differently.
    if copied < seconds - 0.1 - 2 / video.rate:
        raise SystemExit(f"{DAMAGED}: only {copied:.2f} of {seconds:.2f} seconds could be read")


def measure_seconds(file: Path) -> float:
    """Return how long a video is by its header. 0 means unknown."""
    command = [find_ffmpeg(), "-nostdin", "-hide_banner", "-i", str(file)]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    found = re.search(r"Duration: (\d+):(\d+):([\d.]+), start: (-?[\d.]+)", output)
    if not found:
        return 0
    hours, minutes, seconds, start = (float(part) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds - max(start, 0)


def detect(source: Path, on_frame: OnFrame = _ignore) -> str | None:
    """Return the invisible mark of a video, or None. A damaged copy may still have its mark."""
    sums = np.zeros(BITS)
    counts = np.zeros(BITS)
    for luma, _ in Video(source).frames():
        frame_sums, frame_counts = count_votes(luma)
        sums += frame_sums
        counts += frame_counts
        on_frame(0)
    mean_votes = np.divide(sums, counts, out=np.zeros(BITS), where=counts > 0)
    if np.abs(mean_votes).mean() <= MIN_CERTAINTY:
        return None
    return decode_mark((mean_votes > 0).astype(np.uint8))


def _overlay(label: str, file: Path) -> Path:
    """Draw the visible mark as a picture: the bundled ffmpeg has no drawtext filter."""
    picture = Image.new("RGBA", (16 + 9 * len(label), 32), (0, 0, 0, 110))
    ImageDraw.Draw(picture).text((8, 8), label, fill=(255, 255, 255, 220), font_size=14)
    picture.save(file)
    return file


# --- Program -------------------------------------------------------------------------------------
def main() -> None:
    parser = argparse.ArgumentParser(prog="watermark.marks")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path, nargs="?", help="without it, detect the mark")
    parser.add_argument("--mark")
    parser.add_argument("--label")
    parser.add_argument("--stall", type=int, default=0, help="seconds without a frame; 0: no limit")
    arguments = parser.parse_args()
    if shutil.which(find_ffmpeg()) is None:
        raise SystemExit(127)  # as the shell does
    signal.signal(signal.SIGALRM, _end_stalled)
    signal.alarm(arguments.stall)

    def report(share: float) -> None:
        signal.alarm(arguments.stall)  # replaces the alarm of the frame before
        if arguments.target:
            print(f"progress {share:.4f}", flush=True)

    if arguments.target:
        embed(arguments.source, arguments.target, arguments.mark, arguments.label, report)
    else:
        print(detect(arguments.source, report) or "")


def _end_stalled(*_: object) -> None:
    """End the program at once. Its ffmpeg may be unable to end, so it is not waited for."""
    print("no frame for too long: timed out", file=sys.stderr, flush=True)
    os._exit(124)  # as `timeout` does


if __name__ == "__main__":
    main()
