"""Emulator of a picture server with faults, for the demo and the tests."""

from __future__ import annotations

import asyncio
import io
from collections import Counter

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from PIL import Image, ImageDraw

from mulligan.apps import stage

images = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
requests_by_name: Counter[str] = Counter()


def picture(name: str) -> bytes:
    """Draw a JPEG whose colour depends on the name."""
    canvas = Image.new("RGB", (800, 450), (sum(name.encode()) % 200, 90, 140))
    ImageDraw.Draw(canvas).ellipse((250, 75, 550, 375), fill=(240, 220, 160))
    output = io.BytesIO()
    canvas.save(output, "JPEG")
    return output.getvalue()


def animation() -> bytes:
    frames = [Image.new("RGB", (80, 45), (0, 90, shade)) for shade in (0, 120, 240)]
    output = io.BytesIO()
    frames[0].save(output, "WEBP", save_all=True, append_images=frames[1:])
    return output.getvalue()


@images.get("/{name}")
async def serve_picture(name: str, to: str = "") -> Response:
    """Serve a picture with the fault in its name.

    flaky: 503 twice, then a picture. down: 503. hang: no answer. page: HTML. missing: 404.
    large: 200 KB. cut: its end is missing. mended: damaged at first, then whole. animated: WebP that moves,
    which ffmpeg cannot read. slow: answers after a second. redirect: to the address in `to`.
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
    if fault == "redirect":
        return RedirectResponse(to)
    if fault == "slow":
        await asyncio.sleep(1)
    if fault == "large":
        return Response(bytes(200_000), media_type="image/jpeg")
    if fault == "animated":
        return Response(animation(), media_type="image/webp")
    content = picture(name)
    if fault == "cut" or (fault == "mended" and requests_by_name[name] == 1):
        content = content[: len(content) * 6 // 10]
    return Response(content, media_type="image/jpeg")


if __name__ == "__main__":
    stage.serve_asgi(images, stage.parse_port(8002))
