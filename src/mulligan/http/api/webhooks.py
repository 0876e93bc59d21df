"""`/webhooks` and `/deliveries`: who is told by HTTP, and what became of each message."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.core.errors import NotFound
from mulligan.http.api.actions import Cursor, Few, ReasonBody, ReasonRequest, Text, acted, owner_of
from mulligan.http.api.auth import Caller, Operator, Viewer, known_id
from mulligan.http.api.idempotency import Answer, Named, once
from mulligan.http.api.openapi import DELIVERIES, DELIVERY, NEW_WEBHOOK, WEBHOOK, WEBHOOKS, answers
from mulligan.http.api.requests import body_of, opened, sealed, takes
from mulligan.http.api.serialize import Plain, plain
from mulligan.notifications.deliveries import DeliveryList
from mulligan.notifications.subscriptions import Subscription, Subscriptions
from mulligan.notifications.webhook import Webhook

router = APIRouter(tags=["webhooks"])

_NAME = re.compile(r"[\x21-\x7e]{1,200}")


class NewWebhookRequest(ReasonRequest):
    url: Annotated[str, Field(max_length=2000)]
    on: Text | list[Text] = Field(description="job.died, or several; job.* for all of a kind")
    filter: Text = ""
    name: Text = ""
    owner: Text | None = Field(None, description="from keys of scope * only; not given: whoever's")
    batch_id: Text | None = None
    each: bool = Field(
        default=True,
        description="a message for every event; false: one for an incident, which grows",
    )
    form: Literal["standard", "cloudevents"] = "standard"
    headers: dict[str, str] = Field(default_factory=dict)
    secret: Text | None = Field(
        None, description="whsec_…; not given: one is made, and shown this once"
    )


NewWebhookBody = Annotated[NewWebhookRequest, body_of(NewWebhookRequest)]
Subscribed = Annotated[str | None, Query(max_length=200, description="of this one only")]
State = Annotated[
    str | None, Query(max_length=20, description="queued, running, succeeded, dead …")
]


@router.get("/webhooks", **answers(WEBHOOKS))
async def list_webhooks(caller: Viewer) -> Plain:
    found = await caller.room.ask(lambda: caller.desk.subscriptions.list(owner=caller.owner))
    return {"webhooks": [_shown(one) for one in found if one.channel == Webhook.kind]}


@router.get("/webhooks/{webhook_id}", **answers(WEBHOOK))
async def get_webhook(caller: Viewer, webhook_id: str) -> Plain:
    return _shown(await caller.room.ask(lambda: _owned(caller, webhook_id)))


@router.post(
    "/webhooks", **answers(NEW_WEBHOOK, 201), openapi_extra=takes(NewWebhookRequest, required=True)
)
async def add_webhook(request: Request, caller: Operator, said: NewWebhookBody) -> Response:
    """Signed as standardwebhooks.com describes it. The secret is in this answer and in no later one."""

    def work(_: Named) -> Answer:
        channel = Webhook(
            said.url, secret=said.secret, headers=said.headers or None, form=said.form
        )
        options: Plain = {
            "owner": owner_of(caller, said.owner) or None,
            "batch": said.batch_id,
            "name": said.name,
            "form": "each" if said.each else "incident",
            "filter": said.filter,
            "reason": said.reason,
        }
        made = caller.desk.subscriptions.add(said.on, channel, **options)
        return Answer(201, {**_shown(made), "secret": made.secret})

    return await once(request, caller, work)


@router.delete("/webhooks/{webhook_id}", status_code=204, response_model=None)
async def remove_webhook(caller: Operator, webhook_id: str) -> Response:
    """Messages that wait are not sent any more."""

    def act() -> None:
        caller.desk.subscriptions.remove(_owned(caller, webhook_id).id, owner=caller.owner)

    await caller.room.ask(act)
    return Response(None, 204)


@router.post("/webhooks/{webhook_id}/test", **answers(DELIVERY))
async def try_webhook(request: Request, caller: Operator, webhook_id: str) -> Response:
    """A message that says that it is a test; answered with its delivery, which takes the way of all others."""
    return await _said(
        request, caller, webhook_id, lambda api, name: plain(api.test(name, owner=caller.owner))
    )


@router.post(
    "/webhooks/{webhook_id}/enable", **answers(WEBHOOK), openapi_extra=takes(ReasonRequest)
)
async def enable_webhook(
    request: Request, caller: Operator, webhook_id: str, said: ReasonBody
) -> Response:
    """It hears of what happens from now on."""
    return await _said(
        request,
        caller,
        webhook_id,
        lambda api, name: _shown(api.enable(name, owner=caller.owner, reason=said.reason)),
    )


@router.post(
    "/webhooks/{webhook_id}/disable", **answers(WEBHOOK), openapi_extra=takes(ReasonRequest)
)
async def disable_webhook(
    request: Request, caller: Operator, webhook_id: str, said: ReasonBody
) -> Response:
    return await _said(
        request,
        caller,
        webhook_id,
        lambda api, name: _shown(api.disable(name, owner=caller.owner, reason=said.reason)),
    )


@router.post(
    "/webhooks/{webhook_id}/rotate", **answers(NEW_WEBHOOK), openapi_extra=takes(ReasonRequest)
)
async def rotate_webhook(
    request: Request, caller: Operator, webhook_id: str, said: ReasonBody
) -> Response:
    """A new secret, in this answer alone; messages are signed with both until the next one."""

    def act(api: Subscriptions, name: str) -> Plain:
        made = api.rotate(name, owner=caller.owner, reason=said.reason)
        return {**_shown(made), "secret": made.secret}

    return await _said(request, caller, webhook_id, act)


# -- deliveries -------------------------------------------------------------------------------------
@router.get("/deliveries", **answers(DELIVERIES))
async def list_deliveries(
    caller: Viewer,
    subscription: Subscribed = None,
    state: State = None,
    limit: Few = 50,
    cursor: Cursor = None,
) -> Plain:
    """Newest first."""
    about = f"deliveries {subscription} {state}"
    before = opened(caller, about, cursor)

    def look() -> DeliveryList:
        where: Plain = {"subscription": subscription, "state": state, "owner": caller.owner}
        return caller.desk.deliveries.list(**where, limit=limit, before=before)

    found = await caller.room.ask(look)
    following = None if found.cursor is None else sealed(caller, about, found.cursor)
    return {"deliveries": plain(list(found)), "next": following}


@router.get("/deliveries/{delivery_id}", **answers(DELIVERY))
async def get_delivery(caller: Viewer, delivery_id: str) -> Plain:
    def look() -> Any:
        return caller.desk.deliveries.get(known_id("delivery", delivery_id), owner=caller.owner)

    return dict(plain(await caller.room.ask(look)))


@router.post(
    "/deliveries/{delivery_id}/retry", **answers(DELIVERY), openapi_extra=takes(ReasonRequest)
)
async def retry_delivery(
    request: Request, caller: Operator, delivery_id: str, said: ReasonBody
) -> Response:
    """Once more; with the same id for its receiver."""

    def act() -> Any:
        name = known_id("delivery", delivery_id)
        return caller.desk.deliveries.retry(name, owner=caller.owner, reason=said.reason)

    return await acted(request, caller, act)


async def _said(
    request: Request, caller: Caller, webhook_id: str, say: Callable[[Subscriptions, str], Plain]
) -> Response:
    return await acted(
        request, caller, lambda: say(caller.desk.subscriptions, _owned(caller, webhook_id).id)
    )


def _owned(caller: Caller, webhook_id: str) -> Subscription:
    message = f"no webhook {webhook_id!r:.80}"
    if _NAME.fullmatch(webhook_id) is None:
        raise NotFound(message)
    try:
        found = caller.desk.subscriptions.get(webhook_id, owner=caller.owner)
    except NotFound:
        raise NotFound(message) from None
    if found.channel != Webhook.kind:
        raise NotFound(message)
    return found


def _shown(one: Subscription) -> Plain:
    shape: Plain = plain(one)
    shape.pop("secret")
    return shape
