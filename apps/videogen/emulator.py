"""The providers, as a program of its own: `python -m videogen.emulator`. It makes videos, and fails as it is told to.

    POST /{provider}/generations            {"model", "prompt", "seconds", "size"}, Idempotency-Key → {"id", "status"}
    GET  /{provider}/generations/{id}       {"id", "status": "processing", "succeeded" or "failed", "progress", "error"}
    GET  /{provider}/generations/{id}/content
    GET  /{provider}/health
    POST /orders {"provider", "do"}         from now on, for everybody; DELETE /orders, GET /calls

A prompt may say what goes wrong with it: `a cat [503 x2]`: twice, then it is made; without `x`: always. A status, or:
hang, reset (no answer), garbage (200 and no JSON), odd (JSON, but which?), warming (503 and a code), policy (400 and a
code), later (429 and a Retry-After), lose (begun, but the answer never arrives), break (begun, then failed), slow.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import threading
import time
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs

import imageio_ffmpeg

import stage

HANG, SLOW = 120, 4  # seconds
WISH = re.compile(r"\[(\w+)(?: x(\d+))?\]")
LIMITED = {"Retry-After": "45"}
ANSWERS = {
    "warming": (
        503,
        {"error": {"code": "model_warming_up", "message": "The model is being loaded"}},
        {},
    ),
    "policy": (
        400,
        {"error": {"code": "content_policy", "message": "Your prompt was rejected"}},
        {},
    ),
    "later": (429, {"error": {"code": "rate_limit_exceeded", "message": "Slow down"}}, LIMITED),
}
ROW = """<tr><th>{name}<td>{now}<td><form method="post" action="/say"><input type="hidden" name="provider"
value="{name}"><button name="do" value="ok">ok</button><button name="do" value="503">503</button><button name="do"
value="hang">hang</button></form>"""
NAMES = ("nimbus", "quartz")


@lru_cache(maxsize=64)
def made(prompt: str, seconds: int, size: str) -> bytes:
    """Colours that flow, and other ones for other words."""
    program, seed = imageio_ffmpeg.get_ffmpeg_exe(), zlib.crc32(prompt.encode())
    picture = f"gradients=size={size}:rate=12:duration={seconds}:seed={seed}:speed=0.02:nb_colors=4"
    command = [
        program,
        "-v",
        "error",
        "-f",
        "lavfi",
        "-i",
        picture,
        "-c:v",
        "libx264",
        "-preset",
        "ultrafast",
    ]
    streamed = ["-pix_fmt", "yuv420p", "-movflags", "frag_keyframe+empty_moov", "-f", "mp4", "-"]
    return subprocess.run(
        [*command, *streamed], check=True, capture_output=True, stdin=subprocess.DEVNULL
    ).stdout


@dataclass
class Video:
    order: dict[str, Any]
    ready_at: float
    breaks: bool
    started: float

    def state(self, number: str) -> dict[str, Any]:
        now = time.monotonic()
        if now < self.ready_at:
            share = (now - self.started) / (self.ready_at - self.started)
            return {
                "id": number,
                "status": "processing",
                "progress": round(share, 2),
                "error": None,
            }
        if self.breaks:
            error = {"code": "generation_error", "message": "sampler diverged at /srv/gpu/7"}
            return {"id": number, "status": "failed", "progress": 0, "error": error}
        return {"id": number, "status": "succeeded", "progress": 1, "error": None}


class Desk:
    """What was ordered, what it was told, and what it was asked."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pace = 0.0
        self.clear()

    def clear(self) -> None:
        self.standing: dict[str, str] = {}
        self.videos: dict[str, Video] = {}
        self.by_key: dict[str, str] = {}
        self.wishes: Counter[str] = Counter()
        self.calls: list[dict[str, Any]] = []

    def wish(self, provider: str, key: str, prompt: str) -> str:
        """What to do with this order. A wish is for a task, whatever key its videos have."""
        with self.lock:
            found = WISH.search(prompt)
            task = key.rpartition("-")[0]
            self.wishes[task] += 1
            granted = found and (not found[2] or self.wishes[task] <= int(found[2]))
            do = self.standing.get(provider) or (found[1] if found and granted else "ok")
            self.calls.append(
                {"provider": provider, "key": key, "prompt": prompt, "did": do, "at": time.time()}
            )
            return do

    def begin(self, key: str, order: dict[str, Any], do: str) -> str:
        with self.lock:
            number = self.by_key.get(key)
            if number is None:
                number = self.by_key[key] = f"gen_{len(self.videos) + 1}"
                now = time.monotonic()
                takes = SLOW if do == "slow" else self.pace
                self.videos[number] = Video(order, now + takes, do == "break", now)
            return number


class Handler(stage.Emulator):
    desk = Desk()

    def get(self) -> None:
        match self.path.strip("/").split("/"):
            case ["calls"]:
                self.answer(200, self.desk.calls)
            case [provider, "health"]:
                self.answer(503 if self.desk.standing.get(provider) else 200, {})
            case [_, "generations", number] if number in self.desk.videos:
                self.answer(200, self.desk.videos[number].state(number))
            case [_, "generations", number, "content"] if number in self.desk.videos:
                order = self.desk.videos[number].order
                self.answer(
                    200, made(WISH.sub("", order["prompt"]), order["seconds"], order["size"])
                )
            case [""]:
                rows = [
                    ROW.format(name=name, now=self.desk.standing.get(name, "ok")) for name in NAMES
                ]
                self.send_page("Providers", f"<h1>Providers</h1><table>{''.join(rows)}</table>")
            case _:
                self.answer(404, {"error": {"code": "not_found", "message": "No such video"}})

    def delete(self) -> None:
        self.desk.clear()
        self.answer(204, b"")

    def post(self, body: bytes) -> None:
        match self.path.strip("/").split("/"):
            case ["orders"]:
                self.stand(**json.loads(body))
                self.answer(204, b"")
            case ["say"]:
                said = parse_qs(body.decode())
                self.stand(said["provider"][0], said["do"][0])
                self.answer(303, "", {"Location": "/"})
            case [provider, "generations"]:
                self.generate(provider, self.headers.get("Idempotency-Key", ""), json.loads(body))

    def stand(self, provider: str, do: str) -> None:
        self.desk.standing[provider] = "" if do == "ok" else do

    def generate(self, provider: str, key: str, order: dict[str, Any]) -> None:
        match self.desk.wish(provider, key, order["prompt"]):
            case "ok" | "slow" | "break" as do:
                self.answer(202, {"id": self.desk.begin(key, order, do), "status": "processing"})
            case "lose":
                self.desk.begin(key, order, "ok")
                self.drop_connection()
            case "hang":
                threading.Event().wait(HANG)
            case "reset":
                self.drop_connection(reset=True)
            case "garbage":
                self.answer(200, "<html>Proxy error, see /var/log/proxy.log")
            case "odd":
                self.answer(200, {"state": 7})
            case "warming" | "policy" | "later" as do:
                self.answer(*ANSWERS[do])
            case status:
                self.answer(
                    int(status),
                    {"error": {"code": "told_to", "message": f"Told to answer {status}"}},
                )

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        kinds = {bytes: "video/mp4", str: "text/html"}
        raw = (
            body
            if isinstance(body, bytes)
            else (body if isinstance(body, str) else json.dumps(body)).encode()
        )
        self.send(status, raw, kinds.get(type(body), "application/json"), headers or {})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8091)
    parser.add_argument("--pace", type=float, default=0, help="seconds that a video takes at least")
    said = parser.parse_args()
    Handler.desk.pace = said.pace
    Handler.serve(said.port)
