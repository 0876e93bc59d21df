"""The service: jobs as specified, signed pages for owners, dead letters for the admin."""

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
from clipscribe.jobs import MESSAGES, SUPPORT, app, process_job, submit
from clipscribe.notices import webhook_secret
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
KIND_FILTER = "kind:process_job"
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
_manifest_lock = threading.Lock()
pages = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(default=True),
)

if not CONFIG.secret:
    message = "CLIPSCRIBE_SECRET is missing. Set it: links to status pages are signed with it."
    raise ValueError(message)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    app.open()
    yield
    app.close()


web = FastAPI(
    title="clipscribe", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None
)


# --- Access ---------------------------------------------------------------------------------
def sign_job_id(job_id: str) -> str:
    """Return the key of a job's link. Its possession proves ownership."""
    return hmac.new(CONFIG.secret.encode(), job_id.encode(), hashlib.sha256).hexdigest()[:32]


def status_link(job_id: str) -> str:
    return f"/status/{job_id}?key={sign_job_id(job_id)}"


def find_owned_job(job_id: str, key: str = "") -> Job:
    if not hmac.compare_digest(key.encode(), sign_job_id(job_id).encode()):
        raise HTTPException(404, "Job not found")
    return find_job(job_id)


def find_job(job_id: str) -> Job:
    """Return a job of this service. Jobs of other kinds answer 404."""
    job = app.jobs.get(job_id)
    if job.kind != process_job.name:
        raise NotFound(job_id)
    return job


def require_admin(request: Request, key: str = "") -> None:
    key_sent = (
        key
        or request.cookies.get("admin", "")
        or request.headers.get("authorization", "").removeprefix("Bearer ")
    )
    if not CONFIG.admin_key or not hmac.compare_digest(
        key_sent.encode(), CONFIG.admin_key.encode()
    ):
        raise HTTPException(403, "For admins")


def require_feature(feature: str) -> None:
    if not getattr(CONFIG.phase, feature):
        raise HTTPException(404, f"Not in phase {CONFIG.phase_name}")


Owned = Annotated[Job, Depends(find_owned_job)]
FOR_ADMINS = [Depends(require_admin)]


# --- Jobs ----------------------------------------------------------------------------------------
class Order(BaseModel):
    """Body of a request to process a video."""

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+\S*$", max_length=2000)]
    user: Annotated[str, Field(pattern=r"^[^\s@,<>\"]+@[^\s@,<>\"]+$", max_length=200)]
    duration: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    size: Annotated[int | None, Field(ge=0)] = None
    model: Literal["gemini-pro", "gemini-flash"] = "gemini-pro"


@web.post("/jobs", status_code=201)
def order(body: Order) -> dict[str, Any]:
    job = submit(body.user, body.url, body.duration, body.size, body.model)
    return job_view(job) | {"status_url": status_link(job.id)}


@web.get("/jobs/{job_id}")
def show_job(job: Owned) -> dict[str, Any]:
    return job_view(job)


@web.post("/jobs/{job_id}/retry")
def retry(
    job: Owned, model: Annotated[Literal["gemini-pro", "gemini-flash"] | None, Form()] = None
) -> Response:
    """Retry a failed job for its owner, optionally with another model."""
    require_feature("self_service")
    overrides = {"payload": {"model": model}} if model and model != job.payload["model"] else None
    app.jobs.retry(job.id, reason="by its owner", overrides=overrides, owner=job.owner)
    return RedirectResponse(status_link(job.id), 303)


@web.post("/jobs/{job_id}/feedback")
def feedback(job: Owned, text: Annotated[str, Form(min_length=1, max_length=2000)]) -> Response:
    require_feature("feedback")
    if job.state not in ("dead", "parked"):
        raise HTTPException(409, "Feedback is about failures")
    entry = {
        "job_id": job.id,
        "user": job.owner,
        "error_type": job_view(job)["error"]["type"],
        "text": text,
    }
    storage.write(f"feedback/{job.id}.json", entry)
    return RedirectResponse(status_link(job.id), 303)


# --- Webhook from Mulligan ------------------------------------------------------
@web.post("/hooks/jobs", status_code=204)
async def receive_event(request: Request) -> None:
    """Receive an event, at least once and in any order: the current state is written."""
    body = await request.body()
    try:
        Webhook(webhook_secret()).verify(body, dict(request.headers))
    except WebhookVerificationError:
        raise HTTPException(401, "Invalid signature") from None
    await asyncio.to_thread(record_event, json.loads(body))


def record_event(event: dict[str, Any]) -> None:
    try:
        job = app.jobs.get(event["data"]["job_id"])
    except NotFound:
        return
    data = event["data"]
    metrics.count_failure(data["id"], event["type"], data["details"], _duration(job))
    with _manifest_lock:  # otherwise an older state might be written last
        current = app.jobs.get(job.id)
        storage.write(
            f"jobs/{job.id}/manifest.json",
            job_view(current) | {"url": redact(current.payload["url"])},
        )


def _duration(job: Job) -> float | None:
    found = storage.read(f"jobs/{job.id}/video.json")
    return float(found["duration"]) if found else job.payload["duration"]


# --- Dead letters --------------------------------------------------------------------------------
@web.get("/dlq", dependencies=FOR_ADMINS)
def list_letters(limit: int = 100) -> list[dict[str, Any]]:
    require_feature("letters")
    dead_letters = app.jobs.list(f"{KIND_FILTER} state:dead", limit=min(max(limit, 1), 1000))
    return [
        letter_view(job)
        for job in sorted(dead_letters, key=lambda job: str(job.finished_at), reverse=True)
    ]


