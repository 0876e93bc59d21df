"""Settings from the environment, with the names of the specification."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MS_PER_SECOND = 1000


@dataclass(frozen=True)
class Config:
    """Settings of the service. The variable of a field is its name in capital letters."""

    max_retries: int = 3
    initial_backoff_ms: int = 1_000
    backoff_multiplier: float = 2.0
    job_timeout_ms: int = 300_000
    stalled_interval_ms: int = 30_000
    max_stalled_count: int = 2
    download_timeout_ms: int = 30_000
    storage_url: str = "file:///tmp/mulligan-render"  # or s3://bucket
    storage_endpoint: str = ""  # of an S3-compatible server other than Amazon's
    render_env: str = "production"  # development: answers contain the stack of a failure
    allow_private_addresses: bool = False  # pictures may come from private networks
    sign_in: str = "remote"  # always: callers on this machine need a key too
    alerts_to: str = ""  # mail address, or https URL of a webhook

    @property
    def development(self) -> bool:
        return self.render_env == "development"

    @property
    def mulligan(self) -> dict[str, Any]:
        """Mulligan's settings: the lease of a worker is the stalled interval."""
        lease = self.stalled_interval_ms / MS_PER_SECOND
        return {
            "worker.lease": lease,
            "worker.heartbeat": lease / 6,
            "alerts.rules": [{"name": "failure_share", "least": 5}],  # 6 of 100 fire
        }


def read_config(environ: Mapping[str, str] = os.environ) -> Config:
    values: dict[str, Any] = {}
    for name, default in vars(Config()).items():
        text = environ.get(name.upper())
        if text is not None:
            values[name] = _parse(name, text, type(default))
    return Config(**values)


def _parse(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        return text.lower() in ("1", "true", "yes")
    try:
        return kind(text)
    except ValueError:
        message = f"{name.upper()}={text!r} is not a number"
        raise SystemExit(message) from None
