"""The HTTP API, a FastAPI application of its own: `create_api(app)` is mounted wherever one likes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from mulligan.app import Mulligan
from mulligan.config import Settings
from mulligan.web.api import (
    alerts,
    audit,
    batches,
    dependencies,
    events,
    failures,
    health,
    jobs,
    keys,
    kinds,
    operations,
    policies,
    queues,
    schedules,
    webhooks,
)
from mulligan.web.api.auth import KEYED
from mulligan.web.api.document import describe
from mulligan.web.api.heads import Heads
from mulligan.web.api.limiting import RateFields
from mulligan.web.api.problems import add_problems
from mulligan.web.api.room import Room, Served
from mulligan.web.asking import Opening

__all__ = ["create_api"]

ROUTERS = (
    jobs.router,
    failures.router,
    operations.router,
    batches.router,
    queues.router,
    kinds.router,
    dependencies.router,
    policies.router,
    schedules.router,
    alerts.router,
    webhooks.router,
    keys.router,
    audit.router,
    events.router,
    health.router,
)


def create_api(app: Mulligan | Settings, opening: Opening | None = None) -> FastAPI:
    """The API of an app, or of a database alone, as the settings name it. Every call needs a key."""
    served = app if isinstance(app, Mulligan) else Served(app, opening or Opening(app))
    room = Room(served)

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
    api.add_middleware(Heads)
    add_problems(api)
    for router in ROUTERS:
        api.include_router(router, dependencies=None if router is health.router else KEYED)
    describe(api)
    return api
