"""The routes. Each reads a picture from the database and prints it; no answer changes anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from mulligan.config import Settings
from mulligan.errors import NotFound, Refused
from mulligan.policy.redact import without_secrets
from mulligan.web import present
from mulligan.web.guard import Guard
from mulligan.web.house import House
from mulligan.web.pages.batches import BatchScreens
from mulligan.web.pages.failures import FailureScreens
from mulligan.web.pages.knowledge import KnowledgeScreens
from mulligan.web.pages.machinery import MachineryScreens
from mulligan.web.pages.overview import OverviewScreen
from mulligan.web.pages.records import RecordScreens
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
    house = House(reader, settings)
    pages, failures, batches = Pages(house), FailureScreens(house), BatchScreens(house)
    machinery, records, knowledge = MachineryScreens(house), RecordScreens(house), KnowledgeScreens(house)
    for path, answer in (
        ("/", OverviewScreen(house).__call__),
        ("/jobs", pages.jobs),
        ("/jobs/{job_id}", pages.job),
        ("/failures", failures.inbox),
        ("/failures/{fingerprint}", failures.group),
        ("/batches", batches.list),
        ("/batches/{batch_id}", batches.one),
        ("/queues", machinery.queues),
        ("/dependencies", machinery.dependencies),
        ("/schedules", machinery.schedules),
        ("/operations", records.operations),
        ("/operations/{operation}", records.operation),
        ("/events", records.events),
        ("/audit", records.audit),
        ("/insight", knowledge.insight),
        ("/policies", knowledge.policies),
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
    def __init__(self, house: House) -> None:
        self._house = house
        self._reader = house.reader

    # -- pages --------------------------------------------------------------------------------------
    async def jobs(self, request: Request, filter: str = "", before: str = "") -> Response:  # noqa: A002 - as in the URL
        words = filter.strip()
        found = await self._reader.matching(words, before or None)
        return self._house.page(request, "list.html", "jobs", **present.listing(found, words, before))

    async def job(self, request: Request, job_id: str) -> Response:
        found = present.story(await self._reader.story(job_id))
        return self._house.page(request, "job.html", "jobs", **found)

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
        return self._message(request, 503, "The database does not answer", str(error), words)

    async def not_found(self, request: Request, error: Exception) -> Response:
        return self._message(request, 404, "Not found", str(error), "It may have been pruned by retention.")

    async def refused(self, request: Request, error: Exception) -> Response:
        return self._message(
            request, 400, "That cannot be asked", str(error), "Example: state:dead kind:render queue:mail"
        )

    async def http_error(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        title = "No such page" if status == 404 else "That cannot be done here"
        return self._message(request, status, title, "", "This page only shows; jobs are repaired with mulligan jobs.")

    def _message(self, request: Request, status: int, title: str, detail: str, words: str) -> HTMLResponse:
        said = {"title": title, "detail": without_secrets(detail), "words": words}
        return self._house.page(request, "message.html", "", status, **said)
