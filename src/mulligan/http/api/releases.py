"""`/releases`: list, compare and hold the releases that workers run."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.http.api.actions import ReasonRequest, Text, UntilRequest, parse_time, run_action
from mulligan.http.api.auth import OperatorOfAll, ViewerOfAll
from mulligan.http.api.openapi import RELEASE, RELEASE_COMPARISON, RELEASES, responses
from mulligan.http.api.requests import describe_body, json_body
from mulligan.http.api.responses import JsonObject, to_json
from mulligan.releases.service import Release, ReleaseComparison

router = APIRouter(prefix="/releases", tags=["releases"])


class HoldRequest(UntilRequest):
    """Body of `POST /releases/{name}/hold`."""

    kind: Text | None = Field(None, description="only this kind; without it, all kinds")


class UnholdRequest(ReasonRequest):
    """Body of `POST /releases/{name}/unhold`."""

    kind: Text | None = Field(None, description="as it was held")


HoldBody = Annotated[HoldRequest, json_body(HoldRequest)]
UnholdBody = Annotated[UnholdRequest, json_body(UnholdRequest)]
ReleaseParam = Annotated[str, Query(max_length=200)]
KindParam = Annotated[str | None, Query(max_length=200)]


@router.get("", **responses(RELEASES))
async def list_releases(caller: ViewerOfAll) -> JsonObject:
    """List releases, the newest first, with what each kind fails under them."""
    return {"releases": to_json(await caller.run(caller.services.releases.list))}


@router.get("/{name}", **responses(RELEASE))
async def get_release(caller: ViewerOfAll, name: str) -> JsonObject:
    """Get one release."""
    return dict(to_json(await caller.run(lambda: caller.services.releases.get(name))))


@router.get("/{name}/compare", **responses(RELEASE_COMPARISON))
async def compare_releases(
    caller: ViewerOfAll, name: str, before: ReleaseParam = "", kind: KindParam = None
) -> JsonObject:
    """Compare a release with another one, kind by kind and cause by cause.

    `before`: the other one. Default: the release that was first seen before it.
    """

    def load() -> ReleaseComparison:
        releases = caller.services.releases
        return releases.compare(before or releases.find_previous(name), name, kind=kind)

    return dict(to_json(await caller.run(load)))


@router.post("/{name}/hold", **responses(RELEASE), openapi_extra=describe_body(HoldRequest))
async def hold_release(
    request: Request, caller: OperatorOfAll, name: str, body: HoldBody
) -> Response:
    """Hold a release, or one kind of it: its workers claim no more of these jobs."""
    until = parse_time("until", body.until)

    def act() -> Release:
        return caller.services.releases.hold(name, kind=body.kind, until=until, reason=body.reason)

    return await run_action(request, caller, act)


@router.post("/{name}/unhold", **responses(RELEASE), openapi_extra=describe_body(UnholdRequest))
async def unhold_release(
    request: Request, caller: OperatorOfAll, name: str, body: UnholdBody
) -> Response:
    """End the hold of a release, or of one of its kinds."""

    def act() -> Release:
        return caller.services.releases.unhold(name, kind=body.kind, reason=body.reason)

    return await run_action(request, caller, act)
