"""What is set from outside, read once."""

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
    breaker_cool_down: float = 30  # seconds until the gateway's health is looked at
    attempts: int = 3
    storage: str = "pdfxml-files"  # a folder, or s3://bucket
    keep: timedelta = timedelta(hours=72)  # sources and results, once a conversion has ended
    most_bytes: int = 50 * MEGABYTE


def read(environ: Mapping[str, str]) -> Settings:
    plain = Settings()
    return Settings(
        gateway_url=environ.get("GATEWAY_URL", plain.gateway_url).rstrip("/"),
        gateway_timeout=_number(environ, "GATEWAY_TIMEOUT", plain.gateway_timeout),
        breaker_mode=environ.get("BREAKER_MODE", plain.breaker_mode),
        breaker_cool_down=_number(environ, "BREAKER_COOL_DOWN", plain.breaker_cool_down),
        attempts=int(_number(environ, "RETRY_MAX_ATTEMPTS", plain.attempts, least=1)),
        storage=environ.get("STORAGE_URL", plain.storage),
        keep=timedelta(hours=_number(environ, "RETENTION_HOURS", plain.keep / timedelta(hours=1))),
        most_bytes=int(_number(environ, "MAX_UPLOAD_MB", plain.most_bytes / MEGABYTE) * MEGABYTE),
    )


def _number(environ: Mapping[str, str], name: str, otherwise: float, least: float = 0) -> float:
    said = environ.get(name, "")
    try:
        number = float(said) if said else otherwise
    except ValueError:
        number = float("nan")
    if not least <= number < float("inf"):
        message = f"{name}={said!r}: a number, at least {least:g}"
        raise ValueError(message)
    return number


SETTINGS = read(os.environ)
