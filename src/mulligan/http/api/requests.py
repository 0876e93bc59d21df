"""What is posted: JSON, as strict as JSON can be read, and no more of it than a payload may have."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect

from mulligan.http.api.auth import Caller
from mulligan.http.api.problems import Problem, invalid

ROOM = 64 * 1024  # beside the payload
DEEPEST = 100
_JSON = re.compile(r"application/(?:[\w.-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)

M = TypeVar("M", bound=BaseModel)


class RequestBody(BaseModel):
    """What a body may say; a word nobody knows is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


async def raw(request: Request) -> bytes:
    """The bytes, of which no more are read than there may be. Read once, remembered for who asks again."""
    if hasattr(request.state, "body"):
        return bytes(request.state.body)
    most = request.app.state.room.settings.limits.payload + ROOM
    given = request.headers.get("content-length", "")
    if given.isdecimal() and int(given[:20]) > most:
        raise _large(most)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise _large(most)
    except ClientDisconnect:  # nobody hears the answer, and nothing has gone wrong here
        raise Problem(400, "NOT_JSON", "the body has not come to its end") from None
    request.state.body = bytes(body)
    return bytes(body)


def _large(most: int) -> Problem:
    return Problem(
        413, "TOO_LARGE", f"a body may have {most:,} bytes", headers={"connection": "close"}
    )


async def _document(request: Request) -> Any:
    body = await raw(request)
    if not body:
        return {}
    if _JSON.fullmatch(request.headers.get("content-type", "")) is None:
        raise Problem(415, "NOT_JSON", "send JSON, with Content-Type: application/json")
    return strict(body)


def body_of(model: type[M], many: type[M] | None = None) -> Any:
    """A dependency that reads the body as this; `many`: as that, if it says `jobs`."""

    async def read(request: Request) -> M:
        document = await _document(request)
        if not isinstance(document, dict):
            raise Problem(422, "INVALID", "the body is a JSON object")
        asked = many if many is not None and "jobs" in document else model
        try:
            return asked.model_validate(document)
        except ValidationError as error:
            raise invalid(
                error.errors(include_url=False, include_context=False, include_input=False)
            ) from None

    dependency: Callable[[Request], Awaitable[M]] = read
    return Depends(dependency)


def takes(
    model: type[BaseModel], many: type[BaseModel] | None = None, *, required: bool = False
) -> dict[str, Any]:
    """For the OpenAPI document, which cannot see into `body_of`."""
    schema = _schema(model) if many is None else {"anyOf": [_schema(model), _schema(many)]}
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}
    }


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """Whole, without references to parts that the document would have to hold."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})
    return dict(_inlined(schema, parts))


def _inlined(value: Any, parts: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        name = str(value.get("$ref", "")).rpartition("/")[2]
        return (
            _inlined(parts[name], parts)
            if name
            else {key: _inlined(one, parts) for key, one in value.items()}
        )
    return [_inlined(one, parts) for one in value] if isinstance(value, list) else value


# -- JSON ---------------------------------------------------------------------------------------------
def strict(text: bytes) -> Any:
    """No NaN, no name twice, nothing deeper than anybody means, nothing that is no Unicode."""
    try:
        found = json.loads(text.decode(), parse_constant=_constant, object_pairs_hook=_pairs)
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise _bad(f"nested deeper than {DEEPEST}") from None
    except (UnicodeDecodeError, UnicodeEncodeError):
        raise _bad("not valid Unicode") from None
    except ValueError as error:
        raise _bad(str(error)) from None
    if _depth(found) > DEEPEST:
        raise _bad(f"nested deeper than {DEEPEST}")
    return found


def _bad(why: str) -> Problem:
    return Problem(400, "NOT_JSON", f"the body cannot be read as JSON: {why}")


def _constant(name: str) -> Any:
    message = f"{name} is no JSON"
    raise ValueError(message)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        message = "a name is given twice in one object"
        raise ValueError(message)
    return found


def _depth(value: Any) -> int:
    """Level by level: what is deep must not be walked in depth."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return depth


# Where a list goes on: opaque, and sealed with the caller's key, so that none is made up or carried elsewhere.

_SEAL = 12  # bytes


def sealed(caller: Caller, about: str, position: str) -> str:
    """`about`: the route and the filter; a cursor of another list does not fit."""
    text = position.encode()
    return base64.urlsafe_b64encode(_seal(caller, about, text) + text).decode().rstrip("=")


def opened(caller: Caller, about: str, cursor: str | None) -> str | None:
    if not cursor:
        return None
    try:
        given = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        seal, text = given[:_SEAL], given[_SEAL:]
        position = text.decode()
    except (ValueError, UnicodeError):
        raise _strange() from None
    if not hmac.compare_digest(seal, _seal(caller, about, text)):
        raise _strange()
    return position


def _seal(caller: Caller, about: str, position: bytes) -> bytes:
    said = b"\x00".join((about.encode("utf-8", "surrogatepass"), position))
    return hmac.new(caller.seal, said, hashlib.sha256).digest()[:_SEAL]


def _strange() -> Problem:
    return Problem(
        422, "CURSOR", "this cursor is not one of this list and this key; begin without one"
    )
