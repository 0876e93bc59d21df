"""The service: jobs in the words of its specification, signed pages for owners, dead letters for the admin."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Form, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, select_autoescape
from obstore.exceptions import BaseError
from pydantic import BaseModel, ConfigDict, Field
from standardwebhooks import Webhook, WebhookVerificationError

from clipscribe import metrics, storage
from clipscribe.config import CONFIG
from clipscribe.jobs import LINES, SUPPORT, app, process_job, submit
from clipscribe.notices import own_secret
from mulligan import Job, redact
from mulligan.core.errors import MulliganError, NotFound

STATES = {
    "queued": "QUEUED",
    "running": "PROCESSING",
    "succeeded": "COMPLETED",
    "dead": "FAILED",
    "cancelled": "CANCELLED",
    "parked": "MANUAL_REVIEW",
}
MINE = "kind:process_job"
SAMPLES = {
    "talk.mp4": "a talk",
    "busy-1.mp4": "the model is busy twice",
    "limited-1.mp4": "the model wants us to slow down",
    "private.mp4": "private",
    "missing.mp4": "not there",
    "locked.mp4": "not for us",
    "huge.mp4": "11 GB",
    "talk-7h.mp4": "seven hours",
    "talk-9h.mp4": "nine hours",
    "odd.mp4": "an answer nobody knows",
}
_writing = threading.Lock()
pages = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(default=True),
)

if not CONFIG.secret:
    message = "CLIPSCRIBE_SECRET is missing: links to status pages are signed with it"
    raise ValueError(message)


@asynccontextmanager
async def life(_: FastAPI) -> AsyncIterator[None]:
    app.open()
    yield
    app.close()


web = FastAPI(title="clipscribe", lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)


# -- who may ask ---------------------------------------------------------------------------------
def key_of(job_id: str) -> str:
    """Whoever was given the link of a job is its owner."""
    return hmac.new(CONFIG.secret.encode(), job_id.encode(), hashlib.sha256).hexdigest()[:32]


def link(job_id: str) -> str:
    return f"/status/{job_id}?key={key_of(job_id)}"


def owned(job_id: str, key: str = "") -> Job:
    if not hmac.compare_digest(key.encode(), key_of(job_id).encode()):
        raise HTTPException(404, "Job not found")
    return mine(job_id)


def mine(job_id: str) -> Job:
    """Jobs of other kinds are none of its."""
    job = app.jobs.get(job_id)
    if job.kind != process_job.name:
        raise NotFound(job_id)
    return job


def admin(request: Request, key: str = "") -> None:
    given = (
        key
        or request.cookies.get("admin", "")
        or request.headers.get("authorization", "").removeprefix("Bearer ")
    )
    if not CONFIG.admin_key or not hmac.compare_digest(given.encode(), CONFIG.admin_key.encode()):
        raise HTTPException(403, "For admins")


def switched_on(what: str) -> None:
    if not getattr(CONFIG.phase, what):
        raise HTTPException(404, f"Not in phase {CONFIG.phase_name}")


Owned = Annotated[Job, Depends(owned)]
FOR_ADMINS = [Depends(admin)]


# -- jobs ----------------------------------------------------------------------------------------
class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+\S*$", max_length=2000)]
    user: Annotated[str, Field(pattern=r"^[^\s@,<>\"]+@[^\s@,<>\"]+$", max_length=200)]
    duration: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    size: Annotated[int | None, Field(ge=0)] = None
    model: Literal["gemini-pro", "gemini-flash"] = "gemini-pro"


@web.post("/jobs", status_code=201)
def order(said: Order) -> dict[str, Any]:
    job = submit(said.user, said.url, said.duration, said.size, said.model)
    return seen(job) | {"status_url": link(job.id)}


@web.get("/jobs/{job_id}")
def one(job: Owned) -> dict[str, Any]:
    return seen(job)


@web.post("/jobs/{job_id}/retry")
def again(
    job: Owned, model: Annotated[Literal["gemini-pro", "gemini-flash"] | None, Form()] = None
) -> Response:
    """By the owner, perhaps with the cheaper model."""
    switched_on("self_service")
    overrides = {"payload": {"model": model}} if model and model != job.payload["model"] else None
    app.jobs.retry(job.id, reason="by its owner", overrides=overrides, owner=job.owner)
    return RedirectResponse(link(job.id), 303)


@web.post("/jobs/{job_id}/feedback")
def feedback(job: Owned, text: Annotated[str, Form(min_length=1, max_length=2000)]) -> Response:
    switched_on("feedback")
    if job.state not in ("dead", "parked"):
        raise HTTPException(409, "Feedback is about failures")
    said = {
        "job_id": job.id,
        "user": job.owner,
        "error_type": seen(job)["error"]["type"],
        "text": text,
    }
    storage.write(f"feedback/{job.id}.json", said)
    return RedirectResponse(link(job.id), 303)


# -- what became of a job, told by Mulligan ------------------------------------------------------
@web.post("/hooks/jobs", status_code=204)
async def told(request: Request) -> None:
    """At least once, in any order: what is written is how the job stands now."""
    body = await request.body()
    try:
        Webhook(own_secret()).verify(body, dict(request.headers))
    except WebhookVerificationError:
        raise HTTPException(401, "Not ours") from None
    await asyncio.to_thread(record, json.loads(body))


def record(said: dict[str, Any]) -> None:
    try:
        job = app.jobs.get(said["data"]["job_id"])
    except NotFound:
        return
    metrics.count(said["data"]["id"], said["type"], said["data"]["details"], _duration(job))
    with _writing:  # or what was seen first might be written last
        now = app.jobs.get(job.id)
        storage.write(
            f"jobs/{job.id}/manifest.json", seen(now) | {"url": redact(now.payload["url"])}
        )


def _duration(job: Job) -> float | None:
    found = storage.read(f"jobs/{job.id}/video.json")
    return float(found["duration"]) if found else job.payload["duration"]


# -- dead letters --------------------------------------------------------------------------------
@web.get("/dlq", dependencies=FOR_ADMINS)
def letters(limit: int = 100) -> list[dict[str, Any]]:
    switched_on("letters")
    dead = app.jobs.list(f"{MINE} state:dead", limit=min(max(limit, 1), 1000))
    return [letter(job) for job in sorted(dead, key=lambda job: str(job.finished_at), reverse=True)]


@web.post("/dlq/{job_id}/retry", dependencies=FOR_ADMINS)
def again_by_admin(job_id: str, request: Request) -> Response:
    switched_on("letters")
    try:
        app.jobs.retry(mine(job_id).id, reason="from the dead letters")
    except MulliganError:
        return Response('{"retried": false}', 404, media_type="application/json")
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("/admin", 303)
    return Response('{"retried": true}', media_type="application/json")


@web.post("/dlq/recover", dependencies=FOR_ADMINS)
def recover(error_type: Annotated[str, Form(pattern=r"^[A-Za-z_]{1,60}$")]) -> Response:
    """All of one type: one, then ten, then a hundred, then the rest; it stops if they fail again."""
    switched_on("letters")
    app.operations.start("retry", f"{MINE} state:dead code:{error_type}", reason="bulk recovery")
    return RedirectResponse("/admin", 303)


@web.post("/admin/review/{job_id}", dependencies=FOR_ADMINS)
def decide(job_id: str, choice: Annotated[Literal["process", "refuse"], Form()]) -> Response:
    app.jobs.release(mine(job_id).id, choice=choice, reason="manual review")
    return RedirectResponse("/admin", 303)


def letter(job: Job) -> dict[str, Any]:
    attempts = app.jobs.attempts(job.id)
    private = json.loads(attempts[-1].private or "{}") if attempts else {}
    return {
        "job_id": job.id,
        "error_type": job.error["code"],
        "error_message": redact(str(private.get("message") or job.error["message"])),
        "attempts": job.attempts,
        "failed_at": job.finished_at.isoformat() if job.finished_at else None,
        "payload": job.payload | {"url": redact(job.payload["url"])},
    }


# -- numbers -------------------------------------------------------------------------------------
@web.get("/metrics", dependencies=FOR_ADMINS, response_class=PlainTextResponse)
def numbers() -> str:
    return metrics.text(app)


@web.get("/success", dependencies=FOR_ADMINS)
def success() -> list[dict[str, Any]]:
    return metrics.success(app)


# -- pages ---------------------------------------------------------------------------------------
@web.get("/", response_class=HTMLResponse)
def home() -> str:
    where = os.environ.get("CLIPSCRIBE_SAMPLES", "")
    samples = {f"{where}/{name}": words for name, words in SAMPLES.items()} if where else {}
    return pages.get_template("home.html").render(samples=samples)


@web.get("/status/{job_id}", response_class=HTMLResponse)
def status(job: Owned, key: str) -> str:
    said = storage.read(f"feedback/{job.id}.json")
    return pages.get_template("status.html").render(
        job=seen(job),
        result=job.result,
        key=key,
        model=job.payload["model"],
        phase=CONFIG.phase,
        feedback=said,
    )


@web.get("/admin", response_class=HTMLResponse, dependencies=FOR_ADMINS)
def desk(key: str = "") -> Response:
    jobs = [seen(job) | {"user": job.owner} for job in app.jobs.list(MINE, limit=50)]
    dead = letters() if CONFIG.phase.letters else None
    page = pages.get_template("admin.html").render(
        jobs=jobs,
        letters=dead,
        types=Counter(one["error_type"] for one in dead or ()),
        feedback=storage.below("feedback", most=50),
        success=metrics.success(app),
        alerts=app.alerts.list(),
        operations=app.operations.list(limit=5),
        phase=CONFIG.phase_name,
    )
    answer = HTMLResponse(page)
    if key:
        answer.set_cookie("admin", key, httponly=True, samesite="strict")
    return answer


@web.exception_handler(RequestValidationError)
async def unfit(_: Request, error: RequestValidationError) -> Response:
    """Which field, and what is wrong with it; never what was sent."""
    found = [{"loc": one["loc"], "msg": one["msg"], "type": one["type"]} for one in error.errors()]
    return Response(json.dumps({"detail": found}), 422, media_type="application/json")


@web.exception_handler(NotFound)
async def not_found(_: Request, __: Exception) -> Response:
    return Response('{"detail": "Job not found"}', 404, media_type="application/json")


@web.exception_handler(MulliganError)
async def not_now(_: Request, error: MulliganError) -> Response:
    if error.retryable:  # the database is away, most likely
        return away("Please try again in a moment")
    return Response(json.dumps({"detail": str(error)}), 409, media_type="application/json")


@web.exception_handler(OSError)
@web.exception_handler(BaseError)
async def not_stored(_: Request, __: Exception) -> Response:
    return away("The storage does not answer")


def away(why: str) -> Response:
    return Response(json.dumps({"detail": why}), 503, {"Retry-After": "30"}, "application/json")


# -- a job, as its owner knows it ----------------------------------------------------------------
def seen(job: Job) -> dict[str, Any]:
    error = failure(job)
    changed = job.finished_at or (error and error["timestamp"]) or job.started_at or job.created_at
    return {
        "job_id": job.id,
        "state": "RETRYING" if job.state == "queued" and error else STATES[job.state],
        "progress": job.progress,
        "attempts": job.attempts,
        "next_retry_at": job.next_retry_at.isoformat() if job.next_retry_at else None,
        "error": error,
        "waits_for": job.why if job.phase == "held" else None,
        "updated_at": changed if isinstance(changed, str) else changed.isoformat(),
    }


def failure(job: Job) -> dict[str, Any] | None:
    """The last one, in the owner's words. A line that promises a retry does so only while there is one to come."""
    if job.state == "parked":
        return _error("VideoExceedsLimits", SUPPORT, job, permanent=False)
    if job.state == "running" or not job.error:
        return None
    code = job.error["code"] if job.error["code"] in LINES else "UnknownError"
    said = job.error["message"] if code == job.error["code"] else LINES[code]
    return _error(code, said, job, permanent=job.state == "dead")


def _error(kind: str, message: str, job: Job, *, permanent: bool) -> dict[str, Any]:
    ended = [one.ended_at for one in app.jobs.attempts(job.id)]
    at = metrics.moment(ended[-1]) if ended else job.finished_at or job.created_at
    return {
        "type": kind,
        "message": message,
        "is_permanent": permanent,
        "timestamp": at.isoformat(),
    }
