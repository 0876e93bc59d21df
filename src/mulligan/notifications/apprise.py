"""Slack, Teams, Discord, PagerDuty, ntfy and others, through the library Apprise (an extra)."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from mulligan.core.errors import ConfigError, Fail
from mulligan.core.event import EventType
from mulligan.core.extras import check_extra
from mulligan.core.format import one_line, safe_text
from mulligan.notifications.channels import Receipt, SendContext
from mulligan.notifications.email import render_text
from mulligan.notifications.message import INCIDENT_OVER, Message, call_app_function

SERVICE_TIMEOUT = 60.0  # seconds for one service
MAX_TITLE = 250  # characters
MAX_TEXT = 8_000  # characters
_FAILURE_TYPES = (
    "incident.",
    EventType.JOB_DIED,
    EventType.BATCH_FAILED,
    EventType.BATCH_PARTIAL,
    EventType.ALERT_FIRED,
)
_SUCCESS_TYPES = frozenset(
    {
        INCIDENT_OVER,
        EventType.JOB_SUCCEEDED,
        EventType.BATCH_READY,
        EventType.BATCH_RECOVERED,
        EventType.ALERT_RESOLVED,
    }
)
_WARNING_TYPES = frozenset({EventType.JOB_RETRY_SCHEDULED, EventType.JOB_PARKED})
_MENTION = re.compile(r"@(?=everyone|here|channel|all\b)|<(?=[!@#])", re.IGNORECASE)
ZERO_WIDTH_SPACE = "\u200b"


@dataclass(frozen=True, repr=False)
class Apprise:
    """Channel that sends each message to services, by their Apprise URLs.

    `urls` are URLs such as `slack://…` and `pagerduty://…`; they contain tokens and are never
    shown. `render` returns the text of a message, or a pair of title and text.
    """

    urls: str | Sequence[str]
    render: Callable[[Message], Any] | None = None

    kind: ClassVar[str] = "apprise"

    def __post_init__(self) -> None:
        check_extra("apprise", "Apprise(…)")
        if not self.targets or not all(_is_url(url) for url in self.targets):
            _refuse("invalid URL. Use one or several Apprise URLs, such as 'slack://…'.")

    def __repr__(self) -> str:
        return "Apprise(…)"

    @property
    def targets(self) -> tuple[str, ...]:
        """All URLs."""
        return (self.urls,) if isinstance(self.urls, str) else tuple(self.urls)

    @property
    def endpoint(self) -> str:
        """All URLs as one text, of which only a hash is stored."""
        return "|".join(("apprise", *self.targets))

    @property
    def storable(self) -> bool:
        """False if the channel has a function."""
        return self.render is None

    def to_dict(self) -> dict[str, Any]:
        """Return the channel as a JSON object."""
        if not self.storable:
            _refuse("a channel with render cannot be stored. Declare it in code.")
        return {"channel": self.kind, "urls": list(self.targets)}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Apprise:
        """Build the channel from its JSON object."""
        return cls(tuple(body["urls"]))

    @staticmethod
    def describe_target(body: Mapping[str, Any]) -> str:
        """List the services of a stored channel, without their tokens."""
        services = {url.partition(":")[0] for url in body.get("urls", ())}
        return ", ".join(f"{service}://…" for service in sorted(services))

    async def send(self, message: Message, context: SendContext) -> Receipt:
        """Send a message to all services that did not accept it in an earlier attempt."""
        title, text = await self._title_and_text(message)
        remaining = [url for url in self.targets if _hash_url(url) not in context.accepted]
        type_ = notify_type(message.type)
        results = await asyncio.gather(
            *(_send_in_time(url, title, text, type_) for url in remaining)
        )
        sent = zip(remaining, results, strict=True)
        accepted = context.accepted | {_hash_url(url) for url, success in sent if success}
        failed = results.count(False)
        if not failed:
            return {"reached": len(accepted)}
        if accepted != context.accepted:
            await context.save_accepted(accepted)
        public = f"{failed} of {len(self.targets)} services did not accept the message."
        raise Fail("REMOTE_ERROR", public, public=public)

    async def _title_and_text(self, message: Message) -> tuple[str, str]:
        title: Any = message.summary
        text: Any = render_text(message)
        if self.render is not None:
            text = await call_app_function(self.render, message)
            if isinstance(text, tuple | list) and len(text) == 2:
                title, text = text
        title = _disarm_mentions(one_line(str(title), MAX_TITLE))
        return title, _disarm_mentions(safe_text(str(text), MAX_TEXT))


def _is_url(text: str) -> bool:
    return "://" in text and text.isprintable()


async def _send_in_time(url: str, title: str, text: str, type_: str) -> bool:
    try:
        async with asyncio.timeout(SERVICE_TIMEOUT):
            return await asyncio.to_thread(_send, url, title, text, type_)
    except TimeoutError:
        return False


def _send(url: str, title: str, text: str, type_: str) -> bool:
    import apprise  # noqa: PLC0415 - an extra

    service = apprise.Apprise.instantiate(url)
    if service is None:
        raise Fail("MISCONFIGURED", "Apprise does not support one of the URLs", final=True)
    sender = apprise.Apprise()
    sender.add(service)
    return bool(
        sender.notify(text, title=title, notify_type=apprise.NotifyType(type_), body_format="text")
    )


def notify_type(message_type: str) -> str:
    """Return Apprise's type of a notification: success, failure, warning or info."""
    if message_type in _SUCCESS_TYPES:
        return "success"
    if message_type.startswith(_FAILURE_TYPES):
        return "failure"
    return "warning" if message_type in _WARNING_TYPES else "info"


def _disarm_mentions(text: str) -> str:
    """Break up mentions such as @everyone: a job's name must not alert a whole chat."""
    return _MENTION.sub(lambda found: f"{found[0]}{ZERO_WIDTH_SPACE}", text)


def _hash_url(url: str) -> str:
    """Return a name of a URL that reveals nothing of its tokens."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def _refuse(reason: str) -> NoReturn:
    message = f"apprise: {reason}"
    raise ConfigError(message)
