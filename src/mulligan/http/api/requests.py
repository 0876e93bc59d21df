"""Read requests: bodies as strict JSON, list cursors, and `Idempotency-Key`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from fastapi import Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect

from mulligan.access.queries import AccessQueries
from mulligan.http.api.auth import Caller
from mulligan.http.api.responses import ApiResponse, JsonAnswer, Problem, invalid_request
from mulligan.storage.base import Transaction

BODY_OVERHEAD = 64 * 1024  # bytes that a body may have in addition to the payload
MAX_DISCARDED = 12 * 1024**2  # bytes of a refused body that are read before the answer
MAX_DISCARD_SECONDS = 5.0
MAX_DEPTH = 100
_JSON = re.compile(r"application/(?:[\w.-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)

M = TypeVar("M", bound=BaseModel)


class RequestBody(BaseModel):
    """Base of all request bodies. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


async def read_body(request: Request) -> bytes:
    """Return the bytes of the body. Bodies above the limit are refused while they are read."""
    if hasattr(request.state, "body"):
        return bytes(request.state.body)
    limit = request.app.state.context.settings.limits.payload + BODY_OVERHEAD
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limit:
        await _discard_rest(request, request.stream())
        raise _too_large(limit)
    body = bytearray()
    chunks = request.stream()
    try:
        async for chunk in chunks:
            body += chunk
            if len(body) > limit:
                await _discard_rest(request, chunks)
                raise _too_large(limit)
    except ClientDisconnect:
        raise Problem(400, "NOT_JSON", "incomplete body") from None
    request.state.body = bytes(body)
    return bytes(body)


async def _discard_rest(request: Request, chunks: AsyncIterator[bytes]) -> None:
    """Read the rest of a body that is too large, within bounds.

    If the connection is closed while the client sends, the client sees a reset and no answer.
    """
    if "expect" in request.headers:  # the client waits for an answer before it sends
        return
    size = 0
    with contextlib.suppress(ClientDisconnect, TimeoutError):
        async with asyncio.timeout(MAX_DISCARD_SECONDS):
            async for chunk in chunks:
                size += len(chunk)
                if size > MAX_DISCARDED:
                    return


def _too_large(limit: int) -> Problem:
    detail = f"the body is larger than {limit:,} bytes"
    return Problem(413, "TOO_LARGE", detail, headers={"connection": "close"})


async def _read_json(request: Request) -> Any:
    body = await read_body(request)
    if not body:
        return {}
    if _JSON.fullmatch(request.headers.get("content-type", "")) is None:
        raise Problem(415, "NOT_JSON", "send JSON, with Content-Type: application/json")
    return parse_strict_json(body)


def json_body(model: type[M], bulk_model: type[M] | None = None) -> Any:
    """Return a dependency that reads the body as `model`; as `bulk_model` if it has `jobs`."""

    async def read(request: Request) -> M:
        document = await _read_json(request)
        if not isinstance(document, dict):
            raise Problem(422, "INVALID", "the body must be a JSON object")
        is_bulk = bulk_model is not None and "jobs" in document
        expected = bulk_model if bulk_model is not None and is_bulk else model
        try:
            return expected.model_validate(document)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False, include_input=False)
            raise invalid_request(details) from None

    dependency: Callable[[Request], Awaitable[M]] = read
    return Depends(dependency)


def describe_body(
    model: type[BaseModel], bulk_model: type[BaseModel] | None = None, *, required: bool = False
) -> dict[str, Any]:
    """Return the OpenAPI description of a body, which FastAPI cannot see inside `json_body`."""
    schema = _schema(model)
    if bulk_model is not None:
        schema = {"anyOf": [schema, _schema(bulk_model)]}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": required, "content": content}}


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a model with all references resolved."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    return dict(_inline_references(schema, definitions))


