"""What `mulligan doctor` looks at. Each check finds one thing and says what to type next."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from mulligan.config import Settings
from mulligan.engine.upkeep import known_kinds
from mulligan.errors import MulliganError
from mulligan.job import SECOND, Lane
from mulligan.policy.phrase import duration, size
from mulligan.policy.redact import redact
from mulligan.store import Store, open_store
from mulligan.store.urls import sqlite_file

OK, WARN, FAIL = "ok", "warn", "fail"
LITTLE_ROOM, NO_ROOM = 1_000_000_000, 100_000_000  # bytes
SKEW = 2.0  # seconds between the database's clock and ours that nobody should mind
BEATS = 3  # renewals a lease should outlive


class Check(NamedTuple):
    status: str
    check: str
    found: str
    next: str = ""


Checks = Iterable[Check]


def examine(settings: Settings) -> tuple[dict[str, str], list[Check]]:
    """(what the store says of itself, the checks); a database that is away is a finding, not an error."""
    found = [*_lease(settings), *_file(settings)]
    file = sqlite_file(settings.database_url)
    if file is not None and not file.exists():
        return {}, [Check(FAIL, "database", f"there is no {file}", "mulligan migrate"), *found]
    try:
        store = open_store(settings.database_url, schema=settings.schema_name)
        facts = store.facts()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        advice = "is the server up, and database_url right?"
        return {}, [Check(FAIL, "database", redact(" ".join(str(error).split())), advice), *found]
    try:
        reached = Check(OK, "database", facts.get("file") or redact(facts.get("url", "")))
        return facts, [reached, *_schema(store), *_durability(facts), *found, *_inside(store, settings)]
    finally:
        store.close()


def _schema(store: Store) -> Checks:
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


def _durability(facts: dict[str, str]) -> Checks:
    for name in ("synchronous", "synchronous_commit"):
        value = facts.get(name)
        if value is None:
            continue
        if "weaker" in value:
            advice = f"set {name} back: a power cut may lose jobs that enqueue has promised"
            yield Check(WARN, "durability", f"{name} = {value}", advice)
        else:
            yield Check(OK, "durability", f"{name} = {value}")


def _lease(settings: Settings) -> Checks:
    worker = settings.worker
    times = worker.lease / worker.heartbeat
    told = f"lease {duration(worker.lease)}, heartbeat {duration(worker.heartbeat)}"
    if times < BEATS:
        advice = f"MULLIGAN_WORKER__HEARTBEAT={worker.lease / BEATS:g}"
        yield Check(WARN, "lease", f"{told}: one slow renewal loses every running job", advice)
    else:
        yield Check(OK, "lease", told)


# -- the file ---------------------------------------------------------------------------------------
def _file(settings: Settings) -> Checks:
    file = sqlite_file(settings.database_url)
    if file is None or not file.parent.is_dir():
        return
    yield _room(file)
    if file.exists():
        yield _rights(file)


def _room(file: Path) -> Check:
    free = shutil.disk_usage(file.parent).free
    status = FAIL if free < NO_ROOM else WARN if free < LITTLE_ROOM else OK
    return Check(status, "disk", f"{size(free)} free at {file.parent}", "" if status == OK else "make room there")


def _rights(file: Path) -> Check:
    if not (os.access(file, os.R_OK | os.W_OK) and os.access(file.parent, os.W_OK | os.X_OK)):
        advice = f"chown or chmod {file} and its directory (SQLite writes files beside it)"
        return Check(FAIL, "permissions", f"this user cannot write {file}", advice)
    mode = file.stat().st_mode & 0o777
    if mode & 0o077:
        return Check(WARN, "permissions", f"others may read it (mode {mode:o}): it holds payloads", f"chmod 600 {file}")
    return Check(OK, "permissions", f"mode {mode:o}")


# -- inside -----------------------------------------------------------------------------------------
def _inside(store: Store, settings: Settings) -> Checks:
    """What can only be asked once the schema is there."""
    try:
        store.check_schema()
    except MulliganError:
        return
    looks: tuple[Callable[[Store, Settings], Checks], ...] = (_clock, _workers, _unknown)
    for look in looks:
        yield from look(store, settings)


def _clock(store: Store, _: Settings) -> Checks:
    before = time.time()
    with store.read() as unit:
        theirs = unit.now() / SECOND
    after = time.time()
    skew = max(0.0, before - theirs, theirs - after)
    if skew > SKEW:
        yield Check(WARN, "clock", f"the database's clock is {duration(skew)} away from ours", "let NTP set both")
    else:
        yield Check(OK, "clock", "agrees with the database's")


def _workers(store: Store, _: Settings) -> Checks:
    with store.read() as unit:
        workers = unit.workers(closed=False)
        silent = [worker for worker in workers if unit.expired(worker)]
    live = len(workers) - len(silent)
    if live:
        yield Check(OK, "workers", f"{live} live")
    else:
        yield Check(WARN, "workers", "none is live: nothing runs", "mulligan worker APP")
    if silent:
        names = ", ".join(f"{worker.id} on {worker.host}" for worker in silent)
        yield Check(WARN, "workers", f"silent beyond their lease: {names}", "a live worker takes over their jobs")


def _unknown(store: Store, settings: Settings) -> Checks:
    with store.read() as unit:
        look = unit.look()
        known = known_kinds(unit, look.now)
    kinds = sorted({Lane.parse(key).kind for key, _, _ in look.lanes} - known)
    if kinds:
        limit = duration(settings.worker.unknown_kind_after)
        found = f"jobs wait for kinds no worker knows: {', '.join(kinds)}; they die {limit} after they are due"
        yield Check(WARN, "kinds", found, "mulligan worker APP, with an app that has them")
    else:
        yield Check(OK, "kinds", "a worker knows every kind that waits")
