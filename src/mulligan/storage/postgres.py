"""PostgreSQL store: connection pool, transactions, schema, and LISTEN for wake-ups.

Works behind a transaction pooler: no session settings, no session locks, qualified names. Whether
LISTEN and prepared statements work on the way to the server is tested, not assumed (`watch`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from enum import Enum, auto
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus, PGconn, PollingStatus, TransactionStatus
from psycopg.pq.abc import PGconn as Libpq

from mulligan.core.durations import Micros
from mulligan.core.errors import AccessDenied, ConfigError, SchemaError, StoreUnavailable
from mulligan.core.format import mask_password
from mulligan.storage import maintenance as migrations
from mulligan.storage.base import HintListener, Store
from mulligan.storage.foreign import PostgresConnection, open_postgres_connection
from mulligan.storage.postgres_transaction import (
    PooledConnection,
    PostgresTransaction,
)

# A server that vanishes silently must be noticed well within a lease.
KEEPALIVE: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "mulligan",
}

# --- Listener ---

log = logging.getLogger("mulligan.storage")

CONNECT_TIMEOUT = 5.0  # seconds; also for the answer to LISTEN
RECONNECT_PAUSE = 1.0  # seconds between two tries to listen
LISTEN_PROOF_TIMEOUT = 2.0  # seconds to wait for our own notification
LISTEN_PROOF_INTERVAL = 60.0  # seconds between two tests of LISTEN


class ListenState(Enum):
    """State of a listening connection. Each has a time limit."""

    CLOSED = auto()  # until the next try
    CONNECTING = auto()
    SUBSCRIBING = auto()  # LISTEN was sent
    PROVING = auto()  # our own notification was sent
    LISTENING = auto()  # our own notification arrived; until the next proof


class PostgresListener(HintListener):
    """Listens for notifications on a connection of its own, which runs no other statement.

    Every step is non-blocking: a listening connection that is cut, hangs or cannot be opened
    delays the calling thread by nothing. Whether notifications arrive is proven by one of our own,
    sent through another connection: a transaction pooler accepts LISTEN and delivers nothing.
    """

    def __init__(
        self,
        url: str,
        channel: str,
        notify: Callable[[str], None],
        on_unproven: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a listener. `on_unproven`: our first notification on a connection was lost."""
        self._conninfo = make_conninfo(url, **KEEPALIVE).encode()
        self._subscribe = f'LISTEN "{channel}"'.encode()
        self._notify = notify
        self._on_unproven = on_unproven
        self._connection: Libpq | None = None
        self._events = 0  # of the socket, to wait for
        self._hinted = False
        self._nonce = ""
        self.is_proven = False  # a notification of ours has arrived on this connection
        self._enter(ListenState.CLOSED, 0.0)

    def _enter(self, state: ListenState, seconds: float) -> None:
        self.state = state
        self._until = time.monotonic() + seconds

    def wait(self, seconds: float, wake: int = -1) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            self._check_time_limit()
            left = min(deadline, self._until) - time.monotonic()
            woken = not self._hinted and self._poll(max(0.0, left), wake)
            if self._hinted or woken or time.monotonic() >= deadline:
                hinted = self._hinted
                self._hinted = False
                return hinted

    def _poll(self, seconds: float, wake: int) -> bool:
        """Wait for the socket or `wake`, and handle the socket. True if `wake` is readable."""
        poll = select.poll()
        if wake >= 0:
            poll.register(wake, select.POLLIN)
        if self._connection is not None:
            poll.register(self._connection.socket, self._events)
        ready = [fd for fd, _ in poll.poll(seconds * 1000)]
        if self._connection is not None and self._connection.socket in ready:
            self._run(self._on_socket)
        return wake in ready

    def _run(self, step: Callable[[Libpq], None]) -> None:
        """Run a step on the connection. Close it if the step fails."""
        try:
            if self._connection is not None:
                step(self._connection)
        except psycopg.Error as error:
            self._disconnect(RECONNECT_PAUSE, str(error))

    # --- Time limits ---

    def _check_time_limit(self) -> None:
        if time.monotonic() < self._until:
            return
        match self.state:
            case ListenState.CLOSED:
                self._connect()
            case ListenState.CONNECTING | ListenState.SUBSCRIBING:
                self._disconnect(RECONNECT_PAUSE, "no answer")
            case ListenState.PROVING:
                self._give_up_proof()
            case ListenState.LISTENING:
                self._begin_proof()

    def _connect(self) -> None:
        self.is_proven = False
        self._events = select.POLLOUT
        self._enter(ListenState.CONNECTING, CONNECT_TIMEOUT)
        try:
            self._connection = PGconn.connect_start(self._conninfo)
        except psycopg.Error as error:
            self._disconnect(RECONNECT_PAUSE, str(error))

    def _disconnect(self, pause: float, reason: str) -> None:
        """Close the connection. What was written since counts as a hint."""
        log.debug("the connection that listens is closed: %s", reason)
        if self._connection is not None:
            self._connection.finish()
            self._connection = None
        self._hinted = True
        self._enter(ListenState.CLOSED, pause)

    def _begin_proof(self) -> None:
        self._nonce = f"nonce {uuid4()}"
        self._enter(ListenState.PROVING, LISTEN_PROOF_TIMEOUT)
        try:
            self._notify(self._nonce)
        except StoreUnavailable:  # says nothing about the connection that listens
            self._enter(ListenState.LISTENING, RECONNECT_PAUSE)
        else:
            self._enter(ListenState.PROVING, LISTEN_PROOF_TIMEOUT)

    def _give_up_proof(self) -> None:
        if self.is_proven:
            self._disconnect(0.0, "it became silent")
        else:
            self._disconnect(LISTEN_PROOF_INTERVAL, "notifications do not arrive")
            self._on_unproven()

    # --- Messages ---

    def _on_socket(self, connection: Libpq) -> None:
        if self.state is ListenState.CONNECTING:
            self._continue_connecting(connection)
            return
        connection.consume_input()
        if self.state is ListenState.SUBSCRIBING and not connection.is_busy():
            self._finish_subscribing(connection)
        while (note := connection.notifies()) is not None:
            self._on_payload(note.extra.decode(errors="replace"))

    def _continue_connecting(self, connection: Libpq) -> None:
        status = connection.connect_poll()
        if status == PollingStatus.OK:
            connection.send_query(self._subscribe)
            self._enter(ListenState.SUBSCRIBING, CONNECT_TIMEOUT)
        elif status == PollingStatus.FAILED:
            raise psycopg.OperationalError(connection.get_error_message())
        is_writing = status == PollingStatus.WRITING
        self._events = select.POLLOUT if is_writing else select.POLLIN

    def _finish_subscribing(self, connection: Libpq) -> None:
        while (result := connection.get_result()) is not None:
            if result.status != ExecStatus.COMMAND_OK:
                raise psycopg.OperationalError(result.get_error_message())
        self._hinted = True  # for what was written before LISTEN
        self._begin_proof()

    def _on_payload(self, payload: str) -> None:
        if payload != self._nonce:
            self._hinted = True
        elif self.state is ListenState.PROVING:
            self.is_proven = True
            self._enter(ListenState.LISTENING, LISTEN_PROOF_INTERVAL)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.finish()
            self._connection = None


