"""`/failures`: dead jobs by cause, and what people say about them. For an owner only their own."""

from __future__ import annotations

import re
from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from mulligan.core.errors import NotFound
from mulligan.failures.service import FailureGroup, Failures, GroupList
from mulligan.http.api.actions import (
    Cursor,
    Few,
    Filter,
    ReasonBody,
    ReasonRequest,
    UntilBody,
    UntilRequest,
    acted,
    when,
)
from mulligan.http.api.auth import Caller, Operator, Viewer
from mulligan.http.api.openapi import FAILURE, FAILURES, answers
from mulligan.http.api.requests import opened, sealed, takes
from mulligan.http.api.serialize import Plain, plain

router = APIRouter(prefix="/failures", tags=["failures"])

_NAME = re.compile(r"[\x21-\x7e]{1,200}")


@router.get("", **answers(FAILURES))
async def list_failures(
    caller: Viewer,
    filter: Filter = "",  # noqa: A002 - as in the URL
    limit: Few = 100,
    cursor: Cursor = None,
) -> Response:
    """Those in which a job died last; of them those that need somebody first. `more`: there are others."""
    about = f"failures {filter}"
    before = opened(caller, about, cursor)

    def look() -> GroupList:
        wanted: Plain = {
            "owner": caller.owner,
            "limit": limit,
            "before": before,
            "private": caller.private,
        }
        return caller.desk.failures.groups(filter, **wanted)

    found = await caller.room.ask(look)
    following = None if found.cursor is None else sealed(caller, about, found.cursor)
    return JSONResponse(
        {"failures": [_shown(group) for group in found], "next": following, "more": found.more}
    )


@router.get("/{fingerprint}", **answers(FAILURE))
async def get_failure(caller: Viewer, fingerprint: str) -> Plain:
    """With a sample; its private half is for operators."""

    def look() -> FailureGroup:
        return caller.desk.failures.get(
            _known(fingerprint), owner=caller.owner, private=caller.private
        )

    return _shown(await caller.room.ask(look))


@router.post("/{fingerprint}/mute", **answers(FAILURE), openapi_extra=takes(UntilRequest))
async def mute_failure(
    request: Request, caller: Operator, fingerprint: str, said: UntilBody
) -> Response:
    until = when("until", said.until)
    return await _said(
        request,
        caller,
        fingerprint,
        lambda api, name: api.mute(name, until=until, reason=said.reason, owner=caller.owner),
    )


@router.post("/{fingerprint}/unmute", **answers(FAILURE), openapi_extra=takes(ReasonRequest))
async def unmute_failure(
    request: Request, caller: Operator, fingerprint: str, said: ReasonBody
) -> Response:
    return await _said(
        request,
        caller,
        fingerprint,
        lambda api, name: api.unmute(name, reason=said.reason, owner=caller.owner),
    )


@router.post("/{fingerprint}/resolve", **answers(FAILURE), openapi_extra=takes(ReasonRequest))
async def resolve_failure(
    request: Request, caller: Operator, fingerprint: str, said: ReasonBody
) -> Response:
    """The cause is gone; a death after it is a regression."""
    return await _said(
        request,
        caller,
        fingerprint,
        lambda api, name: api.resolve(name, note=said.reason, owner=caller.owner),
    )


@router.post("/{fingerprint}/reopen", **answers(FAILURE), openapi_extra=takes(ReasonRequest))
async def reopen_failure(
    request: Request, caller: Operator, fingerprint: str, said: ReasonBody
) -> Response:
    return await _said(
        request,
        caller,
        fingerprint,
        lambda api, name: api.reopen(name, reason=said.reason, owner=caller.owner),
    )


async def _said(
    request: Request, caller: Caller, fingerprint: str, say: Callable[[Failures, str], FailureGroup]
) -> Response:
    return await acted(
        request, caller, lambda: _shown(say(caller.desk.failures, _known(fingerprint)))
    )


def _shown(group: FailureGroup) -> Plain:
    return dict(plain(group))


def _known(fingerprint: str) -> str:
    if _NAME.fullmatch(fingerprint) is None:
        message = f"no failure group {fingerprint!r:.80}"
        raise NotFound(message)
    return fingerprint
