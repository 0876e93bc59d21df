"""Emulator of a picture server with faults, for the demo and the tests."""

from __future__ import annotations

import asyncio
import io
from collections import Counter

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response
from PIL import Image, ImageDraw

import stage

images = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
requests_by_name: Counter[str] = Counter()


def picture(name: str) -> bytes:
    """Draw a JPEG whose colour depends on the name."""
    canvas = Image.new("RGB", (800, 450), (sum(name.encode()) % 200, 90, 140))
    ImageDraw.Draw(canvas).ellipse((250, 75, 550, 375), fill=(240, 220, 160))
    output = io.BytesIO()
    canvas.save(output, "JPEG")
    return output.getvalue()


@images.get("/{name}")
async def serve_picture(name: str) -> Response:
    """Serve a picture with the fault in its name.

    flaky: 503 twice, then a picture. down: 503. hang: no answer. page: HTML. broken: truncated.
    missing: 404.
    """
    requests_by_name[name] += 1
    fault = name.partition(".")[0].partition("-")[0]
    if fault == "hang":
        await asyncio.sleep(600)
    if fault == "missing":
        return Response(status_code=404)
    if fault == "down" or (fault == "flaky" and requests_by_name[name] % 3):
        return Response(status_code=503)
    if fault == "page":
        return HTMLResponse("<h1>Please sign in</h1>")
    content = picture(name)
    return Response(content[:300] if fault == "broken" else content, media_type="image/jpeg")


if __name__ == "__main__":
    stage.serve_asgi(images, stage.parse_port(8002))
