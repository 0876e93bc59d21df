"""The API: tasks behind virtual keys, which are Mulligan's own (`mulligan keys create`); and a page that uses it."""

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
from mulligan.core.errors import IllegalMove, MulliganError, NotFound
from videogen import tasks
from videogen.jobs import KINDS, app, video_of
from videogen.providers import BY_KIND, BY_MODEL
from videogen.report import report

STATIC = Path(__file__).parent / "static"
MOST_BODY = 16 * 1024
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; media-src blob:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
STATUS = tasks.STATUS

log = logging.getLogger("videogen.web")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    await run_in_threadpool(app.open)
    yield
    app.close()


web = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
web.mount("/static", StaticFiles(directory=STATIC), name="static")


# -- refusals ------------------------------------------------------------------------------------
class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.code, self.message = status, code, message


@web.exception_handler(Refusal)
def refused(_: Request, refusal: Refusal) -> JSONResponse:
    """In the form that clients of such APIs know."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    body = {"error": {"message": refusal.message, "type": kind, "code": refusal.code}}
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
    return JSONResponse(body, refusal.status, headers)


@web.exception_handler(RequestValidationError)
def unfit(request: Request, error: RequestValidationError) -> JSONResponse:
    """Which field, and what is wrong with it; no task is made."""
    first = error.errors()[0]
    field = (
        ".".join(str(part) for part in first["loc"][1:]).encode(errors="replace").decode() or "body"
    )
    return refused(request, Refusal(400, "invalid_request", f"{field}: {first['msg']}"))


@web.exception_handler(HTTPException)
def no_such_way(request: Request, error: HTTPException) -> JSONResponse:
    return refused(request, Refusal(error.status_code, "unknown_url", str(error.detail)))


@web.exception_handler(NotFound)
def unknown(request: Request, _: NotFound) -> JSONResponse:
    return refused(request, Refusal(404, "task_not_found", "There is no such task."))


@web.exception_handler(MulliganError)
def troubled(request: Request, error: MulliganError) -> JSONResponse:
    """The database is away, most likely; the details are in the log."""
    log.error("a request failed", exc_info=error)
    return refused(request, Refusal(503, "unavailable", "Please try again in a moment."))


@web.middleware("http")
async def with_headers(request: Request, call_next: Any) -> Response:
    said = request.headers.get("content-length", "0")
    if "transfer-encoding" in request.headers or not said.isdecimal() or int(said) > MOST_BODY:
        return refused(
            request,
            Refusal(
                413, "too_large", f"An order has at most {MOST_BODY} bytes, and says how many."
            ),
        )
    answer: Response = await call_next(request)
    answer.headers.update(HEADERS)
    return answer


# -- who asks ------------------------------------------------------------------------------------
def virtual_key(request: Request) -> Any:
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    key = app.keys.known(text.strip()) if kind.lower() == "bearer" else None
    if key is None:
        raise Refusal(
            401, "invalid_api_key", "Please give a valid virtual key: Authorization: Bearer …"
        )
    if request.method != "GET" and key.role == "viewer":
        raise Refusal(403, "key_may_only_read", "This key may only read.")
    return key


VirtualKey = Annotated[Any, Depends(virtual_key)]


def own_task(task_id: str, key: VirtualKey) -> Job:
    """Somebody else's, an archived one and one that never was answer alike."""
    job = app.jobs.get(task_id.removeprefix(tasks.PREFIX), owner=key.owner)
    if (
        job.kind not in BY_KIND
        or job.state is State.CANCELLED
        or not task_id.startswith(tasks.PREFIX)
    ):
        raise NotFound(task_id)
    return job


OwnTask = Annotated[Job, Depends(own_task)]


# -- tasks ---------------------------------------------------------------------------------------
class Order(BaseModel, extra="forbid"):
    model: str
    prompt: str = Field(min_length=1, max_length=1000)
    seconds: int = Field(4, ge=1, le=20)
    size: Literal["320x180", "640x360", "1280x720"] = "320x180"

    @field_validator("prompt")
    @classmethod
    def writable(cls, prompt: str) -> str:
        if any(sign == "\x00" or "\ud800" <= sign <= "\udfff" for sign in prompt):
            message = "there are characters in it that cannot be written"
            raise ValueError(message)
        return prompt

    @field_validator("model")
    @classmethod
    def known(cls, model: str) -> str:
        if model not in BY_MODEL:
            message = f"there are {', '.join(BY_MODEL)}"
            raise ValueError(message)
        return model


@web.post("/v1/videos/generations", status_code=202)
def create(order: Order, key: VirtualKey) -> dict[str, Any]:
    kind = KINDS[BY_MODEL[order.model].name]
    return tasks.task(kind.options(owner=key.owner or "").enqueue(**order.model_dump()))


@web.get("/v1/videos/generations/tasks")
def listed(key: VirtualKey, limit: int = 50) -> dict[str, Any]:
    return {"data": tasks.listed(key.owner, max(1, min(limit, 200)))}


@web.get("/v1/videos/generations/tasks/{task_id}")
def one(job: OwnTask) -> dict[str, Any]:
    return tasks.task(job)


@web.post("/v1/videos/generations/tasks/{task_id}/retry")
def retry(job: OwnTask, key: VirtualKey) -> dict[str, Any]:
    """At once, and with all its retries before it: who asks for it has a reason to."""
    try:
        again = app.jobs.retry(job.id, owner=key.owner, reason=f"asked for with key {key.id}")
    except IllegalMove:
        raise Refusal(
            409, "task_not_failed", f"Only a failed task can be retried; it is {STATUS[job.state]}."
        ) from None
    most = tasks.max_retries(again)
    return {
        **tasks.task(again),
        "message": f"Retry scheduled; up to {most} more follow by themselves.",
    }


@web.delete("/v1/videos/generations/tasks/{task_id}", status_code=204)
def archive(job: OwnTask) -> Response:
    try:
        tasks.archive(job)
    except IllegalMove:
        raise Refusal(
            409, "task_succeeded", "A task that succeeded is kept until its time is over."
        ) from None
    return Response(status_code=204)


@web.get("/v1/videos/generations/tasks/{task_id}/content")
def content(job: OwnTask) -> Response:
    if job.state is not State.SUCCEEDED:
        raise Refusal(
            409, "task_not_succeeded", f"There is no video: the task is {STATUS[job.state]}."
        )
    if not video_of(job.id).exists():
        raise Refusal(404, "video_gone", "The video is not there any more.")
    return FileResponse(video_of(job.id), media_type="video/mp4")


# -- operators -----------------------------------------------------------------------------------
@web.get("/v1/videos/report")
def numbers(key: VirtualKey) -> dict[str, Any]:
    """Of all owners together, so it needs a key for all of them."""
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
