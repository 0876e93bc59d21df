"""The API of the service, with the names of the specification, and a page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import obstore
from fastapi import Depends, FastAPI, Form, Request
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
from mulligan.apps.render.jobs import CONFIG, app, render, storage
from mulligan.apps.render.timeline import read_order
from mulligan.core.errors import MulliganError, NotFound

MAX_BODY = 256 * 1024
STATES = {
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
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    app.open()
    yield
    app.close()


web = FastAPI(title="render", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)


# --- Callers -------------------------------------------------------------------------------------
def authenticate(request: Request) -> str | None:
    """Return the owner whose jobs the caller may use; None means all jobs.

    A caller on this machine needs no key, unless SIGN_IN=always.
    """
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    text = bearer if scheme.lower() == "bearer" else request.cookies.get("key", "")
    key = app.keys.authenticate(text)
    if key is None:
        if text or CONFIG.sign_in == "always" or not is_local(request):
            raise HTTPException(401, "Sign in with a key. Create one: mulligan keys create")
        return None
    if request.method != "GET" and key.role == "viewer":
        raise HTTPException(403, "This key may only read")
    return key.owner


def is_local(request: Request) -> bool:
    with suppress(ValueError):
        return request.client is not None and ip_address(request.client.host).is_loopback
    return False


Owner = Annotated[str | None, Depends(authenticate)]


@web.post("/sign-in")
def sign_in(key: Annotated[str, Form()]) -> Response:
    if app.keys.authenticate(key) is None:
        return HTMLResponse(render_template("sign_in.html", refused=True), 401)
    answer = RedirectResponse("/", 303)
    answer.set_cookie("key", key, httponly=True, samesite="strict")
    return answer


# --- Jobs ----------------------------------------------------------------------------------------
@web.post("/jobs")
async def order(request: Request, owner: Owner) -> Response:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            return refusal(413, f"a timeline has at most {MAX_BODY} bytes")
    try:
        timeline = read_order(json.loads(bytes(body)))
    except (ValueError, RecursionError) as error:
        is_json = not isinstance(error, json.JSONDecodeError)
        return refusal(400, str(error) if is_json else "the body is not JSON")
    job = await render.options(owner=owner or "").enqueue_async(timeline=timeline)
    return JSONResponse(job_view(job), 201)


@web.get("/jobs/{job_id}")
def show_job(job_id: str, owner: Owner) -> Response:
    return JSONResponse(job_view(find_job(job_id, owner)))


def find_job(job_id: str, owner: str | None) -> Job:
    """Return a job of the caller. Jobs of other owners and other kinds answer 404."""
    job = app.jobs.get(job_id, owner=owner)
    if job.kind != render.name:
        raise NotFound(job_id)
    return job


@web.post("/jobs/{job_id}/retry")
def retry(job_id: str, request: Request, owner: Owner) -> Response:
    """Retry a failed job from the start, with all its attempts."""
    job = app.jobs.retry(find_job(job_id, owner).id, reason="by the caller")
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("/", 303)
    return JSONResponse(job_view(job))


@web.get("/jobs/{job_id}/video")
def video(job_id: str, owner: Owner) -> Response:
    job = find_job(job_id, owner)
    if job.state != "succeeded":
        return refusal(409, f"There is no video yet: the job is {state_of(job)}")
    try:
        content = obstore.get(storage(), job.result["video"])
    except FileNotFoundError:
        return refusal(404, "The video was removed")
    except (BaseError, OSError):
        return refusal(503, "The storage is unavailable")
    return StreamingResponse((bytes(part) for part in content.stream()), media_type="video/mp4")


@web.get("/", response_class=HTMLResponse)
def page(owner: Owner) -> str:
    jobs = [job_view(job) for job in app.jobs.list("kind:render", owner=owner, limit=30)]
    return render_template("jobs.html", jobs=jobs)


def render_template(name: str, **values: Any) -> str:
    return templates.get_template(name).render(**values)


@web.exception_handler(NotFound)
async def answer_not_found(_: Request, __: Exception) -> Response:
    return refusal(404, "Job not found")


@web.exception_handler(MulliganError)
async def answer_error(_: Request, error: MulliganError) -> Response:
    if error.retryable:  # most likely a database outage
        return refusal(503, "Please try again in a few seconds")
    return refusal(409, str(error))


@web.exception_handler(HTTPException)
async def answer_http_error(request: Request, error: HTTPException) -> Response:
    is_page = "text/html" in request.headers.get("accept", "")
    if error.status_code == HTTPStatus.UNAUTHORIZED and is_page:
        return HTMLResponse(render_template("sign_in.html", refused=False), 401)
    return refusal(error.status_code, str(error.detail))


def refusal(status: int, message: str) -> Response:
    """Answer a refused request in the error format of the specification."""
    headers = {"Retry-After": "30"} if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    text = message.encode(errors="replace").decode()  # field names may contain surrogates
    body = {"statusCode": status, "message": text, "error": HTTPStatus(status).phrase}
    return JSONResponse(body, status, headers)


# --- Jobs as JSON -------------------------------------------------------------------
def job_view(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "state": state_of(job),
        "progress": 1.0 if job.state == "succeeded" else job.progress,
        "attempts": job.attempts,
        "nextRetryAt": job.next_retry_at.isoformat() if job.next_retry_at else None,
        "createdAt": job.created_at.isoformat(),
        "finishedAt": job.finished_at.isoformat() if job.finished_at else None,
        "video": f"/jobs/{job.id}/video" if job.state == "succeeded" else None,
        "error": last_failure(job),
    }


def state_of(job: Job) -> str:
    """Return the state of a job. Between two attempts it stays PROCESSING."""
    if job.state == "queued" and job.attempts:
        return "PROCESSING"
    return STATES.get(job.state, job.state.upper())


def last_failure(job: Job) -> dict[str, Any] | None:
    """Return the last failure, also before a retry. The stack is included in development only."""
    if job.state == "succeeded" or not job.attempts:
        return None
    failed = [attempt for attempt in app.jobs.attempts(job.id) if attempt.code]
    if not failed:
        return None
    last = failed[-1]
    private = json.loads(last.private or "{}")
    error: dict[str, Any] = {"code": last.code, "message": last.public}
    with suppress(ValueError):  # missing or truncated
        error["details"] = json.loads(private.get("detail") or "")
    if CONFIG.development:
        error["stack"] = private.get("trace", "")
    return error
