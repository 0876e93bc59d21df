"""`app.notify`: a subscription as code declares it, checked where it is said."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from mulligan.engine.enqueue import checked_text
from mulligan.engine.kinds import SubscriptionSpec, checked_name
from mulligan.errors import ConfigError
from mulligan.notify.channels import Channel
from mulligan.notify.subscribed import endpoint_key
from mulligan.policy.subscription import checked_form, parsed_filter, split, types_of

STORED = "sub_"  # how the ids of stored subscriptions begin
LONGEST = 100  # characters of a name: it becomes part of a kind's


def spec_of(
    on: str | Sequence[str], to: Any, *, owner: str | None, name: str | None, form: str | None, words: str
) -> SubscriptionSpec:
    channel = checked_channel(to)
    types_of(on)
    parsed_filter(words)
    patterns = tuple(split(on))
    named = name or _usual_name(patterns, owner, words, channel)
    if checked_name("subscription", named).startswith(STORED) or len(named) > LONGEST:
        message = (
            f"subscription {named!r:.120}: a name has at most {LONGEST} characters and does not begin with {STORED}"
        )
        raise ConfigError(message)
    return SubscriptionSpec(
        name=named,
        on=patterns,
        owner=None if owner is None else checked_text("owner", owner),
        filter=words,
        form=checked_form(form, usual_form(channel)),
        channel=channel.kind,
        endpoint=endpoint_key(channel),
        apart=owner is None and told_apart(channel),
    )


def checked_channel(to: Any) -> Channel:
    if not isinstance(to, Channel):
        message = f"to is a channel: Webhook(…), Email(…) or Apprise(…), not {to!r:.80}"
        raise ConfigError(message)
    return to


def usual_form(channel: Channel) -> str:
    """Programs want every event; people one message that grows."""
    return "each" if channel.kind == "webhook" else "incident"


def told_apart(channel: Channel) -> bool:
    """Who is told is a function of the message: owners then have addresses of their own."""
    return callable(getattr(channel, "to", None))


def _usual_name(patterns: Sequence[str], owner: str | None, words: str, channel: Channel) -> str:
    """The same for the same declaration, in every process that makes it."""
    said = "|".join([*patterns, owner or "", words, channel.kind, channel.endpoint])
    first = patterns[0].replace("*", "all")
    return f"{first}-{channel.kind}-{hashlib.sha256(said.encode('utf-8', 'replace')).hexdigest()[:8]}"
