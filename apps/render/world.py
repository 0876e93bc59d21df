"""Where the pictures of the demo come from: a server of its own that has every fault a server has."""

from __future__ import annotations

import asyncio
import io
from collections import Counter

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response
from PIL import Image, ImageDraw

import stage

images = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
asked: Counter[str] = Counter()


def picture(name: str) -> bytes:
    """One colour per name, as a JPEG."""
    canvas = Image.new("RGB", (800, 450), (sum(name.encode()) % 200, 90, 140))
    ImageDraw.Draw(canvas).ellipse((250, 75, 550, 375), fill=(240, 220, 160))
    found = io.BytesIO()
    canvas.save(found, "JPEG")
    return found.getvalue()


@images.get("/{name}")
async def answer(name: str) -> Response:
    """flaky: 503 twice, then there. hang: never. page: HTML. broken: cut off. missing: 404."""
    asked[name] += 1
    fault = name.partition(".")[0].partition("-")[0]
    if fault == "hang":
        await asyncio.sleep(600)
    if fault == "missing":
        return Response(status_code=404)
    if fault == "down" or (fault == "flaky" and asked[name] % 3):
        return Response(status_code=503)
    if fault == "page":
        return HTMLResponse("<h1>Please sign in</h1>")
    whole = picture(name)
    return Response(whole[:300] if fault == "broken" else whole, media_type="image/jpeg")


if __name__ == "__main__":
    stage.serve_asgi(images, stage.parse_port(8002))
