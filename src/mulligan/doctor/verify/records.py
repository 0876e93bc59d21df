"""Two of the three histories that `mulligan doctor --verify` compares, and tiny writers for them.

This docstring is their format. The third history is the store itself. Both files are JSON lines in UTF-8; each line is
one `write` on a descriptor that was opened with O_APPEND, so any number of processes may write one file. A line that
cannot be read (torn by a full disk, cut by a crash) is counted and passed over. Names that are not known are passed
over too. In every line

    ns    CLOCK_MONOTONIC in nanoseconds: the same clock for all processes of one boot of one host
    at    the wall clock in microseconds since the epoch, for people; no verdict rests on it
    pid   who wrote the line

**Clients**: what callers were told. A call is two lines, so that one whose process died in the middle is there too.

    {"line": "begin", "call": "9f…", "what": "enqueue", "client": "web-1", "pid": 7, "ns": …, "at": …, "asked": {…}}
    {"line": "end",   "call": "9f…", "told": "ok", "jobs": ["01J…"], "pid": 7, "ns": …, "at": …, "error": ""}

    call  names the call in this file and in all others that are given with it
    what  enqueue, enqueue_many, retry, release, cancel, discard, move, seal, …: see `WHATS`
    told  ok            it returned: the jobs named must exist, the move must have happened
          refused       it said no: nothing may have changed for it
          unknown       it raised `StoreUnavailable`, timed out, or was cut: may have happened, or not
          rolled_back   it was in a transaction of the caller's that was rolled back: the jobs named must never appear
          (no end line: the same as unknown)
    jobs  the ids that were answered, for a move the job it was about; twins of one unique key name the same id
    asked what is known beforehand, all optional: `jobs` (of a move), `kind`, `owner`, `key` (the explicit unique key),
          `count` (how many jobs, 1), `payloads` (a `digest` for each of them, so that a job whose submit is unknown can
          be told from a ghost), `batch`, `schedule`

    {"line": "saw", "what": "message", "client": "hook-1", "message": "msg_…", "to": "https://…", "body": "<digest>"}
    {"line": "saw", "what": "event", "client": "sse-1", "event": 4711, "owner": "acme", "connection": 2, …}

    message  a receiver of webhooks or mail got this message: its id (`webhook-id`, `Message-ID`), a digest of its body
    event    a client of `GET /events` got this id, in this order, on its n-th connection

**Witness**: what handlers themselves saw. One line a moment.

    {"job": "01J…", "kind": "render", "attempt": 1, "token": 3, "what": "start", "pid": 9, "ns": …, "at": …}

    what  start   the first thing the handler does
          end     the last thing before it returns its result; `result` is the digest of that result
          fail    the last thing before it raises, or returns another outcome than a result
          child   it was told that a job was enqueued by it: `child` is that job's id
          others  for your own eyes

What can be said depends on what is written: a job without a witness line is not held to have run or not to have run
unless jobs of its kind do write them, and ghosts are looked for only among kinds that occur in a clients file.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Protocol, Self
from uuid import uuid4

import apsw

from mulligan.core.errors import MulliganError, StoreUnavailable, UniqueRace

OK, REFUSED, UNKNOWN, ROLLED_BACK = "ok", "refused", "unknown", "rolled_back"
TOLD = (OK, REFUSED, UNKNOWN, ROLLED_BACK)
SUBMITS = ("enqueue", "enqueue_many")
MOVES = ("retry", "release", "cancel", "discard", "move")
WHATS = (*SUBMITS, *MOVES, "seal", "batch", "pause", "resume", "run_schedule")
START, END, FAIL, CHILD = "start", "end", "fail", "child"

UNSAID: Any = object()


def digest(value: Any) -> str:
    """A short name for a JSON value: the same for the same value, however it was spelled."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def append(path: str | Path, line: Mapping[str, Any]) -> None:
    """One line, one write: whole, or (on a full disk) an error."""
    body = json.dumps({**line, **_moment()}, separators=(",", ":"), default=str).encode() + b"\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        written = os.write(handle, body)
    finally:
        os.close(handle)
    if written != len(body):
        raise OSError(f"{path}: {written} of {len(body)} bytes of a line were written")


