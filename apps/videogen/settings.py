"""What the environment says, under the names that people who run this service know: VideoGeneration__MaxRetries …

Each number about retries may be said for one provider alone: VideoGeneration__Providers__quartz__MaxRetries=5.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from mulligan import Exponential, Policy

PREFIX = "VideoGeneration__"
JITTER = 0.2
BUDGET = "60/m"


@dataclass(frozen=True)
class Retries:
    max_retries: int = 3
    base_delay: float = 30
    max_delay: float = 3600
    budget: str = BUDGET  # retries that may start within a time, of all tasks together

    @property
    def policy(self) -> Policy:
        """Longest is longest: the cap is drawn around, so it stands as far below as the draw may go above."""
        cap = self.max_delay / (1 + JITTER)
        backoff = Exponential(min(self.base_delay, cap), factor=2, cap=cap, jitter=JITTER)
        return Policy(max_retries=self.max_retries, backoff=backoff)


@dataclass(frozen=True)
class Hook:
    url: str
    secret: str | None = None


@dataclass(frozen=True)
class Settings:
    enable_retries: bool = True
    check_interval: float = 30  # seconds between two looks for tasks that are due
    provider_url: str = "http://127.0.0.1:8091"
    provider_timeout: float = 20  # seconds, of one call
    task_timeout: float = 600  # seconds, of one attempt with all its calls
    folder: str = "videos"
    webhooks: Mapping[str, Hook] = field(default_factory=dict)  # by owner
    private_webhooks: bool = False  # they may reach this host and its network

    @property
    def worker(self) -> dict[str, str]:
        """What Mulligan's worker must know. It wakes up in time for what it knows of; this is for all the rest."""
        return {"MULLIGAN_WORKER__POLL": f"{self.check_interval:g}"}


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    plain = Settings()
    return Settings(
        enable_retries=_switch(environ, "EnableRetries", otherwise=plain.enable_retries),
        check_interval=_number(
            environ, "RetryCheckIntervalSeconds", plain.check_interval, least=0.1
        ),
        provider_url=environ.get(f"{PREFIX}ProviderUrl", plain.provider_url).rstrip("/"),
        provider_timeout=_number(
            environ, "ProviderTimeoutSeconds", plain.provider_timeout, least=0.01
        ),
        task_timeout=_number(environ, "TaskTimeoutSeconds", plain.task_timeout, least=1),
        folder=environ.get(f"{PREFIX}Folder", plain.folder),
        webhooks={
            owner: Hook(**said)
            for owner, said in json.loads(environ.get(f"{PREFIX}Webhooks", "{}")).items()
        },
        private_webhooks=_switch(environ, "PrivateWebhooks", otherwise=plain.private_webhooks),
    )


def read_retries(provider: str, own: Retries, environ: Mapping[str, str] = os.environ) -> Retries:
    """Said for this provider, else its own strategy where it differs from the plain one, else said for all."""
    plain, retries = Retries(), read_settings(environ).enable_retries

    def number(name: str, mine: float, usual: float, least: float) -> float:
        general = mine if mine != usual else _number(environ, name, usual, least)
        return _number(environ, f"Providers__{provider}__{name}", general, least)

    most = int(number("MaxRetries", own.max_retries, plain.max_retries, 0))
    general = (
        own.budget
        if own.budget != plain.budget
        else environ.get(f"{PREFIX}RetryBudget", plain.budget)
    )
    return Retries(
        max_retries=most if retries else 0,
        base_delay=number("BaseDelaySeconds", own.base_delay, plain.base_delay, 0.001),
        max_delay=number("MaxDelaySeconds", own.max_delay, plain.max_delay, 0.001),
        budget=environ.get(f"{PREFIX}Providers__{provider}__RetryBudget", general),
    )


def _number(environ: Mapping[str, str], name: str, otherwise: float, least: float) -> float:
    said = environ.get(PREFIX + name, "")
    try:
        number = float(said) if said else otherwise
    except ValueError:
        number = float("nan")
    if not least <= number < float("inf"):
        message = f"{PREFIX}{name}={said!r}: a number, at least {least:g}"
        raise ValueError(message)
    return number


def _switch(environ: Mapping[str, str], name: str, *, otherwise: bool) -> bool:
    said = environ.get(PREFIX + name, str(otherwise)).lower()
    if said not in ("true", "false"):
        message = f"{PREFIX}{name}={said!r}: true or false"
        raise ValueError(message)
    return said == "true"
