"""Statements of `mulligan doctor` about the housekeeping of PostgreSQL."""

from __future__ import annotations

from typing import NamedTuple

from mulligan.storage.base import Queries
from mulligan.storage.statements import SqlDialect


class VacuumBlocker(NamedTuple):
    """A transaction or replication slot that keeps VACUUM or the server's log back."""

    what: str  # transaction, prepared transaction, replication slot
    name: str
    owner: str  # of a slot: active or inactive
    seconds: float  # of a slot: how many transactions ago it stands
    wal: int  # bytes of the log that a slot keeps


class TableSize(NamedTuple):
    """Size of a table, by the server's statistics."""

    table: str
    live: int
    dead: int
    bytes: int
    needed: int  # bytes that its live rows need
    autovacuum: bool
    vacuumed: float | None  # seconds ago; None: never


class VacuumLimits(NamedTuple):
    """From when on a blocker is worth a warning."""

    seconds: float = 3600.0  # of a transaction
    wal: int = 1_000_000_000  # bytes that an inactive slot keeps
    xids: int = 1_000_000  # transactions that an inactive slot keeps


class HousekeepingQueries(Queries):
    """Statements about the server. On SQLite there is nothing to keep house of."""

    def list_vacuum_blockers(self, limits: VacuumLimits) -> list[VacuumBlocker]:
        """List what keeps VACUUM or the server's log back, the worst first."""
        if self.tx.dialect == SqlDialect.SQLITE:
            return []
        return self.list_rows(VacuumBlocker, "list_vacuum_blockers", **limits._asdict())

    def list_table_sizes(self) -> list[TableSize]:
        """List the tables of the schema with their rows and bytes."""
        if self.tx.dialect == SqlDialect.SQLITE:
            return []
        return self.list_rows(TableSize, "list_table_sizes")
