"""What most routes that change something have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.engine.filters import seconds
from mulligan.errors import Moment
from mulligan.web.api.auth import Caller
from mulligan.web.api.bodies import Said, body_of
from mulligan.web.api.enqueuing import Text, moment
from mulligan.web.api.once import Answer, once
from mulligan.web.api.shapes import plain

Filter = Annotated[
    str, Query(max_length=2000, description='state:dead kind:render code:GW_5XX owner:acme since:2h "moov atom"')
]
Limit = Annotated[int, Query(ge=1, le=1000)]
Few = Annotated[int, Query(ge=1, le=500)]
Cursor = Annotated[str | None, Query(max_length=500, description="`next` of the page before")]
Back = Annotated[str | None, Query(max_length=100, description="2h, 7d: back from now; or a moment with its zone")]
When = Annotated[float | Text | None, Field(description="seconds from now, or a moment with its zone")]


class ReasonSaid(Said):
    reason: Text = ""


class UntilSaid(ReasonSaid):
    until: When = None


class LimitSaid(UntilSaid):
    concurrency: int | None = Field(None, description="running at once, in the whole fleet; null: no limit")
    rate: float | Text | None = Field(None, description="starts, per second or 100/m; null: no limit")
    clear: bool = Field(default=False, description="back to what the code declares")


ReasonBody = Annotated[ReasonSaid, body_of(ReasonSaid)]
UntilBody = Annotated[UntilSaid, body_of(UntilSaid)]
LimitBody = Annotated[LimitSaid, body_of(LimitSaid)]


def when(name: str, said: float | str | None) -> Moment | None:
    return moment(name, said) if isinstance(said, str) else said


def back(name: str, said: str | None) -> Moment | None:
    if said is None:
        return None
    length = seconds(said)
    return moment(name, said) if length is None else length


def limits_of(said: LimitSaid) -> dict[str, Any]:
    """Only what was said: what was not stays as it is set."""
    given = {name: getattr(said, name) for name in said.model_fields_set & {"concurrency", "rate"}}
    return given | ({"until": when("until", said.until)} if "until" in said.model_fields_set else {})


async def acted(request: Request, caller: Caller, act: Callable[[], Any]) -> Response:
    """Done once, if the request names itself; answered with what it is now."""
    return await once(request, caller, lambda _: Answer(200, plain(act())))
