"""`/webhooks` and `/deliveries`: webhook subscriptions and the messages they sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.core.errors import NotFound
from mulligan.http.api.actions import (
    CursorParam,
    ReasonBody,
    ReasonRequest,
    ShortLimitParam,
    Text,
    resolve_owner,
    run_action,
)
from mulligan.http.api.auth import Caller, Operator, Viewer, check_id
from mulligan.http.api.openapi import (
    DELIVERIES,
    DELIVERY,
    NEW_WEBHOOK,
    WEBHOOK,
    WEBHOOKS,
    responses,
)
from mulligan.http.api.requests import (
    IdempotencyKey,
    decode_cursor,
    describe_body,
    encode_cursor,
    json_body,
    run_once,
)
from mulligan.http.api.responses import JsonAnswer, JsonObject, to_json
from mulligan.notifications.deliveries import DeliveryList
from mulligan.notifications.subscriptions import Subscription, Subscriptions
from mulligan.notifications.webhook import Webhook

router = APIRouter(tags=["webhooks"])

_WEBHOOK_ID = re.compile(r"[\x21-\x7e]{1,200}")


class NewWebhookRequest(ReasonRequest):
    """Body of `POST /webhooks`."""

    url: Annotated[str, Field(max_length=2000)]
    on: Text | list[Text] = Field(description="one event type or several; job.* for all of jobs")
    filter: Text = ""
    name: Text = ""
    owner: Text | None = Field(
        None, description="only with a key of scope *; null: events of all owners"
    )
    batch_id: Text | None = None
    each: bool = Field(
        default=True,
        description="a message per event; false: one per incident",
    )
    form: Literal["standard", "cloudevents"] = "standard"
    headers: dict[str, str] = Field(default_factory=dict)
    secret: Text | None = Field(
        None, description="whsec_…; null: one is generated and shown only in this answer"
    )


NewWebhookBody = Annotated[NewWebhookRequest, json_body(NewWebhookRequest)]
SubscriptionParam = Annotated[
    str | None, Query(max_length=200, description="only messages of this subscription")
]
StateParam = Annotated[
    str | None, Query(max_length=20, description="queued, running, succeeded, dead …")
]


@router.get("/webhooks", **responses(WEBHOOKS))
async def list_webhooks(caller: Viewer) -> JsonObject:
    """List webhooks."""
    found = await caller.run(lambda: caller.services.subscriptions.list(owner=caller.owner))
    return {"webhooks": [_to_json(one) for one in found if one.channel == Webhook.kind]}


@router.get("/webhooks/{webhook_id}", **responses(WEBHOOK))
async def get_webhook(caller: Viewer, webhook_id: str) -> JsonObject:
    """Get one webhook."""
    return _to_json(await caller.run(lambda: _owned(caller, webhook_id)))


@router.post(
    "/webhooks",
    **responses(NEW_WEBHOOK, 201),
    openapi_extra=describe_body(NewWebhookRequest, required=True),
)
async def add_webhook(request: Request, caller: Operator, body: NewWebhookBody) -> Response:
    """Add a webhook. Messages are signed as standardwebhooks.com describes.

    The secret is shown only in this answer.
    """

    def work(_: IdempotencyKey) -> JsonAnswer:
        channel = Webhook(
            body.url, secret=body.secret, headers=body.headers or None, form=body.form
        )
        options: JsonObject = {
            "owner": resolve_owner(caller, body.owner) or None,
            "batch": body.batch_id,
            "name": body.name,
            "form": "each" if body.each else "incident",
            "filter": body.filter,
            "reason": body.reason,
        }
        created = caller.services.subscriptions.add(body.on, channel, **options)
        return JsonAnswer(201, {**_to_json(created), "secret": created.secret})

    return await run_once(request, caller, work)


@router.delete("/webhooks/{webhook_id}", status_code=204, response_model=None)
async def remove_webhook(caller: Operator, webhook_id: str) -> Response:
    """Remove a webhook. Messages that wait are not sent."""

    def act() -> None:
        caller.services.subscriptions.remove(_owned(caller, webhook_id).id, owner=caller.owner)

    await caller.run(act)
    return Response(None, 204)


@router.post("/webhooks/{webhook_id}/test", **responses(DELIVERY))
async def test_webhook(request: Request, caller: Operator, webhook_id: str) -> Response:
    """Send a test message. It is delivered like any other; the answer is its delivery."""
    return await _run_webhook_action(
        request,
        caller,
        webhook_id,
        lambda subscriptions, name: to_json(subscriptions.test(name, owner=caller.owner)),
    )


@router.post(
    "/webhooks/{webhook_id}/enable",
    **responses(WEBHOOK),
    openapi_extra=describe_body(ReasonRequest),
)
async def enable_webhook(
    request: Request, caller: Operator, webhook_id: str, body: ReasonBody
) -> Response:
    """Enable a webhook for events from now on."""
    return await _run_webhook_action(
        request,
        caller,
        webhook_id,
        lambda subscriptions, name: _to_json(
            subscriptions.enable(name, owner=caller.owner, reason=body.reason)
        ),
    )


@router.post(
    "/webhooks/{webhook_id}/disable",
    **responses(WEBHOOK),
    openapi_extra=describe_body(ReasonRequest),
)
async def disable_webhook(
    request: Request, caller: Operator, webhook_id: str, body: ReasonBody
) -> Response:
    """Disable a webhook."""
    return await _run_webhook_action(
        request,
        caller,
        webhook_id,
        lambda subscriptions, name: _to_json(
            subscriptions.disable(name, owner=caller.owner, reason=body.reason)
        ),
    )


@router.post(
    "/webhooks/{webhook_id}/rotate",
    **responses(NEW_WEBHOOK),
    openapi_extra=describe_body(ReasonRequest),
)
async def rotate_webhook(
    request: Request, caller: Operator, webhook_id: str, body: ReasonBody
) -> Response:
    """Create a new secret, shown only in this answer.

    Messages are signed with the old and the new secret until the next rotation.
    """

    def act(subscriptions: Subscriptions, name: str) -> JsonObject:
        created = subscriptions.rotate(name, owner=caller.owner, reason=body.reason)
        return {**_to_json(created), "secret": created.secret}

    return await _run_webhook_action(request, caller, webhook_id, act)


# --- Deliveries ---


@router.get("/deliveries", **responses(DELIVERIES))
async def list_deliveries(
    caller: Viewer,
    subscription: SubscriptionParam = None,
    state: StateParam = None,
    limit: ShortLimitParam = 50,
    cursor: CursorParam = None,
) -> JsonObject:
    """List messages, newest first."""
    cursor_scope = f"deliveries {subscription} {state}"
    before = decode_cursor(caller, cursor_scope, cursor)

    def load() -> DeliveryList:
        where: JsonObject = {"subscription": subscription, "state": state, "owner": caller.owner}
        return caller.services.deliveries.list(**where, limit=limit, before=before)

    found = await caller.run(load)
    next_cursor = encode_cursor(caller, cursor_scope, found.cursor)
    return {"deliveries": to_json(list(found)), "next": next_cursor}


@router.get("/deliveries/{delivery_id}", **responses(DELIVERY))
async def get_delivery(caller: Viewer, delivery_id: str) -> JsonObject:
    """Get one message."""

    def load() -> Any:
        return caller.services.deliveries.get(check_id("delivery", delivery_id), owner=caller.owner)

    return dict(to_json(await caller.run(load)))


@router.post(
    "/deliveries/{delivery_id}/retry",
    **responses(DELIVERY),
    openapi_extra=describe_body(ReasonRequest),
)
async def retry_delivery(
    request: Request, caller: Operator, delivery_id: str, body: ReasonBody
) -> Response:
    """Send a message again, with the same message id."""

    def act() -> Any:
        name = check_id("delivery", delivery_id)
        return caller.services.deliveries.retry(name, owner=caller.owner, reason=body.reason)

    return await run_action(request, caller, act)


async def _run_webhook_action(
    request: Request,
    caller: Caller,
    webhook_id: str,
    action: Callable[[Subscriptions, str], JsonObject],
) -> Response:
    def work() -> JsonObject:
        return action(caller.services.subscriptions, _owned(caller, webhook_id).id)

    return await run_action(request, caller, work)


def _owned(caller: Caller, webhook_id: str) -> Subscription:
    message = f"no webhook {webhook_id!r:.80}"
    if _WEBHOOK_ID.fullmatch(webhook_id) is None:
        raise NotFound(message)
    try:
        found = caller.services.subscriptions.get(webhook_id, owner=caller.owner)
    except NotFound:
        raise NotFound(message) from None
    if found.channel != Webhook.kind:
        raise NotFound(message)
    return found


def _to_json(subscription: Subscription) -> JsonObject:
    document: JsonObject = to_json(subscription)
    document.pop("secret")
    return document
