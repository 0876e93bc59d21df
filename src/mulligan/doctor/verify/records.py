"""Record what clients and handlers observed, for `mulligan doctor --verify`.

The checker compares three histories: the database, a clients file and a witness file. This module
writes and reads the two files; this docstring is their format, for writers in other languages.

Both files are JSON lines in UTF-8. Each line is one `write` on a descriptor opened with O_APPEND,
so any number of processes may write to one file. A line that cannot be read (torn by a full disk,
cut by a crash) is counted and skipped. Unknown names are skipped too. Every line has

    ns    CLOCK_MONOTONIC in nanoseconds: one clock for all processes of one boot of one host
    at    wall clock in microseconds since the epoch, for people; no check uses it
    pid   process id of the writer

**Clients**: the calls of clients and their answers. A call is two lines, so that a call whose
process died in between is recorded too.

    {"line": "begin", "call": "9f…", "what": "enqueue", "client": "web-1",
     "pid": 7, "ns": …, "at": …, "request": {…}}
    {"line": "end", "call": "9f…", "answer": "ok", "jobs": ["01J…"],
     "pid": 7, "ns": …, "at": …, "error": ""}

    call     id of the call, unique in all clients files passed together
    what     enqueue, enqueue_many, retry, release, cancel, discard, move, seal, …: `CALL_TYPES`
    answer   ok            it returned: the jobs must exist, the move must have happened
             refused       it was rejected: it must not have changed anything
             unknown       StoreUnavailable, a timeout or a cut connection: both are possible
             rolled_back   the caller's transaction was rolled back: the jobs must never appear
             (no end line: treated as unknown)
    jobs     ids of the returned jobs, or of the job that was moved. Two calls with one unique key
             return the same id
    request  known before the call, all optional: `jobs` (of a move), `kind`, `owner`, `key` (the
             explicit unique key), `count` (how many jobs, 1), `payloads` (one `digest` per job, to
             match jobs with calls whose answer is unknown), `batch`, `schedule`

    {"line": "received", "what": "message", "client": "hook-1", "message": "msg_…",
     "to": "https://…", "body": "<digest>"}
    {"line": "received", "what": "event", "client": "sse-1", "event": 4711, "owner": "acme",
     "connection": 2, …}

    message  a receiver of webhooks or mail got this message: its id (`webhook-id`, `Message-ID`)
             and a digest of its body
    event    a client of `GET /events` got this event id, in this order, on its n-th connection

**Witness**: what handlers record about their own execution, one line per step.

    {"job": "01J…", "kind": "render", "attempt": 1, "token": 3, "what": "start",
     "pid": 9, "ns": …, "at": …}

    what  start   the first thing the handler does
          end     the last thing before it returns; `result` is the digest of its result
          fail    the last thing before it raises or returns an outcome other than a result
          child   it enqueued a job: `child` is the id of that job
          others  ignored by the checker

The checks depend on what is recorded: a missing witness line is a finding only for kinds that write
witness lines, and unrequested jobs are searched only among kinds that occur in a clients file.
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

OK = "ok"
REFUSED = "refused"
UNKNOWN = "unknown"
ROLLED_BACK = "rolled_back"
ANSWERS = (OK, REFUSED, UNKNOWN, ROLLED_BACK)

SUBMITS = ("enqueue", "enqueue_many")
MOVES = ("retry", "release", "cancel", "discard", "move")
CALL_TYPES = (*SUBMITS, *MOVES, "seal", "batch", "pause", "resume", "run_schedule")

START = "start"
END = "end"
FAIL = "fail"
CHILD = "child"

NOT_SET: Any = object()
MAX_ERROR_LENGTH = 500


# --- Writing ---


def digest(value: Any) -> str:
    """Return a short hash of a JSON value that does not depend on key order or spacing."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def append(path: str | Path, line: Mapping[str, Any]) -> None:
    """Append one line with one write: complete, or an OSError on a full disk."""
    record = {**line, **_timestamps()}
    body = json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        written = os.write(handle, body)
    finally:
        os.close(handle)
    if written != len(body):
        raise OSError(f"{path}: wrote only {written} of {len(body)} bytes of a line")


