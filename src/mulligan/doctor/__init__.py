"""Checks of `mulligan doctor`. Each examines one thing and says what to type next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mulligan.config import SECRET_SETTINGS, Settings
from mulligan.core.format import format_duration, format_size, mask_password
from mulligan.doctor.environment import (
    FAIL,
    OK,
    WARN,
    Check,
    database_version,
    durability_checks,
    host_checks,
    listen_checks,
    schema_checks,
)
from mulligan.doctor.runtime import runtime_checks
from mulligan.doctor.settings import notification_checks, secret_checks, settings_checks
from mulligan.failures.redact import remove_secrets
from mulligan.storage import Store, open_store, sqlite_path

__all__ = ["FAIL", "OK", "WARN", "Check", "effective_settings", "format_setting", "run_checks"]


def run_checks(settings: Settings) -> tuple[dict[str, str], list[Check]]:
    """Return facts about the store and all checks. An unreachable database is a failed check."""
    local_checks = [
        *settings_checks(settings),
        *secret_checks(settings),
        *notification_checks(settings),
        *host_checks(settings),
    ]
    file = sqlite_path(settings.database_url)
    if file is not None and not file.exists():
        return {}, [
            Check(FAIL, "database", f"{file} does not exist", "mulligan migrate"),
            *local_checks,
        ]
    try:
        store = open_store(
            settings.database_url, schema=settings.schema_name, listen_url=settings.listen_url
        )
    except Exception as error:  # noqa: BLE001 - any error is a failed check
        return {}, [_unreachable(error), *local_checks]
    try:
        store.check_connection()
        facts = store.facts()
        return facts, [
            *_database_checks(store, facts),
            *local_checks,
            *runtime_checks(store, settings),
        ]
    except Exception as error:  # noqa: BLE001 - any error is a failed check
        return {}, [_unreachable(error), *local_checks]
    finally:
        store.close()


def effective_settings(settings: Settings) -> list[dict[str, Any]]:
    """Return every setting with its origin, secrets masked. Unset class overrides are left out."""
    return [
        {"name": name, "value": _mask(name, value), "origin": settings.origin_of(name)}
        for name, value in settings.values()
        if value is not None or not name.startswith("retry.classes.")
    ]


NO_DURATIONS = ("factor", "jitter", "web.rate")
SIZES = frozenset({"limits.payload", "limits.result", "worker.max_memory_per_runner"})


def format_setting(setting: Mapping[str, Any]) -> str:
    """Format the value of a setting for people: `90 d`, `1 MB`, `yes`, `-` for nothing."""
    value = setting["value"]
    if value in (None, "", (), []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if setting["name"] in SIZES:
        return format_size(value) if value else "no limit"
    if isinstance(value, float) and setting["name"].endswith(NO_DURATIONS):
        return f"{value:g}"
    if isinstance(value, float):  # the other numbers with a fraction are seconds
        return format_duration(value)
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _mask(name: str, value: Any) -> Any:
    if name in SECRET_SETTINGS:
        return "[set, not shown]" if value else value
    if not isinstance(value, str):
        return value
    if name.endswith("_url"):
        value = mask_password(value)
    return remove_secrets(value)


def _unreachable(error: Exception) -> Check:
    advice = "check that the server is up and database_url is right"
    return Check(FAIL, "database", remove_secrets(" ".join(str(error).split())), advice)


def _database_checks(store: Store, facts: dict[str, str]) -> list[Check]:
    reached = Check(OK, "database", facts.get("file") or remove_secrets(facts.get("url", "")))
    return [
        reached,
        *database_version(facts),
        *schema_checks(store),
        *durability_checks(facts),
        *listen_checks(store, facts),
    ]
