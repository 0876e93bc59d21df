"""What the environment says, under the names that people who run this service know."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

MS = 1000


@dataclass(frozen=True)
class Config:
    max_retries: int = 3
    initial_backoff_ms: int = 1_000
    backoff_multiplier: float = 2.0
    job_timeout_ms: int = 300_000
    stalled_interval_ms: int = 30_000
    max_stalled_count: int = 2
    download_timeout_ms: int = 30_000
    storage_url: str = "file:///tmp/mulligan-render"  # or s3://bucket
    storage_endpoint: str = ""  # of a server that speaks S3 and is not Amazon's
    development: bool = False  # answers carry the stack of a failure

    @property
    def worker(self) -> dict[str, str]:
        """What Mulligan's worker must know: a job without a sign of life is taken from whoever had it."""
        lease = self.stalled_interval_ms / MS
        return {
            "MULLIGAN_WORKER__LEASE": f"{lease:g}",
            "MULLIGAN_WORKER__HEARTBEAT": f"{lease / 6:g}",
        }


def read_config(environ: Mapping[str, str] = os.environ) -> Config:
    numbers = {
        name: type(default)(environ[name.upper()])
        for name, default in vars(Config()).items()
        if isinstance(default, int | float)
        and not isinstance(default, bool)
        and name.upper() in environ
    }
    return Config(
        **numbers,
        storage_url=environ.get("STORAGE_URL", Config.storage_url),
        storage_endpoint=environ.get("STORAGE_ENDPOINT", ""),
        development=environ.get("RENDER_ENV") == "development",
    )