def _timestamps() -> dict[str, int]:
    return {"pid": os.getpid(), "ns": time.monotonic_ns(), "at": time.time_ns() // 1000}


class Clients:
    """Writer of a clients file. Threads and forked processes may share it.

    with clients.call("enqueue", kind="render", payload={"clip": 7}) as call:
        call.ok(render.enqueue(clip=7))
    """

    def __init__(self, path: str | Path, client: str = "") -> None:
        self.path = path
        self.client = client or f"pid-{os.getpid()}"

    def call(self, what: str, **request: Any) -> Call:
        """Return a call to be made; use it as a context manager.

        `payload=` and `payloads=` are written as digests, `job=` as `jobs`.
        """
        return Call(self, what, _normalise_request(request))

    def received(self, what: str, **facts: Any) -> None:
        """Record what a receiver or a stream got.

        `received("message", message=…, to=…, body=…)` or `received("event", event=…, owner=…)`.
        """
        if "body" in facts:
            facts["body"] = digest(facts["body"])
        append(self.path, {"line": "received", "what": what, "client": self.client, **facts})


class Call:
    """One call of a client, as a context manager. Exceptions are recorded and raised again."""

    def __init__(self, clients: Clients, what: str, request: Mapping[str, Any]) -> None:
        self.id = uuid4().hex
        self.answer = UNKNOWN
        self.error = ""
        self.jobs: list[str] = list(request.get("jobs", ()))
        self._clients = clients
        self._what = what
        self._request = request

    def __enter__(self) -> Self:
        line = {
            "line": "begin",
            "call": self.id,
            "what": self._what,
            "client": self._clients.client,
            "request": self._request,
        }
        append(self._clients.path, line)
        return self

    def ok(self, *jobs: Any) -> None:
        """Record that the call returned these jobs: ids, or objects with an `id`."""
        self._set_answer(OK, jobs)

    def refused(self, error: object = "") -> None:
        """Record that the call was rejected."""
        self._set_answer(REFUSED, (), str(error))

    def unknown(self, error: object = "") -> None:
        """Record that the client does not know whether the call took effect."""
        self._set_answer(UNKNOWN, (), str(error))

    def rolled_back(self, *jobs: Any) -> None:
        """Record that the caller's transaction was rolled back: these jobs must never appear."""
        self._set_answer(ROLLED_BACK, jobs)

    def _set_answer(self, answer: str, jobs: Iterable[Any], error: str = "") -> None:
        self.answer = answer
        self.error = error
        self.jobs = [_job_id(job) for job in jobs] or self.jobs

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self._set_answer(answer_of_error(error), (), f"{type(error).__name__}: {error}")
        line = {
            "line": "end",
            "call": self.id,
            "answer": self.answer,
            "jobs": self.jobs,
            "error": self.error[:MAX_ERROR_LENGTH],
        }
        append(self._clients.path, line)


def answer_of_error(error: BaseException) -> str:
    """Return the answer that an exception stands for: Mulligan's refusals, or unknown."""
    if isinstance(error, StoreUnavailable | UniqueRace):
        return UNKNOWN
    if isinstance(error, MulliganError):
        return REFUSED
    return UNKNOWN


def _normalise_request(request: dict[str, Any]) -> dict[str, Any]:
    if "payload" in request:
        request["payloads"] = [request.pop("payload")]
    if "payloads" in request:
        request["payloads"] = [digest(payload) for payload in request["payloads"]]
        request.setdefault("count", len(request["payloads"]))
    if "job" in request:
        request["jobs"] = [_job_id(request.pop("job"))]
    return request


def _job_id(job: Any) -> str:
    return str(getattr(job, "id", job))


class AttemptLike(Protocol):
    """The attributes of a `Context` that a witness line needs."""

    @property
    def job(self) -> Any: ...

    @property
    def attempt(self) -> int: ...

    @property
    def token(self) -> int: ...


def witness(
    path: str | Path, ctx: AttemptLike, what: str, *, result: Any = NOT_SET, **more: Any
) -> None:
    """Record one step of a handler.

    `witness(path, ctx, "start")`, `witness(path, ctx, "end", result=value)`.
    """
    line = {
        "job": ctx.job.id,
        "kind": ctx.job.kind,
        "attempt": ctx.attempt,
        "token": ctx.token,
        "what": what,
        **more,
    }
    if result is not NOT_SET:
        line["result"] = digest(result)
    append(path, line)


@contextmanager
def witnessed(path: str | Path, ctx: AttemptLike) -> Iterator[None]:
    """Record `start` on entry and `end` on exit, or `fail` on an exception. Records no result."""
    witness(path, ctx, START)
    try:
        yield
    except BaseException as error:
        witness(path, ctx, FAIL, error=type(error).__name__)
        raise
    witness(path, ctx, END)


# --- Reading ---


def read_lines(path: str | Path) -> Iterator[dict[str, Any] | None]:
    """Yield each line of a file; None for a line that cannot be read."""
    with Path(path).open("rb") as lines:
        for line in lines:
            if line.strip():
                yield _parse_line(line)


def _parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if isinstance(record, dict):
        return record
    return None


SCHEMA = """
CREATE TABLE call (id TEXT PRIMARY KEY, what TEXT, client TEXT, request TEXT, begin_ns INT,
                   end_ns INT, answer TEXT NOT NULL DEFAULT 'unknown',
                   error TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
CREATE TABLE call_job (job TEXT, call TEXT, PRIMARY KEY (job, call)) WITHOUT ROWID;
CREATE TABLE witness (job TEXT, token INT, ns INT, line TEXT);
CREATE TABLE child (job TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE received (what TEXT, client TEXT, id TEXT, ns INT, line TEXT);
CREATE TABLE key_holder (name TEXT, job TEXT, since INT, until INT);
CREATE TABLE member (batch TEXT, job TEXT, since INT, until INT);
CREATE TABLE delivery (message TEXT, subscription TEXT, job TEXT, state TEXT, body TEXT);
CREATE TABLE slot_job (schedule TEXT, slot INT, job TEXT);
CREATE TABLE unrequested (kind TEXT, payload TEXT, job TEXT);
CREATE TABLE existing (job TEXT PRIMARY KEY) WITHOUT ROWID;
"""
FILE_INDEXES = """
CREATE INDEX witness_by_job ON witness (job, token, ns);
CREATE INDEX received_by_id ON received (what, id);
"""
JOB_INDEXES = """
CREATE INDEX key_holder_by_name ON key_holder (name, since);
CREATE INDEX member_by_batch ON member (batch);
CREATE INDEX delivery_by_message ON delivery (message);
CREATE INDEX slot_job_by_slot ON slot_job (schedule, slot);
CREATE INDEX unrequested_by_payload ON unrequested (kind, payload);
"""
CALLS_OF_JOBS = """
SELECT call_job.job, call.id, what, client, request, begin_ns, end_ns, answer, error
FROM json_each(?) AS wanted
JOIN call_job ON call_job.job = wanted.value JOIN call ON call.id = call_job.call
ORDER BY call_job.job, begin_ns
"""
CALL_COLUMNS = ("id", "what", "client", "request", "begin_ns", "end_ns", "answer", "error")
WITNESS_OF_JOBS = """
SELECT witness.job, line FROM json_each(?) AS wanted JOIN witness ON witness.job = wanted.value
ORDER BY witness.job, ns
"""

Row = tuple[Any, ...]


class RecordIndex:
    """A temporary database with the lines of all files and facts collected from the jobs.

    It keeps the memory of the checker bounded, with millions of lines.
    """

    def __init__(
        self, clients: Iterable[str | Path] = (), witness: Iterable[str | Path] = ()
    ) -> None:
        self._folder = TemporaryDirectory(prefix="mulligan-verify-")
        self._db = apsw.Connection(str(Path(self._folder.name) / "records.db"))
        self._db.execute(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -32000"
        )
        self._db.execute(SCHEMA)
        self.unreadable = 0
        client_files = list(clients)
        witness_files = list(witness)
        self.has_clients = bool(client_files)
        self.has_witness = bool(witness_files)
        with self._db:
            for path in client_files:
                self._load_clients(path)
            for path in witness_files:
                self._load_witness(path)
            self._db.execute(FILE_INDEXES)
        self.requested_kinds = self._distinct_kinds("request", "call")
        self.witnessed_kinds = self._distinct_kinds("line", "witness")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._db.close()
        self._folder.cleanup()

    def query(self, sql: str, *params: Any) -> Iterator[Row]:
        """Run a SELECT."""
        yield from self._db.execute(sql, params)

    def exists(self, sql: str, *params: Any) -> bool:
        """Return whether a SELECT finds a row."""
        return any(self.query(sql, *params))

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        (row,) = self.query(f"SELECT count(*) FROM {table}")
        return int(row[0])

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """Insert rows; existing keys are ignored."""
        if rows:
            placeholders = ", ".join("?" * len(rows[0]))
            self._db.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({placeholders})", rows)

    def begin_collecting(self) -> None:
        """Open the transaction in which facts about jobs are inserted."""
        self._db.execute("BEGIN")

    def finish_collecting(self) -> None:
        """Create the indexes for the checks across jobs, and commit."""
        self._db.execute(JOB_INDEXES)
        self._db.execute("COMMIT")

    def _distinct_kinds(self, column: str, table: str) -> set[Any]:
        rows = self.query(f"SELECT DISTINCT json_extract({column}, '$.kind') FROM {table}")
        return {kind for (kind,) in rows}

    # --- Clients ---
    def _load_clients(self, path: str | Path) -> None:
        for line in read_lines(path):
            try:
                self._load_client_line(line or {})
            except (KeyError, TypeError):
                self.unreadable += 1

    def _load_client_line(self, line: Mapping[str, Any]) -> None:
        line_type = line["line"]
        if line_type == "begin":
            self._load_begin(line)
        elif line_type == "end":
            self._load_end(line)
        elif line_type == "received":
            received_id = str(line[line["what"]])
            row = (line["what"], line["client"], received_id, line["ns"], json.dumps(line))
            self.insert("received", [row])

    def _load_begin(self, line: Mapping[str, Any]) -> None:
        request = json.dumps(line.get("request", {}))
        self._db.execute(
            "INSERT INTO call (id, what, client, request, begin_ns) VALUES (?, ?, ?, ?, ?)",
            (line["call"], line["what"], line["client"], request, line["ns"]),
        )

    def _load_end(self, line: Mapping[str, Any]) -> None:
        self._db.execute(
            "UPDATE call SET end_ns = ?, answer = ?, error = ? WHERE id = ?",
            (line["ns"], line.get("answer", UNKNOWN), line.get("error", ""), line["call"]),
        )
        self.insert("call_job", [(job, line["call"]) for job in line.get("jobs", ())])

    def calls_of(self, jobs: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the calls about each job, in the order in which they began."""
        found: dict[str, list[dict[str, Any]]] = {}
        if not self.has_clients:
            return found
        for job, *row in self.query(CALLS_OF_JOBS, json.dumps(list(jobs))):
            call = dict(zip(CALL_COLUMNS, row, strict=True))
            call["request"] = json.loads(call["request"])
            found.setdefault(job, []).append(call)
        return found

    def unknown_submits(self) -> Iterator[dict[str, Any]]:
        """Yield the requests of submits whose answer is unknown."""
        sql = f"SELECT request FROM call WHERE answer = ? AND what IN {SUBMITS}"
        for (request,) in self.query(sql, UNKNOWN):
            yield json.loads(request)

    # --- Witness ---
    def _load_witness(self, path: str | Path) -> None:
        for line in read_lines(path):
            try:
                self._load_witness_line(line or {})
            except (KeyError, TypeError):
                self.unreadable += 1

    def _load_witness_line(self, line: Mapping[str, Any]) -> None:
        self.insert("witness", [(line["job"], line["token"], line["ns"], json.dumps(line))])
        if line["what"] == CHILD and "child" in line:
            self.insert("child", [(line["child"],)])

    def witness_lines_of(self, jobs: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the witness lines of each job, in the order of time."""
        found: dict[str, list[dict[str, Any]]] = {}
        if not self.has_witness:
            return found
        for job, line in self.query(WITNESS_OF_JOBS, json.dumps(list(jobs))):
            found.setdefault(job, []).append(json.loads(line))
        return found
