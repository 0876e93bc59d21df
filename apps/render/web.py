"""The API of the service, in the words of its callers, and one page to look at it."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import obstore
from fastapi import FastAPI, Request
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from jinja2 import Environment, FileSystemLoader, select_autoescape
from obstore.exceptions import BaseError
from starlette.exceptions import HTTPException

from mulligan import Job
from mulligan.core.errors import MulliganError, NotFound
from render.jobs import CONFIG, app, render, storage
from render.timeline import read_order

MOST_BODY = 256 * 1024
WORDS = {
    "running": "PROCESSING",
    "parked": "PROCESSING",
    "succeeded": "COMPLETED",
    "dead": "FAILED",
}
templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(default=True),
)


@asynccontextmanager
async def life(_: FastAPI) -> AsyncIterator[None]:
    app.open()
    yield
    app.close()


web = FastAPI(title="render", lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)


@web.post("/jobs")
async def order(request: Request) -> Response:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            return refused(413, f"a timeline has at most {MOST_BODY} bytes")
    try:
        timeline = read_order(json.loads(bytes(body)))
    except (ValueError, RecursionError) as error:
        return refused(
            400,
            str(error) if not isinstance(error, json.JSONDecodeError) else "the body is not JSON",
        )
    return JSONResponse(seen(await render.enqueue_async(timeline=timeline)), 201)


@web.get("/jobs/{job_id}")
def one(job_id: str) -> Response:
    return JSONResponse(seen(found(job_id)))


def found(job_id: str) -> Job:
    """Jobs of other kinds are none of its."""
    job = app.jobs.get(job_id)
    if job.kind != render.name:
        raise NotFound(job_id)
    return job


@web.post("/jobs/{job_id}/retry")
def again(job_id: str, request: Request) -> Response:
    """Of a failed one: everything from the start, with all its tries."""
    job = app.jobs.retry(found(job_id).id, reason="by the caller")
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("/", 303)
    return JSONResponse(seen(job))


@web.get("/jobs/{job_id}/video")
def video(job_id: str) -> Response:
    job = found(job_id)
    if job.state != "succeeded":
        return refused(409, f"The video is not there: the job is {word(job)}")
    try:
        stored = obstore.get(storage(), job.result["video"])
    except FileNotFoundError:
        return refused(404, "The video is not there any more")
    except (BaseError, OSError):
        return refused(503, "The storage does not answer")
    return StreamingResponse((bytes(part) for part in stored.stream()), media_type="video/mp4")


@web.get("/", response_class=HTMLResponse)
def page() -> str:
    jobs = [seen(job) for job in app.jobs.list("kind:render", limit=30)]
    return templates.get_template("jobs.html").render(
        jobs=jobs, images=os.environ.get("IMAGES", "")
    )


@web.exception_handler(NotFound)
async def not_found(_: Request, __: Exception) -> Response:
    return refused(404, "Job not found")


@web.exception_handler(MulliganError)
async def not_now(_: Request, error: MulliganError) -> Response:
    if error.retryable:  # the database is away, most likely
        return refused(503, "Please try again in a moment")
    return refused(409, str(error))


@web.exception_handler(HTTPException)
async def no_such_way(_: Request, error: HTTPException) -> Response:
    return refused(error.status_code, str(error.detail))


def refused(status: int, message: str) -> Response:
    """In the form that callers know, whatever refuses it."""
    headers = {"Retry-After": "30"} if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    said = message.encode(errors="replace").decode()  # it may name a field that nobody can write
    return JSONResponse(
        {"statusCode": status, "message": said, "error": HTTPStatus(status).phrase}, status, headers
    )


# -- a job, as callers know it -------------------------------------------------------------------
def seen(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "state": word(job),
        "progress": job.progress,
        "attempts": job.attempts,
        "nextRetryAt": job.next_retry_at.isoformat() if job.next_retry_at else None,
        "createdAt": job.created_at.isoformat(),
        "finishedAt": job.finished_at.isoformat() if job.finished_at else None,
        "video": f"/jobs/{job.id}/video" if job.state == "succeeded" else None,
        "error": failure(job),
    }


def word(job: Job) -> str:
    """Between two tries it stays PROCESSING."""
    return (
        "PROCESSING"
        if job.state == "queued" and job.attempts
        else WORDS.get(job.state, job.state.upper())
    )


def failure(job: Job) -> dict[str, Any] | None:
    """The last one, also while it is tried again: code, message, perhaps details; the stack in development only."""
    if job.state == "succeeded" or not job.attempts:
        return None
    last = next((one for one in reversed(app.jobs.attempts(job.id)) if one.code), None)
    if last is None:
        return None
    private = json.loads(last.private or "{}")
    found: dict[str, Any] = {"code": last.code, "message": last.public}
    with suppress(ValueError):  # without any, or cut short
        found["details"] = json.loads(private.get("detail") or "")
    if CONFIG.development:
        found["stack"] = private.get("trace", "")
    return found
