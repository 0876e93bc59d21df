"""Settings from the environment, and what each rollout phase means for Mulligan."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

KIND_FILTER = "kind:process_job"
RETRY_SWITCHES = {"none": {"retry.enabled": False}, "timeout": {"retry.only": "timeout"}}
SUPPORT = "Please contact support for videos over 8 hours"
ALERTS = Path(__file__).parent / "alerts.toml"


class Phase(NamedTuple):
    """Features of a rollout phase."""

    retries: str = "all"  # none, timeout, all
    letters: bool = False  # list dead letters, and notify owners
    feedback: bool = False  # owners may comment on a failure
    self_service: bool = False  # owners may retry
    recovery: bool = False  # dead letters of an outage are retried when it is over
    mail_all_failures: bool = False  # mail every failure to the admin, and log more


PHASES = {
    "1": Phase("none"),
    "2": Phase("timeout"),
    "3": Phase("all"),
    "4": Phase("all", letters=True, feedback=True, self_service=True),
    "alpha": Phase("timeout", feedback=True, mail_all_failures=True),
    "beta": Phase("all", letters=True, feedback=True),
    "production": Phase("all", letters=True, feedback=True, self_service=True, recovery=True),
}


@dataclass(frozen=True)
class Config:
    """Settings of the service: `CLIPSCRIBE_` and the name in capitals."""

    phase: str = "production"
    url: str = "http://127.0.0.1:8000"  # of the service, for links in mails
    secret: str = ""  # signs links to status pages
    open: int = 0  # 1: anyone may order in any name, without a key
    model_url: str = "https://generativelanguage.googleapis.com/v1beta/models"
    model_key: str = ""
    pro_model: str = "gemini-2.5-pro"
    flash_model: str = "gemini-2.5-flash"
    pro_price: float = 0.02  # dollars per chunk
    flash_price: float = 0.002
    model_timeout: float = 60  # seconds
    model_concurrency: int = 10
    download_timeout: float = 60
    time_limit: float = 7200  # of an attempt: two hours for long videos
    allow_private: int = 0  # 1: videos may be on this host and in private networks
    storage_url: str = "clipscribe-objects"  # a folder, or s3://bucket
    storage_endpoint: str = ""  # of an S3-compatible server other than Amazon's
    admin: str = "admin@clipscribe.example"
    slack_url: str = ""
    pagerduty_url: str = "https://events.pagerduty.com/v2/enqueue"
    pagerduty_key: str = ""
    plan_videos: int = 100  # per user and month

    @property
    def features(self) -> Phase:
        return PHASES[self.phase]

    @property
    def mulligan(self) -> dict[str, Any]:
        """Settings of the Mulligan app: retention, alerts, and the retries of the phase."""
        settings: dict[str, Any] = {
            "retention.succeeded": "24h",
            "retention.dead": "30d",
            "alerts.rules": tomllib.loads(ALERTS.read_text())["rules"],
        }
        settings |= RETRY_SWITCHES.get(self.features.retries, {})
        if self.features.mail_all_failures:
            settings["log.level"] = "DEBUG"
        return settings


def read_config(environ: Mapping[str, str] = os.environ) -> Config:
    values: dict[str, Any] = {}
    for name, default in vars(Config()).items():
        variable = f"CLIPSCRIBE_{name.upper()}"
        if variable in environ:
            values[name] = type(default)(environ[variable])
    config = Config(**values)
    if config.phase not in PHASES:
        raise ValueError(f"invalid CLIPSCRIBE_PHASE={config.phase!r}. Use {', '.join(PHASES)}.")
    return config


CONFIG = read_config()
