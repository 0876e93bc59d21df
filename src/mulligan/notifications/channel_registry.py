"""Registry of channel kinds: builds a channel from its stored form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.core.errors import ConfigError
from mulligan.notifications.channels import Channel


def load_channel(body: Mapping[str, Any]) -> Channel:
    """Build the channel from the JSON object that its `to_plain` returned."""
    # Imported on demand: a mail needs no HTTP client, a webhook no SMTP, and Apprise is an extra.
    kind = body.get("channel")
    if kind == "webhook":
        from mulligan.notifications.webhook import Webhook  # noqa: PLC0415 - see above

        return Webhook.from_plain(body)
    if kind == "email":
        from mulligan.notifications.email import Email  # noqa: PLC0415 - see above

        return Email.from_plain(body)
    if kind == "apprise":
        from mulligan.notifications.apprise import Apprise  # noqa: PLC0415 - see above

        return Apprise.from_plain(body)
    message = f"unknown channel {kind!r}. Use webhook, email or apprise."
    raise ConfigError(message)
