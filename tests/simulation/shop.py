"""App with one of everything. Handlers do nothing: the script decides how attempts end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mulligan import Email, Exponential, Mulligan, Policy, Unique
from mulligan.config import Settings, read_settings

LEASE, HEARTBEAT = 10, 4
HOUR = 3600

SETTINGS = {
    "retry": {
        "base_delay": 10,
        "max_delay": 40,
        "jitter": "equal",
        "max_losses": 1,
        "max_retries": 2,
        "max_snoozes": 3,
    },
    "worker": {
        "lease": LEASE,
        "heartbeat": HEARTBEAT,
        "sweep": 5,
        "concurrency": 4,
        "unknown_kind_after": 60,
    },
    "retention": {
        "succeeded": HOUR,
        "dead": 3 * HOUR,
        "cancelled": HOUR,
        "batches": 2 * HOUR,
        "events": 480 * HOUR,
        "audit": 480 * HOUR,
        "workers": HOUR,
        "operations": 2 * HOUR,
        "records": 48 * HOUR,
    },
    "guards": {"same_cause": 3, "same_cause_owners": 2, "same_cause_alone": 6},
    "notify": {"gather": 5, "update_every": 60, "quiet": 300, "cap": 5},
}


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "narrow": {"queue": "narrow", "retention": 2 * HOUR},
    "paced": {"queue": "paced", "priority": -1},
    "fair": {"queue": "fair"},
    "calls": {
        "uses": "gateway",
        "policy": Policy(backoff=Exponential(base=5, factor=2, cap=20, jitter="none")),
    },
    "stores": {"uses": "bucket", "editable": "n"},
    "both": {"uses": ["bucket", "gateway"], "policy": Policy(max_retries=4, max_age=600)},
    "single": {"unique": Unique(by=("payload.n",), while_=("queued", "running"), for_=300)},
    "poison": {"policy": Policy(max_losses=0, max_snoozes=1)},
}


def _create_handler() -> Callable[..., None]:
    def handler(n: int = 0) -> None: ...

    return handler


def settings_for(url: str) -> Settings:
    return read_settings({"database_url": url, **SETTINGS}, environ={}, file=Path("/nowhere"))


def create_shop(settings: Settings) -> Mulligan:
    app = Mulligan(settings=settings)
    app.dependency("gateway", min_calls=3, cool_down=10, max_concurrency=3, budget=0.1)
    app.dependency(
        "bucket", mode="fail_fast", min_calls=3, cool_down=10, probe=lambda: True, budget=None
    )
    app.queue("narrow", concurrency=1)
    app.queue("paced", rate="1/s")
    app.queue("fair", fair=True, policy=Policy(max_retries=1))

    kinds = {
        name: app.job(name=name, **options)(_create_handler()) for name, options in KINDS.items()
    }

    @app.job(name="sums")
    def sums(batch: str) -> None: ...

    app.schedule("often", "*/5 * * * *", kinds["plain"], {"n": 5})
    app.schedule("each", "0 * * * *", kinds["calls"], missed="all", deadline=600, owner="acme")
    app.schedule("never-late", "*/10 * * * *", kinds["narrow"], missed="skip")
    app.notify(
        on=["job.died", "batch.partial", "batch.failed"],
        to=Email("ops@example.com"),
        name="each",
        form="each",
    )
    app.notify(
        on="job.died", to=Email("all@example.com"), name="incidents", form="incident", owner="acme"
    )
    return app
