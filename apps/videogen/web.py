"""The API, which needs one of Mulligan's keys (`mulligan keys create`), and a page that uses it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field, field_validator
from starlette.exceptions import HTTPException

from mulligan import Job, State
from mulligan.apps.videogen import tasks
from mulligan.apps.videogen.jobs import KINDS, SETTINGS, app, video_of
from mulligan.apps.videogen.providers import BY_KIND, BY_MODEL
from mulligan.apps.videogen.report import report
from mulligan.apps.videogen.settings import PREFIX
from mulligan.core.errors import IllegalMove, MulliganError, NotFound

STATIC = Path(__file__).parent / "static"
MAX_BODY = 16 * 1024
HOUR = 3600
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; media-src blob:; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
REFUSAL_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "60"}}
STATUS = tasks.STATUS

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"

log = logging.getLogger("videogen.web")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)  # uvicorn sets up only its own logs
    await run_in_threadpool(app.open)
    if not SETTINGS.has_alert_channel:
        log.warning(
            "no channel receives alerts. Set %sAlertEmail or %sAlertWebhook.", *[PREFIX] * 2
        )
    yield
    app.close()


web = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
web.mount("/static", StaticFiles(directory=STATIC), name="static")


# --- Refusals ------------------------------------------------------------------------------------
class Refusal(Exception):
    """A refused request: status, code and message of the answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


@web.exception_handler(Refusal)
def answer_refusal(_: Request, refusal: Refusal) -> JSONResponse:
    """Answer a refusal in the error format of such APIs."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    body = {"error": {"message": refusal.message, "type": kind, "code": refusal.code}}
    return JSONResponse(body, refusal.status, REFUSAL_HEADERS.get(refusal.status))


@web.exception_handler(RequestValidationError)
def answer_invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
    """Answer 400 with the first invalid field and its error."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"][1:])
    field_name = path.encode(errors="replace").decode() or "body"
    return answer_refusal(request, Refusal(400, "invalid_request", f"{field_name}: {first['msg']}"))


@web.exception_handler(HTTPException)
def answer_http_error(request: Request, error: HTTPException) -> JSONResponse:
    return answer_refusal(request, Refusal(error.status_code, "unknown_url", str(error.detail)))


@web.exception_handler(NotFound)
def answer_not_found(request: Request, _: NotFound) -> JSONResponse:
    return answer_refusal(request, Refusal(404, "task_not_found", "There is no such task."))


@web.exception_handler(MulliganError)
def answer_error(request: Request, error: MulliganError) -> JSONResponse:
    """Answer 503 (most likely a database outage); the details are in the log."""
    log.error("request failed", exc_info=error)
    return answer_refusal(
        request, Refusal(503, "unavailable", "Please try again in a few seconds.")
    )


@web.middleware("http")
async def limit_body_and_add_headers(request: Request, call_next: Any) -> Response:
    length = request.headers.get("content-length", "0")
    if "transfer-encoding" in request.headers or not length.isdecimal() or int(length) > MAX_BODY:
        return answer_refusal(
            request,
            Refusal(
                413, "too_large", f"The body needs a Content-Length of at most {MAX_BODY} bytes."
            ),
        )
    answer: Response = await call_next(request)
    answer.headers.update(HEADERS)
    return answer


# --- Callers ------------------------------------------------------------------------------------
def virtual_key(request: Request) -> Any:
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    key = app.keys.authenticate(text.strip()) if kind.lower() == "bearer" else None
    if key is None:
        raise Refusal(
            401, "invalid_api_key", "Please send a valid virtual key: Authorization: Bearer …"
        )
    if request.method != "GET" and key.role == "viewer":
        raise Refusal(403, "key_may_only_read", "This key may only read.")
    return key


VirtualKey = Annotated[Any, Depends(virtual_key)]


def find_owned_task(task_id: str, key: VirtualKey) -> Job:
    """Return a task of the caller. Archived tasks and those of others answer 404."""
    job = app.jobs.get(task_id.removeprefix(tasks.PREFIX), owner=key.owner)
    if (
        job.kind not in BY_KIND
        or job.state is State.CANCELLED
        or not task_id.startswith(tasks.PREFIX)
    ):
        raise NotFound(task_id)
    return job


OwnedTask = Annotated[Job, Depends(find_owned_task)]


