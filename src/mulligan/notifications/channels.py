"""Where a webhook may lead. A name is resolved once, every answer is looked at, and one of those is connected to.

So an owner's address cannot make us talk to this host, to the network it stands in, or to a cloud's metadata: not by
a number in disguise, not by a name that means something else a moment later.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol, runtime_checkable

from mulligan.config import Settings
from mulligan.core.errors import Fail
from mulligan.notifications.message import Message

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolver = Callable[[str, int], Awaitable[Iterable[str]]]

# What no webhook may reach, and why; the first that matches is told.
_REFUSED: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(network), why)
    for network, why in (
        ("127.0.0.0/8", "this host itself"),
        ("::1/128", "this host itself"),
        ("169.254.0.0/16", "link-local, where clouds keep their metadata"),
        ("fe80::/10", "link-local"),
        ("168.63.129.16/32", "a cloud's own service"),
        ("10.0.0.0/8", "a private network"),
        ("172.16.0.0/12", "a private network"),
        ("192.168.0.0/16", "a private network"),
        ("100.64.0.0/10", "a provider's inner network"),
        ("fc00::/7", "a private network"),
        ("fec0::/10", "a private network"),
        ("0.0.0.0/8", "no address of a host"),
        ("::/128", "no address of a host"),
        ("224.0.0.0/4", "multicast"),
        ("ff00::/8", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "a relay to other networks"),
        ("198.18.0.0/15", "for measurements"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("64:ff9b::/96", "another address in disguise"),
        ("64:ff9b:1::/48", "another address in disguise"),
        ("2002::/16", "another address in disguise"),
        ("2001::/23", "a tunnel or another special purpose"),
        ("2001:db8::/32", "for documentation"),
        ("3fff::/20", "for documentation"),
    )
)
_PUBLIC_V6 = IPv6Network("2000::/3")  # nothing else has been given out
_NAT64 = IPv6Network("64:ff9b::/96")
# What `Webhook(allow_private=True)` opens: it says nothing of metadata, multicast and disguises.
PRIVATE: tuple[Network, ...] = tuple(
    ip_network(network)
    for network in (
        "127.0.0.0/8",
        "::1/128",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "fc00::/7",
    )
)

_NUMBER = re.compile(r"\d+|0[xX][0-9a-fA-F]*")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}|[0-9a-fA-F:.]{2,45}")
# Ports where something listens that reads lines, or is no web server.
_OTHERS = frozenset(
    {
        1433,
        1521,
        1719,
        1720,
        1723,
        2049,
        2375,
        3306,
        3659,
        4045,
        4190,
        5060,
        5061,
        5432,
        6000,
        6379,
        6566,
        6665,
        6666,
        6667,
        6668,
        6669,
        6679,
        6697,
        9042,
        10080,
        11211,
        27017,
    }
)


class AddressPolicy(NamedTuple):
    """What is allowed beyond the public network, by those who run this."""

    networks: tuple[Network, ...] = ()
    http: bool = False
    own: tuple[str, int] = ("", 0)  # where our own page and API are


def gate_of(settings: Settings, *, private: bool = False) -> AddressPolicy:
    said = tuple(ip_network(network) for network in settings.notify.allow_private)
    own = (settings.web.host, settings.web.port)
    return AddressPolicy((*said, *(PRIVATE if private else ())), settings.notify.allow_http, own)


async def system_resolver(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in found))


async def addresses(
    scheme: str, host: str, port: int, gate: AddressPolicy, resolve: Resolver = system_resolver
) -> list[str]:
    """Those to connect to, in this order; raises `Fail` if there is a single one among them that must not be."""
    _check_port(port)
    _check_host(host)
    found = list(dict.fromkeys([_plain(text) for text in await _resolved(host, port, resolve)]))
    for address in found:
        _check(address, port, gate)
    if (
        scheme != "https"
        and not gate.http
        and not all(_allowed(address, gate) for address in found)
    ):
        _refuse("it is not https; a public address without TLS needs the setting notify.allow_http")
    return [str(address) for address in found]


async def _resolved(host: str, port: int, resolve: Resolver) -> list[str]:
    if _is_address(host):
        return [host]
    try:
        found = list(await resolve(host, port))
    except (OSError, UnicodeError) as error:
        raise Fail(
            "CONNECTION", f"{host}: {error}", public="The receiver's name could not be resolved."
        ) from error
    if not found:
        raise Fail(
            "CONNECTION",
            f"{host} has no address",
            public="The receiver's name could not be resolved.",
        )
    return found


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _plain(text: str) -> Address:
    """An IPv4 address that is written as one of IPv6 is that IPv4 address."""
    try:
        address = ip_address(text)
    except ValueError:
        _refuse(f"{text!r} is no address")
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _check_host(host: str) -> None:
    """A last part that is a number makes it an address, and then it must be written as one."""
    if not _HOST.fullmatch(host):
        _refuse("its host is not written in a way that can be trusted")
    last = host.rstrip(".").rpartition(".")[2]
    if _NUMBER.fullmatch(last) and not _is_address(host):
        _refuse("its host is a number that hides which address it is")


def _check_port(port: int) -> None:
    if port in _OTHERS or (port < 1024 and port not in (80, 443)):
        _refuse(f"port {port} is not one of a web server")


def _check(address: Address, port: int, gate: AddressPolicy) -> None:
    if port == gate.own[1] and _is_ours(address, gate.own[0]):
        _refuse("it is our own page")
    if address in _NAT64 and _allowed(address, gate):
        address = IPv4Address(int(address) & 0xFFFFFFFF)
    if not _allowed(address, gate) and (why := forbidden(address)):
        _refuse(f"it leads to {why}")


def _is_ours(address: Address, served: str) -> bool:
    """A page that is served on every address of this host is at each of them."""
    if not _is_address(served) or not ip_address(served).is_unspecified:
        return str(address) == served
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        try:
            tried.bind((str(address), 0))  # which only works with an address of our own
        except OSError:
            return False
    return True


def _allowed(address: Address, gate: AddressPolicy) -> bool:
    return any(address in network for network in gate.networks)


def forbidden(address: Address) -> str:
    """Why it is no address on the public network; empty: it is one."""
    for network, why in _REFUSED:
        if address in network:
            return why
    special = isinstance(address, IPv6Address) and (
        address not in _PUBLIC_V6 or address.scope_id is not None
    )
    return "an address that is not public" if special else ""


def _refuse(why: str) -> NoReturn:
    public = f"Messages must not be sent to this address: {why}."
    raise Fail("ADDRESS_REFUSED", public, public=public, final=True)


# Notification channel: the protocol that webhook, e-mail and Apprise implement.

Receipt = dict[
    str, Any
]  # JSON, the result of the delivery; `skipped`: nothing was sent, and why that is right


async def _forget(_reached: frozenset[str]) -> None:
    """For those who keep nothing between attempts."""


@dataclass(frozen=True, slots=True)
class Sending:
    """One attempt to send one message."""

    settings: Settings
    delivery: str = ""  # the id of the delivery's job
    subscription: str = ""
    attempt: int = 1
    reached: frozenset[str] = frozenset()  # recipients who have it from an earlier attempt
    remember: Callable[[frozenset[str]], Awaitable[None]] = (
        _forget  # those who have it now, durably
    )
    resolve: Resolver = system_resolver


@runtime_checkable
class Channel(Protocol):
    kind: ClassVar[str]

    @property
    def endpoint(self) -> str:
        """What is up or down as one: the text behind the dependency of its deliveries."""
        ...

    @property
    def storable(self) -> bool:
        """Holds no function, so that another process can send through it."""
        ...

    async def send(self, message: Message, sending: Sending) -> Receipt:
        """Returns once the other side has confirmed it; raises `Fail` or what the failure table knows.

        `Gone`: the other side wants nothing more, ever.
        """
        ...

    def to_plain(self) -> dict[str, Any]: ...


class Gone(Fail):
    """The receiver has said that it is gone for good: its subscription ends."""

    def __init__(self, message: str) -> None:
        super().__init__("RECEIVER_GONE", message, final=True)
