"""Settings from the environment, with the names of the specification."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MS_PER_SECOND = 1000


@dataclass(frozen=True)
class Config:
    """Settings of the service."""

    max_retries: int = 3
    initial_backoff_ms: int = 1_000
    backoff_multiplier: float = 2.0
    job_timeout_ms: int = 300_000
    stalled_interval_ms: int = 30_000
    max_stalled_count: int = 2
    download_timeout_ms: int = 30_000
    storage_url: str = "file:///tmp/mulligan-render"  # or s3://bucket
    storage_endpoint: str = ""  # of an S3-compatible server other than Amazon's
    development: bool = False  # answers contain the stack of a failure

    @property
    def worker(self) -> dict[str, str]:
        """Mulligan's variables for the worker: the lease is the stalled interval."""
        lease = self.stalled_interval_ms / MS_PER_SECOND
        return {
            "MULLIGAN_WORKER__LEASE": f"{lease:g}",
            "MULLIGAN_WORKER__HEARTBEAT": f"{lease / 6:g}",
        }


def read_config(environ: Mapping[str, str] = os.environ) -> Config:
    numbers: dict[str, Any] = {}
    for name, default in vars(Config()).items():
        is_number = isinstance(default, int | float) and not isinstance(default, bool)
        if is_number and name.upper() in environ:
            numbers[name] = type(default)(environ[name.upper()])
    return Config(
        **numbers,
        storage_url=environ.get("STORAGE_URL", Config.storage_url),
        storage_endpoint=environ.get("STORAGE_ENDPOINT", ""),
        development=environ.get("RENDER_ENV") == "development",
    )
