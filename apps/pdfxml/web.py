"""The API and the queue page."""

from __future__ import annotations

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
from obstore.exceptions import BaseError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from mulligan import Fail, Job, State
from mulligan.core.errors import (
    DependencyOpen,
    IllegalMove,
    MulliganError,
    NotFound,
    RetryRefused,
    UniqueTaken,
)
from pdfxml import views
from pdfxml.intake import Refusal, Upload, accept, check_the_door, clean_name, rejected
from pdfxml.jobs import app, storage
from pdfxml.rules import BUSY, UNKNOWN, line
from pdfxml.settings import MEGABYTE, SETTINGS

HERE = Path(__file__).parent
AROUND = MEGABYTE  # of a form beside its file
MAPPING = re.compile(r"[\w-]{1,40}")
SESSION = re.compile(r"[\w-]{43}")
NO_LENGTH = "Please say how large the file is (Content-Length)."
NOT_FAILED = "Only a failed conversion can be retried."
UPLOADED_AGAIN = "The same file was uploaded again since, and is converted as that one."
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}

log = logging.getLogger("pdfxml.web")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    await run_in_threadpool(app.open)
    yield
    app.close()


web = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None)
web.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
pages = Jinja2Templates(directory=HERE / "templates")


# -- who asks ------------------------------------------------------------------------------------
@web.middleware("http")
async def with_session(request: Request, call_next: Any) -> Response:
    """A visitor is a cookie; what is stored of it is a hash, so that no record lets anybody in."""
    cookie = request.cookies.get("session", "")
    known = SESSION.fullmatch(cookie) is not None
    cookie = cookie if known else secrets.token_urlsafe(32)
    request.state.owner = sha256(cookie.encode()).hexdigest()[:32]
    answer: Response = await call_next(request)
    answer.headers.update(HEADERS)
    if not known:
        answer.set_cookie("session", cookie, httponly=True, samesite="lax", max_age=30 * 86_400)
    return answer


def owner_of(request: Request) -> str:
    return str(request.state.owner)


def own_job(job_id: str, owner: Annotated[str, Depends(owner_of)]) -> Job:
    """Whose it is comes before anything else about it. One that nobody knows any more has expired."""
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


@web.exception_handler(Refusal)
def refused(_: Request, refusal: Refusal) -> JSONResponse:
    return JSONResponse(refusal.plain(), refusal.status, refusal.headers)


@web.exception_handler(HTTPException)
def no_such_way(_: Request, error: HTTPException) -> JSONResponse:
    return JSONResponse(
        Refusal(error.status_code, UNKNOWN, str(error.detail)).plain(), error.status_code
    )


@web.exception_handler(OSError)
@web.exception_handler(BaseError)
def broken(_: Request, error: Exception) -> JSONResponse:
    log.error("storage does not answer", exc_info=error)
    return JSONResponse(
        Refusal(503, "IO_ERROR", retryable=True).plain(), 503, {"Retry-After": "30"}
    )


@web.exception_handler(MulliganError)
@web.exception_handler(Exception)
def troubled(_: Request, error: Exception) -> JSONResponse:
    """The database is away, most likely; the details are in the log."""
    log.error("a request failed", exc_info=error)
    away = isinstance(error, MulliganError) and error.retryable
    return JSONResponse(
        Refusal(503 if away else 500, UNKNOWN, retryable=away).plain(), 503 if away else 500
    )


# -- uploads -------------------------------------------------------------------------------------
async def taken_in(request: Request, owner: str) -> Job:
    """The job of the form's file. A body that is too large is heard out, or the answer would be lost with it."""
    await run_in_threadpool(check_the_door)
    said = request.headers.get("content-length", "")
    if not said.isdecimal():
        raise Refusal(411, "TOO_LARGE", NO_LENGTH)
    if int(said) > SETTINGS.most_bytes + AROUND:
        heard = 0
        async for chunk in request.stream():
            heard += len(chunk)
            if heard > 20 * SETTINGS.most_bytes:
                break
        huge = Upload(owner, "upload", "", int(said), BytesIO())
        raise await run_in_threadpool(rejected, huge, 413, Fail("TOO_LARGE"))
    try:
        async with request.form(max_files=1, max_fields=10) as form:
            return await run_in_threadpool(accept, upload_of(form, owner))
    except HTTPException:  # no form that could be read
        raise Refusal(400, "NOT_PDF") from None


