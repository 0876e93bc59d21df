"""The API and the queue page."""

from __future__ import annotations

import base64
import binascii
import logging
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.encoders import jsonable_encoder
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from mulligan import Fail, Job, State
from mulligan.apps.pdfxml import views
from mulligan.apps.pdfxml.intake import (
    Refusal,
    Upload,
    accept,
    clean_name,
    refuse_if_paused,
    reject,
)
from mulligan.apps.pdfxml.jobs import app, storage
from mulligan.apps.pdfxml.rules import BUSY, UNKNOWN, message_for_code
from mulligan.apps.pdfxml.settings import MEGABYTE, SETTINGS
from mulligan.core.errors import (
    DependencyOpen,
    IllegalMove,
    MulliganError,
    NotFound,
    RetryRefused,
    UniqueTaken,
)

HERE = Path(__file__).parent
FORM_OVERHEAD = MEGABYTE  # largest size of a form without its file
MAPPING = re.compile(r"[\w-]{1,40}")
SESSION = re.compile(r"[\w-]{43}")
NO_LENGTH = "The Content-Length header is missing."
OPERATORS_ONLY = "This page is for operators. Sign in with a key for all owners as the password."
SIGN_IN = {"WWW-Authenticate": 'Basic realm="operators"'}
NOT_FAILED = "Only a failed conversion can be retried."
UPLOADED_AGAIN = "The same file was uploaded again and is converted there."
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"

log = logging.getLogger("pdfxml.web")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)  # uvicorn sets up only its own logs
    await run_in_threadpool(app.open)
    if not SETTINGS.has_alert_channel:
        log.warning("no channel receives alerts. Set ALERT_EMAIL or ALERT_WEBHOOK.")
    yield
    app.close()


web = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None)
web.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
pages = Jinja2Templates(directory=HERE / "templates")


