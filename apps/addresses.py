"""Address guard for URLs that users give: HTTP transports that connect to public addresses only.

A name is resolved once, all its addresses are checked, and the connection goes to a checked one,
so a name that changes its address in between gains nothing. Every redirect is checked too.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import httpx2

# Addresses that contain an IPv4 address, which a gateway may connect to: NAT64 and 6to4.
TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("2002::/16"))


class AddressRefused(httpx2.TransportError):
    """The host has an address in a private network, so that nothing is fetched from it."""


def is_public(text: str) -> bool:
    """Return whether an IP address belongs to the internet and not to a private network."""
    address: IPv4Address | IPv6Address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if isinstance(address, IPv6Address) and any(address in network for network in TRANSLATED):
        return False
    return address.is_global and not address.is_multicast


class GuardedTransport(httpx2.HTTPTransport):
    """Transport of `httpx2.Client(transport=…, trust_env=False)` that refuses private addresses.

    Without `trust_env=False`, a proxy of the environment would connect instead.
    """

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to a checked address of its host."""
        return super().handle_request(_pin(request, _resolve(request)))


class GuardedAsyncTransport(httpx2.AsyncHTTPTransport):
    """Transport of `httpx2.AsyncClient(transport=…, trust_env=False)`, like GuardedTransport."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to a checked address of its host."""
        addresses = await asyncio.to_thread(_resolve, request)
        return await super().handle_async_request(_pin(request, addresses))


def _resolve(request: httpx2.Request) -> list[str]:
    """Return the addresses of the request's host, by the system's resolver."""
    host = request.url.host
    try:
        answers = socket.getaddrinfo(host, request.url.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpx2.ConnectError(f"{host}: {error}", request=request) from error
    return [str(answer[4][0]).partition("%")[0] for answer in answers]


def _pin(request: httpx2.Request, addresses: list[str]) -> httpx2.Request:
    """Return the request with an address in place of its host name. Headers keep the name.

    One private address refuses the host: a retry could otherwise reach it.
    """
    if not all(is_public(address) for address in addresses):
        raise AddressRefused(f"{request.url.host} has no public address", request=request)
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=addresses[0]),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.host},
    )
