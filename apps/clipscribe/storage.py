"""Object storage: manifests, feedback, and the users' videos of this month."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore, ObjectStore, from_url

from mulligan.apps.clipscribe.config import CONFIG


@cache
def _store() -> ObjectStore:
    if not CONFIG.storage_url.startswith("s3:"):
        return LocalStore(CONFIG.storage_url.removeprefix("file://"), mkdir=True)
    retry_config: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=5)}
    options: Any = {"allow_http": True, "timeout": timedelta(minutes=1)}
    endpoint: Any = {"endpoint": CONFIG.storage_endpoint} if CONFIG.storage_endpoint else {}
    return from_url(
        CONFIG.storage_url, retry_config=retry_config, client_options=options, **endpoint
    )


def write(path: str, value: Any) -> None:
    obstore.put(_store(), path, json.dumps(value, indent=1).encode())


def read(path: str) -> Any:
    """Return the object, or None if there is none."""
    try:
        return json.loads(bytes(obstore.get(_store(), path).bytes()))
    except FileNotFoundError:
        return None


def claim(path: str, value: Any) -> bool:
    """Write the object unless there is one. Return whether it now has this value."""
    with suppress(AlreadyExistsError):
        obstore.put(_store(), path, json.dumps(value).encode(), mode="create")
    return bool(read(path) == value)


def read_newest(folder: str, limit: int) -> list[Any]:
    """Return the newest objects of a folder. Their names begin with the time."""
    paths = [meta["path"] for part in obstore.list(_store(), folder) for meta in part]
    return [read(path) for path in sorted(paths, reverse=True)[:limit]]


# --- Plans ---------------------------------------------------------------------------------------
def _usage_folder(user: str) -> str:
    return f"usage/{hashlib.sha256(user.encode()).hexdigest()[:32]}/{datetime.now(UTC):%Y-%m}"


def record_video(user: str, job_id: str) -> None:
    write(f"{_usage_folder(user)}/{job_id}", {})


def count_used_videos(user: str) -> int:
    return sum(len(part) for part in obstore.list(_store(), _usage_folder(user)))