# --- Connections ---

MAX_CONNECTIONS = 16  # of one store
MAX_IDLE = 30.0  # seconds after which a connection that is not needed is closed
CONNECT_PATIENCE = 10.0  # seconds that a caller waits for a connection
CONNECT_RETRY = 0.2  # seconds between two tries


class ConnectionStack:
    """Connections of one store, last used first, so that the store opens no more than it needs."""

    def __init__(
        self,
        connect: Callable[[], PooledConnection],
        is_working: Callable[[PooledConnection], bool],
        patience: float,
    ) -> None:
        self._connect = connect
        self._is_working = is_working
        self._patience = patience
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._idle: list[PooledConnection] = []  # oldest first
        self._is_closed = False

    def take(self) -> PooledConnection:
        """Return an idle connection that works, or a new one."""
        if not self._places.acquire(timeout=CONNECT_PATIENCE):
            message = f"all {MAX_CONNECTIONS} connections are in use"
            raise psycopg.OperationalError(message)
        try:
            return self._take_idle() or self._open()
        except BaseException:
            self._places.release()
            raise

    def _take_idle(self) -> PooledConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if self._is_working(connection):
                return connection
            connection.close()

    def _open(self) -> PooledConnection:
        """Open a connection. Try again for a while: the server may be restarting."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                connection = self._connect()
            except psycopg.OperationalError as error:
                if _is_refusal(str(error)) or time.monotonic() + CONNECT_RETRY > deadline:
                    raise
            else:
                connection.stack = self
                return connection
            time.sleep(CONNECT_RETRY)

    def give_back(self, connection: PooledConnection) -> None:
        """Take a connection back, and close those that were not needed lately."""
        is_clean = _roll_back(connection)
        oldest = time.monotonic() - MAX_IDLE
        with self._lock:
            unneeded = [idle for idle in self._idle if idle.last_used < oldest]
            self._idle = [idle for idle in self._idle if idle.last_used >= oldest]
            if is_clean and not self._is_closed:
                self._idle.append(connection)
            else:
                unneeded.append(connection)
        for idle in unneeded:
            idle.close()
        self._places.release()

    def close(self) -> None:
        """Close all connections, those in use when they are given back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _roll_back(connection: PooledConnection) -> bool:
    """Roll back what a block left open. False: the connection cannot be used any more."""
    status = connection.pgconn.transaction_status
    if status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
        with contextlib.suppress(psycopg.Error):
            connection.rollback()
        status = connection.pgconn.transaction_status
    return bool(status == TransactionStatus.IDLE)