def _moment() -> dict[str, int]:
    return {"pid": os.getpid(), "ns": time.monotonic_ns(), "at": time.time_ns() // 1000}


class Clients:
    """Writes a clients file. Safe to share between threads; across forks too.

    with clients.call("enqueue", kind="render", payload={"clip": 7}) as call:
        call.ok(render.enqueue(clip=7))
    """

    def __init__(self, path: str | Path, client: str = "") -> None:
        self.path = path
        self.client = client or f"pid-{os.getpid()}"

    def call(self, what: str, **asked: Any) -> Call:
        """A call about to be made. `payload=` and `payloads=` are written as digests, `job=` as `jobs`."""
        return Call(self, what, _asked(asked))

    def saw(self, what: str, **facts: Any) -> None:
        """What a receiver or a stream got: `saw("message", message=…, to=…, body=…)`, `saw("event", event=…, …)`."""
        told = {**facts, "body": digest(facts["body"])} if "body" in facts else facts
        append(self.path, {"line": "saw", "what": what, "client": self.client, **told})


class Call:
    """One call: begun when entered, told when left. An exception is told and goes on its way."""

    def __init__(self, clients: Clients, what: str, asked: Mapping[str, Any]) -> None:
        self.id = uuid4().hex
        self.told = UNKNOWN
        self.error = ""
        self.jobs: list[str] = list(asked.get("jobs", ()))
        self._clients, self._what, self._asked = clients, what, asked

    def __enter__(self) -> Self:
        line = {
            "line": "begin",
            "call": self.id,
            "what": self._what,
            "client": self._clients.client,
        }
        append(self._clients.path, {**line, "asked": self._asked})
        return self

    def ok(self, *jobs: Any) -> None:
        """It returned, and these are the jobs it answered: ids, or anything that has an `id`."""
        self._end(OK, jobs)

    def refused(self, error: object = "") -> None:
        self._end(REFUSED, (), str(error))

    def unknown(self, error: object = "") -> None:
        self._end(UNKNOWN, (), str(error))

    def rolled_back(self, *jobs: Any) -> None:
        """The caller's transaction was rolled back: these jobs must never appear."""
        self._end(ROLLED_BACK, jobs)

    def _end(self, told: str, jobs: Iterable[Any], error: str = "") -> None:
        self.told, self.error = told, error
        self.jobs = [str(getattr(job, "id", job)) for job in jobs] or self.jobs

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self._end(told_by(error), (), f"{type(error).__name__}: {error}")
        line = {
            "line": "end",
            "call": self.id,
            "told": self.told,
            "jobs": self.jobs,
            "error": self.error[:500],
        }
        append(self._clients.path, line)


def told_by(error: BaseException) -> str:
    """What an exception tells a caller: our own refusals are a no, all else leaves it open."""
    if isinstance(error, MulliganError) and not isinstance(error, StoreUnavailable | UniqueRace):
        return REFUSED
    return UNKNOWN


def _asked(asked: dict[str, Any]) -> dict[str, Any]:
    if "payload" in asked:
        asked["payloads"] = [asked.pop("payload")]
    if "payloads" in asked:
        asked["payloads"] = [digest(payload) for payload in asked["payloads"]]
        asked.setdefault("count", len(asked["payloads"]))
    if "job" in asked:
        asked["jobs"] = [str(getattr(asked["job"], "id", asked["job"]))]
        del asked["job"]
    return asked


class AttemptLike(Protocol):
    """What a witness needs of a `Context`."""

    @property
    def job(self) -> Any: ...

    @property
    def attempt(self) -> int: ...

    @property
    def token(self) -> int: ...


def witness(
    path: str | Path, ctx: AttemptLike, what: str, *, result: Any = UNSAID, **more: Any
) -> None:
    """One line of a handler about itself: `witness(path, ctx, "start")`, `witness(path, ctx, "end", result=value)`."""
    line = {
        "job": ctx.job.id,
        "kind": ctx.job.kind,
        "attempt": ctx.attempt,
        "token": ctx.token,
        "what": what,
        **more,
    }
    append(path, line if result is UNSAID else {**line, "result": digest(result)})


@contextmanager
def witnessed(path: str | Path, ctx: AttemptLike) -> Iterator[None]:
    """`start` when entered; `end` when left, `fail` when left by an exception. Says nothing of the result."""
    witness(path, ctx, START)
    try:
        yield
    except BaseException as error:
        witness(path, ctx, FAIL, error=type(error).__name__)
        raise
    witness(path, ctx, END)


def read(path: str | Path) -> Iterator[dict[str, Any] | None]:
    """Each line of a file; None for one that cannot be read."""
    with Path(path).open("rb") as lines:
        for line in lines:
            if line.strip():
                yield _line(line)


def _line(line: bytes) -> dict[str, Any] | None:
    try:
        read = json.loads(line)
    except ValueError:
        return None
    return read if isinstance(read, dict) else None


# The files beside the store, made findable: their lines in a temporary database, so that a million of them fit.

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

    def __init__(
        self, clients: Iterable[str | Path] = (), witness: Iterable[str | Path] = ()
    ) -> None:
        self._folder = TemporaryDirectory(prefix="mulligan-verify-")
        self._db = apsw.Connection(str(Path(self._folder.name) / "side.db"))
        self._db.execute(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -32000"
        )
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
        self.kinds_asked = {
            row[0] for row in self.ask("SELECT DISTINCT json_extract(asked, '$.kind') FROM call")
        }
        self.kinds_seen = {
            row[0] for row in self.ask("SELECT DISTINCT json_extract(line, '$.kind') FROM witness")
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
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
            row = (
                line["call"],
                line["what"],
                line["client"],
                json.dumps(line.get("asked", {})),
                line["ns"],
                None,
            )
            self._db.execute(
                "INSERT INTO call (id, what, client, asked, begin_ns, end_ns) VALUES (?,?,?,?,?,?)",
                row,
            )
        elif what == "end":
            end = (line["ns"], line.get("told", UNKNOWN), line.get("error", ""), line["call"])
            self._db.execute("UPDATE call SET end_ns = ?, told = ?, error = ? WHERE id = ?", end)
            self.put("named", [(job, line["call"]) for job in line.get("jobs", ())])
        elif what == "saw":
            self.put(
                "saw",
                [
                    (
                        line["what"],
                        line["client"],
                        str(line[line["what"]]),
                        line["ns"],
                        json.dumps(line),
                    )
                ],
            )

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