@web.post("/dlq/{job_id}/retry", dependencies=FOR_ADMINS)
def retry_letter(job_id: str, request: Request) -> Response:
    require_feature("letters")
    try:
        app.jobs.retry(find_job(job_id).id, reason="from the dead letters")
    except MulliganError:
        return Response('{"retried": false}', 404, media_type="application/json")
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("/admin", 303)
    return Response('{"retried": true}', media_type="application/json")


@web.post("/dlq/recover", dependencies=FOR_ADMINS)
def recover(error_type: Annotated[str, Form(pattern=r"^[A-Za-z_]{1,60}$")]) -> Response:
    """Retry all jobs of one type in growing steps. It stops if they fail again."""
    require_feature("letters")
    app.operations.start(
        "retry", f"{KIND_FILTER} state:dead code:{error_type}", reason="bulk recovery"
    )
    return RedirectResponse("/admin", 303)


@web.post("/admin/review/{job_id}", dependencies=FOR_ADMINS)
def decide(job_id: str, choice: Annotated[Literal["process", "refuse"], Form()]) -> Response:
    app.jobs.release(find_job(job_id).id, choice=choice, reason="manual review")
    return RedirectResponse("/admin", 303)


def letter_view(job: Job) -> dict[str, Any]:
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


# --- Metrics -------------------------------------------------------------------------------------
@web.get("/metrics", dependencies=FOR_ADMINS, response_class=PlainTextResponse)
def show_metrics() -> str:
    return metrics.render_metrics(app)


@web.get("/success", dependencies=FOR_ADMINS)
def show_goals() -> list[dict[str, Any]]:
    return metrics.measure_goals(app)


# --- Pages ---------------------------------------------------------------------------------------
@web.get("/", response_class=HTMLResponse)
def home() -> str:
    samples_url = os.environ.get("CLIPSCRIBE_SAMPLES", "")
    samples = (
        {f"{samples_url}/{name}": label for name, label in SAMPLES.items()} if samples_url else {}
    )
    return pages.get_template("home.html").render(samples=samples)


@web.get("/status/{job_id}", response_class=HTMLResponse)
def show_status(job: Owned, key: str) -> str:
    entry = storage.read(f"feedback/{job.id}.json")
    return pages.get_template("status.html").render(
        job=job_view(job),
        result=job.result,
        key=key,
        model=job.payload["model"],
        phase=CONFIG.phase,
        feedback=entry,
    )


@web.get("/admin", response_class=HTMLResponse, dependencies=FOR_ADMINS)
def show_admin_page(key: str = "") -> Response:
    jobs = [job_view(job) | {"user": job.owner} for job in app.jobs.list(KIND_FILTER, limit=50)]
    dead_letters = list_letters() if CONFIG.phase.letters else None
    page = pages.get_template("admin.html").render(
        jobs=jobs,
        letters=dead_letters,
        types=Counter(item["error_type"] for item in dead_letters or ()),
        feedback=storage.read_newest("feedback", limit=50),
        success=metrics.measure_goals(app),
        alerts=app.alerts.list(),
        operations=app.operations.list(limit=5),
        phase=CONFIG.phase_name,
    )
    answer = HTMLResponse(page)
    if key:
        answer.set_cookie("admin", key, httponly=True, samesite="strict")
    return answer


@web.exception_handler(RequestValidationError)
async def answer_invalid_request(_: Request, error: RequestValidationError) -> Response:
    """Answer 422 with the invalid fields and their errors, without the values sent."""
    found = [{name: item[name] for name in ("loc", "msg", "type")} for item in error.errors()]
    return Response(json.dumps({"detail": found}), 422, media_type="application/json")


@web.exception_handler(NotFound)
async def answer_not_found(_: Request, __: Exception) -> Response:
    return Response('{"detail": "Job not found"}', 404, media_type="application/json")


@web.exception_handler(MulliganError)
async def answer_error(_: Request, error: MulliganError) -> Response:
    if error.retryable:  # most likely a database outage
        return outage_answer("Please try again in a few seconds")
    return Response(json.dumps({"detail": str(error)}), 409, media_type="application/json")


@web.exception_handler(OSError)
@web.exception_handler(BaseError)
async def answer_storage_error(_: Request, __: Exception) -> Response:
    return outage_answer("The storage is unavailable")


def outage_answer(reason: str) -> Response:
    return Response(json.dumps({"detail": reason}), 503, {"Retry-After": "30"}, "application/json")


# --- Jobs as JSON ----------------------------------------------------------------
def job_view(job: Job) -> dict[str, Any]:
    error = failure_view(job)
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


def failure_view(job: Job) -> dict[str, Any] | None:
    """Return the last failure, for the owner. It promises a retry only while one is scheduled."""
    if job.state == "parked":
        return _error("VideoExceedsLimits", SUPPORT, job, permanent=False)
    if job.state == "running" or not job.error:
        return None
    code = job.error["code"] if job.error["code"] in MESSAGES else "UnknownError"
    text = job.error["message"] if code == job.error["code"] else MESSAGES[code]
    return _error(code, text, job, permanent=job.state == "dead")


def _error(kind: str, message: str, job: Job, *, permanent: bool) -> dict[str, Any]:
    end_times = [attempt.ended_at for attempt in app.jobs.attempts(job.id)]
    at = (
        metrics.datetime_from_micros(end_times[-1])
        if end_times
        else job.finished_at or job.created_at
    )
    return {
        "type": kind,
        "message": message,
        "is_permanent": permanent,
        "timestamp": at.isoformat(),
    }
