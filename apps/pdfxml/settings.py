"""Settings from the environment, read once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

MEGABYTE = 1024 * 1024


@dataclass(frozen=True)
class Settings:
    gateway_url: str = "http://127.0.0.1:8090"
    gateway_timeout: float = 30  # seconds, for the whole call
    breaker_mode: str = "hold"  # or fail_fast
    breaker_cool_down: float = 30  # seconds until the gateway's health is checked
    attempts: int = 3
    storage: str = "pdfxml-files"  # a folder, or s3://bucket
    keep: timedelta = timedelta(hours=72)  # sources and results, once a conversion has ended
    most_bytes: int = 50 * MEGABYTE
    public_url: str = "http://127.0.0.1:8000"  # of the pages, for links in messages
    alert_email: str = ""
    alert_webhook: str = ""

    @property
    def has_alert_channel(self) -> bool:
        return bool(self.alert_email or self.alert_webhook)


def read_settings(environ: Mapping[str, str]) -> Settings:
    defaults = Settings()
    return Settings(
        gateway_url=environ.get("GATEWAY_URL", defaults.gateway_url).rstrip("/"),
        gateway_timeout=_number(environ, "GATEWAY_TIMEOUT", defaults.gateway_timeout),
        breaker_mode=environ.get("BREAKER_MODE", defaults.breaker_mode),
        breaker_cool_down=_number(environ, "BREAKER_COOL_DOWN", defaults.breaker_cool_down),
        attempts=int(_number(environ, "RETRY_MAX_ATTEMPTS", defaults.attempts, minimum=1)),
        storage=environ.get("STORAGE_URL", defaults.storage),
        keep=timedelta(
            hours=_number(environ, "RETENTION_HOURS", defaults.keep / timedelta(hours=1))
        ),
        most_bytes=int(
            _number(environ, "MAX_UPLOAD_MB", defaults.most_bytes / MEGABYTE) * MEGABYTE
        ),
        public_url=environ.get("PUBLIC_URL", defaults.public_url).rstrip("/"),
        alert_email=environ.get("ALERT_EMAIL", ""),
        alert_webhook=environ.get("ALERT_WEBHOOK", ""),
    )


def _number(environ: Mapping[str, str], name: str, default: float, minimum: float = 0) -> float:
    text = environ.get(name, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = float("nan")
    if not minimum <= number < float("inf"):
        message = f"invalid {name}={text!r}. Use a number of at least {minimum:g}."
        raise ValueError(message)
    return number


SETTINGS = read_settings(os.environ)
