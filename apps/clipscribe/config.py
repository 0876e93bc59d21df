"""What the environment says, and what each phase of the rollout switches on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Phase(NamedTuple):
    retries: str = "all"  # none, timeout, all
    letters: bool = False  # dead letters are listed, and owners are told
    feedback: bool = False  # owners may say what they think of a failure
    self_service: bool = False  # owners may retry
    tell_all: bool = False  # every failure goes to the admin; fuller logs


PHASES = {
    "1": Phase("none"),
    "2": Phase("timeout"),
    "3": Phase("all"),
    "4": Phase("all", letters=True, feedback=True, self_service=True),
    "alpha": Phase("timeout", feedback=True, tell_all=True),
    "beta": Phase("all", letters=True, feedback=True),
    "production": Phase("all", letters=True, feedback=True, self_service=True),
}


@dataclass(frozen=True)
class Config:
    phase_name: str = "production"
    url: str = (
        "http://127.0.0.1:8004"  # of the service itself: it tells itself what became of its jobs
    )
    model_url: str = "http://127.0.0.1:8005/model"
    model_timeout: float = 60  # seconds
    download_timeout: float = 60
    model_concurrency: int = 10
    storage_url: str = "file:///tmp/mulligan-clipscribe"  # or s3://bucket
    storage_endpoint: str = ""  # of a server that speaks S3 and is not Amazon's
    secret: str = ""  # of the links to status pages, and of what the service tells itself
    admin_key: str = ""  # opens /admin; without one nothing does
    admin: str = "admin@clipscribe.example"
    slack_url: str = ""
    pagerduty_url: str = ""
    pagerduty_key: str = ""
    plan_videos: int = 100  # of one user in a month

    @property
    def phase(self) -> Phase:
        return PHASES[self.phase_name]

    @property
    def mulligan(self) -> dict[str, str]:
        """What Mulligan's worker and the service must both know."""
        known = {
            "MULLIGAN_CONFIG": str(Path(__file__).parent / "mulligan.toml")
        }  # retention and alerts
        switch = {
            "none": {"MULLIGAN_RETRY__ENABLED": "false"},
            "timeout": {"MULLIGAN_RETRY__ONLY": "timeout"},
        }
        logs = {"MULLIGAN_LOG__LEVEL": "DEBUG"} if self.phase.tell_all else {}
        return known | switch.get(self.phase.retries, {}) | logs


def read_config(environ: Mapping[str, str] = os.environ) -> Config:
    said = {
        name: type(default)(environ[f"CLIPSCRIBE_{name.upper()}"])
        for name, default in vars(Config()).items()
        if f"CLIPSCRIBE_{name.upper()}" in environ
    }
    config = Config(**{**said, "phase_name": environ.get("CLIPSCRIBE_PHASE", Config.phase_name)})
    if config.phase_name not in PHASES:
        message = f"CLIPSCRIBE_PHASE={config.phase_name!r}: one of {', '.join(PHASES)}"
        raise ValueError(message)
    return config


CONFIG = read_config()
