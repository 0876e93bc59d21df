"""Notification channels: their protocol and registry, and addresses that a webhook may reach.

A channel is a class with the members of `StoredChannel`, and a line in `CHANNELS`.

A webhook's host is resolved once, every address is checked, and one of the checked addresses is
connected to. So a subscriber's URL cannot make a worker call its own host, its private network or
a cloud's metadata service: neither by an address in disguise nor by a name that resolves to
another address a second later.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol, runtime_checkable

from mulligan.config import Settings
from mulligan.core.errors import ConfigError, Fail
from mulligan.core.extras import find_missing
from mulligan.notifications.message import Message

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolver = Callable[[str, int], Awaitable[Iterable[str]]]


# --- Addresses that a webhook may reach ---

# Networks that no webhook may reach, and what they are. The first match is reported.
_REFUSED_NETWORKS: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(network), description)
    for network, description in (
        ("127.0.0.0/8", "this host"),
        ("::1/128", "this host"),
        ("169.254.0.0/16", "a link-local address, such as a cloud's metadata service"),
        ("fe80::/10", "a link-local address"),
        ("168.63.129.16/32", "a cloud's internal service"),
        ("10.0.0.0/8", "a private network"),
        ("172.16.0.0/12", "a private network"),
        ("192.168.0.0/16", "a private network"),
        ("100.64.0.0/10", "a provider's internal network"),
        ("fc00::/7", "a private network"),
        ("fec0::/10", "a private network"),
        ("0.0.0.0/8", "an unspecified address"),
        ("::/128", "an unspecified address"),
        ("224.0.0.0/4", "a multicast address"),
        ("ff00::/8", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),
        ("192.0.0.0/24", "a reserved address"),
        ("192.0.2.0/24", "an address for documentation"),
        ("192.88.99.0/24", "a relay to other networks"),
        ("198.18.0.0/15", "an address for benchmarks"),
        ("198.51.100.0/24", "an address for documentation"),
        ("203.0.113.0/24", "an address for documentation"),
        ("64:ff9b::/96", "a translated IPv4 address"),
        ("64:ff9b:1::/48", "a translated IPv4 address"),
        ("2002::/16", "a translated IPv4 address"),
        ("2001::/23", "a tunnel or another special-purpose address"),
        ("2001:db8::/32", "an address for documentation"),
        ("3fff::/20", "an address for documentation"),
    )
)
_PUBLIC_V6 = IPv6Network("2000::/3")  # the only part of IPv6 that has been assigned
_NAT64 = IPv6Network("64:ff9b::/96")

# Opened by `Webhook(allow_private=True)`. Metadata, multicast and translated addresses stay closed.
PRIVATE_NETWORKS: tuple[Network, ...] = tuple(
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
_WEB_PORTS = (80, 443)
# Ports above 1023 of databases, brokers and other services that are no web servers.
_REFUSED_PORTS = frozenset(
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
    """Addresses that operators allow in addition to public https addresses."""

    allowed_networks: tuple[Network, ...] = ()
    allow_http: bool = False
    web_address: tuple[str, int] = ("", 0)  # host and port of Mulligan's dashboard and API


def build_address_policy(settings: Settings, *, allow_private: bool = False) -> AddressPolicy:
    """Return the address policy of the settings, with private networks if `allow_private`."""
    networks = [ip_network(network) for network in settings.notify.allow_private]
    if allow_private:
        networks.extend(PRIVATE_NETWORKS)
    return AddressPolicy(
        allowed_networks=tuple(networks),
        allow_http=settings.notify.allow_http,
        web_address=(settings.web.host, settings.web.port),
    )


async def resolve_with_system(host: str, port: int) -> list[str]:
    """Return the addresses of a host name, by the system's resolver."""
    loop = asyncio.get_running_loop()
    answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


async def resolve_allowed_addresses(
    scheme: str,
    host: str,
    port: int,
    policy: AddressPolicy,
    resolve: Resolver = resolve_with_system,
) -> list[str]:
    """Return the addresses to connect to, in order.

    Raises `Fail` if any address of the host is not allowed: a name with one public and one
    private address would otherwise reach the private one on a retry.
    """
    _check_port(port)
    _check_host(host)
    texts = await _resolve(host, port, resolve)
    addresses = list(dict.fromkeys(_parse_address(text) for text in texts))
    for address in addresses:
        _check_address(address, port, policy)
    if scheme != "https" and not policy.allow_http:
        _check_http(addresses, policy)
    return [str(address) for address in addresses]


