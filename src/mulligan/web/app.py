"""The page and, under /api/v1, the API. The page prints a picture of the database; it changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException

from mulligan.config import Settings
from mulligan.errors import NotFound, Refused
from mulligan.policy.redact import without_secrets
from mulligan.web import present
from mulligan.web.api import create_api
from mulligan.web.api.problems import Problem
from mulligan.web.asking import Away, Opening
from mulligan.web.guard import API, Guard, is_local
from mulligan.web.reading import Reader

STATIC = Path(__file__).parent / "static"
AT_THE_TOP = ("/livez", "/readyz", "/startupz", "/metrics", "/openapi.json")  # where everybody looks for them


def create_app(settings: Settings) -> FastAPI:
    opening = Opening(settings)
    reader, api = Reader(opening), create_api(settings, opening)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        reader.close()
        api.state.room.close()
        opening.close()

    app = FastAPI(title="Mulligan", docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    app.state.room = api.state.room
    app.add_middleware(Guard, page=is_local(settings.web.host))
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.mount(API, api)
    pages = Pages(reader, settings)
    for path, answer in (
        ("/", pages.overview),
        ("/jobs/{job_id}", pages.job),
    ):
        app.add_api_route(path, answer, methods=["GET", "HEAD"], response_model=None)
    for path in AT_THE_TOP:
        at_the_top: Any = Moved(api, path)
        app.add_route(path, at_the_top, methods=["GET", "HEAD"])
    app.add_exception_handler(Away, pages.away)
    app.add_exception_handler(NotFound, pages.not_found)
    app.add_exception_handler(Refused, pages.refused)
    app.add_exception_handler(HTTPException, pages.http_error)
    return app


class Moved:
    """A route of the API under another path."""

    def __init__(self, api: FastAPI, path: str) -> None:
        self._api, self._path = api, path

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._api({**scope, "path": API + self._path, "root_path": API}, receive, send)


class Pages:
    def __init__(self, reader: Reader, settings: Settings) -> None:
        self._reader = reader
        self._database = without_secrets(settings.database_url)
        self._templates = Environment(
            loader=PackageLoader("mulligan.web"),
            autoescape=True,  # everything from a payload or an error is hostile
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def _page(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        page = self._templates.get_template(template).render(database=self._database, **values)
        return HTMLResponse(page, status)

    # -- pages --------------------------------------------------------------------------------------
    async def overview(self, filter: str = "", before: str = "") -> HTMLResponse:  # noqa: A002 - as in the URL
        words = filter.strip()
        if words or before:
            found = await self._reader.matching(words, before or None)
            return self._page("list.html", **present.listing(found, words, before))
        return self._page("overview.html", **present.overview(await self._reader.overview()))

    async def job(self, job_id: str) -> HTMLResponse:
        return self._page("job.html", **present.story(await self._reader.story(job_id)))

    # -- what is not there --------------------------------------------------------------------------
    async def away(self, _: Request, error: Exception) -> Response:
        """Never a 500 because the database is away: it will be back."""
        words = "This page looks again by itself. Jobs that run go on; nothing is lost."
        return self._message(503, "The database does not answer", str(error), words)

    async def not_found(self, _: Request, error: Exception) -> Response:
        return self._message(404, "No such job", str(error), "It may have been pruned by retention.")

    async def refused(self, _: Request, error: Exception) -> Response:
        return self._message(400, "That cannot be asked", str(error), "Example: state:dead kind:render queue:mail")

    async def http_error(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if request.scope["path"].startswith(API):  # with a line break in it, which no route takes
            return Problem(status, "NOT_FOUND", "no such call").response()
        title = "No such page" if status == 404 else "That cannot be done here"
        return self._message(status, title, "", "This page only shows; jobs are repaired with mulligan jobs.")

    def _message(self, status: int, title: str, detail: str, words: str) -> HTMLResponse:
        return self._page("message.html", status, title=title, detail=without_secrets(detail), words=words)
