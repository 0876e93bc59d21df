"""`/failures`: failure groups, which collect dead jobs with the same cause."""

from __future__ import annotations

import re
from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from mulligan.core.errors import NotFound
from mulligan.failures.service import FailureGroup, Failures, GroupList
from mulligan.http.api.actions import (
    CursorParam,
    FilterParam,
    ReasonBody,
    ReasonRequest,
    ShortLimitParam,
    UntilBody,
    UntilRequest,
    parse_time,
    run_action,
)
from mulligan.http.api.auth import Caller, Operator, Viewer
from mulligan.http.api.openapi import FAILURE, FAILURES, responses
from mulligan.http.api.requests import decode_cursor, describe_body, encode_cursor
from mulligan.http.api.serialize import JsonObject, to_json

router = APIRouter(prefix="/failures", tags=["failures"])

_FINGERPRINT = re.compile(r"[\x21-\x7e]{1,200}")


@router.get("", **responses(FAILURES))
async def list_failures(
    caller: Viewer,
    filter: FilterParam = "",  # noqa: A002 - as in the URL
    limit: ShortLimitParam = 100,
    cursor: CursorParam = None,
) -> Response:
    """List the most recent failure groups; new, open and regressed ones first.

    `more`: there are other groups.
    """
    cursor_scope = f"failures {filter}"
    before = decode_cursor(caller, cursor_scope, cursor)

    def load() -> GroupList:
        return caller.services.failures.groups(
            filter, owner=caller.owner, limit=limit, before=before, private=caller.private
        )

    found = await caller.context.run(load)
    next_cursor = encode_cursor(caller, cursor_scope, found.cursor)
    return JSONResponse(
        {"failures": [_to_json(group) for group in found], "next": next_cursor, "more": found.more}
    )


@router.get("/{fingerprint}", **responses(FAILURE))
async def get_failure(caller: Viewer, fingerprint: str) -> JsonObject:
    """Get one group with a sample. Only operators see the private part of the sample."""

    def load() -> FailureGroup:
        return caller.services.failures.get(
            _check_fingerprint(fingerprint), owner=caller.owner, private=caller.private
        )

    return _to_json(await caller.context.run(load))


@router.post("/{fingerprint}/mute", **responses(FAILURE), openapi_extra=describe_body(UntilRequest))
async def mute_failure(
    request: Request, caller: Operator, fingerprint: str, body: UntilBody
) -> Response:
    """Mute the alerts and notifications of a group."""
    until = parse_time("until", body.until)
    return await _run_group_action(
        request,
        caller,
        fingerprint,
        lambda failures, name: failures.mute(
            name, until=until, reason=body.reason, owner=caller.owner
        ),
    )


@router.post(
    "/{fingerprint}/unmute", **responses(FAILURE), openapi_extra=describe_body(ReasonRequest)
)
async def unmute_failure(
    request: Request, caller: Operator, fingerprint: str, body: ReasonBody
) -> Response:
    """End the mute of a group."""
    return await _run_group_action(
        request,
        caller,
        fingerprint,
        lambda failures, name: failures.unmute(name, reason=body.reason, owner=caller.owner),
    )


@router.post(
    "/{fingerprint}/resolve", **responses(FAILURE), openapi_extra=describe_body(ReasonRequest)
)
async def resolve_failure(
    request: Request, caller: Operator, fingerprint: str, body: ReasonBody
) -> Response:
    """Mark the cause as fixed. A later death of the same cause is a regression."""
    return await _run_group_action(
        request,
        caller,
        fingerprint,
        lambda failures, name: failures.resolve(name, note=body.reason, owner=caller.owner),
    )


@router.post(
    "/{fingerprint}/reopen", **responses(FAILURE), openapi_extra=describe_body(ReasonRequest)
)
async def reopen_failure(
    request: Request, caller: Operator, fingerprint: str, body: ReasonBody
) -> Response:
    """Reopen a resolved or muted group."""
    return await _run_group_action(
        request,
        caller,
        fingerprint,
        lambda failures, name: failures.reopen(name, reason=body.reason, owner=caller.owner),
    )


async def _run_group_action(
    request: Request,
    caller: Caller,
    fingerprint: str,
    action: Callable[[Failures, str], FailureGroup],
) -> Response:
    def work() -> JsonObject:
        return _to_json(action(caller.services.failures, _check_fingerprint(fingerprint)))

    return await run_action(request, caller, work)


def _to_json(group: FailureGroup) -> JsonObject:
    return dict(to_json(group))


def _check_fingerprint(fingerprint: str) -> str:
    if _FINGERPRINT.fullmatch(fingerprint) is None:
        message = f"no failure group {fingerprint!r:.80}"
        raise NotFound(message)
    return fingerprint
