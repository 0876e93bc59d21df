"""Notification channel: the protocol that webhook, e-mail and Apprise implement.

A channel declared in code may contain functions and secrets of the app and is never stored.
A stored channel can be used by any worker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from mulligan.config import Settings
from mulligan.errors import Fail
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
