"""Who asks: a key in `Authorization: Bearer …`, and nowhere else."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, NamedTuple

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from mulligan.access.keys import PREFIX, Key, Role, is_key
from mulligan.batches.service import Batch
from mulligan.core.errors import NotFound
from mulligan.core.ids import LENGTH
from mulligan.core.job import Job
from mulligan.http.api.context import ApiContext
from mulligan.http.api.problems import Problem, forbidden
from mulligan.http.services import WebServices
from mulligan.manifest.specs import OURS

WRONG = "this key is wrong, expired or revoked"
BEARER = re.compile(r"Bearer +([\x21-\x7e]+) *", re.IGNORECASE)
NAMES = frozenset({"access_token", "api_key", "apikey", "authorization", "key", "token"})


class Caller(NamedTuple):
    key: Key
    seal: bytes  # known to who holds the key alone
    room: ApiContext

    @property
    def owner(self) -> str | None:
        """Whose things may be seen; None: everybody's."""
        return self.key.owner

    @property
    def private(self) -> bool:
        """Is the private half for them?"""
        return self.key.role.may(Role.OPERATOR)

    @property
    def backstage(self) -> bool:
        """May they see who of the house did what, and where? An owner's own operator is not of the house."""
        return self.private and self.owner is None

    @property
    def actor(self) -> str:
        return f"key:{self.key.id}"

    @property
    def desk(self) -> WebServices:
        return self.room.desk(self.actor)


class Needs:
    """What a route asks of the caller's key."""

    def __init__(self, role: Role, *, everything: bool = False, apart: str = "") -> None:
        self.role, self.everything = role, everything
        self._apart = apart  # counted by itself

    async def __call__(self, request: Request) -> Caller:
        found = await _caller(request, self._apart)
        if not found.key.role.may(self.role):
            raise forbidden(f"this needs a key of role {self.role}; yours is {found.key.role}")
        if self.everything and found.owner is not None:
            raise forbidden("this is shared by all owners and needs a key of scope *")
        return found


async def _caller(request: Request, apart: str) -> Caller:
    room: ApiContext = request.app.state.room
    text = _text(request)
    seal = hashlib.sha256(text.encode()).digest()
    room.rates.admit(request, seal)
    key = await room.ask(lambda: room.app.keys.known(text))
    if key is None:
        room.rates.wrong(request, seal)
        raise _stranger(WRONG)
    room.rates.right(request, seal, f"{key.id} {apart}")
    room.remember(key)
    return Caller(key, seal, room)


def _text(request: Request) -> str:
    if any(
        name.lower() in NAMES or value.startswith(PREFIX)
        for name, value in request.query_params.multi_items()
    ):
        raise _stranger(
            "a key belongs in the Authorization header; in a URL it ends up in logs. Revoke this one"
        )
    given = request.headers.getlist("authorization")
    found = BEARER.fullmatch(given[0]) if len(given) == 1 else None
    if found is None:
        raise _stranger(
            "send one header, Authorization, with Bearer and a key; mulligan keys create makes one"
        )
    if not is_key(found[1]):
        raise _stranger(WRONG)  # no guess: it need not be looked for
    return found[1]


def _stranger(detail: str) -> Problem:
    return Problem(
        401, "UNAUTHENTICATED", detail, headers={"www-authenticate": 'Bearer realm="mulligan"'}
    )


KEYED = [
    Security(
        HTTPBearer(
            auto_error=False, scheme_name="key", description="mulligan keys create makes one"
        )
    )
]
Viewer = Annotated[Caller, Depends(Needs(Role.VIEWER))]
Listening = Annotated[Caller, Depends(Needs(Role.VIEWER, apart="streams"))]
Operator = Annotated[Caller, Depends(Needs(Role.OPERATOR))]
Admin = Annotated[Caller, Depends(Needs(Role.ADMIN))]
ViewerOfAll = Annotated[Caller, Depends(Needs(Role.VIEWER, everything=True))]
OperatorOfAll = Annotated[Caller, Depends(Needs(Role.OPERATOR, everything=True))]
AdminOfAll = Annotated[Caller, Depends(Needs(Role.ADMIN, everything=True))]


# What belongs to somebody else answers exactly like what does not exist.

_ID = re.compile(rf"[0-9a-z]{{{LENGTH}}}")


def owned_job(caller: Caller, job_id: str) -> Job:
    """A job of the caller's; what Mulligan does for itself is nobody's but of who sees everything."""
    job = caller.desk.jobs.get(known_id("job", job_id), owner=caller.owner)
    if caller.owner is not None and job.kind.startswith(OURS):
        raise NotFound(_no_such("job", job_id))
    return job


def owned_batch(caller: Caller, batch_id: str) -> Batch:
    return caller.desk.batches.get(known_id("batch", batch_id), owner=caller.owner)


def known_id(what: str, given: str) -> str:
    """What cannot be an id need not be looked for."""
    if _ID.fullmatch(given) is None:
        raise NotFound(_no_such(what, given))
    return given


def _no_such(what: str, given: str) -> str:
    return f"no {what} {given!r:.80}"
