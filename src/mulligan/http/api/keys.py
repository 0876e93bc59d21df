"""`/keys`: an admin of everything has them all, an admin of one owner those of that owner."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from mulligan.access.keys import Key, NewKey
from mulligan.core.errors import NotFound, Refused
from mulligan.http.api.actions import ReasonBody, ReasonRequest, Text, When, acted, when
from mulligan.http.api.auth import Admin, Caller
from mulligan.http.api.openapi import KEY, KEYS, NEW_KEY, answers
from mulligan.http.api.problems import forbidden
from mulligan.http.api.requests import body_of, takes
from mulligan.http.api.serialize import Plain, plain

router = APIRouter(prefix="/keys", tags=["keys"])

MOST = 100  # keys that hold, where an owner makes them


class NewKeyRequest(ReasonRequest):
    scope: Text = Field(description="one owner, or * for everything")
    role: Text = Field(description="viewer, operator or admin")
    name: Text = ""
    expires: When = None


NewKeyBody = Annotated[NewKeyRequest, body_of(NewKeyRequest)]


@router.get("", **answers(KEYS))
async def list_keys(caller: Admin) -> Plain:
    found = await caller.room.ask(caller.desk.keys.list)
    return {"keys": [plain(key) for key in found if caller.owner in (None, key.scope)]}


@router.get("/{key_id}", **answers(KEY))
async def get_key(caller: Admin, key_id: str) -> Plain:
    return dict(plain(await caller.room.ask(lambda: _owned(caller, key_id))))


@router.post("", **answers(NEW_KEY, 201), openapi_extra=takes(NewKeyRequest, required=True))
async def create_key(caller: Admin, said: NewKeyBody) -> Response:
    """The key is in this answer and nowhere else, so an Idempotency-Key is not honoured here."""
    if caller.owner not in (None, said.scope):
        raise forbidden(f"an admin of {caller.owner!r} makes keys of that scope only")

    def make() -> NewKey:
        if caller.owner is not None:
            _check_number(caller, caller.owner)
        expires = when("expires", said.expires)
        return caller.desk.keys.create(
            said.scope, said.role, name=said.name, expires=expires, reason=said.reason
        )

    made = await caller.room.ask(make)
    return JSONResponse({**plain(made.key), "key": made.text}, 201)


@router.post("/{key_id}/revoke", **answers(KEY), openapi_extra=takes(ReasonRequest))
async def revoke_key(request: Request, caller: Admin, key_id: str, said: ReasonBody) -> Response:
    """From now on it lets nobody in; streams that are open with it end within a minute."""

    def act() -> Key:
        _owned(caller, key_id)
        return caller.desk.keys.revoke(key_id, reason=said.reason)

    return await acted(request, caller, act)


def _check_number(caller: Caller, owner: str) -> None:
    has = sum(key.scope == owner and key.state == "valid" for key in caller.desk.keys.list())
    if has >= MOST:
        message = f"{owner!r:.80} has {has} keys, as many as an owner may make; revoke one first"
        raise Refused(message)


def _owned(caller: Caller, key_id: str) -> Key:
    message = f"no key {key_id!r:.80}"
    if not key_id.isalnum() and not key_id.replace("_", "").isalnum():
        raise NotFound(message)
    found = caller.desk.keys.get(key_id)
    if caller.owner not in (None, found.scope):
        raise NotFound(message)
    return found