def _inline_references(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inline_references(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    name = str(value.get("$ref", "")).rpartition("/")[2]
    if name:
        return _inline_references(definitions[name], definitions)
    return {key: _inline_references(item, definitions) for key, item in value.items()}


# --- JSON ---


def parse_strict_json(text: bytes) -> Any:
    """Parse JSON. Refuse NaN, duplicate names, deep nesting and invalid Unicode."""
    try:
        value = json.loads(
            text.decode(),
            parse_constant=_refuse_constant,
            object_pairs_hook=_object_without_duplicates,
        )
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise _not_json(f"nested deeper than {MAX_DEPTH} levels") from None
    except (UnicodeDecodeError, UnicodeEncodeError):
        raise _not_json("not valid Unicode") from None
    except ValueError as error:
        raise _not_json(str(error)) from None
    if _depth(value) > MAX_DEPTH:
        raise _not_json(f"nested deeper than {MAX_DEPTH} levels")
    return value


def _not_json(why: str) -> Problem:
    return Problem(400, "NOT_JSON", f"the body is not valid JSON: {why}")


def _refuse_constant(name: str) -> Any:
    message = f"{name} is not allowed"
    raise ValueError(message)


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        message = "an object has the same name twice"
        raise ValueError(message)
    return found


def _depth(value: Any) -> int:
    """Return the depth of nesting, level by level: recursion could overflow the stack."""
    depth = 0
    level = [value]
    while level:
        depth += 1
        level = [child for parent in level for child in _children(parent)]
    return depth


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list):
        return value
    return ()


# --- Cursors ---
# A cursor is signed with the caller's key, so that a client can neither make one up nor use it
# with another list or another key.

_SIGNATURE_LENGTH = 12  # bytes


def encode_cursor(caller: Caller, scope: str, position: str | None) -> str | None:
    """Return the cursor of a position, or None without one.

    `scope` names the list: its route and its filter.
    """
    if position is None:
        return None
    text = position.encode()
    signed = _signature(caller, scope, text) + text
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")


def decode_cursor(caller: Caller, scope: str, cursor: str | None) -> str | None:
    """Return the position of a cursor, or None without one. Refuse cursors of other lists."""
    if not cursor:
        return None
    try:
        signed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        text = signed[_SIGNATURE_LENGTH:]
        position = text.decode()
    except (ValueError, UnicodeError):
        raise _invalid_cursor() from None
    signature = signed[:_SIGNATURE_LENGTH]
    if not hmac.compare_digest(signature, _signature(caller, scope, text)):
        raise _invalid_cursor()
    return position


def _signature(caller: Caller, scope: str, position: bytes) -> bytes:
    message = b"\x00".join((scope.encode("utf-8", "surrogatepass"), position))
    return hmac.new(caller.key_hash, message, hashlib.sha256).digest()[:_SIGNATURE_LENGTH]


def _invalid_cursor() -> Problem:
    detail = "this cursor does not belong to this list and this key. Start without a cursor."
    return Problem(422, "CURSOR", detail)


# --- Idempotency-Key: run a request once, and repeat its stored answer for a day ---

# Work that inserts jobs stores its answer in its own transaction: both commit or neither does.
# Other work claims the key for as long as it runs.
HEADER = "idempotency-key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class AnsweredMeanwhile(Exception):
    """Another request with the same Idempotency-Key has stored its answer. Roll back."""


class IdempotencyKey(NamedTuple):
    """An Idempotency-Key with the API key and the hash of its request. Empty `name`: none sent."""

    key: str
    name: str
    hash: str

    def lock(self, tx: Transaction) -> None:
        """Lock the key until the transaction ends, so that a second request need not wait for it.

        A lock dies with its connection: nothing has to be released after a crash.
        """
        if self.name and not AccessQueries(tx).lock_idempotency_key(self.key, self.name):
            raise _in_flight()

    def store_answer(self, tx: Transaction, answer: JsonAnswer) -> None:
        """Store the answer in the transaction of the work, so that both commit or neither does."""
        if not self.name:
            return
        body = json.dumps(answer.body)
        if not AccessQueries(tx).insert_response(*self, answer.status, body):
            raise AnsweredMeanwhile


Work = Callable[[IdempotencyKey], JsonAnswer]


async def run_once(request: Request, caller: Caller, work: Work, *, slow: bool = False) -> Response:
    """Run `work` under a claim of its Idempotency-Key, or repeat the stored answer."""
    key = await _read_key(request, caller)
    run = caller.run_slow if slow else caller.run
    answer, replayed = await run(lambda: _run_claimed(caller, key, work))
    return _response(answer, replayed=replayed)


async def insert_once(request: Request, caller: Caller, work: Work) -> Response:
    """Run `work`, which locks its Idempotency-Key and stores the answer in its transaction."""
    key = await _read_key(request, caller)
    answer, replayed = await caller.run(lambda: _insert_or_replay(caller, key, work))
    return _response(answer, replayed=replayed)


def _response(answer: JsonAnswer, *, replayed: bool) -> Response:
    headers = {"idempotent-replayed": "true"} if replayed else {}
    return ApiResponse(answer.body, answer.status, headers)


async def _read_key(request: Request, caller: Caller) -> IdempotencyKey:
    headers = request.headers.getlist(HEADER)
    if not headers:
        return IdempotencyKey(caller.key.id, "", "")
    if len(headers) > 1 or _KEY.fullmatch(headers[0]) is None:
        detail = "send one Idempotency-Key of 1 to 255 printable ASCII characters without spaces"
        raise Problem(422, "INVALID", detail)
    head = f"{request.method}\n{request.url.path}\n{request.url.query}\n".encode()
    body = await read_body(request)
    return IdempotencyKey(caller.key.id, headers[0], hashlib.sha256(head + body).hexdigest())


# --- On a database thread: return the answer, and whether it is that of an earlier request ---


def _insert_or_replay(caller: Caller, key: IdempotencyKey, work: Work) -> tuple[JsonAnswer, bool]:
    stored = _stored_answer(caller, key)
    if stored is not None:
        return stored, True
    try:
        return work(key), False
    except AnsweredMeanwhile:
        stored = _stored_answer(caller, key)
        if stored is None:  # it was removed meanwhile
            raise _in_flight() from None
        return stored, True


def _run_claimed(caller: Caller, key: IdempotencyKey, work: Work) -> tuple[JsonAnswer, bool]:
    if not key.name:
        return work(key), False
    claims = caller.context.claims
    claim = claims.take(*key)
    if claim is None:
        stored = _stored_answer(caller, key)
        if stored is None:
            raise _in_flight()
        return stored, True
    try:
        answer = work(key)
    except BaseException:
        claims.release(claim)
        raise
    claims.store_response(claim, answer.status, json.dumps(answer.body))
    return answer, False


def _stored_answer(caller: Caller, key: IdempotencyKey) -> JsonAnswer | None:
    """Return the answer of an earlier request; None if there is none yet."""
    if not key.name:
        return None
    with caller.context.store().read() as tx:
        row = AccessQueries(tx).get_stored_response(key.key, key.name)
    if row is None:
        return None
    if row.request != key.hash:
        detail = "this Idempotency-Key was used for another request"
        raise Problem(422, "IDEMPOTENCY_MISMATCH", detail)
    return None if row.status is None else JsonAnswer(row.status, json.loads(row.body))


def _in_flight() -> Problem:
    detail = "a request with this Idempotency-Key is still running"
    return Problem(409, "IDEMPOTENCY_IN_FLIGHT", detail, retryable=True)
