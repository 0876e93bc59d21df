"""Who visits: a cookie that names a session, forms that carry its mark, and one message for the next page."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypedDict
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from mulligan.access.keys import SESSION_FOR, Visitor
from mulligan.config import Settings
from mulligan.core.job import SECOND

MOST_FORM = 256 * 1024  # bytes
MOST_FIELDS = 2_000


class NotSignedIn(Exception):
    """Nobody is signed in, or not any more."""


class NotAllowed(Exception):
    """Somebody is signed in, but not for this."""


class CookieSettings(TypedDict):
    """How a browser keeps our cookies."""

    path: str
    httponly: bool
    secure: bool
    samesite: Literal["lax"]


class Flash(NamedTuple):
    words: str
    tone: str = ""


# -- cookies ----------------------------------------------------------------------------------------
def session_of(request: Request) -> str:
    return request.cookies.get(_name(request), "")


def set_session(request: Request, response: Response, text: str) -> None:
    response.set_cookie(_name(request), text, max_age=SESSION_FOR // SECOND, **_kept(request))


def end_session(request: Request, response: Response) -> None:
    response.delete_cookie(_name(request), path=_path(request))


def set_flash(request: Request, response: Response, visitor: Visitor, flash: Flash) -> None:
    body = base64.urlsafe_b64encode(json.dumps(flash).encode()).decode()
    response.set_cookie(
        f"{_name(request)}_said", f"{body}.{_seal(visitor, body)}", max_age=60, **_kept(request)
    )


def flash_of(request: Request, visitor: Visitor | None) -> Flash | None:
    """Only what we said ourselves to this very visitor."""
    body, _, seal = request.cookies.get(f"{_name(request)}_said", "").partition(".")
    if (
        visitor is None
        or not body
        or not hmac.compare_digest(seal.encode(), _seal(visitor, body).encode())
    ):
        return None
    try:
        return Flash(*json.loads(base64.urlsafe_b64decode(body)))
    except (ValueError, TypeError, binascii.Error):
        return None


def drop_flash(request: Request, response: Response) -> None:
    response.delete_cookie(f"{_name(request)}_said", path=_path(request))


def _seal(visitor: Visitor, body: str) -> str:
    return hmac.new(visitor.csrf.encode(), body.encode(), hashlib.sha256).hexdigest()[:32]


def _name(request: Request) -> str:
    """Cookies do not know ports, and two dashboards on one machine are two."""
    return f"mulligan_{request.url.port or 0}"


def _path(request: Request) -> str:
    return request.scope.get("root_path", "") or "/"


def _kept(request: Request) -> CookieSettings:
    said: Settings = request.app.state.room.settings  # a proxy may not tell us that it speaks TLS
    secure = request.url.scheme == "https" or said.web.public_url.startswith("https:")
    return CookieSettings(path=_path(request), httponly=True, secure=secure, samesite="lax")


# -- forms ------------------------------------------------------------------------------------------
async def form_of(request: Request) -> dict[str, str]:
    """What a form said; the last of several values, those of `id` with commas between them."""
    if (
        request.headers.get("content-type", "").partition(";")[0].strip()
        != "application/x-www-form-urlencoded"
    ):
        message = "a form is expected"
        raise NotAllowed(message)
    body = await _body_of(request)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        message = "this form cannot be read"
        raise NotAllowed(message) from None
    said = dict(pairs)
    if many := [value for name, value in pairs if name == "id"]:
        said["id"] = ",".join(many)
    return {name: value.strip() for name, value in said.items()}


async def _body_of(request: Request) -> bytes:
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MOST_FORM:
                message = "this form is too large"
                raise NotAllowed(message)
    except ClientDisconnect:
        message = "this form has not come to its end"
        raise NotAllowed(message) from None
    return bytes(body)


def check_origin(request: Request) -> None:
    """A form of another site may carry a visitor's cookie, but it says where it comes from."""
    own = request.headers.get("host", "")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != own:
        message = "this form comes from another site"
        raise NotAllowed(message)
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        message = "this form comes from another site"
        raise NotAllowed(message)


def check_mark(visitor: Visitor, said: Mapping[str, str]) -> None:
    if not hmac.compare_digest(said.get("csrf", "").encode(), visitor.csrf.encode()):
        message = "this form is from before you signed in, or not one of ours; go back, reload the page and try again"
        raise NotAllowed(message)
