"""Slack, Teams, Discord, PagerDuty, ntfy and a hundred others, through the library apprise (an extra)."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, NoReturn

from mulligan.core.errors import ConfigError, Fail
from mulligan.core.event import EventType
from mulligan.core.format import one_line, safe
from mulligan.notifications.channels import Receipt, Sending
from mulligan.notifications.email import text_of
from mulligan.notifications.message import OVER, Message, called

LIMIT = 60.0  # seconds for one service
TITLE, TEXT = 250, 8_000  # characters
_BAD = (
    "incident.",
    EventType.JOB_DIED,
    EventType.BATCH_FAILED,
    EventType.BATCH_PARTIAL,
    EventType.ALERT_FIRED,
)
_GOOD = frozenset(
    {
        OVER,
        EventType.JOB_SUCCEEDED,
        EventType.BATCH_READY,
        EventType.BATCH_RECOVERED,
        EventType.ALERT_RESOLVED,
    }
)
_CALLS = re.compile(
    r"@(?=everyone|here|channel|all\b)|<(?=[!@#])", re.IGNORECASE
)  # what wakes a whole room


@dataclass(frozen=True, repr=False)
class Apprise:
    """`urls` as apprise writes them: `slack://…`, `pagerduty://…`; they hold tokens and are shown nowhere.

    `render` makes the text of a message, or a pair of title and text.
    """

    urls: str | Sequence[str]
    render: Callable[[Message], Any] | None = None

    kind: ClassVar[str] = "apprise"

    def __post_init__(self) -> None:
        if find_spec("apprise") is None:
            _refuse("the library is not installed: pip install 'mulligan[apprise]'")
        if not self.targets or not all("://" in url and url.isprintable() for url in self.targets):
            _refuse("give one address or several, as apprise writes them: 'slack://…'")

    def __repr__(self) -> str:
        return "Apprise(…)"

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.urls,) if isinstance(self.urls, str) else tuple(self.urls)

    @property
    def endpoint(self) -> str:
        return "|".join(("apprise", *self.targets))

    @property
    def storable(self) -> bool:
        return self.render is None

    def to_plain(self) -> dict[str, Any]:
        if not self.storable:
            _refuse("one with render can only be declared in code")
        return {"channel": self.kind, "urls": list(self.targets)}

    @classmethod
    def from_plain(cls, body: Mapping[str, Any]) -> Apprise:
        return cls(tuple(body["urls"]))

    async def send(self, message: Message, sending: Sending) -> Receipt:
        title, text = await self._words(message)
        rest = [url for url in self.targets if _name(url) not in sending.reached]
        taken = await asyncio.gather(
            *[_sent(url, title, text, kind_of(message.type)) for url in rest]
        )
        reached = sending.reached | {_name(url) for url, ok in zip(rest, taken, strict=True) if ok}
        failed = taken.count(False)
        if not failed:
            return {"reached": len(reached)}
        if reached != sending.reached:
            await sending.remember(reached)
        public = f"{failed} of {len(self.targets)} services did not take the message."
        raise Fail("REMOTE_ERROR", public, public=public)

    async def _words(self, message: Message) -> tuple[str, str]:
        made = (
            (message.summary, text_of(message))
            if self.render is None
            else await called(self.render, message)
        )
        title, text = (
            made if isinstance(made, tuple | list) and len(made) == 2 else (message.summary, made)
        )
        return _calm(one_line(str(title), TITLE)), _calm(safe(str(text), TEXT))


async def _sent(url: str, title: str, text: str, kind: str) -> bool:
    try:
        async with asyncio.timeout(LIMIT):
            return await asyncio.to_thread(_send, url, title, text, kind)
    except TimeoutError:
        return False


def _send(url: str, title: str, text: str, kind: str) -> bool:
    import apprise  # noqa: PLC0415 - an extra

    service = apprise.Apprise.instantiate(url)
    if service is None:
        raise Fail("MISCONFIGURED", "apprise cannot read one of the addresses", final=True)
    several = apprise.Apprise()
    several.add(service)
    return bool(
        several.notify(text, title=title, notify_type=apprise.NotifyType(kind), body_format="text")
    )


def kind_of(type_: str) -> str:
    """In the words of apprise."""
    if type_ in _GOOD:
        return "success"
    if type_.startswith(_BAD):
        return "failure"
    return "warning" if type_ in (EventType.JOB_RETRY_SCHEDULED, EventType.JOB_PARKED) else "info"


def _calm(text: str) -> str:
    """A name of somebody's job must not call everybody in a chat."""
    return _CALLS.sub(lambda found: f"{found[0]}\u200b", text)


def _name(url: str) -> str:
    """What is kept between attempts says nothing of the address and its tokens."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def _refuse(why: str) -> NoReturn:
    message = f"apprise: {why}"
    raise ConfigError(message)
