"""Webhooks, as standardwebhooks.com describes them: signed, with an id that is the same at every attempt."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn
from urllib.parse import urlsplit

from mulligan.errors import ConfigError
from mulligan.notify.bodies import body_of
from mulligan.notify.channels import Receipt, Sending
from mulligan.notify.message import Message
from mulligan.notify.posting import post

PREFIX = "whsec_"
LONGEST = 60.0  # seconds of one attempt
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VALUE = re.compile(r"[\t\x20-\x7e]{0,2000}")
# What the request itself decides.
_OURS = frozenset(
    [
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)

Render = Callable[[Message], Any]


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


@dataclass(frozen=True, repr=False)
class Webhook:
    """POSTs a message to `url`. `secret`: one, or while it is being changed [the new one, the old one].

    `render` makes the body (JSON) of a message; `allow_private` lets this one reach private networks and this host.
    """

    url: str
    secret: str | Sequence[str] | None = None
    headers: Mapping[str, str] | None = None
    render: Render | None = None
    form: Literal["standard", "cloudevents"] = "standard"
    timeout: float = 15.0
    allow_private: bool = False

    kind: ClassVar[str] = "webhook"

    def __post_init__(self) -> None:
        checked_url(self.url)
        for secret in self.secrets:
            _check_secret(secret)
        for name, value in (self.headers or {}).items():
            _check_header(name, value)
        if self.form not in ("standard", "cloudevents"):
            _refuse(f"form {self.form!r} is neither 'standard' nor 'cloudevents'")
        if not 0 < self.timeout <= LONGEST:
            _refuse(f"timeout must be more than 0 and at most {LONGEST:g} seconds, not {self.timeout!r}")

    def __repr__(self) -> str:
        return f"Webhook({self.endpoint!r})"

    @property
    def secrets(self) -> tuple[str, ...]:
        if self.secret is None:
            return ()
        return (self.secret,) if isinstance(self.secret, str) else tuple(self.secret)

    @property
    def endpoint(self) -> str:
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return f"{parts.scheme}://{parts.hostname}:{port}"

    @property
    def storable(self) -> bool:
        return self.render is None and not self.allow_private

    def to_plain(self) -> dict[str, Any]:
        if not self.storable:
            _refuse("one with render or allow_private can only be declared in code")
        return {
            "channel": self.kind,
            "url": self.url,
            "secrets": list(self.secrets),
            "headers": dict(self.headers or {}),
            "form": self.form,
            "timeout": self.timeout,
        }

    @classmethod
    def from_plain(cls, body: Mapping[str, Any]) -> Webhook:
        return cls(
            body["url"],
            secret=tuple(body.get("secrets") or ()),
            headers=body.get("headers") or None,
            form=body.get("form", "standard"),
            timeout=body.get("timeout", 15.0),
        )

    async def send(self, message: Message, sending: Sending) -> Receipt:
        body = await body_of(self, message, sending)
        if body is None:
            return {"skipped": "render returned nothing"}
        return await post(self, message.id, body, sending)


def checked_url(url: str) -> str:
    """Refuses what no webhook can be. Where it leads is looked at when it is sent to."""
    if len(url) > 2000 or not url.isprintable() or " " in url or "\\" in url:
        _refuse("the address must be at most 2,000 printable characters, without spaces and backslashes")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        _refuse("the address cannot be read")
    if parts.scheme not in ("https", "http") or not host:
        _refuse("the address must begin with https:// (or http://) and a host")
    if "@" in parts.netloc:
        _refuse("the address must not hold a name or a password; use headers=")
    return url


def _check_secret(secret: object) -> None:
    try:
        text = secret.removeprefix(PREFIX) if isinstance(secret, str) else ""
        size = len(base64.b64decode(text + "=" * (-len(text) % 4), validate=True))
    except (ValueError, binascii.Error):
        size = 0
    if not 24 <= size <= 64:
        _refuse("a secret is whsec_ and 24 to 64 bytes in base64; mulligan.notify.webhook.new_secret() makes one")


def _check_header(name: object, value: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        _refuse(f"{name!r} is no name of a header")
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        _refuse(f"header {name} must be at most 2,000 characters of plain ASCII on one line")
    if name.lower() in _OURS or name.lower().startswith("webhook-"):
        _refuse(f"header {name} is set by the request itself")


def _refuse(why: str) -> NoReturn:
    message = f"webhook: {why}"
    raise ConfigError(message)
