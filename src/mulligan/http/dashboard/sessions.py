"""Dashboard sessions: the session cookie, CSRF protection of forms, and flash messages."""

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

from mulligan.access.keys import SESSION_LIFETIME, Visitor
from mulligan.config import Settings
from mulligan.core.durations import SECOND

MAX_FORM_SIZE = 256 * 1024  # bytes
MAX_FORM_FIELDS = 2_000


class NotSignedIn(Exception):
    """The request has no valid session."""


class NotAllowed(Exception):
    """The visitor may not do this."""


# Key of the ASGI scope in which a site that mounts the dashboard passes its signed-in user.
# A client cannot set it.
HOSTED_VISITOR = "mulligan.visitor"


class CookieSettings(TypedDict):
    """Attributes of our cookies."""

    path: str
    httponly: bool
    secure: bool
    samesite: Literal["lax"]


class Flash(NamedTuple):
    """A message that is shown once, at the top of the next page."""

    text: str
    tone: str = ""
    link: str = ""  # shown after the text


# --- Cookies ---


def session_token(request: Request) -> str:
    """Return the session token of the cookie, or an empty string."""
    return request.cookies.get(_cookie_name(request), "")


def hosted_visitor(request: Request) -> Visitor | None:
    """Return the visitor that the site around the dashboard has signed in; None: there is none."""
    visitor: Visitor | None = request.scope.get(HOSTED_VISITOR)
    return visitor


def set_session(request: Request, response: Response, token: str) -> None:
    max_age = SESSION_LIFETIME // SECOND
    response.set_cookie(_cookie_name(request), token, max_age=max_age, **_cookie(request))


def delete_session(request: Request, response: Response) -> None:
    response.delete_cookie(_cookie_name(request), path=_cookie_path(request))


def set_flash(request: Request, response: Response, visitor: Visitor, flash: Flash) -> None:
    body = base64.urlsafe_b64encode(json.dumps(flash).encode()).decode()
    value = f"{body}.{_signature(visitor, body)}"
    response.set_cookie(_flash_name(request), value, max_age=60, **_cookie(request))


def read_flash(request: Request, visitor: Visitor | None) -> Flash | None:
    """Return the flash message, if we signed it for this very visitor."""
    body, _, signature = request.cookies.get(_flash_name(request), "").partition(".")
    if visitor is None or not body:
        return None
    if not hmac.compare_digest(signature.encode(), _signature(visitor, body).encode()):
        return None
    try:
        return Flash(*json.loads(base64.urlsafe_b64decode(body)))
    except (ValueError, TypeError, binascii.Error):
        return None


def delete_flash(request: Request, response: Response) -> None:
    response.delete_cookie(_flash_name(request), path=_cookie_path(request))


def _signature(visitor: Visitor, body: str) -> str:
    return hmac.new(visitor.csrf.encode(), body.encode(), hashlib.sha256).hexdigest()[:32]


def _cookie_name(request: Request) -> str:
    """Return a cookie name with the port: browsers share cookies between ports of one host."""
    return f"mulligan_{request.url.port or 0}"


def _flash_name(request: Request) -> str:
    return f"{_cookie_name(request)}_flash"


def _cookie_path(request: Request) -> str:
    return request.scope.get("root_path", "") or "/"


def _cookie(request: Request) -> CookieSettings:
    settings: Settings = request.app.state.context.settings
    # A proxy may terminate TLS without telling us, so the public URL counts too.
    secure = request.url.scheme == "https" or settings.web.public_url.startswith("https:")
    return CookieSettings(path=_cookie_path(request), httponly=True, secure=secure, samesite="lax")


# --- Forms ---


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Several values of `id` are joined with commas."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip()
    if content_type != "application/x-www-form-urlencoded":
        message = "this request is not a form"
        raise NotAllowed(message)
    body = await _read_body(request)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    except ValueError:
        message = "invalid form data"
        raise NotAllowed(message) from None
    form = dict(pairs)
    ids = [value for name, value in pairs if name == "id"]
    if ids:
        form["id"] = ",".join(ids)
    return {name: value.strip() for name, value in form.items()}


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_FORM_SIZE:
                message = f"the form is larger than {MAX_FORM_SIZE // 1024} KB"
                raise NotAllowed(message)
    except ClientDisconnect:
        message = "incomplete form data"
        raise NotAllowed(message) from None
    return bytes(body)


def check_origin(request: Request) -> None:
    """Refuse a form that another site sent: browsers add the visitor's cookie to it."""
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    from_other_host = origin is not None and urlsplit(origin).netloc != host
    fetch_site = request.headers.get("sec-fetch-site", "same-origin")
    if from_other_host or fetch_site not in {"same-origin", "none"}:
        message = "this form comes from another site"
        raise NotAllowed(message)


def check_csrf(visitor: Visitor, form: Mapping[str, str]) -> None:
    """Refuse a form without the CSRF token of the visitor's session."""
    if not hmac.compare_digest(form.get("csrf", "").encode(), visitor.csrf.encode()):
        message = "this form belongs to an older session. Go back, reload the page and try again."
        raise NotAllowed(message)
