"""The HTTP API, a FastAPI application of its own: `create_api(app)` is mounted wherever one likes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from mulligan.app.mulligan import Mulligan
from mulligan.config import Settings
from mulligan.http.api import batches, failures, jobs, keys, operations, policies, webhooks
from mulligan.http.api import event_stream as events
from mulligan.http.api import fleet as dependencies
from mulligan.http.api import fleet as kinds
from mulligan.http.api import fleet as queues
from mulligan.http.api import fleet as schedules
from mulligan.http.api import monitoring as alerts
from mulligan.http.api import monitoring as audit
from mulligan.http.api import monitoring as health
from mulligan.http.api.auth import KEYED
from mulligan.http.api.context import ApiContext, Served
from mulligan.http.api.openapi import describe
from mulligan.http.api.problems import add_problems
from mulligan.http.middleware import HeadMiddleware, RateFields
from mulligan.http.services import Opening

__all__ = ["create_api"]

ROUTERS = (
    jobs.router,
    failures.router,
    operations.router,
    batches.router,
    queues.queue_router,
    kinds.kind_router,
    dependencies.dependency_router,
    policies.router,
    schedules.schedule_router,
    alerts.alert_router,
    webhooks.router,
    keys.router,
    audit.audit_router,
    events.router,
    health.health_router,
)


def create_api(app: Mulligan | Settings, opening: Opening | None = None) -> FastAPI:
    """The API of an app, or of a database alone, as the settings name it. Every call needs a key."""
    served = app if isinstance(app, Mulligan) else Served(app, opening or Opening(app))
    room = ApiContext(served)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        room.close()

    api = FastAPI(
        title="Mulligan",
        version="1",
        description="Durable jobs: enqueue, look, repair, hear.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        lifespan=life,
    )
    api.state.room = room
    api.state.calls = [route for router in ROUTERS for route in router.routes]
    api.add_middleware(RateFields)
    api.add_middleware(HeadMiddleware)
    add_problems(api)
    for router in ROUTERS:
        api.include_router(router, dependencies=None if router is health.health_router else KEYED)
    describe(api)
    return api
