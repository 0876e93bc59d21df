"""What `mulligan doctor` looks at. Each check finds one thing and says what to type next."""

from __future__ import annotations

from typing import Any

from mulligan.config import SECRET, Settings
from mulligan.doctor.environment import (
    FAIL,
    OK,
    WARN,
    Check,
    database_checks,
    durability,
    host_checks,
    schema,
    versions,
)
from mulligan.doctor.runtime import inside_checks
from mulligan.doctor.settings import message_checks, secret_checks, settings_checks
from mulligan.failures.redact import without_secrets
from mulligan.storage import Store, open_store
from mulligan.storage.url import shown_url, sqlite_file

__all__ = ["FAIL", "OK", "WARN", "Check", "examine", "in_force"]


def examine(settings: Settings) -> tuple[dict[str, str], list[Check]]:
    """(what the store says of itself, the checks); a database that is away is a finding, not an error."""
    here = [
        *settings_checks(settings),
        *secret_checks(settings),
        *message_checks(settings),
        *host_checks(settings),
    ]
    file = sqlite_file(settings.database_url)
    if file is not None and not file.exists():
        return {}, [Check(FAIL, "database", f"there is no {file}", "mulligan migrate"), *here]
    try:
        store = open_store(
            settings.database_url, schema=settings.schema_name, listen_url=settings.listen_url
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return {}, [_unreachable(error), *here]
    try:
        store.reach()
        facts = store.facts()
        return facts, [*_reached(store, facts), *here, *inside_checks(store, settings)]
    except Exception as error:  # noqa: BLE001 - the same
        return {}, [_unreachable(error), *here]
    finally:
        store.close()


def in_force(settings: Settings) -> list[dict[str, Any]]:
    """Every setting with its origin, secrets masked; of what can be said about single classes, only what was said."""
    return [
        {"name": name, "value": _masked(name, value), "origin": settings.origin_of(name)}
        for name, value in settings.values()
        if value is not None or not name.startswith("retry.classes.")
    ]


def _masked(name: str, value: Any) -> Any:
    if name in SECRET:
        return "[set, not shown]" if value else value
    if not isinstance(value, str):
        return value
    return without_secrets(shown_url(value) if name.endswith("_url") else value)


def _unreachable(error: Exception) -> Check:
    advice = "is the server up, and database_url right?"
    return Check(FAIL, "database", without_secrets(" ".join(str(error).split())), advice)


def _reached(store: Store, facts: dict[str, str]) -> list[Check]:
    reached = Check(OK, "database", facts.get("file") or without_secrets(facts.get("url", "")))
    return [
        reached,
        *versions(facts),
        *schema(store),
        *durability(facts),
        *database_checks(store, facts),
    ]
