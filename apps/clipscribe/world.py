"""The world outside, as a program of its own: a host of videos and the API of a model, with every fault they have.

Videos are made when they are asked for: `talk.mp4`, `talk-7h.mp4`. The word before the hyphen is the fault.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

import stage
from clipscribe.media import ffmpeg

HUGE = 11 * 1024**3
REFUSALS = {
    "missing": (404, "no such video"),
    "deleted": (410, "the video was deleted by its owner"),
    "locked": (403, "forbidden"),
}
MODEL = {  # what the model answers, and how often before it is well again; 0: always
    "busy": (503, "UNAVAILABLE", "The model is overloaded. Please try again later.", 2),
    "down": (503, "UNAVAILABLE", "The model is overloaded. Please try again later.", 0),
    "limited": (429, "RESOURCE_EXHAUSTED", "Rate limit exceeded for requests per minute", 1),
    "unpaid": (402, "FAILED_PRECONDITION", "Payment required for this project", 0),
    "rude": (400, "INVALID_ARGUMENT", "The prompt was blocked: it violates our content policy", 0),
    "odd": (200, "", "", 0),
}

outside = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
asked: Counter[str] = Counter()


@cache
def video(hours: float) -> bytes:
    """Twenty seconds, or as many hours with a picture every few minutes: long, and small."""
    seconds, rate = (20, "2") if not hours else (hours * 3600, "1/450")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "video.mp4"
        source = f"testsrc=size=160x90:rate={rate}:duration={seconds:g}"
        quiet = ["-nostdin", "-loglevel", "error", "-f", "lavfi", "-i", source]
        subprocess.run(
            [ffmpeg(), *quiet, "-c:v", "mpeg4", "-movflags", "+faststart", str(file)], check=True
        )
        return file.read_bytes()


@outside.get("/videos/{name}")
async def host(name: str) -> Response:
    fault, _, rest = name.removesuffix(".mp4").partition("-")
    asked[name] += 1
    if fault == "hang":
        await asyncio.sleep(600)
    if fault in REFUSALS:
        return Response(REFUSALS[fault][1], REFUSALS[fault][0])
    if fault == "private":
        return JSONResponse({"error": "Video is private"})
    if fault == "broken":
        return Response(b"not a video at all", media_type="video/mp4")
    if fault == "huge":
        return Response(b"", headers={"content-length": str(HUGE)}, media_type="video/mp4")
    hours = float(rest.removesuffix("h")) if rest.endswith("h") else 0
    return Response(await asyncio.to_thread(video, hours), media_type="video/mp4")


@outside.get("/model/health")
def health() -> Response:
    return Response(status_code=204)


@outside.post("/model/{call}")
async def model(call: str, request: Request) -> Response:
    name = request.headers.get("x-video", "")
    asked[f"model {name}"] += 1
    fault = name.removesuffix(".mp4").partition("-")[0]
    if fault == "slow":
        await asyncio.sleep(600)
    if fault in MODEL:
        status, word, said, times = MODEL[fault]
        if status == 200:
            return Response("<html>Something else</html>", media_type="text/html")
        if not times or asked[f"model {name}"] <= times:
            return JSONResponse(
                {"error": {"code": status, "status": word, "message": said}}, status
            )
    size = len(await request.body())
    return JSONResponse({"text": f"{call.partition(':')[0]} sees a test card ({size} bytes)"})


if __name__ == "__main__":
    stage.serve_asgi(outside, stage.parse_port(8005))
