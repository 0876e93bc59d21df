"""Emulator of the providers: `python -m mulligan.apps.videogen.demo.emulator`.

Makes videos or fails.

    POST /{provider}/generations            {"model", "prompt", "seconds", "size"}, Idempotency-Key
                                            → {"id", "status"}
    GET  /{provider}/generations/{id}       → {"id", "status", "progress", "error"}
                                            status: processing, succeeded or failed
    GET  /{provider}/generations/{id}/content
    GET  /{provider}/health
    POST /orders {"provider", "do"}         from now on, for all calls; DELETE /orders, GET /calls

A prompt may name its failure: `a cat [503 x2]` fails twice and then succeeds; without `x` it always
fails. A failure is a status, or: hang, reset (no answer), garbage (200 and no JSON), odd (JSON of
an unknown form), warming (503 and a code), policy (400 and a code), later (429 and a Retry-After),
lose (started, but the answer never arrives), break (started, then failed), slow.
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

from mulligan.apps import stage

HANG_SECONDS = 120
SLOW_SECONDS = 4
FAULT_IN_PROMPT = re.compile(r"\[(\w+)(?: x(\d+))?\]")
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
ROW = """<tr><th>{name}<td>{now}<td><form method="post" action="/say">
<input type="hidden" name="provider" value="{name}"><button name="do" value="ok">ok</button>
<button name="do" value="503">503</button><button name="do" value="hang">hang</button></form>"""
NAMES = ("nimbus", "quartz")
PAGE = """<h1>Providers</h1><table>{rows}</table>
<p>A prompt may name its failure: <code>a cat [503 x2]</code> fails twice and then succeeds, without
<code>x</code> it always fails. Failures: a status, <code>hang</code>, <code>reset</code>,
<code>garbage</code>, <code>later</code> (rate limit), <code>break</code> (fails half-way),
<code>policy</code> (rejects the prompt), <code>slow</code>.</p>"""


@lru_cache(maxsize=64)
def render_video(prompt: str, seconds: int, size: str) -> bytes:
    """Render a moving gradient whose colours depend on the prompt."""
    program = imageio_ffmpeg.get_ffmpeg_exe()
    seed = zlib.crc32(prompt.encode())
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
    """A generation: what was ordered and when it is ready."""

    order: dict[str, Any]
    ready_at: float
    will_fail: bool
    started: float

    def state(self, number: str) -> dict[str, Any]:
        now = time.monotonic()
        if now < self.ready_at:
            progress = (now - self.started) / (self.ready_at - self.started)
            return {
                "id": number,
                "status": "processing",
                "progress": round(progress, 2),
                "error": None,
            }
        if self.will_fail:
            error = {"code": "generation_error", "message": "sampler diverged at /srv/gpu/7"}
            return {"id": number, "status": "failed", "progress": 0, "error": error}
        return {"id": number, "status": "succeeded", "progress": 1, "error": None}


class Faults:
    """The videos, the configured failures and the log of the calls."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pace = 0.0
        self.clear()

    def clear(self) -> None:
        self.standing: dict[str, str] = {}
        self.videos: dict[str, Video] = {}
        self.by_key: dict[str, str] = {}
        self.calls_by_task: Counter[str] = Counter()
        self.calls: list[dict[str, Any]] = []

    def choose_fault(self, provider: str, key: str, prompt: str) -> str:
        """Return the failure of this call ("ok" for none), counted per task, and log the call."""
        with self.lock:
            found = FAULT_IN_PROMPT.search(prompt)
            task = key.rpartition("-")[0]
            self.calls_by_task[task] += 1
            fault = "ok"
            if found and (not found[2] or self.calls_by_task[task] <= int(found[2])):
                fault = found[1]
            fault = self.standing.get(provider) or fault
            self.calls.append(
                {
                    "provider": provider,
                    "key": key,
                    "prompt": prompt,
                    "did": fault,
                    "at": time.time(),
                }
            )
            return fault

    def begin(self, key: str, order: dict[str, Any], fault: str) -> str:
        with self.lock:
            number = self.by_key.get(key)
            if number is None:
                number = self.by_key[key] = f"gen_{len(self.videos) + 1}"
                now = time.monotonic()
                duration = SLOW_SECONDS if fault == "slow" else self.pace
                self.videos[number] = Video(order, now + duration, fault == "break", now)
            return number


class Handler(stage.Emulator):
    """HTTP handler of all providers."""

    faults = Faults()

    def get(self) -> None:
        match self.path.strip("/").split("/"):
            case ["calls"]:
                self.answer(200, self.faults.calls)
            case [provider, "health"]:
                self.answer(503 if self.faults.standing.get(provider) else 200, {})
            case [_, "generations", number] if number in self.faults.videos:
                self.answer(200, self.faults.videos[number].state(number))
            case [_, "generations", number, "content"] if number in self.faults.videos:
                order = self.faults.videos[number].order
                self.answer(
                    200,
                    render_video(
                        FAULT_IN_PROMPT.sub("", order["prompt"]), order["seconds"], order["size"]
                    ),
                )
            case [""]:
                rows = [
                    ROW.format(name=name, now=self.faults.standing.get(name, "ok"))
                    for name in NAMES
                ]
                self.send_page("Providers", PAGE.format(rows="".join(rows)))
            case _:
                self.answer(404, {"error": {"code": "not_found", "message": "No such video"}})

    def delete(self) -> None:
        self.faults.clear()
        self.answer(204, b"")

    def post(self, body: bytes) -> None:
        match self.path.strip("/").split("/"):
            case ["orders"]:
                order = json.loads(body)
                self.set_standing(order["provider"], order["do"])
                self.answer(204, b"")
            case ["say"]:
                form = parse_qs(body.decode())
                self.set_standing(form["provider"][0], form["do"][0])
                self.answer(303, "", {"Location": "/"})
            case [provider, "generations"]:
                self.generate(provider, self.headers.get("Idempotency-Key", ""), json.loads(body))

    def set_standing(self, provider: str, fault: str) -> None:
        self.faults.standing[provider] = "" if fault == "ok" else fault

    def generate(self, provider: str, key: str, order: dict[str, Any]) -> None:
        match self.faults.choose_fault(provider, key, order["prompt"]):
            case "ok" | "slow" | "break" as fault:
                self.answer(
                    202, {"id": self.faults.begin(key, order, fault), "status": "processing"}
                )
            case "lose":
                self.faults.begin(key, order, "ok")
                self.drop_connection()
            case "hang":
                threading.Event().wait(HANG_SECONDS)
            case "reset":
                self.drop_connection(reset=True)
            case "garbage":
                self.answer(200, "<html>Proxy error, see /var/log/proxy.log")
            case "odd":
                self.answer(200, {"state": 7})
            case "warming" | "policy" | "later" as fault:
                self.answer(*ANSWERS[fault])
            case status:
                self.answer(
                    int(status),
                    {"error": {"code": "told_to", "message": f"Told to answer {status}"}},
                )

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        if isinstance(body, bytes):
            self.send(status, body, "video/mp4", headers or {})
        elif isinstance(body, str):
            self.send(status, body.encode(), "text/html", headers or {})
        else:
            self.send(status, json.dumps(body).encode(), "application/json", headers or {})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8091)
    parser.add_argument("--pace", type=float, default=0, help="seconds that a video takes at least")
    arguments = parser.parse_args()
    Handler.faults.pace = arguments.pace
    Handler.serve(arguments.port)
