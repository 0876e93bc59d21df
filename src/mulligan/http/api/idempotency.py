"""`Idempotency-Key`: run a request once; repeat its stored answer for a day."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from mulligan.core.durations import SECOND
from mulligan.http.api.auth import Caller
from mulligan.http.api.problems import Problem
from mulligan.http.api.requests import read_body
from mulligan.storage.base import Transaction

HEADER = "idempotency-key"
ABANDONED_AFTER = 60 * SECOND  # then another request may take over an unfinished key
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class JsonAnswer(NamedTuple):
    """Status and JSON body of a response."""

    status: int
    body: Any


class IdempotencyKey(NamedTuple):
    """An Idempotency-Key with the API key and the hash of its request. Empty `name`: none sent."""

    key: str
    name: str
    hash: str

    def store_answer(self, tx: Transaction, answer: JsonAnswer) -> None:
        """Store the answer in the transaction of the work, so that both commit or neither does."""
        if self.name:
            tx.store_response(self.key, self.name, answer.status, json.dumps(answer.body))


Work = Callable[[IdempotencyKey], JsonAnswer]


async def run_once(request: Request, caller: Caller, work: Work, *, slow: bool = False) -> Response:
    """Run `work` unless its Idempotency-Key was used before; then repeat the stored answer."""
    key = await _idempotency_key(request, caller)
    run = caller.context.run_slow if slow else caller.context.run
    answer, replayed = await run(lambda: _run_or_replay(caller, key, work))
    headers = {"idempotent-replayed": "true"} if replayed else {}
    return JSONResponse(answer.body, answer.status, headers)


async def _idempotency_key(request: Request, caller: Caller) -> IdempotencyKey:
    headers = request.headers.getlist(HEADER)
    if not headers:
        return IdempotencyKey(caller.key.id, "", "")
    if len(headers) > 1 or _KEY.fullmatch(headers[0]) is None:
        detail = "send one Idempotency-Key of 1 to 255 printable ASCII characters without spaces"
        raise Problem(422, "INVALID", detail)
    head = f"{request.method}\n{request.url.path}\n{request.url.query}\n".encode()
    body = await read_body(request)
    return IdempotencyKey(caller.key.id, headers[0], hashlib.sha256(head + body).hexdigest())


def _run_or_replay(caller: Caller, key: IdempotencyKey, work: Work) -> tuple[JsonAnswer, bool]:
    """Return the answer, and whether it is the stored answer of an earlier request."""
    if not key.name:
        return work(key), False
    store = caller.context.store()
    with store.begin() as tx:
        is_first = tx.claim_idempotency_key(*key, tx.now() - ABANDONED_AFTER)
    if not is_first:
        return _stored_answer(caller, key), True
    try:
        answer = work(key)
    except BaseException:
        with store.begin() as tx:
            tx.release_idempotency_key(key.key, key.name)
        raise
    with store.begin() as tx:
        key.store_answer(tx, answer)
    return answer, False


def _stored_answer(caller: Caller, key: IdempotencyKey) -> JsonAnswer:
    with caller.context.store().read() as tx:
        row = tx.get_stored_response(key.key, key.name)
    if row is not None and row.request != key.hash:
        detail = "this Idempotency-Key was used for another request"
        raise Problem(422, "IDEMPOTENCY_MISMATCH", detail)
    if row is None or row.status is None:
        detail = "a request with this Idempotency-Key is still running"
        raise Problem(409, "IDEMPOTENCY_IN_FLIGHT", detail, retryable=True)
    return JsonAnswer(row.status, json.loads(row.body))
