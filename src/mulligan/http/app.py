"""The routes of the dashboard, the API under /api/v1, and what is answered when something is not there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from mulligan.app.mulligan import Mulligan
from mulligan.config import Settings
from mulligan.core.errors import NotFound, Refused
from mulligan.failures.redact import without_secrets
from mulligan.http.api import create_api
from mulligan.http.api.problems import Problem
from mulligan.http.dashboard.actions import ActionScreens
from mulligan.http.dashboard.failures import FailureScreens
from mulligan.http.dashboard.history import HistoryScreens
from mulligan.http.dashboard.insight import DoctorScreen, InsightScreens
from mulligan.http.dashboard.jobs import BatchScreens, JobScreens
from mulligan.http.dashboard.notifications import NotificationScreens
from mulligan.http.dashboard.overview import OverviewScreen
from mulligan.http.dashboard.policies import PolicyScreens
from mulligan.http.dashboard.queues import QueueScreens
from mulligan.http.dashboard.renderer import LiveStream, Reader, Renderer
from mulligan.http.dashboard.retry import EditScreens
from mulligan.http.dashboard.sessions import NotAllowed, NotSignedIn
from mulligan.http.dashboard.sign_in import SignInScreens, to_sign_in
from mulligan.http.dashboard.status import StatusScreens
from mulligan.http.middleware import API, SecurityMiddleware, is_local, path_in
from mulligan.http.services import Away, Opening, away_words

AT_THE_TOP = (
    "/livez",
    "/readyz",
    "/startupz",
    "/metrics",
    "/openapi.json",
)  # where everybody looks for them
STATIC = Path(__file__).parent / "dashboard" / "static"
Answer = Callable[..., Awaitable[Response]]


def create_app(served: Settings | Mulligan) -> FastAPI:
    """The dashboard and the API of a database, as the settings name it; of an app, to be mounted in one's own."""
    settings = served.settings if isinstance(served, Mulligan) else served
    opening = Opening(settings)
    reader, api = Reader(settings, opening), create_api(served, opening)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        reader.close()
        api.state.room.close()
        opening.close()

    app = FastAPI(title="Mulligan", docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    app.state.room = api.state.room
    alone = served is settings and is_local(
        settings.web.host
    )  # on this machine, for who sits at it
    api.state.room.candid = alone and not settings.web.public_url
    named = urlsplit(settings.web.public_url).netloc
    app.add_middleware(SecurityMiddleware, everywhere=not alone, named=named)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.mount(API, api)
    for path in AT_THE_TOP:
        at_the_top: Any = Moved(api, path)
        app.add_route(path, at_the_top, methods=["GET", "HEAD"])
    house = Renderer(reader, settings)
    app.add_api_route(
        "/live", LiveStream(house, api.state.room.hub).listen, methods=["GET"], response_model=None
    )
    for path, answer in _looks(house).items():
        app.add_api_route(path, answer, methods=["GET", "HEAD"], response_model=None)
    for path, answer in _forms(house).items():
        app.add_api_route(path, answer, methods=["POST"], response_model=None)
    _when_not(app, TextPage(house))
    return app


class Moved:
    """A route of the API under another path."""

    def __init__(self, api: FastAPI, path: str) -> None:
        self._api, self._path = api, path

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        root = scope.get("root_path", "") + API
        await self._api({**scope, "path": root + self._path, "root_path": root}, receive, send)


def _looks(house: Renderer) -> dict[str, Answer]:
    signing, jobs, failures = SignInScreens(house), JobScreens(house), FailureScreens(house)
    batches, machinery, records = BatchScreens(house), QueueScreens(house), HistoryScreens(house)
    knowledge, telling, acting = (
        InsightScreens(house),
        NotificationScreens(house),
        ActionScreens(house),
    )
    policies = PolicyScreens(house)
    return {
        "/": OverviewScreen(house).show,
        "/sign-in": signing.show,
        "/jobs": jobs.list,
        "/jobs/{job_id}": jobs.one,
        "/jobs/{job_id}/edit": EditScreens(house).form,
        "/failures": failures.inbox,
        "/failures/{fingerprint}": failures.group,
        "/batches": batches.list,
        "/batches/{batch_id}": batches.one,
        "/queues": machinery.queues,
        "/dependencies": machinery.dependencies,
        "/schedules": machinery.schedules,
        "/operations": records.operations,
        "/operations/new": acting.preview,
        "/operations/{operation}": records.operation,
        "/status/{text}": StatusScreens(house).show,
        "/alerts": telling.alerts,
        "/notifications": telling.deliveries,
        "/insight": knowledge.insight,
        "/policies": policies.show,
        "/policies/what-if": policies.show,
        "/policies/rules/{rule:path}": policies.rule,
        "/events": records.events,
        "/audit": records.audit,
        "/doctor": DoctorScreen(house).show,
    }


def _forms(house: Renderer) -> dict[str, Answer]:
    signing, acting = SignInScreens(house), ActionScreens(house)
    return {
        "/sign-in": signing.enter,
        "/sign-out": signing.leave,
        "/jobs": acting.many,
        "/operations": acting.start,
        "/jobs/{job_id}/edit": EditScreens(house).look,
        "/policies/what-if": PolicyScreens(house).what_if,
        "/status/{text}": StatusScreens(house).retry,
        "/{noun}/{name}/{verb}": acting.act,
    }


def _when_not(app: FastAPI, plain: TextPage) -> None:
    app.add_exception_handler(Away, plain.away)
    app.add_exception_handler(NotSignedIn, plain.not_signed_in)
    app.add_exception_handler(NotAllowed, plain.not_allowed)
    app.add_exception_handler(NotFound, plain.not_found)
    app.add_exception_handler(Refused, plain.refused)
    app.add_exception_handler(HTTPException, plain.http_error)


class TextPage:
    """What is said where there is no screen to show."""

    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def away(self, request: Request, error: Exception) -> Response:
        """Never a 500 because the database is away: it will be back."""
        words = "This page looks again by itself. Jobs that run go on; nothing is lost."
        detail = away_words(error, candid=request.app.state.room.candid)
        return self._message(request, 503, "The database does not answer", detail, words)

    async def not_signed_in(self, request: Request, _: Exception) -> Response:
        if request.method in {"GET", "HEAD"}:
            return to_sign_in(request)
        return self._message(
            request, 403, "You are not signed in", "", "Nothing was done. Sign in and try again."
        )

    async def not_allowed(self, request: Request, error: Exception) -> Response:
        return self._message(request, 403, "That is not for you", str(error), "Nothing was done.")

    async def not_found(self, request: Request, error: Exception) -> Response:
        return self._message(
            request, 404, "Not found", str(error), "It may have been pruned by retention."
        )

    async def refused(self, request: Request, error: Exception) -> Response:
        words = "Example: state:dead kind:render queue:mail"
        return self._message(request, 400, "That cannot be asked", str(error), words)

    async def http_error(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if path_in(request.scope).startswith(API):  # with a line break in it, which no route takes
            return Problem(status, "NOT_FOUND", "no such call").response()
        title = "No such page" if status == 404 else "That cannot be done here"
        return self._message(request, status, title, "", "")

    def _message(
        self, request: Request, status: int, title: str, detail: str, words: str
    ) -> Response:
        said = {"title": title, "detail": without_secrets(detail), "words": words}
        return self._house.page(request, "message.html", "", status, **said)
