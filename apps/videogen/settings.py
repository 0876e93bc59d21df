"""Settings from the environment, with the names of the specification: VideoGeneration__MaxRetries …

Retry settings can be set per provider: VideoGeneration__Providers__quartz__MaxRetries=5.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mulligan import Exponential, Policy

PREFIX = "VideoGeneration__"
JITTER = 0.2
BUDGET = "60/m"


@dataclass(frozen=True)
class Retries:
    """Retry settings of a provider."""

    max_retries: int = 3
    base_delay: float = 30
    max_delay: float = 3600
    budget: str = BUDGET  # retries of all tasks together that may start per time

    @property
    def policy(self) -> Policy:
        """Policy whose longest delay, jitter included, is `max_delay`."""
        cap = self.max_delay / (1 + JITTER)
        backoff = Exponential(min(self.base_delay, cap), factor=2, cap=cap, jitter=JITTER)
        return Policy(max_retries=self.max_retries, backoff=backoff)


@dataclass(frozen=True)
class Hook:
    """Webhook of an owner."""

    url: str
    secret: str | None = None


@dataclass(frozen=True)
class Settings:
    """Settings of the service."""

    enable_retries: bool = True
    check_interval: float = 30  # seconds between two polls for due tasks
    provider_url: str = "http://127.0.0.1:8091"
    provider_timeout: float = 20  # seconds per call
    task_timeout: float = 600  # seconds per attempt, with all its calls
    folder: str = "videos"
    webhooks: Mapping[str, Hook] = field(default_factory=dict)  # by owner
    private_webhooks: bool = False  # webhooks may reach this host and its network
    manual_retries: int = 60  # per owner and hour
    alert_email: str = ""
    alert_webhook: str = ""

    @property
    def mulligan(self) -> dict[str, Any]:
        """Settings of Mulligan that worker, web and demo obey."""
        return {"worker.poll": self.check_interval}

    @property
    def has_alert_channel(self) -> bool:
        return bool(self.alert_email or self.alert_webhook)


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    defaults = Settings()
    return Settings(
        enable_retries=_read_switch(environ, "EnableRetries", default=defaults.enable_retries),
        check_interval=_read_number(
            environ, "RetryCheckIntervalSeconds", defaults.check_interval, minimum=0.1
        ),
        provider_url=environ.get(f"{PREFIX}ProviderUrl", defaults.provider_url).rstrip("/"),
        provider_timeout=_read_number(
            environ, "ProviderTimeoutSeconds", defaults.provider_timeout, minimum=0.01
        ),
        task_timeout=_read_number(environ, "TaskTimeoutSeconds", defaults.task_timeout, minimum=1),
        folder=environ.get(f"{PREFIX}Folder", defaults.folder),
        webhooks={
            owner: Hook(**hook)
            for owner, hook in json.loads(environ.get(f"{PREFIX}Webhooks", "{}")).items()
        },
        private_webhooks=_read_switch(
            environ, "PrivateWebhooks", default=defaults.private_webhooks
        ),
        manual_retries=int(
            _read_number(environ, "ManualRetriesPerHour", defaults.manual_retries, minimum=0)
        ),
        alert_email=environ.get(f"{PREFIX}AlertEmail", ""),
        alert_webhook=environ.get(f"{PREFIX}AlertWebhook", ""),
    )


def read_retries(
    provider: str, strategy: Retries, environ: Mapping[str, str] = os.environ
) -> Retries:
    """Read the retry settings of a provider.

    Precedence: the variable of this provider, the variable of all providers, the provider's own
    strategy.
    """

    def number(name: str, default: float, minimum: float) -> float:
        general = _read_number(environ, name, default, minimum)
        return _read_number(environ, f"Providers__{provider}__{name}", general, minimum)

    limit = int(number("MaxRetries", strategy.max_retries, 0))
    general_budget = environ.get(f"{PREFIX}RetryBudget", strategy.budget)
    return Retries(
        max_retries=limit if read_settings(environ).enable_retries else 0,
        base_delay=number("BaseDelaySeconds", strategy.base_delay, 0.001),
        max_delay=number("MaxDelaySeconds", strategy.max_delay, 0.001),
        budget=environ.get(f"{PREFIX}Providers__{provider}__RetryBudget", general_budget),
    )


def _read_number(environ: Mapping[str, str], name: str, default: float, minimum: float) -> float:
    text = environ.get(PREFIX + name, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = float("nan")
    if not minimum <= number < float("inf"):
        message = f"invalid {PREFIX}{name}={text!r}. Use a number of at least {minimum:g}."
        raise ValueError(message)
    return number


def _read_switch(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environ.get(PREFIX + name, str(default)).lower()
    if text not in ("true", "false"):
        message = f"invalid {PREFIX}{name}={text!r}. Use true or false."
        raise ValueError(message)
    return text == "true"
