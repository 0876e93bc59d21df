"""`/keys`: API keys. An admin of scope * manages all, an admin of one owner only that owner's."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.access.keys import Key, NewKey
from mulligan.core.errors import NotFound, Refused
from mulligan.http.api.actions import (
    ReasonBody,
    ReasonRequest,
    Text,
    TimeField,
    parse_time,
    run_action,
)
from mulligan.http.api.auth import Admin, Caller
from mulligan.http.api.openapi import KEY, KEYS, NEW_KEY, responses
from mulligan.http.api.requests import describe_body, json_body
from mulligan.http.api.responses import ApiResponse, JsonObject, forbidden, to_json

router = APIRouter(prefix="/keys", tags=["keys"])

MAX_KEYS_PER_OWNER = 100  # valid keys that an owner's admin may have created


class NewKeyRequest(ReasonRequest):
    """Body of `POST /keys`."""

    scope: Text = Field(description="one owner, or * for all")
    role: Text = Field(description="viewer, operator or admin")
    name: Text = ""
    expires: TimeField = None


NewKeyBody = Annotated[NewKeyRequest, json_body(NewKeyRequest)]


@router.get("", **responses(KEYS))
async def list_keys(caller: Admin) -> JsonObject:
    """List keys."""
    found = await caller.run(caller.services.keys.list)
    return {"keys": [to_json(key) for key in found if caller.owner in (None, key.scope)]}


@router.get("/{key_id}", **responses(KEY))
async def get_key(caller: Admin, key_id: str) -> JsonObject:
    """Get one key."""
    return dict(to_json(await caller.run(lambda: _owned(caller, key_id))))


@router.post(
    "", **responses(NEW_KEY, 201), openapi_extra=describe_body(NewKeyRequest, required=True)
)
async def create_key(caller: Admin, body: NewKeyBody) -> Response:
    """Create a key, shown only in this answer.

    Idempotency-Key is ignored here: a stored answer would contain the key.
    """
    if caller.owner not in (None, body.scope):
        raise forbidden(f"an admin of scope {caller.owner!r} can create keys of that scope only")

    def create() -> NewKey:
        if caller.owner is not None:
            _check_key_limit(caller, caller.owner)
        expires = parse_time("expires", body.expires)
        return caller.services.keys.create(
            body.scope, body.role, name=body.name, expires=expires, reason=body.reason
        )

    created = await caller.run(create)
    return ApiResponse({**to_json(created.key), "key": created.text}, 201)


@router.post("/{key_id}/revoke", **responses(KEY), openapi_extra=describe_body(ReasonRequest))
async def revoke_key(request: Request, caller: Admin, key_id: str, body: ReasonBody) -> Response:
    """Revoke a key. Its open streams end within a minute."""

    def act() -> Key:
        _owned(caller, key_id)
        return caller.services.keys.revoke(key_id, reason=body.reason)

    return await run_action(request, caller, act)


def _check_key_limit(caller: Caller, owner: str) -> None:
    keys = caller.services.keys.list()
    valid = [key for key in keys if key.scope == owner and key.state == "valid"]
    count = len(valid)
    if count >= MAX_KEYS_PER_OWNER:
        message = (
            f"owner {owner!r:.80} already has {count} valid keys, the maximum. Revoke one first."
        )
        raise Refused(message)


def _owned(caller: Caller, key_id: str) -> Key:
    """Return a key that the caller may manage. Other keys answer exactly like unknown ones."""
    message = f"no key {key_id!r:.80}"
    if not key_id.replace("_", "").isalnum():
        raise NotFound(message)
    try:
        key = caller.services.keys.get(key_id)
    except NotFound:
        raise NotFound(message) from None
    if caller.owner not in (None, key.scope):
        raise NotFound(message)
    return key