# --- Callers ------------------------------------------------------------------------------------
@web.middleware("http")
async def add_session(request: Request, call_next: Any) -> Response:
    """Identify a visitor by a cookie. Only its hash is stored, so records grant no access."""
    cookie = request.cookies.get("session", "")
    has_session = SESSION.fullmatch(cookie) is not None
    if not has_session:
        cookie = secrets.token_urlsafe(32)
    request.state.owner = sha256(cookie.encode()).hexdigest()[:32]
    answer: Response = await call_next(request)
    answer.headers.update(HEADERS)
    if not has_session:
        answer.set_cookie(
            "session",
            cookie,
            max_age=30 * 86_400,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
    return answer


def owner_of(request: Request) -> str:
    return str(request.state.owner)


def find_owned_job(job_id: str, owner: Annotated[str, Depends(owner_of)]) -> Job:
    """Return a job of the caller: 403 for jobs of others, 404 for unknown or expired ones."""
    try:
        job = app.jobs.get(job_id)
    except NotFound:
        raise Refusal(404, "EXPIRED") from None
    if job.kind != "convert":
        raise Refusal(404, "EXPIRED")
    if job.owner != owner:
        raise Refusal(403, "FORBIDDEN")
    return job


Owner = Annotated[str, Depends(owner_of)]


def require_operator(request: Request) -> None:
    """Raise Refusal (401) unless the request has a key of Mulligan for all owners.

    Programs send it as a bearer token, browsers as the password of basic authentication.
    """
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            text = base64.b64decode(text).decode().rpartition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            text = ""
    key = app.keys.authenticate(text.strip())
    if key is None or key.owner is not None:
        raise Refusal(401, "FORBIDDEN", OPERATORS_ONLY, headers=SIGN_IN)


@web.exception_handler(Refusal)
def answer_refusal(request: Request, refusal: Refusal) -> JSONResponse:
    text = "%s %s answered %d %s"
    log.info(text, request.method, request.url.path, refusal.status, refusal.code)
    return JSONResponse(refusal.to_json(), refusal.status, refusal.headers)


@web.exception_handler(HTTPException)
def answer_http_error(_: Request, error: HTTPException) -> JSONResponse:
    return JSONResponse(
        Refusal(error.status_code, UNKNOWN, str(error.detail)).to_json(), error.status_code
    )


@web.exception_handler(OSError)
def answer_storage_error(_: Request, error: Exception) -> JSONResponse:
    log.error("storage error", exc_info=error)
    return JSONResponse(
        Refusal(503, "IO_ERROR", retryable=True).to_json(), 503, {"Retry-After": "30"}
    )


@web.exception_handler(MulliganError)
@web.exception_handler(Exception)
def answer_error(_: Request, error: Exception) -> JSONResponse:
    """Answer 503 to a retryable error (most likely a database outage), else 500; log details."""
    log.error("request failed", exc_info=error)
    outage = isinstance(error, MulliganError) and error.retryable
    refusal = Refusal(503 if outage else 500, UNKNOWN, retryable=outage)
    return JSONResponse(refusal.to_json(), refusal.status)


# --- Uploads -------------------------------------------------------------------------------------
async def receive_upload(request: Request, owner: str) -> Job:
    """Enqueue the file of a form. Return its job.

    A body that is too large is read anyway: otherwise the client would not receive the answer.
    """
    await run_in_threadpool(refuse_if_paused)
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        raise Refusal(411, "TOO_LARGE", NO_LENGTH)
    if int(length) > SETTINGS.most_bytes + FORM_OVERHEAD:
        received = 0
        async for chunk in request.stream():
            received += len(chunk)
            if received > 20 * SETTINGS.most_bytes:
                break
        huge = Upload(owner, "upload", "", int(length), BytesIO())
        raise await run_in_threadpool(reject, huge, 413, Fail("TOO_LARGE"))
    try:
        async with request.form(max_files=1, max_fields=10) as form:
            return await run_in_threadpool(accept, parse_upload(form, owner))
    except HTTPException:  # the body is not a form
        raise Refusal(400, "NOT_PDF") from None


def parse_upload(form: FormData, owner: str) -> Upload:
    file = form.get("file")
    mapping = str(form.get("mapping") or "text")
    if not isinstance(file, UploadFile):
        raise Refusal(400, "NOT_PDF")
    if not MAPPING.fullmatch(mapping):
        raise Refusal(400, "GW_4XX")
    return Upload(owner, clean_name(file.filename or ""), mapping, file.size or 0, file.file)


@web.post("/api/upload")
async def upload(request: Request, owner: Owner) -> JSONResponse:
    job = await receive_upload(request, owner)
    body = jsonable_encoder({**views.job_view(job), "deduplicated": job.deduplicated})
    return JSONResponse(body, 200 if job.deduplicated else 201)


# --- Jobs ----------------------------------------------------------------------------------------
@web.get("/api/jobs")
def jobs(owner: Owner) -> list[dict[str, Any]]:
    return [views.job_view(job) for job in views.list_conversions(owner)]


@web.get("/api/jobs/{job_id}")
def job(job: Annotated[Job, Depends(find_owned_job)]) -> dict[str, Any]:
    return {**views.job_view(job), "last_attempt_at": views.last_attempt_at(job)}


@web.get("/api/jobs/{job_id}/events")
def events(job: Annotated[Job, Depends(find_owned_job)]) -> list[dict[str, Any]]:
    return views.events_of(job)


@web.get("/api/jobs/{job_id}/download")
def download(job: Annotated[Job, Depends(find_owned_job)]) -> Response:
    if job.state is not State.SUCCEEDED:
        ended = job.finished_at is not None
        raise Refusal(
            409, "NOT_READY", headers={} if ended else {"Retry-After": "5"}, retryable=not ended
        )
    xml = storage.read(job.result["path"])
    if xml is None:
        raise Refusal(404, "EXPIRED")
    name = re.sub(r"[^\w. -]", "_", job.payload["name"].removesuffix(".pdf"), flags=re.ASCII)
    return Response(
        xml,
        media_type="application/xml",
        headers={"Content-Disposition": f'attachment; filename="{name}.xml"'},
    )


@web.post("/api/jobs/{job_id}/retry")
def retry(job: Annotated[Job, Depends(find_owned_job)]) -> dict[str, Any]:
    return views.job_view(retry_job(job))


def retry_job(job: Job) -> Job:
    try:
        return app.jobs.retry(job.id, owner=job.owner, reason="requested by its owner")
    except IllegalMove:
        is_unfinished = job.state in (State.QUEUED, State.RUNNING)
        raise Refusal(409, "NOT_READY" if is_unfinished else UNKNOWN, NOT_FAILED) from None
    except UniqueTaken:
        raise Refusal(409, "NOT_READY", UPLOADED_AGAIN) from None
    except RetryRefused:
        raise Refusal(404, "EXPIRED") from None
    except DependencyOpen:
        raise Refusal(503, "GW_5XX", headers={"Retry-After": "30"}, retryable=True) from None


@web.get("/metrics", dependencies=[Depends(require_operator)])
def metrics() -> PlainTextResponse:
    return PlainTextResponse(app.metrics())


# --- Pages ---------------------------------------------------------------------------------------
@web.get("/")
def queue(request: Request, owner: Owner, code: str = "") -> HTMLResponse:
    rows = [
        {**views.job_view(job), **views.file_fields(job)} for job in views.list_conversions(owner)
    ]
    busy = any(
        dependency.key == "gateway" and dependency.state == "open"
        for dependency in app.dependencies.list()
    )
    try:
        refuse_if_paused()
        pause_notice = ""
    except Refusal as refusal:
        pause_notice = refusal.message
    context = {
        "rows": rows,
        "busy": BUSY if busy else "",
        "pause_notice": pause_notice,
        "error": message_for_code(code) if code else "",
    }
    return pages.TemplateResponse(request, "queue.html", context)


@web.get("/runbook", dependencies=[Depends(require_operator)])
def runbook(request: Request) -> HTMLResponse:
    return pages.TemplateResponse(request, "runbook.html", {})


@web.post("/upload")
async def upload_by_form(request: Request, owner: Owner) -> RedirectResponse:
    """Accept an upload. Refusals without a job are shown above the queue, others in it."""
    try:
        await receive_upload(request, owner)
    except Refusal as refusal:
        return redirect(refusal.code if refusal.job is None else "")
    return redirect()


@web.post("/jobs/{job_id}/retry")
def retry_by_form(job: Annotated[Job, Depends(find_owned_job)]) -> RedirectResponse:
    try:
        retry_job(job)
    except Refusal as refusal:
        return redirect(refusal.code)
    return redirect()


def redirect(code: str = "") -> RedirectResponse:
    """Redirect to the queue; `code` is the error shown above it."""
    return RedirectResponse(f"/?code={code}" if code else "/", 303)
