"""The service: jobs as specified, signed pages for owners, dead letters for the admin."""

from __future__ import annotations

import hmac
import json
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

from mulligan import Job, redact
from mulligan.apps.clipscribe import metrics, storage
from mulligan.apps.clipscribe.config import CONFIG, KIND_FILTER
from mulligan.apps.clipscribe.jobs import app, process_job, submit
from mulligan.apps.clipscribe.notices import sign_job_id, status_path
from mulligan.apps.clipscribe.views import job_view
from mulligan.core.errors import MulliganError, NotFound

pages = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(default=True),
)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    app.open()
    yield
    app.close()


web = FastAPI(
    title="clipscribe", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None
)


# --- Access: keys of `mulligan keys create` ------------------------------------------------------
def read_key(request: Request) -> str:
    sent = request.headers.get("authorization", "").removeprefix("Bearer ")
    return sent or request.cookies.get("key", "")


def find_user(request: Request) -> str | None:
    """Return the signed-in user: the owner of the key. None: not signed in, or the admin."""
    key = app.keys.authenticate(read_key(request))
    return key.owner if key else None


def require_admin(request: Request) -> None:
    """Require a key for all owners."""
    key = app.keys.authenticate(read_key(request))
    if key is None:
        raise SignInRequired
    if key.owner is not None or key.role == "viewer":
        raise HTTPException(403, "For admins")


class SignInRequired(Exception):
    """The request has no valid key."""


@web.exception_handler(SignInRequired)
async def ask_to_sign_in(request: Request, _: Exception) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        page = pages.get_template("sign_in.html").render(path=request.url.path)
        return HTMLResponse(page, 401)
    return Response('{"detail": "Sign in with a key"}', 401, media_type="application/json")


@web.post("/sign-in")
def sign_in(key: Annotated[str, Form(max_length=200)], path: Annotated[str, Form()] = "/") -> Any:
    if app.keys.authenticate(key) is None:
        raise SignInRequired
    target = path if path in ("/", "/admin") else "/"
    answer = RedirectResponse(target, 303)
    secure = CONFIG.url.startswith("https:")
    answer.set_cookie("key", key, httponly=True, samesite="strict", secure=secure)
    return answer


def find_owned_job(request: Request, job_id: str, key: str = "") -> Job:
    """Return a job for its owner: by the key in its link, or by the owner's own key."""
    if hmac.compare_digest(key.encode(), sign_job_id(job_id).encode()):
        return find_job(job_id)
    user = find_user(request)
    job = find_job(job_id)
    if user is None or job.owner != user:
        raise NotFound(job_id)
    return job


def find_job(job_id: str) -> Job:
    """Return a job of this service. Jobs of other kinds answer 404."""
    job = app.jobs.get(job_id)
    if job.kind != process_job.name:
        raise NotFound(job_id)
    return job


def require_feature(feature: str) -> None:
    if not getattr(CONFIG.features, feature):
        raise HTTPException(404, f"Not in phase {CONFIG.phase}")


Owned = Annotated[Job, Depends(find_owned_job)]
FOR_ADMINS = [Depends(require_admin)]


# --- Jobs ----------------------------------------------------------------------------------------
class Order(BaseModel):
    """Body of a request to process a video. `user` is read in open mode only."""

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+\S*$", max_length=2000)]
    user: Annotated[str, Field(pattern=r"^[^\s@,<>\"]+@[^\s@,<>\"]+$", max_length=200)] | None = (
        None
    )
    duration: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    size: Annotated[int | None, Field(ge=0)] = None
    model: Literal["gemini-pro", "gemini-flash"] = "gemini-pro"


@web.post("/jobs", status_code=201)
def order(body: Order, request: Request) -> dict[str, Any]:
    user = find_user(request)
    if user is None and CONFIG.open:
        user = body.user
    if user is None:
        raise SignInRequired
    job = submit(user, body.url, body.duration, body.size, body.model)
    return job_view(app, job) | {"status_url": status_path(job.id)}


@web.get("/jobs/{job_id}")
def show_job(job: Owned) -> dict[str, Any]:
    return job_view(app, job)


@web.post("/jobs/{job_id}/retry")
def retry(
    job: Owned, model: Annotated[Literal["gemini-pro", "gemini-flash"] | None, Form()] = None
) -> Response:
    """Retry a failed job for its owner, optionally with another model."""
    require_feature("self_service")
    overrides = {"payload": {"model": model}} if model and model != job.payload["model"] else None
    app.jobs.retry(job.id, reason="by its owner", overrides=overrides, owner=job.owner)
    return RedirectResponse(status_path(job.id), 303)


@web.post("/jobs/{job_id}/feedback")
def feedback(job: Owned, text: Annotated[str, Form(min_length=1, max_length=2000)]) -> Response:
    require_feature("feedback")
    if job.state not in ("dead", "parked"):
        raise HTTPException(409, "Feedback is about failures")
    error_type = job_view(app, job)["error"]["type"]
    entry = {"job_id": job.id, "user": job.owner, "error_type": error_type, "text": text}
    storage.write(f"feedback/{job.id}.json", entry)
    return RedirectResponse(status_path(job.id), 303)


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
def home(request: Request, url: str = "") -> str:
    user = find_user(request)
    if user is None and not CONFIG.open:
        raise SignInRequired
    return pages.get_template("home.html").render(user=user, url=url)


@web.get("/status/{job_id}", response_class=HTMLResponse)
def show_status(job: Owned) -> str:
    entry = storage.read(f"feedback/{job.id}.json")
    return pages.get_template("status.html").render(
        job=job_view(app, job),
        result=job.result,
        key=sign_job_id(job.id),
        model=job.payload["model"],
        phase=CONFIG.features,
        feedback=entry,
    )


@web.get("/admin", response_class=HTMLResponse, dependencies=FOR_ADMINS)
def show_admin_page() -> str:
    found = app.jobs.list(KIND_FILTER, limit=50)
    jobs = [job_view(app, job) | {"user": job.owner} for job in found]
    dead_letters = list_letters() if CONFIG.features.letters else None
    return pages.get_template("admin.html").render(
        jobs=jobs,
        letters=dead_letters,
        types=Counter(item["error_type"] for item in dead_letters or ()),
        feedback=storage.read_newest("feedback", limit=50),
        success=metrics.measure_goals(app),
        alerts=app.alerts.list(),
        operations=app.operations.list(limit=5),
        phase=CONFIG.phase,
    )


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
