"""`/operations`: one action on many jobs, in steps, with preview, pause and abort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.http.api.actions import (
    CursorParam,
    LimitParam,
    ReasonBody,
    ReasonRequest,
    ShortLimitParam,
    Text,
    run_action,
)
from mulligan.http.api.auth import Caller, Operator, Viewer, check_id
from mulligan.http.api.openapi import ITEMS, OPERATION, OPERATIONS, PREVIEW, responses
from mulligan.http.api.requests import (
    IdempotencyKey,
    RequestBody,
    decode_cursor,
    describe_body,
    encode_cursor,
    json_body,
    run_once,
)
from mulligan.http.api.responses import JsonAnswer, JsonObject, to_json
from mulligan.operations.service import Operation, Operations

router = APIRouter(prefix="/operations", tags=["operations"])


class OperationRequest(RequestBody):
    """Body of `POST /operations`."""

    action: Text = Field(description="retry, cancel, discard, release or move")
    filter: Annotated[str, Field(max_length=2000, description="which jobs; must not be empty")]
    steps: list[int | Text] | None = Field(None, description='[1, 10, 100, "rest"]')
    rate: float | Text | None = Field(None, description="jobs per second, or 100/m")
    stop_if: float = Field(
        0.1,
        description="stop if more than this share of the jobs fails again with the same cause",
    )
    dry_run: bool = Field(default=False, description="only report what would happen")
    reason: Text = ""
    overrides: dict[str, Any] | None = None
    from_step: Text | None = None
    queue: Text | None = None
    choice: Text | None = None


OperationBody = Annotated[OperationRequest, json_body(OperationRequest)]
OutcomeParam = Annotated[
    Text | None, Query(description="recovered, same, other, done, refused, skipped …")
]


@router.get("", **responses(OPERATIONS))
async def list_operations(
    caller: Viewer, limit: ShortLimitParam = 50, cursor: CursorParam = None
) -> JsonObject:
    """List operations, newest first."""
    before = decode_cursor(caller, "operations", cursor)
    found = await caller.run(
        lambda: caller.services.operations.list(owner=caller.owner, limit=limit, before=before)
    )
    next_cursor = encode_cursor(caller, "operations", found[-1].id) if len(found) == limit else None
    return {"operations": [_to_json(one) for one in found], "next": next_cursor}


@router.get("/{operation_id}", **responses(OPERATION))
async def get_operation(caller: Viewer, operation_id: str) -> JsonObject:
    """Get one operation."""

    def load() -> Operation:
        return caller.services.operations.get(
            check_id("operation", operation_id), owner=caller.owner
        )

    return _to_json(await caller.run(load))


@router.get("/{operation_id}/items", **responses(ITEMS))
async def list_items(
    caller: Viewer,
    operation_id: str,
    outcome: OutcomeParam = None,
    limit: LimitParam = 1000,
    cursor: CursorParam = None,
) -> JsonObject:
    """List the jobs of an operation, in the order in which it processes them."""
    cursor_scope = f"items {operation_id} {outcome}"
    after = int(decode_cursor(caller, cursor_scope, cursor) or 0)

    def load() -> Any:
        name = check_id("operation", operation_id)
        return caller.services.operations.items(
            name, outcome, owner=caller.owner, limit=limit, after=after
        )

    found = await caller.run(load)
    next_cursor = (
        encode_cursor(caller, cursor_scope, str(found[-1].place)) if len(found) == limit else None
    )
    return {"items": to_json(found), "next": next_cursor}


@router.post(
    "",
    **responses(OPERATION, 201, or_200=PREVIEW),
    openapi_extra=describe_body(OperationRequest, required=True),
)
async def start_operation(request: Request, caller: Operator, body: OperationBody) -> Response:
    """Start an operation. 201 with the operation; 200 with a preview if `dry_run`."""

    def work(key: IdempotencyKey) -> JsonAnswer:
        operations = caller.services.operations
        named = body.model_fields_set - {"action", "filter", "dry_run"}
        options: JsonObject = {name: getattr(body, name) for name in named}
        options["owner"] = caller.owner
        if body.dry_run:
            preview = operations.start(body.action, body.filter, dry_run=True, **options)
            return JsonAnswer(200, to_json(preview))
        unique_key = f"{key.key} {key.name}"[:200] if key.name else None
        operation = operations.start(body.action, body.filter, key=unique_key, **options)
        return JsonAnswer(201, _to_json(operation))

    return await run_once(request, caller, work)


@router.post(
    "/{operation_id}/pause", **responses(OPERATION), openapi_extra=describe_body(ReasonRequest)
)
async def pause_operation(
    request: Request, caller: Operator, operation_id: str, body: ReasonBody
) -> Response:
    """Pause an operation: no more jobs are processed. Jobs already retried continue."""
    return await _run_operation_action(
        request,
        caller,
        operation_id,
        lambda operations, name: operations.pause(name, reason=body.reason, owner=caller.owner),
    )


@router.post(
    "/{operation_id}/resume", **responses(OPERATION), openapi_extra=describe_body(ReasonRequest)
)
async def resume_operation(
    request: Request, caller: Operator, operation_id: str, body: ReasonBody
) -> Response:
    """Resume a paused operation."""
    return await _run_operation_action(
        request,
        caller,
        operation_id,
        lambda operations, name: operations.resume(name, reason=body.reason, owner=caller.owner),
    )


@router.post(
    "/{operation_id}/abort", **responses(OPERATION), openapi_extra=describe_body(ReasonRequest)
)
async def abort_operation(
    request: Request, caller: Operator, operation_id: str, body: ReasonBody
) -> Response:
    """End an operation for good. Jobs not yet processed stay untouched."""
    return await _run_operation_action(
        request,
        caller,
        operation_id,
        lambda operations, name: operations.abort(name, reason=body.reason, owner=caller.owner),
    )


async def _run_operation_action(
    request: Request,
    caller: Caller,
    operation_id: str,
    action: Callable[[Operations, str], Operation],
) -> Response:
    def work() -> JsonObject:
        return _to_json(action(caller.services.operations, check_id("operation", operation_id)))

    return await run_action(request, caller, work)


def _to_json(operation: Operation) -> JsonObject:
    return dict(to_json(operation))
