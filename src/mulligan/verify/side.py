"""The files beside the store, made findable: their lines in a temporary database, so that a million of them fit.

The same database gathers what can only be judged once all jobs were seen: keys, members, messages, slots.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import apsw

from mulligan.verify.records import SUBMITS, UNKNOWN, read

SCHEMA = """
CREATE TABLE call (id TEXT PRIMARY KEY, what TEXT, client TEXT, asked TEXT, begin_ns INT, end_ns INT,
                   told TEXT NOT NULL DEFAULT 'unknown', error TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
CREATE TABLE named (job TEXT, call TEXT, PRIMARY KEY (job, call)) WITHOUT ROWID;
CREATE TABLE witness (job TEXT, token INT, ns INT, line TEXT);
CREATE TABLE child (job TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE saw (what TEXT, client TEXT, id TEXT, ns INT, line TEXT);
CREATE TABLE keyed (hash TEXT, job TEXT, since INT, until INT);
CREATE TABLE member (batch TEXT, job TEXT, since INT, until INT);
CREATE TABLE delivery (message TEXT, subscription TEXT, job TEXT, state TEXT, body TEXT);
CREATE TABLE slotted (schedule TEXT, slot INT, job TEXT);
CREATE TABLE ghost (kind TEXT, payload TEXT, job TEXT);
CREATE TABLE seen (job TEXT PRIMARY KEY) WITHOUT ROWID;
"""
INDEXES = """
CREATE INDEX witness_of ON witness (job, token, ns);
CREATE INDEX saw_of ON saw (what, id);
"""
LATER = """
CREATE INDEX keyed_of ON keyed (hash, since);
CREATE INDEX member_of ON member (batch);
CREATE INDEX delivery_of ON delivery (message);
CREATE INDEX slotted_of ON slotted (schedule, slot);
CREATE INDEX ghost_of ON ghost (kind, payload);
"""

Row = tuple[Any, ...]


class Side:
    """A database of our own in a temporary directory, gone when it is closed."""

    def __init__(self, clients: Iterable[str | Path] = (), witness: Iterable[str | Path] = ()) -> None:
        self._folder = TemporaryDirectory(prefix="mulligan-verify-")
        self._db = apsw.Connection(str(Path(self._folder.name) / "side.db"))
        self._db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -32000")
        self._db.execute(SCHEMA)
        self.unreadable = 0
        clients, witness = list(clients), list(witness)
        self.has_clients, self.has_witness = bool(clients), bool(witness)
        with self._db:
            for path in clients:
                self._read_clients(path)
            for path in witness:
                self._read_witness(path)
            self._db.execute(INDEXES)
        self.kinds_asked = {row[0] for row in self.ask("SELECT DISTINCT json_extract(asked, '$.kind') FROM call")}
        self.kinds_seen = {row[0] for row in self.ask("SELECT DISTINCT json_extract(line, '$.kind') FROM witness")}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._db.close()
        self._folder.cleanup()

    def ask(self, sql: str, *params: Any) -> Iterator[Row]:
        yield from self._db.execute(sql, params)

    def put(self, table: str, rows: Sequence[Row]) -> None:
        if rows:
            places = ", ".join("?" * len(rows[0]))
            self._db.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({places})", rows)

    def begin(self) -> None:
        self._db.execute("BEGIN")

    def gathered(self) -> None:
        """All jobs were seen: what was put down is now asked for."""
        self._db.execute(LATER)
        self._db.execute("COMMIT")

    # -- clients ------------------------------------------------------------------------------------
    def _read_clients(self, path: str | Path) -> None:
        for line in read(path):
            try:
                self._client_line(line or {})
            except (KeyError, TypeError):
                self.unreadable += 1

    def _client_line(self, line: Mapping[str, Any]) -> None:
        what = line["line"]
        if what == "begin":
            row = (line["call"], line["what"], line["client"], json.dumps(line.get("asked", {})), line["ns"], None)
            self._db.execute("INSERT INTO call (id, what, client, asked, begin_ns, end_ns) VALUES (?,?,?,?,?,?)", row)
        elif what == "end":
            end = (line["ns"], line.get("told", UNKNOWN), line.get("error", ""), line["call"])
            self._db.execute("UPDATE call SET end_ns = ?, told = ?, error = ? WHERE id = ?", end)
            self.put("named", [(job, line["call"]) for job in line.get("jobs", ())])
        elif what == "saw":
            self.put("saw", [(line["what"], line["client"], str(line[line["what"]]), line["ns"], json.dumps(line))])

    def calls_of(self, jobs: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """By job: the calls that name it, in the order in which they were begun."""
        found: dict[str, list[dict[str, Any]]] = {}
        if not self.has_clients:
            return found
        sql = (
            "SELECT named.job, call.id, what, client, asked, begin_ns, end_ns, told, error FROM json_each(?) AS wanted "
            "JOIN named ON named.job = wanted.value JOIN call ON call.id = named.call ORDER BY named.job, begin_ns"
        )
        for job, *row in self.ask(sql, json.dumps(list(jobs))):
            names = ("id", "what", "client", "asked", "begin_ns", "end_ns", "told", "error")
            call = dict(zip(names, row, strict=True))
            found.setdefault(job, []).append({**call, "asked": json.loads(call["asked"])})
        return found

    def unknown_submits(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(call, what it asked for) of submits nobody was told of."""
        sql = f"SELECT id, asked FROM call WHERE told = ? AND what IN {SUBMITS}"
        for call, asked in self.ask(sql, UNKNOWN):
            yield call, json.loads(asked)

    # -- witness ------------------------------------------------------------------------------------
    def _read_witness(self, path: str | Path) -> None:
        for line in read(path):
            try:
                told = line or {}
                self.put("witness", [(told["job"], told["token"], told["ns"], json.dumps(told))])
                if told["what"] == "child" and "child" in told:
                    self.put("child", [(told["child"],)])
            except (KeyError, TypeError):
                self.unreadable += 1

    def witnesses_of(self, jobs: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """By job: what its handlers wrote, in the order of time."""
        found: dict[str, list[dict[str, Any]]] = {}
        if not self.has_witness:
            return found
        sql = (
            "SELECT witness.job, line FROM json_each(?) AS wanted JOIN witness ON witness.job = wanted.value "
            "ORDER BY witness.job, ns"
        )
        for job, line in self.ask(sql, json.dumps(list(jobs))):
            found.setdefault(job, []).append(json.loads(line))
        return found
