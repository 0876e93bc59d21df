"""Webhooks as described by standardwebhooks.com: a signed POST with an id that retries share.

The request goes to a checked address, follows no redirects, uses no proxy, and has one time limit
for everything.
"""

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
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, NoReturn
from urllib.parse import urlsplit

from mulligan._version import __version__
from mulligan.core.durations import Micros, to_datetime
from mulligan.core.errors import ConfigError, Fail
from mulligan.failures import hints
from mulligan.notifications.channels import (
    Receipt,
    ReceiverGone,
    SendContext,
    build_address_policy,
    resolve_allowed_addresses,
)
from mulligan.notifications.message import Message, call_app_function

if TYPE_CHECKING:
    import httpx2


# --- The channel ---

SECRET_PREFIX = "whsec_"  # noqa: S105 - a prefix, not a secret
SECRET_BYTES = 32
MAX_TIMEOUT = 60.0  # seconds of one attempt
MAX_URL = 2000  # characters
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]{0,2000}")
# Headers that the request sets itself.
_RESERVED_HEADERS = frozenset(
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
    """Return a new random signing secret."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


@dataclass(frozen=True, repr=False)
class Webhook:
    """Channel that POSTs each message to `url`.

    `secret` is one secret or, during a rotation, [new, old]. `render` returns the JSON body of a
    message, or None to skip it. `allow_private` allows private networks and this host.
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
        check_url(self.url)
        for secret in self.secrets:
            _check_secret(secret)
        for name, value in (self.headers or {}).items():
            _check_header(name, value)
        if self.form not in ("standard", "cloudevents"):
            _refuse(f"unknown form {self.form!r}. Use 'standard' or 'cloudevents'.")
        if not 0 < self.timeout <= MAX_TIMEOUT:
            _refuse(
                f"invalid timeout {self.timeout!r}. Use more than 0 and at most {MAX_TIMEOUT:g} s."
            )

    def __repr__(self) -> str:
        return f"Webhook({self.endpoint!r})"

    @property
    def secrets(self) -> tuple[str, ...]:
        """All signing secrets, the newest first."""
        if self.secret is None:
            return ()
        if isinstance(self.secret, str):
            return (self.secret,)
        return tuple(self.secret)

    @property
    def endpoint(self) -> str:
        """Scheme, host and port of the receiver."""
        parts = urlsplit(self.url)
        port = parts.port or _default_port(parts.scheme)
        return f"{parts.scheme}://{parts.hostname}:{port}"

    @property
    def storable(self) -> bool:
        """False if the webhook has a function, or a permission that only code may grant."""
        return self.render is None and not self.allow_private

    def to_dict(self) -> dict[str, Any]:
        """Return the webhook as a JSON object."""
        if not self.storable:
            _refuse("a webhook with render or allow_private cannot be stored. Declare it in code.")
        return {
            "channel": self.kind,
            "url": self.url,
            "secrets": list(self.secrets),
            "headers": dict(self.headers or {}),
            "form": self.form,
            "timeout": self.timeout,
        }

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Webhook:
        """Build the webhook from its JSON object."""
        return cls(
            body["url"],
            secret=tuple(body.get("secrets") or ()),
            headers=body.get("headers") or None,
            form=body.get("form", "standard"),
            timeout=body.get("timeout", 15.0),
        )

    @staticmethod
    def describe_target(body: Mapping[str, Any]) -> str:
        """Return scheme, host and port of a stored webhook: its path may be a secret."""
        return Webhook.from_dict(body).endpoint

    async def send(self, message: Message, context: SendContext) -> Receipt:
        """POST a message. Returns the status code, or `skipped` if `render` returned None."""
        body = await build_body(self, message, context)
        if body is None:
            return {"skipped": "render returned None"}
        return await post(self, message.id, body, context)


def check_url(url: str) -> str:
    """Return `url` if it is a web address. Its host is checked when a message is sent."""
    if len(url) > MAX_URL or not url.isprintable() or " " in url or "\\" in url:
        _refuse(
            f"invalid URL. Use at most {MAX_URL:,} printable characters, no spaces, no backslashes."
        )
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises ValueError for an invalid port
    except ValueError:
        _refuse("invalid URL. Check its host and port.")
    if parts.scheme not in ("https", "http") or not parts.hostname:
        _refuse("invalid URL. Use https:// (or http://) and a host.")
    if "@" in parts.netloc:
        _refuse("the URL must not contain a user name or password. Use headers= instead.")
    return url


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _check_secret(secret: object) -> None:
    try:
        text = secret.removeprefix(SECRET_PREFIX) if isinstance(secret, str) else ""
        size = len(base64.b64decode(text + "=" * (-len(text) % 4), validate=True))
    except (ValueError, binascii.Error):
        size = 0
    if not 24 <= size <= 64:
        _refuse(
            "invalid secret. Use whsec_ and 24 to 64 bytes in base64, "
            "or mulligan.notifications.webhook.new_secret()."
        )


def _check_header(name: object, value: object) -> None:
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        _refuse(f"invalid header name {name!r}")
    if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
        _refuse(f"invalid value of header {name}. Use at most 2,000 ASCII characters on one line.")
    lower_name = name.lower()
    if lower_name in _RESERVED_HEADERS or lower_name.startswith("webhook-"):
        _refuse(f"header {name} cannot be changed: the request sets it")


def _refuse(reason: str) -> NoReturn:
    message = f"webhook: {reason}"
    raise ConfigError(message)


# --- The body ---

MAX_BODY = 20_000  # bytes; the limit that standardwebhooks.com recommends


class WebhookBody(NamedTuple):
    """Body of a request: ASCII JSON and its content type."""

    text: str
    content_type: str


async def build_body(
    webhook: Webhook, message: Message, context: SendContext
) -> WebhookBody | None:
    """Build the body of a message; None if `render` returned None."""
    content_type = "application/json"
    if webhook.render is not None:
        payload = await call_app_function(webhook.render, message)
        if payload is None:
            return None
    elif webhook.form == "cloudevents":
        source = context.settings.web.public_url or "mulligan"
        payload = cloud_event_payload(message, source)
        content_type = "application/cloudevents+json"
    else:
        payload = standard_payload(message)
    return WebhookBody(_encode_payload(payload), content_type)


def _encode_payload(payload: Any) -> str:
    try:
        text = json.dumps(payload, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise Fail("BAD_OUTCOME", f"render returned invalid JSON: {error}", final=True) from error
    if len(text) > MAX_BODY:
        problem = f"the body has {len(text):,} bytes (limit {MAX_BODY:,})"
        raise Fail("TOO_LARGE", problem, final=True)
    return text


def standard_payload(message: Message) -> dict[str, Any]:
    """Return a message in the form of standardwebhooks.com."""
    return {
        "type": message.type,
        "timestamp": format_timestamp(message.at),
        "data": message_data(message),
    }


def cloud_event_payload(message: Message, source: str) -> dict[str, Any]:
    """Return a message as a CloudEvent 1.0."""
    payload = {
        "specversion": "1.0",
        "id": message.id,
        "source": source,
        "type": f"dev.mulligan.{message.type}",
        "time": format_timestamp(message.at),
        "datacontenttype": "application/json",
        "data": message_data(message),
    }
    subject = message.job_id or message.batch_id
    if subject:
        payload["subject"] = subject
    return payload


def message_data(message: Message) -> dict[str, Any]:
    """Return the data of a message. Every field is always present, null if it has no value."""
    return {
        "id": message.id,
        "summary": message.summary,
        "owner": message.owner or None,
        "job_id": message.job_id or None,
        "batch_id": message.batch_id or None,
        "seq": message.seq or None,
        "retrying": message.retrying,
        "attempt": message.attempt or None,
        "retries": message.retries,
        "of": message.of or None,
        "next_at": format_timestamp(message.next_at),
        "count": message.count or None,
        "first_at": format_timestamp(message.first_at),
        "last_at": format_timestamp(message.last_at),
        "link": message.link or None,
        "runbook": message.runbook or None,
        "alarm": message.alarm or None,
        "details": dict(message.data),
    }


def format_timestamp(at: Micros) -> str | None:
    """Return `2026-01-02T03:04:05.000006Z`; None for no time."""
    if not at:
        return None
    try:
        return f"{to_datetime(at):%Y-%m-%dT%H:%M:%S.%f}Z"
    except OverflowError:
        return None


# --- The request ---

MAX_RESPONSE = 64 * 1024  # bytes of a response that are read; all are discarded
DRAIN_TIMEOUT = 5.0  # seconds to read them
DRAIN_MARGIN = 0.1  # seconds before the total time limit, whose expiry would lose the status
MAX_ADDRESSES = 3  # addresses of a host that are tried
MAX_RETRY_AFTER = 86_400.0  # seconds
_RETRY_CODES = {408: "TIMEOUT", 409: "BUSY", 425: "BUSY", 429: "RATE_LIMITED"}


async def post(
    webhook: Webhook, message_id: str, body: WebhookBody, context: SendContext
) -> Receipt:
    """POST a body within the webhook's time limit. Raises `Fail` unless the status is 2xx."""
    import httpx2  # noqa: PLC0415 - only processes that send need it

    headers = _build_headers(webhook, message_id, body, datetime.now(UTC))
    deadline = asyncio.get_running_loop().time() + webhook.timeout
    try:
        async with asyncio.timeout_at(deadline):
            return await _post_to_addresses(webhook, headers, body, context, deadline)
    except TimeoutError as error:
        public = f"The receiver did not answer within {webhook.timeout:g} s."
        raise Fail("TIMEOUT", public, public=public) from error
    except httpx2.InvalidURL as error:
        public = "Messages must not be sent to this address: the URL is invalid."
        raise Fail("ADDRESS_REFUSED", str(error), public=public, final=True) from error
    except httpx2.HTTPError as error:
        raise _connection_failure(error) from error


def _build_headers(
    webhook: Webhook, message_id: str, body: WebhookBody, now: datetime
) -> dict[str, str]:
    headers = {
        **(webhook.headers or {}),
        "content-type": body.content_type,
        "user-agent": f"mulligan/{__version__}",
        "accept-encoding": "identity",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
    }
    if webhook.secrets:
        headers["webhook-signature"] = sign(webhook.secrets, message_id, now, body.text)
    return headers


def sign(secrets: tuple[str, ...], message_id: str, now: datetime, body: str) -> str:
    """Return one signature per secret, so that receivers can verify with either in a rotation."""
    import standardwebhooks  # noqa: PLC0415 - only processes that send need it

    return " ".join(
        standardwebhooks.Webhook(secret).sign(message_id, now, body) for secret in secrets
    )


class _PreparedRequest(NamedTuple):
    headers: dict[str, str]
    text: str
    host: str
    connect_timeout: float  # seconds
    deadline: float  # by the loop's clock


async def _post_to_addresses(
    webhook: Webhook,
    headers: dict[str, str],
    body: WebhookBody,
    context: SendContext,
    deadline: float,
) -> Receipt:
    """POST to the first address of the host that accepts a connection."""
    import httpx2  # noqa: PLC0415 - only processes that send need it

    url = httpx2.URL(webhook.url)
    host = url.raw_host.decode("ascii")
    port = url.port or _default_port(url.scheme)
    policy = build_address_policy(context.settings, allow_private=webhook.allow_private)
    found = await resolve_allowed_addresses(url.scheme, host, port, policy, context.resolve)
    addresses = found[:MAX_ADDRESSES]
    request = _PreparedRequest(
        headers={"host": url.netloc.decode("ascii"), **headers},
        text=body.text,
        host=host,
        connect_timeout=webhook.timeout / len(addresses),
        deadline=deadline,
    )
    last_error: Exception | None = None
    # Use a transport instead of a client: a client follows redirects, keeps cookies and logs the
    # URL, which may contain a token.
    async with httpx2.AsyncHTTPTransport(verify=_tls_context(), trust_env=False) as transport:
        for address in addresses:
            try:
                return await _post_once(transport, request, url.copy_with(host=address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:  # nothing was sent
                last_error = error
    raise last_error or AssertionError


async def _post_once(
    transport: httpx2.AsyncHTTPTransport, prepared: _PreparedRequest, url: httpx2.URL
) -> Receipt:
    import httpx2  # noqa: PLC0415 - only processes that send need it

    extensions = {
        "sni_hostname": prepared.host,  # check the certificate against the name, not the address
        "timeout": {"connect": prepared.connect_timeout},
    }
    request = httpx2.Request(
        "POST", url, headers=prepared.headers, content=prepared.text, extensions=extensions
    )
    response = await transport.handle_async_request(request)
    try:
        status = response.status_code
        headers = dict(response.headers)
        await _drain(response, prepared.deadline)
    finally:
        await response.aclose()
    if 200 <= status < 300:
        return {"status": status}
    raise _status_failure(status, headers)


async def _drain(response: httpx2.Response, deadline: float) -> None:
    """Read and discard the response: some servers abort their work if the client closes early."""
    import httpx2  # noqa: PLC0415 - only processes that send need it

    size = 0
    now = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(min(now + DRAIN_TIMEOUT, deadline - DRAIN_MARGIN)):
            async for chunk in response.aiter_raw():
                size += len(chunk)
                if size > MAX_RESPONSE:
                    break
    except (TimeoutError, httpx2.HTTPError):
        return


def _status_failure(status: int, headers: Mapping[str, str]) -> Fail:
    public = f"The receiver answered with status {status}."
    if status == 410:
        return ReceiverGone(public)
    if status in _RETRY_CODES or status >= 500:
        hint = hints.hint_from_headers(headers, status, time.time())
        retry_after = None if hint is None else min(hint[0], MAX_RETRY_AFTER)
        code = _RETRY_CODES.get(status, "HTTP_5XX")
        return Fail(code, public, public=public, retry_after=retry_after)
    if 300 <= status < 400:
        public = f"The receiver answered with status {status}. Redirects are not followed."
    return Fail("RECEIVER_REFUSED", public, public=public)


def _connection_failure(error: Exception) -> Fail:
    """Return a failure that is retried, certificates included: an expired one gets renewed."""
    public = "The connection to the receiver failed."
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        public = "The receiver's certificate could not be verified."
    return Fail("CONNECTION", f"{type(error).__name__}: {error}", public=public)


@cache
def _tls_context() -> ssl.SSLContext:
    """Return a context with the system's authorities, or those of SSL_CERT_FILE."""
    return ssl.create_default_context()
