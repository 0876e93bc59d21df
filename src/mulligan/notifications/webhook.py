"""One signed POST: to a checked address, without redirects and proxies, within one limit of time for all of it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
import secrets
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, NoReturn, Protocol
from urllib.parse import urlsplit

from mulligan._version import __version__
from mulligan.core.errors import ConfigError, Fail
from mulligan.core.job import Micros, to_datetime
from mulligan.failures import hints
from mulligan.notifications.channels import Gone, Receipt, Sending, addresses, gate_of
from mulligan.notifications.message import Message, called

if TYPE_CHECKING:
    import httpx2


# The body of a webhook: JSON in plain ASCII, smaller than what receivers are asked to take.

MOST = 20_000  # bytes; standardwebhooks.com asks for no more


class Body(NamedTuple):
    text: str
    content_type: str


class Shaped(Protocol):
    @property
    def render(self) -> Callable[[Message], Any] | None: ...
    @property
    def form(self) -> str: ...


async def body_of(channel: Shaped, message: Message, sending: Sending) -> Body | None:
    """None: `render` does not want it sent."""
    if channel.render is not None:
        made = await called(channel.render, message)
        return None if made is None else _checked(Body(_json(made), "application/json"))
    if channel.form == "cloudevents":
        source = sending.settings.web.public_url or "mulligan"
        return _checked(Body(_json(cloud_event(message, source)), "application/cloudevents+json"))
    return _checked(Body(_json(standard(message)), "application/json"))


def standard(message: Message) -> dict[str, Any]:
    return {"type": message.type, "timestamp": moment(message.at), "data": data_of(message)}


def cloud_event(message: Message, source: str) -> dict[str, Any]:
    subject = message.job_id or message.batch_id
    return {
        "specversion": "1.0",
        "id": message.id,
        "source": source,
        "type": f"dev.mulligan.{message.type}",
        **({"subject": subject} if subject else {}),
        "time": moment(message.at),
        "datacontenttype": "application/json",
        "data": data_of(message),
    }


def data_of(message: Message) -> dict[str, Any]:
    """Every name is always there; null where there is nothing to say."""
    return {
        "id": message.id,
        "summary": message.summary,
        "owner": message.owner or None,
        "job_id": message.job_id or None,
        "batch_id": message.batch_id or None,
        "event_id": message.event_id or None,
        "retrying": message.retrying,
        "attempt": message.attempt or None,
        "of": message.of or None,
        "next_at": moment(message.next_at),
        "count": message.count or None,
        "first_at": moment(message.first_at),
        "last_at": moment(message.last_at),
        "link": message.link or None,
        "runbook": message.runbook or None,
        "details": dict(message.data),
    }


def moment(at: Micros) -> str | None:
    """`2026-01-02T03:04:05.000006Z`."""
    try:
        return f"{to_datetime(at):%Y-%m-%dT%H:%M:%S.%f}Z" if at else None
    except OverflowError:
        return None


def _json(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise Fail(
            "BAD_OUTCOME", f"render returned what is no JSON: {error}", final=True
        ) from error


def _checked(body: Body) -> Body:
    if len(body.text) > MOST:
        raise Fail(
            "TOO_LARGE", f"a body of {len(body.text):,} bytes; {MOST:,} are allowed", final=True
        )
    return body


# One signed POST: to a checked address, without redirects and proxies, within one limit of time for all of it.

ANSWER = 64 * 1024  # bytes of an answer that are waited for; none is kept
LINGER = 5.0  # seconds for them: the status has said what matters
EDGE = 0.1  # seconds before the limit of the whole, which would forget the status
ADDRESSES = 3  # of a name, that are tried
LONGEST_HINT = 86_400.0
_TRY_LATER = {408: "TIMEOUT", 409: "BUSY", 425: "BUSY", 429: "RATE_LIMITED"}


class Posted(Protocol):
    """What is asked of a webhook."""

    @property
    def url(self) -> str: ...
    @property
    def secrets(self) -> tuple[str, ...]: ...
    @property
    def headers(self) -> Mapping[str, str] | None: ...
    @property
    def timeout(self) -> float: ...
    @property
    def allow_private(self) -> bool: ...


async def post(webhook: Posted, message_id: str, body: Body, sending: Sending) -> Receipt:
    import httpx2  # noqa: PLC0415 - see above

    headers = _headers(webhook, message_id, body, datetime.now(UTC))
    until = asyncio.get_running_loop().time() + webhook.timeout
    try:
        async with asyncio.timeout_at(until):
            return await _post(webhook, headers, body, sending, until)
    except TimeoutError as error:
        public = f"The receiver did not answer within {webhook.timeout:g} s."
        raise Fail("TIMEOUT", public, public=public) from error
    except httpx2.InvalidURL as error:
        public = "Messages must not be sent to this address: it cannot be read."
        raise Fail("ADDRESS_REFUSED", str(error), public=public, final=True) from error
    except httpx2.HTTPError as error:
        raise _broken(error) from error


def _headers(webhook: Posted, message_id: str, body: Body, now: datetime) -> dict[str, str]:
    own = {
        "content-type": body.content_type,
        "user-agent": f"mulligan/{__version__}",
        "accept-encoding": "identity",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
    }
    if webhook.secrets:
        own["webhook-signature"] = signature(webhook.secrets, message_id, now, body.text)
    return {**(webhook.headers or {}), **own}


def signature(secrets: tuple[str, ...], message_id: str, now: datetime, body: str) -> str:
    """One for each secret: while one is being changed, receivers with either can verify."""
    import standardwebhooks  # noqa: PLC0415 - only who sends needs it

    return " ".join(
        standardwebhooks.Webhook(secret).sign(message_id, now, body) for secret in secrets
    )


async def _post(
    webhook: Posted, headers: dict[str, str], body: Body, sending: Sending, until: float
) -> Receipt:
    import httpx2  # noqa: PLC0415 - see above

    url = httpx2.URL(webhook.url)
    host, port = url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)
    gate = gate_of(sending.settings, private=webhook.allow_private)
    found = await addresses(url.scheme, host, port, gate, sending.resolve)
    tried = found[:ADDRESSES]
    asked = _Asked(
        {"host": url.netloc.decode("ascii"), **headers},
        body.text,
        host,
        webhook.timeout / len(tried),
        until,
    )
    failed: Exception | None = None
    # Without a client: that would follow, remember and log, and an address may hold a token.
    async with httpx2.AsyncHTTPTransport(verify=_trusted(), trust_env=False) as transport:
        for address in tried:
            try:
                return await _answered(transport, asked, url.copy_with(host=address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:  # nothing was sent
                failed = error
    raise failed or AssertionError


class _Asked(NamedTuple):
    headers: dict[str, str]
    text: str
    host: str
    connect: float  # seconds
    until: float  # by the loop's clock


async def _answered(
    transport: httpx2.AsyncHTTPTransport, asked: _Asked, url: httpx2.URL
) -> Receipt:
    import httpx2  # noqa: PLC0415 - see above

    # The certificate is checked against the name, not against the address.
    more = {"sni_hostname": asked.host, "timeout": {"connect": asked.connect}}
    request = httpx2.Request(
        "POST", url, headers=asked.headers, content=asked.text, extensions=more
    )
    response = await transport.handle_async_request(request)
    try:
        status, headers = response.status_code, dict(response.headers)
        await _drained(response, asked.until)
    finally:
        await response.aclose()
    if 200 <= status < 300:
        return {"status": status}
    raise _refusal(status, headers)


async def _drained(response: httpx2.Response, until: float) -> None:
    """Some servers stop working when nobody listens any more. What they say is of no interest."""
    import httpx2  # noqa: PLC0415 - see above

    size, now = 0, asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(min(now + LINGER, until - EDGE)):
            async for chunk in response.aiter_raw():
                size += len(chunk)
                if size > ANSWER:
                    break
    except (TimeoutError, httpx2.HTTPError):
        return


def _refusal(status: int, headers: Mapping[str, str]) -> Fail:
    public = f"The receiver answered with {status}."
    if status == 410:
        return Gone(public)
    if status in _TRY_LATER or status >= 500:
        hint = hints.from_headers(headers, status, time.time())
        after = None if hint is None else min(hint[0], LONGEST_HINT)
        return Fail(_TRY_LATER.get(status, "HTTP_5XX"), public, public=public, retry_after=after)
    if 300 <= status < 400:
        public = f"The receiver answered with {status}, and redirects are not followed."
    return Fail("RECEIVER_REFUSED", public, public=public)


def _broken(error: Exception) -> Fail:
    """Certificates too: one that has expired is renewed sooner or later."""
    public = "The connection to the receiver failed."
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        public = "The receiver's certificate was not accepted."
    return Fail("CONNECTION", f"{type(error).__name__}: {error}", public=public)


@cache
def _trusted() -> ssl.SSLContext:
    """The system's authorities, or those of SSL_CERT_FILE."""
    return ssl.create_default_context()


# Webhooks, as standardwebhooks.com describes them: signed, with an id that is the same at every attempt.

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
            _refuse(
                f"timeout must be more than 0 and at most {LONGEST:g} seconds, not {self.timeout!r}"
            )

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
        _refuse(
            "the address must be at most 2,000 printable characters, without spaces and backslashes"
        )
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
        _refuse(
            "a secret is whsec_ and 24 to 64 bytes in base64; mulligan.notifications.webhook.new_secret() makes one"
        )


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
