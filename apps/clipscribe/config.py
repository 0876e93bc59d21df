"""Settings from the environment, and the features of each rollout phase."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Phase(NamedTuple):
    """Features of a rollout phase."""

    retries: str = "all"  # none, timeout, all
    letters: bool = False  # list dead letters, and notify owners
    feedback: bool = False  # owners may comment on a failure
    self_service: bool = False  # owners may retry
    mail_all_failures: bool = False  # mail every failure to the admin, and log more


PHASES = {
    "1": Phase("none"),
    "2": Phase("timeout"),
    "3": Phase("all"),
    "4": Phase("all", letters=True, feedback=True, self_service=True),
    "alpha": Phase("timeout", feedback=True, mail_all_failures=True),
    "beta": Phase("all", letters=True, feedback=True),
    "production": Phase("all", letters=True, feedback=True, self_service=True),
}


@dataclass(frozen=True)
class Config:
    """Settings of the service."""

    phase_name: str = "production"
    url: str = "http://127.0.0.1:8004"  # of the service; it receives webhooks about its jobs
    model_url: str = "http://127.0.0.1:8005/model"
    model_timeout: float = 60  # seconds
    download_timeout: float = 60
    model_concurrency: int = 10
    storage_url: str = "file:///tmp/mulligan-clipscribe"  # or s3://bucket
    storage_endpoint: str = ""  # of an S3-compatible server other than Amazon's
    secret: str = ""  # signs links to status pages and the service's webhook
    admin_key: str = ""  # grants access to /admin; empty: no access
    admin: str = "admin@clipscribe.example"
    slack_url: str = ""
    pagerduty_url: str = ""
    pagerduty_key: str = ""
    plan_videos: int = 100  # per user and month

    @property
    def phase(self) -> Phase:
        return PHASES[self.phase_name]

    @property
    def mulligan(self) -> dict[str, str]:
        """Mulligan's variables for the worker and the service."""
        # The file configures retention and alerts.
        variables = {"MULLIGAN_CONFIG": str(Path(__file__).parent / "mulligan.toml")}
        retry_switches = {
            "none": {"MULLIGAN_RETRY__ENABLED": "false"},
            "timeout": {"MULLIGAN_RETRY__ONLY": "timeout"},
        }
        log_settings = {"MULLIGAN_LOG__LEVEL": "DEBUG"} if self.phase.mail_all_failures else {}
        return variables | retry_switches.get(self.phase.retries, {}) | log_settings


def read_config(environ: Mapping[str, str] = os.environ) -> Config:
    values: dict[str, Any] = {
        name: type(default)(environ[f"CLIPSCRIBE_{name.upper()}"])
        for name, default in vars(Config()).items()
        if f"CLIPSCRIBE_{name.upper()}" in environ
    }
    values["phase_name"] = environ.get("CLIPSCRIBE_PHASE", Config.phase_name)
    config = Config(**values)
    if config.phase_name not in PHASES:
        message = f"invalid CLIPSCRIBE_PHASE={config.phase_name!r}. Use {', '.join(PHASES)}."
        raise ValueError(message)
    return config


CONFIG = read_config()
