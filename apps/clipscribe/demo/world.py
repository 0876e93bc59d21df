"""Emulator of the external services, a program: a video host and the API of a model, with faults.

Videos are made on request: `talk.mp4`, `talk-7h.mp4`. The word before the hyphen is the fault.
"""

from __future__ import annotations

import asyncio
import base64
import re
import subprocess
import tempfile
from collections import Counter
from functools import cache
from html import escape
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from mulligan.apps import stage
from mulligan.apps.clipscribe.media import find_ffmpeg

HUGE_BYTES = 11 * 1024**3
REFUSALS = {
    "missing": (404, "no such video"),
    "deleted": (410, "the video was deleted by its owner"),
    "removed": (403, "This video has been removed for violating YouTube's Terms of Service"),
    "locked": (403, "forbidden"),
}
MODEL_FAULTS = {  # status, code, message, and how often before it recovers (0: always)
    "busy": (503, "UNAVAILABLE", "The model is overloaded. Please try again later.", 2),
    "flaky": (503, "UNAVAILABLE", "The model is overloaded. Please try again later.", 1),
    "down": (503, "UNAVAILABLE", "The model is overloaded. Please try again later.", 0),
    "limited": (429, "RESOURCE_EXHAUSTED", "Rate limit exceeded for requests per minute", 1),
    "overrun": (
        429,
        "RESOURCE_EXHAUSTED",
        "Quota exceeded for quota metric 'Generate Content API requests per minute'",
        0,
    ),
    "unpaid": (402, "FAILED_PRECONDITION", "Payment required for this project", 0),
    "rude": (400, "INVALID_ARGUMENT", "The prompt was blocked: it violates our content policy", 0),
}
SAMPLES = {
    "talk.mp4": "a talk",
    "busy-1.mp4": "the model is busy twice",
    "limited-1.mp4": "the model limits the rate",
    "private.mp4": "private",
    "missing.mp4": "missing",
    "locked.mp4": "access denied",
    "huge.mp4": "11 GB",
    "talk-7h.mp4": "seven hours",
    "talk-9h.mp4": "nine hours",
    "odd.mp4": "an unknown answer",
}
VIDEO_NAME = re.compile(r"of the video (\S+)\.$")

external_services = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
requests_by_name: Counter[str] = Counter()
model_is_down = False


@cache
def make_video(hours: float) -> bytes:
    """Make a video of 20 seconds, or of some hours at a very low frame rate."""
    seconds = hours * 3600 if hours else 20
    rate = "1/450" if hours else "2"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "video.mp4"
        source = f"testsrc=size=160x90:rate={rate}:duration={seconds:g}"
        flags = ["-nostdin", "-loglevel", "error", "-f", "lavfi", "-i", source]
        subprocess.run(
            [find_ffmpeg(), *flags, "-c:v", "mpeg4", "-movflags", "+faststart", str(file)],
            check=True,
        )
        return file.read_bytes()


@external_services.get("/videos/{name}")
async def serve_video(name: str) -> Response:
    fault, _, rest = name.removesuffix(".mp4").partition("-")
    requests_by_name[name] += 1
    if fault == "hang":
        await asyncio.sleep(600)
    if fault in REFUSALS:
        return Response(REFUSALS[fault][1], REFUSALS[fault][0])
    if fault == "private":
        return JSONResponse({"error": "Video is private"})
    if fault == "broken":
        return Response(b"not a video at all", media_type="video/mp4")
    if fault == "huge":
        return Response(b"", headers={"content-length": str(HUGE_BYTES)}, media_type="video/mp4")
    hours = float(rest.removesuffix("h")) if rest.endswith("h") else 0
    return Response(await asyncio.to_thread(make_video, hours), media_type="video/mp4")


@external_services.get("/", response_class=HTMLResponse)
def list_videos(request: Request, service: str = "") -> str:
    """List the videos of this host. A link opens the form of the service with the address."""
    rows = ""
    for name, label in SAMPLES.items():
        query = urlencode({"url": f"{request.base_url}videos/{name}"})
        rows += f'<tr><td><a href="{escape(service)}/?{query}">{name}</a><td>{label}'
    return stage.PAGE.format(title="Videos", body=f"<table>{rows}</table>")


@external_services.post("/outage/{state}")
def set_outage(state: Literal["begin", "end"]) -> None:
    """Let every call of the model fail, or end that."""
    global model_is_down  # noqa: PLW0603 - state of this emulator
    model_is_down = state == "begin"


@external_services.get("/model")
def list_models() -> Response:
    return JSONResponse({"models": []}, 503 if model_is_down else 200)


@external_services.post("/model/{call}")
async def answer_model_call(call: str, request: Request) -> Response:
    """Answer like Gemini's `models.generateContent`."""
    parts = (await request.json())["contents"][0]["parts"]
    found = VIDEO_NAME.search(parts[0]["text"])
    name = found[1] if found else ""
    requests_by_name[f"model {name}"] += 1
    fault = name.removesuffix(".mp4").partition("-")[0]
    if model_is_down:
        fault = "down"
    if fault == "slow":
        await asyncio.sleep(600)
    if fault == "odd":
        return Response("<html>Something else</html>", media_type="text/html")
    if fault == "blocked":
        return JSONResponse({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}})
    if fault in MODEL_FAULTS:
        status, status_name, message, times = MODEL_FAULTS[fault]
        if not times or requests_by_name[f"model {name}"] <= times:
            error = {"code": status, "status": status_name, "message": message}
            return JSONResponse({"error": error}, status)
    size = len(base64.b64decode(parts[1]["inline_data"]["data"]))
    text = f"{call.partition(':')[0]} sees a test card ({size} bytes)"
    return JSONResponse({"candidates": [{"content": {"parts": [{"text": text}]}}]})


if __name__ == "__main__":
    stage.serve_asgi(external_services, stage.parse_port(8005))
