"""A link to the page of one job or batch, for whoever it belongs to."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mulligan.engine.batches import Batch
from mulligan.job import Job
from mulligan.web.api.acting import When, when
from mulligan.web.api.auth import Caller
from mulligan.web.api.bodies import Said, body_of
from mulligan.web.api.shapes import Plain


class LinkSaid(Said):
    retry: bool = Field(default=True, description="with a button once it has failed")
    expires: When = None


LinkBody = Annotated[LinkSaid, body_of(LinkSaid)]


def linked(caller: Caller, of: Job | Batch, said: LinkSaid) -> Plain:
    return {"link": caller.desk.status.link(of, retry=said.retry, expires=when("expires", said.expires))}