def _check_http(addresses: list[Address], policy: AddressPolicy) -> None:
    if not all(_is_allowed(address, policy) for address in addresses):
        _refuse("it is not https; set notify.allow_http to allow public addresses without TLS")


async def _resolve(host: str, port: int, resolve: Resolver) -> list[str]:
    if _is_address(host):
        return [host]
    public = "The receiver's host name could not be resolved."
    try:
        found = list(await resolve(host, port))
    except (OSError, UnicodeError) as error:
        raise Fail("CONNECTION", f"{host}: {error}", public=public) from error
    if not found:
        raise Fail("CONNECTION", f"{host} has no address", public=public)
    return found


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _parse_address(text: str) -> Address:
    """Parse an address. An IPv4 address in IPv6 notation becomes that IPv4 address."""
    try:
        address = ip_address(text)
    except ValueError:
        _refuse(f"{text!r} is not an IP address")
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _check_host(host: str) -> None:
    """Refuse a host that some libraries read as an address and others as a name.

    If the last label is a number, the host must be an IP address in its usual notation.
    """
    if not _HOST.fullmatch(host):
        _refuse("its host name has invalid characters")
    last_label = host.rstrip(".").rpartition(".")[2]
    if _NUMBER.fullmatch(last_label) and not _is_address(host):
        _refuse("its host is a number, not a name or an IP address")


def _check_port(port: int) -> None:
    privileged = port < 1024 and port not in _WEB_PORTS
    if privileged or port in _REFUSED_PORTS:
        _refuse(f"port {port} is not used by web servers")


def _check_address(address: Address, port: int, policy: AddressPolicy) -> None:
    web_host, web_port = policy.web_address
    if port == web_port and _is_web_server(address, web_host):
        _refuse("it is Mulligan's own web server")
    if address in _NAT64 and _is_allowed(address, policy):
        address = IPv4Address(int(address) & 0xFFFFFFFF)
    if _is_allowed(address, policy):
        return
    reason = non_public_reason(address)
    if reason:
        _refuse(f"it is {reason}")


def _is_web_server(address: Address, web_host: str) -> bool:
    """Return whether Mulligan's web server, bound to `web_host`, is reachable at `address`."""
    if not _is_address(web_host) or not ip_address(web_host).is_unspecified:
        return str(address) == web_host
    # The server listens on every address of this host. Only such an address can be bound.
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def _is_allowed(address: Address, policy: AddressPolicy) -> bool:
    return any(address in network for network in policy.allowed_networks)


def non_public_reason(address: Address) -> str:
    """Return why an address is not public; empty if it is public."""
    for network, description in _REFUSED_NETWORKS:
        if address in network:
            return description
    if isinstance(address, IPv6Address) and not _is_public_v6(address):
        return "not a public address"
    return ""


def _is_public_v6(address: IPv6Address) -> bool:
    return address in _PUBLIC_V6 and address.scope_id is None


def _refuse(reason: str) -> NoReturn:
    public = f"Messages must not be sent to this address: {reason}."
    raise Fail("ADDRESS_REFUSED", public, public=public, final=True)


# --- The channel protocol ---

# Result of a delivery, as JSON. `skipped` says why nothing was sent.
Receipt = dict[str, Any]


async def _discard_accepted(_accepted: frozenset[str]) -> None:
    """Save nothing: for channels without a state between attempts."""


@dataclass(frozen=True, slots=True)
class SendContext:
    """Context of one attempt to send one message."""

    settings: Settings
    delivery_id: str = ""  # id of the delivery's job
    subscription_id: str = ""
    attempt: int = 1
    accepted: frozenset[str] = frozenset()  # recipients that accepted the message earlier
    save_accepted: Callable[[frozenset[str]], Awaitable[None]] = _discard_accepted
    resolve: Resolver = resolve_with_system


