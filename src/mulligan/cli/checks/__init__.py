"""What `mulligan doctor` looks at. Each check finds one thing and says what to type next."""

from __future__ import annotations

from mulligan.cli.checks.database import database_checks, durability, schema, versions
from mulligan.cli.checks.finding import FAIL, OK, WARN, Check
from mulligan.cli.checks.host import host_checks
from mulligan.cli.checks.inside import inside_checks
from mulligan.cli.checks.mail import mail_checks
from mulligan.cli.checks.settings import settings_checks
from mulligan.config import Settings
from mulligan.policy.redact import without_secrets
from mulligan.store import Store, open_store
from mulligan.store.urls import sqlite_file

__all__ = ["FAIL", "OK", "WARN", "Check", "examine"]


def examine(settings: Settings) -> tuple[dict[str, str], list[Check]]:
    """(what the store says of itself, the checks); a database that is away is a finding, not an error."""
    here = [*settings_checks(settings), *mail_checks(settings), *host_checks(settings)]
    file = sqlite_file(settings.database_url)
    if file is not None and not file.exists():
        return {}, [Check(FAIL, "database", f"there is no {file}", "mulligan migrate"), *here]
    try:
        store = open_store(settings.database_url, schema=settings.schema_name, listen_url=settings.listen_url)
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


def _unreachable(error: Exception) -> Check:
    advice = "is the server up, and database_url right?"
    return Check(FAIL, "database", without_secrets(" ".join(str(error).split())), advice)


def _reached(store: Store, facts: dict[str, str]) -> list[Check]:
    reached = Check(OK, "database", facts.get("file") or without_secrets(facts.get("url", "")))
    return [reached, *versions(facts), *schema(store), *durability(facts), *database_checks(store, facts)]
