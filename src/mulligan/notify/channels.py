"""What every channel is: something that can send a message, or say why not. And how channels are stored.

A channel that was declared in code may hold functions and secrets of the app; it is never stored. One that was stored
can be sent through by any worker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from mulligan.config import Settings
from mulligan.errors import ConfigError, Fail
from mulligan.notify.guarded import Resolver, system_resolver
from mulligan.notify.message import Message

Receipt = dict[str, Any]  # JSON, the result of the delivery; `skipped`: nothing was sent, and why that is right


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
    remember: Callable[[frozenset[str]], Awaitable[None]] = _forget  # those who have it now, durably
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


def channel_of(body: Mapping[str, Any]) -> Channel:
    """The channel that `to_plain` was made of."""
    kind = body.get("channel")
    if kind == "webhook":
        from mulligan.notify.webhook import Webhook  # noqa: PLC0415 - a mail needs no HTTP client

        return Webhook.from_plain(body)
    if kind == "email":
        from mulligan.notify.mail import Email  # noqa: PLC0415 - and the other way round

        return Email.from_plain(body)
    if kind == "apprise":
        from mulligan.notify.apprise import Apprise  # noqa: PLC0415 - an extra

        return Apprise.from_plain(body)
    message = f"no channel {kind!r}; there are webhook, email and apprise"
    raise ConfigError(message)
