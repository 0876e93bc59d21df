"""One signed POST: to a checked address, without redirects and proxies, within one limit of time for all of it."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mulligan._version import __version__
from mulligan.errors import Fail
from mulligan.notify.bodies import Body
from mulligan.notify.channels import Gone, Receipt, Sending
from mulligan.notify.guarded import addresses, gate_of
from mulligan.policy import hints

if TYPE_CHECKING:  # a quarter of a second that programs which only declare a webhook need not wait
    import httpx2

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

    return " ".join(standardwebhooks.Webhook(secret).sign(message_id, now, body) for secret in secrets)


async def _post(webhook: Posted, headers: dict[str, str], body: Body, sending: Sending, until: float) -> Receipt:
    import httpx2  # noqa: PLC0415 - see above

    url = httpx2.URL(webhook.url)
    host, port = url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)
    gate = gate_of(sending.settings, private=webhook.allow_private)
    found = await addresses(url.scheme, host, port, gate, sending.resolve)
    tried = found[:ADDRESSES]
    asked = _Asked(
        {"host": url.netloc.decode("ascii"), **headers}, body.text, host, webhook.timeout / len(tried), until
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


async def _answered(transport: httpx2.AsyncHTTPTransport, asked: _Asked, url: httpx2.URL) -> Receipt:
    import httpx2  # noqa: PLC0415 - see above

    # The certificate is checked against the name, not against the address.
    more = {"sni_hostname": asked.host, "timeout": {"connect": asked.connect}}
    request = httpx2.Request("POST", url, headers=asked.headers, content=asked.text, extensions=more)
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
