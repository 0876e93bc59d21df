"""`Idempotency-Key`: a request that names itself is done once, and asked again gets the same answer for a day."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from mulligan.core.job import SECOND
from mulligan.http.api.auth import Caller
from mulligan.http.api.problems import Problem
from mulligan.http.api.requests import raw
from mulligan.storage.base import Transaction

HEADER = "idempotency-key"
ABANDONED = 60 * SECOND  # nobody works on a request for so long
_NAME = re.compile(r"[\x21-\x7e]{1,255}")


class Answer(NamedTuple):
    status: int
    body: Any


class Named(NamedTuple):
    """A request and the name it has given itself; "": none."""

    key: str
    name: str
    hash: str

    def end(self, unit: Transaction, answer: Answer) -> None:
        """In the transaction of what was done, so that neither is there without the other."""
        if self.name:
            unit.end_answer(self.key, self.name, answer.status, json.dumps(answer.body))


Work = Callable[[Named], Answer]


async def once(request: Request, caller: Caller, work: Work, *, long: bool = False) -> Response:
    """`long`: it may take its time, one after the other."""
    named = await _named(request, caller)
    ask = caller.room.ask_long if long else caller.room.ask
    answer, again = await ask(lambda: _done(caller, named, work))
    return JSONResponse(
        answer.body, answer.status, {"idempotent-replayed": "true"} if again else {}
    )


async def _named(request: Request, caller: Caller) -> Named:
    given = request.headers.getlist(HEADER)
    if not given:
        return Named(caller.key.id, "", "")
    if len(given) > 1 or _NAME.fullmatch(given[0]) is None:
        raise Problem(
            422,
            "INVALID",
            "Idempotency-Key is one text of 1 to 255 printable ASCII characters, no spaces",
        )
    said = f"{request.method}\n{request.url.path}\n{request.url.query}\n".encode() + await raw(
        request
    )
    return Named(caller.key.id, given[0], hashlib.sha256(said).hexdigest())


def _done(caller: Caller, named: Named, work: Work) -> tuple[Answer, bool]:
    """The answer, and whether it was given before."""
    if not named.name:
        return work(named), False
    store = caller.room.store()
    with store.begin() as unit:
        ours = unit.take_answer(*named, unit.now() - ABANDONED)
    if not ours:
        return _given(caller, named), True
    try:
        answer = work(named)
    except BaseException:
        with store.begin() as unit:
            unit.drop_answer(named.key, named.name)
        raise
    with store.begin() as unit:
        named.end(unit, answer)
    return answer, False


def _given(caller: Caller, named: Named) -> Answer:
    with caller.room.store().read() as unit:
        row = unit.answer(named.key, named.name)
    if row is not None and row.request != named.hash:
        raise Problem(
            422, "IDEMPOTENCY_MISMATCH", "this Idempotency-Key was used for another request"
        )
    if row is None or row.status is None:
        words = "a request with this Idempotency-Key is being worked on"
        raise Problem(409, "IDEMPOTENCY_IN_FLIGHT", words, retryable=True)
    return Answer(row.status, json.loads(row.body))
