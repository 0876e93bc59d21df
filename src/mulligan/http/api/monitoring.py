"""`/alerts`, `/audit`, health checks and `/metrics`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import Field

from mulligan.core.event import Event
from mulligan.http.api.actions import (
    WITH_ZONE,
    CursorParam,
    LimitParam,
    ReasonBody,
    ReasonRequest,
    SinceParam,
    Text,
    parse_since,
    parse_time,
    run_action,
)
from mulligan.http.api.auth import KEY_SECURITY, ApiContext, OperatorOfAll, Viewer, ViewerOfAll
from mulligan.http.api.openapi import ALERT_RULE, ALERT_RULES, ALERTS, AUDIT, SCALE, responses
from mulligan.http.api.requests import decode_cursor, describe_body, encode_cursor, json_body
from mulligan.http.api.responses import JsonObject, Problem, event_to_json, forbidden, to_json
from mulligan.http.services import DatabaseUnavailable, describe_outage
from mulligan.observability import exporter
from mulligan.worker.scaling import DEFAULT_TARGET, Scale, compute_scale, read_load

alert_router = APIRouter(prefix="/alerts", tags=["alerts"])


class SilenceRequest(ReasonRequest):
    """Body of a silence of an alert rule."""

    until: float | Text = Field(description=f"seconds from now, or {WITH_ZONE}")


SilenceBody = Annotated[SilenceRequest, json_body(SilenceRequest)]
AllParam = Annotated[bool, Query(description="include resolved alerts")]


@alert_router.get("", **responses(ALERTS))
async def list_alerts(caller: ViewerOfAll, *, all: AllParam = False) -> JsonObject:  # noqa: A002 - as in Python
    """List alerts: firing ones first, then pending ones."""
    return {"alerts": to_json(await caller.run(lambda: caller.services.alerts.list(all=all)))}


@alert_router.get("/rules", **responses(ALERT_RULES))
async def list_alert_rules(caller: ViewerOfAll) -> JsonObject:
    """List alert rules."""
    return {"rules": to_json(await caller.run(caller.services.alerts.rules))}


@alert_router.post(
    "/{name}/silence",
    **responses(ALERT_RULE),
    openapi_extra=describe_body(SilenceRequest, required=True),
)
async def silence_alert(
    request: Request, caller: OperatorOfAll, name: str, body: SilenceBody
) -> Response:
    """Silence a rule: it neither notifies nor acts. If it still holds afterwards, it fires."""
    until = parse_time("until", body.until)
    assert until is not None  # noqa: S101 - a required field
    return await run_action(
        request, caller, lambda: caller.services.alerts.silence(name, until, reason=body.reason)
    )


@alert_router.post(
    "/{name}/unsilence", **responses(ALERT_RULE), openapi_extra=describe_body(ReasonRequest)
)
async def unsilence_alert(
    request: Request, caller: OperatorOfAll, name: str, body: ReasonBody
) -> Response:
    """End the silence of a rule."""
    return await run_action(
        request, caller, lambda: caller.services.alerts.unsilence(name, reason=body.reason)
    )


# --- Audit ---

audit_router = APIRouter(tags=["audit"])

ActorParam = Annotated[
    str | None,
    Query(max_length=200, description="cli:ann or key:mk_…; only for operators of scope *"),
]
TypesParam = Annotated[str, Query(max_length=1000, description="job.retried,queue.*")]
JobParam = Annotated[str | None, Query(max_length=100)]


@audit_router.get("/audit", **responses(AUDIT))
async def list_audit(
    caller: Viewer,
    actor: ActorParam = None,
    type: TypesParam = "",  # noqa: A002 - the field's name
    job: JobParam = None,
    since: SinceParam = None,
    until: SinceParam = None,
    limit: LimitParam = 50,
    cursor: CursorParam = None,
) -> JsonObject:
    """List manual actions, newest first, with reason, before and after.

    Only operators of scope `*` see who acted.
    """
    if actor is not None and not caller.sees_staff_actions:
        raise forbidden("filtering by actor needs an operator key of scope *")
    cursor_scope = f"audit {actor} {type} {job} {since} {until}"
    before = decode_cursor(caller, cursor_scope, cursor)

    def load() -> list[Event]:
        return caller.services.events.list(
            actor=actor,
            type=[name for name in type.split(",") if name],
            job=job,
            owner=caller.owner,
            limit=limit,
            since=parse_since("since", since),
            until=parse_since("until", until),
            before=None if before is None else int(before),
        )

    found = await caller.run(load)
    next_cursor = (
        encode_cursor(caller, cursor_scope, str(found[-1].id)) if len(found) == limit else None
    )
    return {
        "events": [event_to_json(one, private=caller.sees_staff_actions) for one in found],
        "next": next_cursor,
    }


# --- Scaling signal ---

scale_router = APIRouter(tags=["queues"])

MAX_TARGET = 86_400.0
QueuesParam = Annotated[
    list[str], Query(alias="queue", max_length=100, description="repeat it; none: all queues")
]
TargetParam = Annotated[
    float, Query(ge=0.1, le=MAX_TARGET, description="seconds that a due job may wait")
]
SlotsParam = Annotated[
    float | None,
    Query(ge=1, le=10_000, description="slots of a worker; default: the mean of live workers"),
]


@scale_router.get("/scale", **responses(SCALE))
async def get_scale(
    caller: ViewerOfAll,
    queue: QueuesParam = [],  # noqa: B006 - FastAPI copies it
    target: TargetParam = DEFAULT_TARGET,
    slots: SlotsParam = None,
) -> JsonObject:
    """Get the number of workers that start every due job within the target, for autoscalers.

    Held and scheduled jobs do not count, nor those that a limit keeps from starting.
    """

    def load() -> Scale:
        with caller.context.store().read() as tx:
            return compute_scale(read_load(tx), queue, target, slots)

    return dict(to_json(await caller.run(load)))


# --- Health and metrics ---

health_router = APIRouter(tags=["health"])


@health_router.get("/livez", response_class=PlainTextResponse)
async def livez() -> Response:
    """Answer if the event loop runs, without asking the database."""
    return PlainTextResponse("ok\n")


@health_router.get("/readyz", response_class=PlainTextResponse)
@health_router.get("/startupz", name="startupz", response_class=PlainTextResponse)
async def readyz(request: Request) -> Response:
    """Answer 200 if the database answers and has the schema of this version."""
    context: ApiContext = request.app.state.context
    try:
        await context.check(lambda: _query(context))
    except DatabaseUnavailable as error:
        detail = describe_outage(error, show_detail=context.show_database_errors)
        raise Problem(503, "NOT_READY", detail, retryable=True) from error
    return PlainTextResponse("ok\n")


def _query(context: ApiContext) -> None:
    with context.store().read() as tx:
        tx.now()


@health_router.get("/metrics", response_class=PlainTextResponse, dependencies=KEY_SECURITY)
async def metrics(caller: ViewerOfAll) -> Response:
    """Return metrics in the Prometheus text format."""

    def render() -> str:
        store = caller.context.store()
        return exporter.metrics_text(store, caller.context.settings.metrics_prefix)

    text = await caller.run(render)
    return Response(text, media_type=exporter.CONTENT_TYPE)
