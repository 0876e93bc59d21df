"""The routes. Each reads a picture from the database and prints it; no answer changes anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException

from mulligan.config import Settings
from mulligan.errors import NotFound, Refused
from mulligan.policy.redact import without_secrets
from mulligan.web import present
from mulligan.web.guard import Guard
from mulligan.web.reading import Away, Reader

STATIC = Path(__file__).parent / "static"


def create_app(settings: Settings) -> FastAPI:
    reader = Reader(settings)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        reader.close()

    app = FastAPI(title="Mulligan", docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    app.add_middleware(Guard)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    pages = Pages(reader, settings)
    for path, answer in (
        ("/", pages.overview),
        ("/jobs/{job_id}", pages.job),
        ("/livez", pages.livez),
        ("/readyz", pages.readyz),
    ):
        app.add_api_route(path, answer, methods=["GET", "HEAD"], response_model=None)
    app.add_exception_handler(Away, pages.away)
    app.add_exception_handler(NotFound, pages.not_found)
    app.add_exception_handler(Refused, pages.refused)
    app.add_exception_handler(HTTPException, pages.http_error)
    return app


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

    # -- health -------------------------------------------------------------------------------------
    async def livez(self) -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    async def readyz(self) -> PlainTextResponse:
        await self._reader.ready()
        return PlainTextResponse("ok\n")

    # -- what is not there --------------------------------------------------------------------------
    async def away(self, request: Request, error: Exception) -> Response:
        """Never a 500 because the database is away: it will be back."""
        if request.url.path == "/readyz":
            return PlainTextResponse(f"{error}\n", 503)
        words = "This page looks again by itself. Jobs that run go on; nothing is lost."
        return self._message(503, "The database does not answer", str(error), words)

    async def not_found(self, _: Request, error: Exception) -> Response:
        return self._message(404, "No such job", str(error), "It may have been pruned by retention.")

    async def refused(self, _: Request, error: Exception) -> Response:
        return self._message(400, "That cannot be asked", str(error), "Example: state:dead kind:render queue:mail")

    async def http_error(self, _: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        title = "No such page" if status == 404 else "That cannot be done here"
        return self._message(status, title, "", "This page only shows; jobs are repaired with mulligan jobs.")

    def _message(self, status: int, title: str, detail: str, words: str) -> HTMLResponse:
        return self._page("message.html", status, title=title, detail=without_secrets(detail), words=words)
