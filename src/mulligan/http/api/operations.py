"""`/operations`: one careful action on many jobs, with preview, steps, pause and an end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.http.api.actions import Cursor, Few, Limit, ReasonBody, ReasonRequest, Text, acted
from mulligan.http.api.auth import Caller, Operator, Viewer, known_id
from mulligan.http.api.idempotency import Answer, Named, once
from mulligan.http.api.openapi import ITEMS, OPERATION, OPERATIONS, PREVIEW, answers
from mulligan.http.api.requests import RequestBody, body_of, opened, sealed, takes
from mulligan.http.api.serialize import Plain, plain
from mulligan.operations.service import Operation, Operations

router = APIRouter(prefix="/operations", tags=["operations"])


class OperationRequest(RequestBody):
    action: Text = Field(description="retry, cancel, discard, release or move")
    filter: Annotated[
        str, Field(max_length=2000, description="which jobs; an empty one is refused")
    ]
    steps: list[int | Text] | None = Field(None, description='[1, 10, 100, "rest"]')
    rate: float | Text | None = Field(None, description="items a second, or 100/m")
    stop_if: float = Field(
        0.1, description="it stops when more than this share fails of the same cause again"
    )
    dry_run: bool = Field(default=False, description="only say what would happen")
    reason: Text = ""
    overrides: dict[str, Any] | None = None
    queue: Text | None = None
    choice: Text | None = None


OperationBody = Annotated[OperationRequest, body_of(OperationRequest)]
Outcome = Annotated[
    Text | None, Query(description="recovered, same, other, done, refused, skipped …")
]


@router.get("", **answers(OPERATIONS))
async def list_operations(caller: Viewer, limit: Few = 50, cursor: Cursor = None) -> Plain:
    """Newest first."""
    before = opened(caller, "operations", cursor)
    found = await caller.room.ask(
        lambda: caller.desk.operations.list(owner=caller.owner, limit=limit, before=before)
    )
    following = sealed(caller, "operations", found[-1].id) if len(found) == limit else None
    return {"operations": [_shown(one) for one in found], "next": following}


@router.get("/{operation_id}", **answers(OPERATION))
async def get_operation(caller: Viewer, operation_id: str) -> Plain:
    def look() -> Operation:
        return caller.desk.operations.get(known_id("operation", operation_id), owner=caller.owner)

    return _shown(await caller.room.ask(look))


@router.get("/{operation_id}/items", **answers(ITEMS))
async def list_items(
    caller: Viewer,
    operation_id: str,
    outcome: Outcome = None,
    limit: Limit = 1000,
    cursor: Cursor = None,
) -> Plain:
    """Its jobs, in the order in which they are sent."""
    about = f"items {operation_id} {outcome}"
    after = int(opened(caller, about, cursor) or 0)

    def look() -> Any:
        name = known_id("operation", operation_id)
        return caller.desk.operations.items(
            name, outcome, owner=caller.owner, limit=limit, after=after
        )

    found = await caller.room.ask(look)
    following = sealed(caller, about, str(found[-1].place)) if len(found) == limit else None
    return {"items": plain(found), "next": following}


@router.post(
    "",
    **answers(OPERATION, 201, or_200=PREVIEW),
    openapi_extra=takes(OperationRequest, required=True),
)
async def start_operation(request: Request, caller: Operator, said: OperationBody) -> Response:
    """201 with the operation; 200 with what it would do, if `dry_run`."""

    def work(named: Named) -> Answer:
        wish: Plain = {
            name: getattr(said, name)
            for name in said.model_fields_set - {"action", "filter", "dry_run"}
        }
        if said.dry_run:
            found = caller.desk.operations.start(
                said.action, said.filter, dry_run=True, owner=caller.owner, **wish
            )
            return Answer(200, plain(found))
        key = f"{named.key} {named.name}"[:200] if named.name else None
        return Answer(
            201,
            _shown(
                caller.desk.operations.start(
                    said.action, said.filter, owner=caller.owner, key=key, **wish
                )
            ),
        )

    return await once(request, caller, work)


@router.post("/{operation_id}/pause", **answers(OPERATION), openapi_extra=takes(ReasonRequest))
async def pause_operation(
    request: Request, caller: Operator, operation_id: str, said: ReasonBody
) -> Response:
    """Send nothing more for now; what was sent goes on."""
    return await _said(
        request,
        caller,
        operation_id,
        lambda api, name: api.pause(name, reason=said.reason, owner=caller.owner),
    )


@router.post("/{operation_id}/resume", **answers(OPERATION), openapi_extra=takes(ReasonRequest))
async def resume_operation(
    request: Request, caller: Operator, operation_id: str, said: ReasonBody
) -> Response:
    return await _said(
        request,
        caller,
        operation_id,
        lambda api, name: api.resume(name, reason=said.reason, owner=caller.owner),
    )


@router.post("/{operation_id}/abort", **answers(OPERATION), openapi_extra=takes(ReasonRequest))
async def abort_operation(
    request: Request, caller: Operator, operation_id: str, said: ReasonBody
) -> Response:
    """For good. What was not sent stays untouched."""
    return await _said(
        request,
        caller,
        operation_id,
        lambda api, name: api.abort(name, reason=said.reason, owner=caller.owner),
    )


async def _said(
    request: Request, caller: Caller, operation_id: str, say: Callable[[Operations, str], Operation]
) -> Response:
    return await acted(
        request,
        caller,
        lambda: _shown(say(caller.desk.operations, known_id("operation", operation_id))),
    )


def _shown(operation: Operation) -> Plain:
    return dict(plain(operation))
