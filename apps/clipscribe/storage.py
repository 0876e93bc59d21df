"""Objects: manifests, feedback, and how much of their plan users have used this month."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import obstore
from obstore.store import ObjectStore, from_url

from clipscribe.config import CONFIG


@cache
def _store() -> ObjectStore:
    if not CONFIG.storage_url.startswith("s3:"):
        return from_url(CONFIG.storage_url, mkdir=True)
    patience: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=5)}
    options: Any = {"allow_http": True, "timeout": timedelta(minutes=1)}
    endpoint: Any = {"endpoint": CONFIG.storage_endpoint} if CONFIG.storage_endpoint else {}
    return from_url(CONFIG.storage_url, retry_config=patience, client_options=options, **endpoint)


def write(path: str, value: Any) -> None:
    obstore.put(_store(), path, json.dumps(value, indent=1).encode())


def read(path: str) -> Any:
    """None: it is not there."""
    try:
        return json.loads(bytes(obstore.get(_store(), path).bytes()))
    except FileNotFoundError:
        return None


def below(folder: str, most: int) -> list[Any]:
    """The newest: names begin with the time."""
    found = [one["path"] for part in obstore.list(_store(), folder) for one in part]
    return [read(path) for path in sorted(found, reverse=True)[:most]]


# -- plans ---------------------------------------------------------------------------------------
def _month(user: str) -> str:
    return f"usage/{hashlib.sha256(user.encode()).hexdigest()[:32]}/{datetime.now(UTC):%Y-%m}"


def use(user: str, job_id: str) -> None:
    write(f"{_month(user)}/{job_id}", {})


def used(user: str) -> int:
    return sum(len(part) for part in obstore.list(_store(), _month(user)))
