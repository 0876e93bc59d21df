"""Emulator of the external services, a program: a video host and the API of a model, with faults.

Videos are made on request: `talk.mp4`, `talk-7h.mp4`. The word before the hyphen is the fault.
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
from clipscribe.media import find_ffmpeg

HUGE_BYTES = 11 * 1024**3
REFUSALS = {
    "missing": (404, "no such video"),
    "deleted": (410, "the video was deleted by its owner"),
    "locked": (403, "forbidden"),
}
MODEL_FAULTS = {  # status, code, message, and how often before it recovers (0: always)
    "busy": (503, "UNAVAILABLE", "The model is overloaded. Please try again later.", 2),
    "down": (503, "UNAVAILABLE", "The model is overloaded. Please try again later.", 0),
    "limited": (429, "RESOURCE_EXHAUSTED", "Rate limit exceeded for requests per minute", 1),
    "unpaid": (402, "FAILED_PRECONDITION", "Payment required for this project", 0),
    "rude": (400, "INVALID_ARGUMENT", "The prompt was blocked: it violates our content policy", 0),
    "odd": (200, "", "", 0),
}

external_services = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
requests_by_name: Counter[str] = Counter()


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


@external_services.get("/model/health")
def health() -> Response:
    return Response(status_code=204)


@external_services.post("/model/{call}")
async def answer_model_call(call: str, request: Request) -> Response:
    name = request.headers.get("x-video", "")
    requests_by_name[f"model {name}"] += 1
    fault = name.removesuffix(".mp4").partition("-")[0]
    if fault == "slow":
        await asyncio.sleep(600)
    if fault in MODEL_FAULTS:
        status, status_name, message, times = MODEL_FAULTS[fault]
        if status == 200:
            return Response("<html>Something else</html>", media_type="text/html")
        if not times or requests_by_name[f"model {name}"] <= times:
            return JSONResponse(
                {"error": {"code": status, "status": status_name, "message": message}}, status
            )
    size = len(await request.body())
    return JSONResponse({"text": f"{call.partition(':')[0]} sees a test card ({size} bytes)"})


if __name__ == "__main__":
    stage.serve_asgi(external_services, stage.parse_port(8005))