@runtime_checkable
class Channel(Protocol):
    """A way to send messages, such as a webhook or e-mail."""

    kind: ClassVar[str]

    @property
    def endpoint(self) -> str:
        """Name of the remote system, which is up or down as a whole.

        Deliveries to one endpoint share a dependency and its circuit breaker.
        """
        ...

    @property
    def storable(self) -> bool:
        """True if the channel holds no function, so that any process can send through it."""
        ...

    async def send(self, message: Message, context: SendContext) -> Receipt:
        """Send a message and return when the receiver has confirmed it.

        Raises `Fail`, any exception with a failure rule, or `ReceiverGone`.
        """
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return the channel as a JSON object, with its kind in `channel`."""
        ...


class ReceiverGone(Fail):
    """The receiver refuses all further messages. Its subscription is disabled."""

    def __init__(self, message: str) -> None:
        super().__init__("RECEIVER_GONE", message, final=True)


# --- Channels that cannot send ---

NO_MAIL_SERVER = "mail.host is not set, so no mail is sent"
# Extra that a kind of channel needs.
CHANNEL_EXTRAS = {"email": "web", "webhook": "web", "apprise": "apprise"}


def find_obstacle(channel: str, settings: Settings) -> str:
    """Return why messages of a kind of channel cannot be sent; empty if they can."""
    if channel == "email" and not settings.mail.host:
        return NO_MAIL_SERVER
    extra = CHANNEL_EXTRAS.get(channel)
    command = find_missing(extra) if extra else ""
    return f"packages are missing, so nothing is sent. Install them: {command}" if command else ""


# --- Registry ---


class StoredChannel(Channel, Protocol):
    """A channel that a subscription in the database can hold."""

    def __init__(self, target: Any, /) -> None: ...

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Channel:
        """Build the channel from the JSON object that `to_dict` returned."""
        ...

    @staticmethod
    def describe_target(body: Mapping[str, Any]) -> str:
        """Describe where a stored channel sends to, without secrets."""
        ...


class ChannelType(NamedTuple):
    """A channel class, imported on demand: mails need no HTTP client, webhooks no SMTP."""

    kind: str  # in stored subscriptions, and the option of `mulligan notify add`
    module: str
    class_name: str
    metavar: str  # of the option
    help: str
    several: bool = True  # the option may be repeated
    form: str = "incident"  # default form of messages: "each" for programs, "incident" for people

    def load(self) -> type[StoredChannel]:
        """Import the class. Its first argument is the value of the option."""
        channel: type[StoredChannel] = getattr(import_module(self.module), self.class_name)
        return channel


CHANNELS = (
    ChannelType(
        "webhook",
        "mulligan.notifications.webhook",
        "Webhook",
        metavar="URL",
        help="Send a signed POST request to this URL.",
        several=False,
        form="each",
    ),
    ChannelType(
        "email",
        "mulligan.notifications.email",
        "Email",
        metavar="ADDRESS",
        help="Send mail to this address. May be repeated.",
    ),
    ChannelType(
        "apprise",
        "mulligan.notifications.apprise",
        "Apprise",
        metavar="URL",
        help="Send to Slack, Teams, ntfy …: an Apprise URL. May be repeated.",
    ),
)


def channel_class(kind: Any) -> type[StoredChannel]:
    """Return the class of a channel by the kind that is stored."""
    for channel in CHANNELS:
        if channel.kind == kind:
            return channel.load()
    names = join_or([channel.kind for channel in CHANNELS])
    message = f"unknown channel {kind!r}. Use {names}."
    raise ConfigError(message)


def load_channel(body: Mapping[str, Any]) -> Channel:
    """Build a channel from the JSON object that its `to_dict` returned."""
    return channel_class(body.get("channel")).from_dict(body)


def default_form(channel: Channel) -> str:
    """Return `each` for programs and `incident` for people."""
    forms = {known.kind: known.form for known in CHANNELS}
    return forms.get(channel.kind, "incident")


def check_channel(to: Any) -> Channel:
    """Return `to` if it is a channel. Raises `ConfigError` otherwise."""
    if not isinstance(to, Channel):
        names = join_or([f"{channel.class_name}(…)" for channel in CHANNELS])
        message = f"invalid channel to={to!r:.80}. Use {names}."
        raise ConfigError(message)
    return to


def join_or(names: Sequence[str]) -> str:
    """Return `a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}"