# --- Store ---

UNAVAILABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    pg.SerializationFailure,
    pg.DeadlockDetected,
    pg.ReadOnlySqlTransaction,
)
CONNECTION_ERRORS = (*UNAVAILABLE, psycopg.InternalError)
IDLE_TRUST = 0.5  # seconds for which an idle connection is used without a check
DISCARD_INTERVAL = 10.0  # seconds between two DISCARD PLANS of one connection
AUTHENTICATION_REFUSED = re.compile(
    r'authentication failed|no password supplied|no pg_hba.conf entry|role ".*" does not exist'
)
# In autocommit mode there is no BEGIN that could set the isolation level.
READ_COMMITTED = "SELECT set_config('default_transaction_isolation', 'read committed', false)"
# A generic plan does not know the LIMIT, so it looks expensive and would be compiled on every run.
CACHE_PLANS = (
    "set_config('plan_cache_mode', 'force_generic_plan', false), set_config('jit', 'off', false)"
)
ANSWER_TIME = 2.0  # seconds for an answer that takes the server no work


class PostgresStore(Store):
    """Store in a schema of a PostgreSQL database."""

    concurrent_writers = True

    def __init__(
        self,
        url: str,
        *,
        schema: str = "mulligan",
        notify_callers: bool = True,
        listen_url: str = "",
    ) -> None:
        self.dsn = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._listen_dsn = listen_url or self.dsn
        _check_url("database_url", self.dsn)
        _check_url("listen_url", self._listen_dsn)
        self.url = mask_password(self.dsn)
        self.schema = schema
        self.prefix = f'"{schema}".'
        self.channel = f"mulligan_{schema}"
        self.notify_callers = notify_callers
        self.prepared = True
        self._caches_plans = False
        self._dedicated: PostgresStore | None = None
        self._warned = False  # that LISTEN does not work
        self._lock = threading.Lock()
        self._connections: ConnectionStack | None = None
        self._statement_limit: float | None = None
        self._last_failure = 0.0  # monotonic time of the last broken connection
        self._discarded: weakref.WeakKeyDictionary[psycopg.Connection[Any], float] = (
            weakref.WeakKeyDictionary()
        )
        _stores.add(self)

    # --- Connections ---
    def dedicated(self) -> PostgresStore:
        """Return a store with its own connections that cache plans from the first execution.

        A pool rotates its connections, and each would plan each statement ten times before it
        caches the plan, 1.5 to 2 ms each time.
        """
        with self._lock:
            if self._dedicated is None:
                store = PostgresStore(
                    self.dsn, schema=self.schema, notify_callers=self.notify_callers
                )
                store.prepared = self.prepared
                store._caches_plans = True
                self._dedicated = store
            return self._dedicated

    def limit_statements(self, seconds: float) -> None:
        self._statement_limit = seconds

    def _open_connections(self) -> ConnectionStack:
        with self._lock:
            if self._connections is None:
                # The claim/settle loop has its own pauses between tries.
                patience = 0.0 if self._caches_plans else CONNECT_PATIENCE
                self._connections = ConnectionStack(self._connect, self._is_working, patience)
            return self._connections

    def _connect(self) -> PooledConnection:
        options = KEEPALIVE | {"prepare_threshold": self._prepare_threshold}
        connection = PooledConnection.connect(self.dsn, **options)
        try:
            if self._statement_limit is not None:
                connection.statement_limit = self._statement_limit + ANSWER_TIME
            self._configure(connection)
            connection.last_used = time.monotonic()
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def _prepare_threshold(self) -> int | None:
        """Number of executions after which the driver prepares a statement. None: never."""
        if not self.prepared:
            return None
        return 1 if self._caches_plans else 5

    def after_fork(self) -> None:
        """Forget the parent's connections in a forked child: their sockets belong to the parent."""
        _inherited.append(self._connections)
        self._connections = None
        self._lock = threading.Lock()

    def _configure(self, connection: PooledConnection) -> None:
        """Set the isolation level of a new connection, and test for a pooler.

        Each statement must see what was committed before it, whatever the database's default is. A
        pooler between us and the server shows by another process id. Statements prepared through it
        may be missing later.
        """
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        with connection.transaction():
            found = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
            pooled = found is not None and found[0] != connection.info.backend_pid
            if not pooled:  # a pooler would pass the settings on to other clients
                connection.execute(self._session_settings(), prepare=False)
        if pooled:
            connection.prepare_threshold = None
        connection.merges_begin = self._caches_plans and not pooled

    def _session_settings(self) -> str:
        settings = [READ_COMMITTED]
        if self._caches_plans:
            settings.append(CACHE_PLANS)
        if self._statement_limit is not None:
            # Otherwise a statement that waits for a lock would go on after we gave it up.
            milliseconds = round(self._statement_limit * 1000)
            settings.append(f"set_config('statement_timeout', '{milliseconds}', false)")
        return ", ".join(settings)

    def _is_working(self, connection: PooledConnection) -> bool:
        """Test a connection if it is older than the last failure, or has unread input."""
        if connection.closed:
            return False
        idle = time.monotonic() - connection.last_used
        suspect = connection.last_used <= self._last_failure
        if suspect or (idle > IDLE_TRUST and _has_input(connection)):
            return _answers(connection)
        return True

    @contextmanager
    def _connection(self) -> Iterator[PooledConnection]:
        """Borrow a connection for one transaction."""
        borrowed: list[PooledConnection] = []
        try:
            connection = self.borrow_connection(autocommit=False)
            borrowed.append(connection)
            yield connection
            connection.commit()
            self.mark_used(connection)
        except CONNECTION_ERRORS as error:
            self.raise_if_unavailable(error, borrowed)
            raise
        finally:
            for connection in borrowed:
                self.return_connection(connection)

    def raise_if_unavailable(
        self, error: BaseException, borrowed: Sequence[PooledConnection]
    ) -> None:
        """Raise StoreUnavailable if the error means that the connection is broken."""
        if isinstance(error, psycopg.InternalError) and not isinstance(error, UNAVAILABLE):
            if error.sqlstate is not None:  # an error of the server
                return
            # More results than statements, as a killed pooler may leave behind: the connection
            # cannot be trusted any more.
            for connection in borrowed:
                connection.close()
        # If one connection is broken, others may be: test each before its next use.
        self._last_failure = time.monotonic()
        raise unavailable(error) from error

    def borrow_connection(self, *, autocommit: bool) -> PooledConnection:
        """Borrow a connection."""
        connections = self._connections or self._open_connections()
        connection = connections.take()
        try:
            if connection.autocommit != autocommit:
                connection.autocommit = autocommit
        except BaseException:
            connections.give_back(connection)
            raise
        return connection

    def return_connection(self, connection: PooledConnection) -> None:
        """Give back a borrowed connection."""
        connection.stack.give_back(connection)

    def mark_used(self, connection: PooledConnection) -> None:
        """Record that a connection works."""
        connection.last_used = time.monotonic()

    def discard_plans(self, connection: PostgresConnection) -> None:
        """Discard cached plans, but not often: the statement may be slow for other reasons."""
        if not isinstance(connection, psycopg.Connection):
            return
        now = time.monotonic()
        if now - self._discarded.get(connection, -DISCARD_INTERVAL) >= DISCARD_INTERVAL:
            self._discarded[connection] = now
            connection.execute("DISCARD PLANS", prepare=False)

    @contextmanager
    def begin(self) -> Iterator[PostgresTransaction]:
        with self._connection() as connection:
            yield PostgresTransaction(connection, self)

    def single_statement(self) -> AbstractContextManager[PostgresTransaction]:
        """Run each statement as a transaction: one round trip instead of three."""
        return _Autocommit(self)

    def read(self) -> AbstractContextManager[PostgresTransaction]:
        """Run each statement for itself. Use `snapshot` if results must agree."""
        return _Autocommit(self)

    @contextmanager
    def snapshot(self) -> Iterator[PostgresTransaction]:
        with self._connection() as connection:
            connection.execute(
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY", prepare=False
            )
            yield PostgresTransaction(connection, self)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self._connection() as connection:
            yield connection

    def join(self, connection: Any) -> PostgresTransaction:
        return PostgresTransaction(open_postgres_connection(connection), self)

    # --- Schema ---
    def migrate(self, *, dry_run: bool = False) -> list[str]:
        todo = migrations.pending_steps(
            migrations.load_steps("postgres", self.prefix), self._applied()
        )
        return migrations.apply_steps(todo, self._apply_steps, dry_run=dry_run)

    def is_empty(self) -> bool:
        return not self._applied()

    def check_schema(self) -> None:
        if migrations.pending_steps(
            migrations.load_steps("postgres", self.prefix), self._applied()
        ):
            message = (
                f"schema {self.schema!r} of {self.url} is not up to date. Run: mulligan migrate"
            )
            raise SchemaError(message)

    def _apply_steps(self, steps: list[migrations.Step]) -> list[str]:
        with self._connection() as connection:
            run: Callable[..., Any] = connection.execute
            run(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
                (f"mulligan migrate {self.schema}",),
            )
            run(f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"')
            run(
                f"CREATE TABLE IF NOT EXISTS {self.prefix}schema "
                "(number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL)"
            )
            return [step.name for step in steps if self._apply_step(run, step)]

    def _apply_step(self, run: Callable[..., Any], step: migrations.Step) -> bool:
        if run(f"SELECT 1 FROM {self.prefix}schema WHERE number = %s", (step.number,)).fetchone():
            return False
        run(step.text)
        run(f"INSERT INTO {self.prefix}schema VALUES (%s, %s, %s)", step[:3])
        return True

    def _applied(self) -> list[tuple[int, str, str]]:
        with self._connection() as connection:
            run: Callable[..., Any] = connection.execute
            if run("SELECT to_regclass(%s)", (f"{self.prefix}schema",)).fetchone()[0] is None:
                return []
            return [
                tuple(row)
                for row in run(f"SELECT * FROM {self.prefix}schema ORDER BY 1").fetchall()
            ]

    # --- Wake-ups and upkeep ---
    def open_listener(self) -> HintListener:
        return PostgresListener(
            self._listen_dsn, self.channel, self._send_notification, self._on_unproven
        )

    def _send_notification(self, payload: str) -> None:
        store = self._dedicated or self
        with store.single_statement() as tx:
            tx.notify(payload)

    def _on_unproven(self) -> None:
        """Assume a transaction pooler: it delivers no notifications."""
        if not self._warned:
            self._warned = True
            log.warning(
                "LISTEN does not reach this process (a transaction pooler?): polling "
                "instead, prepared statements off. Set listen_url to a direct connection "
                "to get wake-ups."
            )
        self.disable_prepared_statements()

    def disable_prepared_statements(self) -> None:
        """Stop preparing statements: a pooler is between us and the server."""
        with self._lock:
            if not self.prepared:
                return
            self.prepared = False
            connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()
        if self._dedicated is not None:
            self._dedicated.disable_prepared_statements()

    def check_connection(self, timeout: float = 5.0) -> None:
        """Connect once without the pool, which would retry and not report the reason."""
        options = KEEPALIVE | {"connect_timeout": max(1, round(timeout))}
        try:
            psycopg.connect(self.dsn, **options).close()
        except psycopg.Error as error:
            if _is_refusal(str(error)):
                message = f"PostgreSQL refused the connection: {error}"
                raise AccessDenied(message) from error
            raise unavailable(error) from error

    def receives_notifications(self) -> bool:
        # The listener tries again and again. This reports why it cannot connect.
        psycopg.connect(self._listen_dsn, connect_timeout=int(CONNECT_TIMEOUT)).close()
        listener = PostgresListener(self._listen_dsn, self.channel, self._send_notification)
        deadline = time.monotonic() + CONNECT_TIMEOUT + LISTEN_PROOF_TIMEOUT
        with closing(listener):
            while listener.state is not ListenState.LISTENING and time.monotonic() < deadline:
                listener.wait(0.1)
            return listener.is_proven

    def reclaim_space(self) -> None:
        """Do nothing: the schema makes autovacuum run early."""

    def shift_clock(self, by: Micros) -> None:
        meta = f"{self.prefix}meta"
        with self._connection() as connection:
            run: Callable[..., Any] = connection.execute
            updated = run(
                f"INSERT INTO {meta} VALUES ('clock_offset', %s) ON CONFLICT (key) DO UPDATE "
                f"SET value = CAST(CAST({meta}.value AS bigint) + CAST(excluded.value AS bigint) "
                "AS text) RETURNING xmax <> 0",
                (str(by),),
            ).fetchone()[0]
            # Only the first time: replacing the function makes every session plan again.
            if not updated:
                run(
                    f"CREATE OR REPLACE FUNCTION {self.prefix}now_us() RETURNS BIGINT "
                    "LANGUAGE sql STABLE AS $$ "
                    "SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + "
                    f"(SELECT CAST(value AS bigint) FROM {meta} WHERE key = 'clock_offset') $$"
                )
            run("SELECT pg_notify(%s, '')", (self.channel,))  # a job may have become due

    def erase(self) -> None:
        with self._connection() as connection:
            run: Callable[..., Any] = connection.execute
            run(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE')

    def facts(self) -> dict[str, str]:
        with self._connection() as connection:
            run: Callable[..., Any] = connection.execute
            version, sync, fsync, size, pid = run(
                "SELECT current_setting('server_version'), current_setting('synchronous_commit'), "
                "current_setting('fsync'), "
                "pg_size_pretty(pg_database_size(current_database())), pg_backend_pid()"
            ).fetchone()
            pooled = pid != connection.info.backend_pid
        durable = sync in {"on", "remote_apply"}
        return {
            "store": "postgresql",
            "url": self.url,
            "schema": self.schema,
            "server": version,
            "synchronous_commit": sync if durable else f"{sync} (weaker than on)",
            "fsync": fsync,
            "pooler": "yes, by the server's process id" if pooled else "no",
            "size": size,
        }

    @property
    def lock_directory(self) -> str:
        return ""

    @property
    def identity(self) -> str:
        return hashlib.sha256(f"{self.url} {self.schema}".encode()).hexdigest()[:12]

    def close(self) -> None:
        with self._lock:
            connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()
        if self._dedicated is not None:
            self._dedicated.close()


class _Autocommit(AbstractContextManager[PostgresTransaction]):
    """Block in which each statement is a transaction.

    Not a generator, and not the block of the pool, which would commit: every enqueue pays for it.
    """

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._borrowed: PooledConnection | None = None

    def __enter__(self) -> PostgresTransaction:
        try:
            self._borrowed = self._store.borrow_connection(autocommit=True)
        except CONNECTION_ERRORS as error:
            self._store.raise_if_unavailable(error, ())
            raise
        return PostgresTransaction(self._borrowed, self._store, autocommit=True)

    def __exit__(self, cls: object, error: BaseException | None, trace: object) -> None:
        connection = self._borrowed
        if connection is None:
            return
        if error is None:
            self._store.mark_used(connection)
        self._store.return_connection(connection)
        if isinstance(error, CONNECTION_ERRORS):
            self._store.raise_if_unavailable(error, [connection])


def _answers(connection: PooledConnection) -> bool:
    """True if the server answers soon on this connection."""
    limit = connection.statement_limit
    connection.statement_limit = ANSWER_TIME
    try:
        connection.execute("SELECT 1", prepare=False)
    except psycopg.Error:
        return False
    finally:
        connection.statement_limit = limit
    return _roll_back(connection)


def _has_input(connection: psycopg.Connection[Any]) -> bool:
    """True if there is unread input. A closed connection counts as input."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _is_refusal(text: str) -> bool:
    """True if the server refused to authenticate. libpq has no code for failed connections."""
    return AUTHENTICATION_REFUSED.search(text) is not None


def unavailable(error: BaseException) -> StoreUnavailable:
    """Return the error for a server that cannot be used now."""
    return StoreUnavailable(f"PostgreSQL does not answer: {type(error).__name__}: {error}")


def _check_url(name: str, url: str) -> None:
    """Raise ConfigError for a malformed URL. The driver's message could contain the password."""
    try:
        readable = "@" not in str(conninfo_to_dict(url).get("host", ""))
    except psycopg.ProgrammingError:
        readable = False
    if not readable:
        message = (
            f"{name} is not a valid PostgreSQL URL ({mask_password(url)}); "
            "in a password write %20 for a space, %25 for %, %2F for / and %40 for @"
        )
        raise ConfigError(message)


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
_inherited: list[Any] = []


def _after_fork() -> None:
    for store in list(_stores):
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
