"""Slack, Teams, Discord, PagerDuty, ntfy and a hundred others, through the library apprise (an extra)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from mulligan.errors import ConfigError
from mulligan.notify.channels import Receipt, Sending
from mulligan.notify.message import Message


@dataclass(frozen=True, repr=False)
class Apprise:
    """`urls` as apprise writes them: `slack://…`, `pagerduty://…`; they hold tokens and are shown nowhere.

    `render` makes the text of a message, or a pair of title and text.
    """

    urls: str | Sequence[str]
    render: Callable[[Message], Any] | None = None

    kind: ClassVar[str] = "apprise"

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
        raise NotImplementedError


def _refuse(why: str) -> NoReturn:
    message = f"apprise: {why}"
    raise ConfigError(message)