def upload_of(form: FormData, owner: str) -> Upload:
    file, mapping = form.get("file"), str(form.get("mapping") or "text")
    if not isinstance(file, UploadFile):
        raise Refusal(400, "NOT_PDF")
    if not MAPPING.fullmatch(mapping):
        raise Refusal(400, "GW_4XX")
    return Upload(owner, clean_name(file.filename or ""), mapping, file.size or 0, file.file)


@web.post("/api/upload")
async def upload(request: Request, owner: Owner) -> JSONResponse:
    job = await taken_in(request, owner)
    body = jsonable_encoder({**views.shown(job), "deduplicated": job.deduplicated})
    return JSONResponse(body, 200 if job.deduplicated else 201)


# -- jobs ----------------------------------------------------------------------------------------
@web.get("/api/jobs")
def jobs(owner: Owner) -> list[dict[str, Any]]:
    return [views.shown(job) for job in views.listed(owner)]


@web.get("/api/jobs/{job_id}")
def job(job: Annotated[Job, Depends(own_job)]) -> dict[str, Any]:
    return {**views.shown(job), "last_attempt_at": views.last_attempt_at(job)}


@web.get("/api/jobs/{job_id}/events")
def events(job: Annotated[Job, Depends(own_job)]) -> list[dict[str, Any]]:
    return views.events_of(job)


@web.get("/api/jobs/{job_id}/download")
def download(job: Annotated[Job, Depends(own_job)]) -> Response:
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
def retry(job: Annotated[Job, Depends(own_job)]) -> dict[str, Any]:
    return views.shown(retried(job))


def retried(job: Job) -> Job:
    try:
        return app.jobs.retry(job.id, owner=job.owner, reason="asked for by its owner")
    except IllegalMove:
        waits = job.state in (State.QUEUED, State.RUNNING)
        raise Refusal(409, "NOT_READY" if waits else UNKNOWN, NOT_FAILED) from None
    except UniqueTaken:
        raise Refusal(409, "NOT_READY", UPLOADED_AGAIN) from None
    except RetryRefused:
        raise Refusal(404, "EXPIRED") from None
    except DependencyOpen:
        raise Refusal(503, "GW_5XX", headers={"Retry-After": "30"}, retryable=True) from None


@web.get("/metrics")
def metrics() -> PlainTextResponse:
    return PlainTextResponse(views.metrics())


# -- pages ---------------------------------------------------------------------------------------
@web.get("/")
def queue(request: Request, owner: Owner, said: str = "") -> HTMLResponse:
    rows = [{**views.shown(job), **views.about_files(job)} for job in views.listed(owner)]
    busy = any(
        found.key == "gateway" and found.state == "open" for found in app.dependencies.list()
    )
    try:
        check_the_door()
        door = ""
    except Refusal as refusal:
        door = refusal.line
    words = {
        "rows": rows,
        "busy": BUSY if busy else "",
        "door": door,
        "said": line(said) if said else "",
    }
    return pages.TemplateResponse(request, "queue.html", words)


@web.get("/runbook")
def runbook(request: Request) -> HTMLResponse:
    return pages.TemplateResponse(request, "runbook.html", {})


@web.post("/upload")
async def upload_by_form(request: Request, owner: Owner) -> RedirectResponse:
    """What was refused is in the queue, with its line; what was not even looked at is told above it."""
    try:
        await taken_in(request, owner)
    except Refusal as refusal:
        return back(refusal.code if refusal.job is None else "")
    return back()


@web.post("/jobs/{job_id}/retry")
def retry_by_form(job: Annotated[Job, Depends(own_job)]) -> RedirectResponse:
    try:
        retried(job)
    except Refusal as refusal:
        return back(refusal.code)
    return back()


def back(said: str = "") -> RedirectResponse:
    return RedirectResponse(f"/?said={said}" if said else "/", 303)
