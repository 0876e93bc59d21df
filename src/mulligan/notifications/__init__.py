"""Notifications: events become deliveries to webhooks, e-mail and chats; a delivery is a job.

This module holds the options of the built-in kind that delivers a message: every runner registers
it, few ever send a message, so the delivery code is loaded separately.
"""

from __future__ import annotations

from typing import Any

from mulligan.failures.rules import Rule
from mulligan.manifest.specs import DELIVERY_QUEUE
from mulligan.retries.backoff import Table
from mulligan.retries.policy import Policy

# Before most other work: messages are short and few run at a time.
PRIORITY = -5

# In the payload of a delivery: the job, batch or incident whose messages arrive in order.
THREAD_PATH = "message.thread"

# Delays from seconds to a day, three days in total: a receiver may be down over a weekend. Several
# in the first two minutes: after a short fault its owner gets the message within half a minute.
RETRY_POLICY = Policy(
    max_retries=13,
    backoff=Table([5, 10, 15, 30, 60, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]),
    max_losses=1000,  # a killed worker must not lose a message
)
# A receiver that refuses may be in the middle of a deploy, so retry a few times. A refused login or
# a wrong setting is retried as well: the messages wait until a person corrects it.
DELIVERY_RULES = (
    Rule(
        "delivery.refused",
        verdict="HTTP_4XX",
        code="RECEIVER_REFUSED",
        cls="transient",
        max_retries=8,
    ),
    Rule("delivery.login", verdict="AUTH", code="AUTH", cls="transient"),
    Rule("delivery.settings", verdict="MISCONFIGURED", code="MISCONFIGURED", cls="transient"),
)
# Channels have time limits of their own, well below.
DELIVERY_KIND_OPTIONS: dict[str, Any] = {
    "queue": DELIVERY_QUEUE,
    "priority": PRIORITY,
    "policy": RETRY_POLICY,
    "timeout": 90,
    "rules": DELIVERY_RULES,
    "retention": 7 * 86_400,
    "index": ("subscription", THREAD_PATH),
}
