"""The HTTP API: `create_api(app)` returns a FastAPI application to serve or to mount."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from mulligan.app.mulligan import Mulligan
from mulligan.config import Settings
from mulligan.http.api import (
    batches,
    event_stream,
    failures,
    fleet,
    jobs,
    keys,
    monitoring,
    operations,
    releases,
    webhooks,
)
from mulligan.http.api.auth import KEY_SECURITY, ApiContext, ManifestApp
from mulligan.http.api.openapi import complete_openapi
from mulligan.http.api.responses import ApiResponse, add_error_handlers
from mulligan.http.middleware import HeadMiddleware, RateLimitHeaderMiddleware
from mulligan.http.services import StoreOpener

__all__ = ["create_api"]

ROUTERS = (
    jobs.router,
    failures.router,
    operations.router,
    batches.router,
    fleet.queue_router,
    fleet.kind_router,
    fleet.dependency_router,
    releases.router,
    failures.policy_router,
    fleet.schedule_router,
    monitoring.alert_router,
    webhooks.router,
    keys.router,
    monitoring.audit_router,
    monitoring.scale_router,
    event_stream.router,
    monitoring.health_router,
)


def create_api(served: Mulligan | Settings | StoreOpener) -> FastAPI:
    """Build the API of an app, or of the database that the settings name."""
    if isinstance(served, Settings):
        served = StoreOpener(served, follow_apps=True)
    app = ManifestApp(served) if isinstance(served, StoreOpener) else served
    context = ApiContext(app)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        context.close()

    api = FastAPI(
        title="Mulligan",
        default_response_class=ApiResponse,
        version="1",
        description="Durable jobs: enqueue, inspect, repair, follow events.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        lifespan=lifespan,
    )
    api.state.context = context
    api.state.routes = [route for router in ROUTERS for route in router.routes]
    api.add_middleware(RateLimitHeaderMiddleware)
    api.add_middleware(HeadMiddleware)
    add_error_handlers(api)
    for router in ROUTERS:
        needs_key = router is not monitoring.health_router
        api.include_router(router, dependencies=KEY_SECURITY if needs_key else None)
    complete_openapi(api)
    return api
