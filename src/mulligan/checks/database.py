"""The database itself: versions, schema, durability, and what stands between us and it."""

from __future__ import annotations

import re

from mulligan.checks.finding import FAIL, OK, WARN, Check, Checks
from mulligan.errors import MulliganError
from mulligan.store import Store

SQLITE = (3, 51, 3)  # the first without the race at the reset of a WAL
POSTGRES = (14,)


def versions(facts: dict[str, str]) -> Checks:
    if "library" in facts:
        yield _version("SQLite", facts["library"].rpartition(" ")[2], SQLITE, "sqlite:/// instead of sqlite+stdlib:///")
    if "server" in facts:
        yield _version("PostgreSQL", facts["server"], POSTGRES, "upgrade the server")


def _version(name: str, found: str, least: tuple[int, ...], advice: str) -> Check:
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
    wanted = ".".join(str(part) for part in least)
    if numbers >= least:
        return Check(OK, "database version", f"{name} {found}")
    if name == "SQLite":
        return Check(WARN, "database version", f"{name} {found}: before {wanted} a WAL could lose a commit", advice)
    return Check(FAIL, "database version", f"{name} {found} is older than {wanted}", advice)


def schema(store: Store) -> Checks:
    try:
        pending = store.migrate(dry_run=True)
    except MulliganError as error:
        yield Check(FAIL, "schema", str(error), "use the version of Mulligan that made it, or upgrade this one")
        return
    if not pending:
        yield Check(OK, "schema", "up to date")
    elif store.empty():
        yield Check(FAIL, "schema", "none yet", "mulligan migrate")
    else:
        yield Check(FAIL, "schema", f"{len(pending)} steps behind: {', '.join(pending)}", "mulligan migrate")


def durability(facts: dict[str, str]) -> Checks:
    if facts.get("fsync", "on") != "on":
        yield Check(WARN, "durability", "fsync = off: a power cut may destroy the whole database", "set fsync = on")
    if facts.get("journal_mode", "wal") != "wal":
        found = f"journal_mode = {facts['journal_mode']}: readers and the writer wait for each other"
        yield Check(WARN, "durability", found, "can this file system share memory? WAL needs it")
    for name in ("synchronous", "synchronous_commit"):
        value = facts.get(name)
        if value is not None and "weaker" in value:
            advice = f"set {name} back: a power cut may lose jobs that enqueue has promised"
            yield Check(WARN, "durability", f"{name} = {value}", advice)
        elif value is not None:
            beside = f", journal_mode = {facts['journal_mode']}" if "journal_mode" in facts else ""
            yield Check(OK, "durability", f"{name} = {value}{beside}")


def database_checks(store: Store, facts: dict[str, str]) -> Checks:
    """Only a server can have something in between."""
    if "server" not in facts:
        return
    pooled = facts.get("pooler", "no") != "no"
    try:
        hears = store.hears()
    except Exception as error:  # noqa: BLE001 - listen_url may lead anywhere
        yield Check(FAIL, "wake-ups", f"LISTEN cannot connect: {' '.join(str(error).split())}", "is listen_url right?")
        return
    between = "through a pooler" if pooled else "no pooler in between"
    if hears:
        yield Check(OK, "wake-ups", f"LISTEN reaches us, {between}")
    else:
        found = f"LISTEN does not reach us ({between}): workers poll, jobs start up to worker.poll later"
        yield Check(WARN, "wake-ups", found, "MULLIGAN_LISTEN_URL=postgresql://… of a direct connection")