# --- Tasks ---------------------------------------------------------------------------------------
class Order(BaseModel, extra="forbid"):
    """Body of a request for a video."""

    model: str
    prompt: str = Field(min_length=1, max_length=1000)
    seconds: int = Field(4, ge=1, le=20)
    size: Literal["320x180", "640x360", "1280x720"] = "320x180"

    @field_validator("prompt")
    @classmethod
    def check_prompt(cls, prompt: str) -> str:
        if any(character == "\x00" or "\ud800" <= character <= "\udfff" for character in prompt):
            message = "contains characters that cannot be stored"
            raise ValueError(message)
        return prompt

    @field_validator("model")
    @classmethod
    def check_model(cls, model: str) -> str:
        if model not in BY_MODEL:
            message = f"there are {', '.join(BY_MODEL)}"
            raise ValueError(message)
        return model


@web.post("/v1/videos/generations", status_code=202)
def create(order: Order, key: VirtualKey) -> dict[str, Any]:
    kind = KINDS[BY_MODEL[order.model].name]
    return tasks.task(kind.options(owner=key.owner or "").enqueue(**order.model_dump()))


@web.get("/v1/videos/generations/tasks")
def list_tasks(key: VirtualKey, limit: int = 50) -> dict[str, Any]:
    return {"data": tasks.list_tasks(key.owner, max(1, min(limit, 200)))}


@web.get("/v1/videos/generations/tasks/{task_id}")
def show_task(job: OwnedTask) -> dict[str, Any]:
    return tasks.task(job)


@web.post("/v1/videos/generations/tasks/{task_id}/retry")
def retry(job: OwnedTask, key: VirtualKey) -> dict[str, Any]:
    """Retry a failed task at once, with all its automatic retries restored."""
    refuse_too_many_retries(key.owner)
    try:
        retried = app.jobs.retry(job.id, owner=key.owner, reason=f"requested with key {key.id}")
    except IllegalMove:
        raise Refusal(
            409, "task_not_failed", f"Only a failed task can be retried; it is {STATUS[job.state]}."
        ) from None
    limit = tasks.max_retries(retried)
    return {
        **tasks.task(retried),
        "message": f"Retry scheduled; up to {limit} more follow by themselves.",
    }


def refuse_too_many_retries(owner: str | None) -> None:
    """Raise Refusal (429) if an owner retried too many tasks within an hour."""
    limit = SETTINGS.manual_retries
    if owner is None or not limit:  # a key for all owners, or no limit
        return
    recent = app.events.list(type="job.retried", owner=owner, since=HOUR, limit=limit)
    if len(recent) >= limit:
        message = f"You retried {limit} tasks within an hour. Please wait."
        raise Refusal(429, "too_many_retries", message)


@web.delete("/v1/videos/generations/tasks/{task_id}", status_code=204)
def archive(job: OwnedTask) -> Response:
    try:
        tasks.archive(job)
    except IllegalMove:
        raise Refusal(
            409,
            "task_succeeded",
            "A succeeded task cannot be archived. It is removed after its retention time.",
        ) from None
    return Response(status_code=204)


@web.get("/v1/videos/generations/tasks/{task_id}/content")
def content(job: OwnedTask) -> Response:
    if job.state is not State.SUCCEEDED:
        raise Refusal(
            409, "task_not_succeeded", f"There is no video: the task is {STATUS[job.state]}."
        )
    if not video_of(job.id).exists():
        raise Refusal(404, "video_gone", "The video was removed.")
    return FileResponse(video_of(job.id), media_type="video/mp4")


# --- Operators -----------------------------------------------------------------------------------
@web.get("/v1/videos/report")
def show_report(key: VirtualKey) -> dict[str, Any]:
    """Return the report on all owners. Needs a key for all owners."""
    if key.owner is not None:
        raise Refusal(403, "key_of_one_owner", "This needs a key with the scope *.")
    return {"data": report()}


@web.get("/metrics")
def metrics(key: VirtualKey) -> Response:
    if key.owner is not None:
        raise Refusal(403, "key_of_one_owner", "This needs a key with the scope *.")
    return Response(app.metrics(), media_type="text/plain")


@web.get("/")
def page() -> FileResponse:
    return FileResponse(STATIC / "videogen.html")
