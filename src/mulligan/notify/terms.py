"""What is said of the kinds that deliver: all that a runner needs of messages before it has one to send."""

from __future__ import annotations

from typing import Any

from mulligan.engine.kinds import DELIVERY_QUEUE
from mulligan.policy.backoff import Table
from mulligan.policy.retry import Policy
from mulligan.policy.rule import Rule

PRIORITY = -5  # before most work: messages are short, and there are places for only so many of them

# From seconds to a day apart, three days in all: a receiver may be away over a weekend.
PATIENCE = Policy(
    max_retries=10,
    backoff=Table([5, 60, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]),
    max_losses=1000,  # a worker that is killed must not cost a message
)
# A receiver that refuses may be one that is just being deployed, so it is asked a few times more; a mail server that
# does not let us in waits for somebody who corrects a setting, and mails wait for that too.
RULES = (
    Rule("delivery.refused", verdict="HTTP_4XX", code="RECEIVER_REFUSED", cls="transient", max_retries=5),
    Rule("delivery.login", verdict="AUTH", code="AUTH", cls="transient"),
    Rule("delivery.settings", verdict="MISCONFIGURED", code="MISCONFIGURED", cls="transient"),
)
# Channels have time limits of their own, well below.
TERMS: dict[str, Any] = {
    "queue": DELIVERY_QUEUE,
    "priority": PRIORITY,
    "policy": PATIENCE,
    "timeout": 90,
    "rules": RULES,
    "retention": 7 * 86_400,
    "index": ("subscription",),
}
