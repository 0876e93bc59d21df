"""Checks of PostgreSQL's housekeeping: bloat, and what keeps VACUUM from its work."""

from __future__ import annotations

from mulligan.config import Settings
from mulligan.core.format import format_duration, format_size
from mulligan.doctor.environment import OK, WARN, Check, Checks
from mulligan.doctor.queries import HousekeepingQueries, TableSize, VacuumBlocker, VacuumLimits
from mulligan.storage.base import Transaction

MIN_DEAD = 100_000  # rows below which dead ones do not matter
DEAD_SHARE = 1.0  # dead rows per live row
MIN_BYTES = 100_000_000  # of a table that can be bloated
BLOAT = 5.0  # bytes per byte that the live rows need
DEFAULT_LIMITS = VacuumLimits()


def vacuum_blockers(tx: Transaction, _: Settings, limits: VacuumLimits = DEFAULT_LIMITS) -> Checks:
    """Warn about transactions and replication slots that keep dead rows from being removed."""
    for blocker in HousekeepingQueries(tx).list_vacuum_blockers(limits):
        yield Check(WARN, "vacuum", _describe_blocker(blocker), _ADVICE[blocker.what](blocker))


def _describe_blocker(blocker: VacuumBlocker) -> str:
    if blocker.what == "replication slot":
        return (
            f"replication slot {blocker.name} is {blocker.owner} and keeps "
            f"{format_size(blocker.wal)} of log and the dead rows of the last "
            f"{blocker.seconds:,.0f} transactions"
        )
    return (
        f"{blocker.what} {blocker.name} of {blocker.owner} has been open for "
        f"{format_duration(blocker.seconds)}; dead rows cannot be removed meanwhile"
    )


_ADVICE = {
    "transaction": lambda one: (
        f"end it in that program, or: SELECT pg_terminate_backend({one.name})"
    ),
    "prepared transaction": lambda one: f"COMMIT PREPARED or ROLLBACK PREPARED '{one.name}'",
    "replication slot": lambda one: (
        f"start its consumer, or: SELECT pg_drop_replication_slot('{one.name}')"
    ),
}


def table_bloat(
    tx: Transaction, _: Settings, min_dead: int = MIN_DEAD, min_bytes: int = MIN_BYTES
) -> Checks:
    """Warn about tables that are much larger than their live rows need."""
    sizes = HousekeepingQueries(tx).list_table_sizes()
    found = [check for size in sizes for check in _table_checks(size, min_dead, min_bytes)]
    if found or not sizes:
        yield from found
        return
    total = format_size(sum(size.bytes for size in sizes))
    yield Check(OK, "bloat", f"{len(sizes)} tables, {total} without indexes and large values")


def _table_checks(size: TableSize, min_dead: int, min_bytes: int) -> Checks:
    vacuumed = "never"
    if size.vacuumed is not None:
        vacuumed = f"{format_duration(size.vacuumed)} ago"
    if not size.autovacuum:
        found = f"autovacuum is disabled for table {size.table}: it grows without end"
        yield Check(WARN, "bloat", found, "set autovacuum = on")
    if size.dead > max(min_dead, DEAD_SHARE * size.live):
        found = (
            f"table {size.table} has {size.dead:,} dead rows and {size.live:,} live ones; "
            f"last vacuum: {vacuumed}"
        )
        yield Check(WARN, "bloat", found, "look for what keeps VACUUM back, then VACUUM the table")
    elif size.bytes > max(min_bytes, BLOAT * size.needed):
        found = (
            f"table {size.table} has {format_size(size.bytes)}, its {size.live:,} rows need about "
            f"{format_size(size.needed)}"
        )
        yield Check(WARN, "bloat", found, "pg_repack the table, or VACUUM FULL it while it rests")
