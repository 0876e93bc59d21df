"""PostgreSQL store: connection pool, transactions, schema, and LISTEN for wake-ups.

Works behind a transaction pooler: no session settings, no session locks, qualified names. Whether
LISTEN and prepared statements work on the way to the server is tested, not assumed (`watch`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolTimeout

from mulligan.core.durations import Micros
from mulligan.core.errors import AccessDenied, ConfigError, SchemaError, StoreUnavailable
from mulligan.storage import maintenance as migrations
from mulligan.storage.base import MAX_IDLE_WAIT, Store
from mulligan.storage.foreign import PostgresConnection, open_postgres_connection
from mulligan.storage.postgres_transaction import (
    PooledConnection,
    PostgresTransaction,
    warm_up,
    warm_up_claim,
)
from mulligan.storage.url import mask_password

# --- Notifications ---


class NotifyReader:
    """Read notifications with as few calls as possible, because an idle worker waits here."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._payloads: list[str] = []
        self._socket = select.poll()
        self._socket.register(connection.fileno(), select.POLLIN)
        # For notifications that arrive together with a result.
        connection.add_notify_handler(lambda note: self._payloads.append(note.payload))

    def wait_for_payloads(self, seconds: float) -> list[str]:
        """Return the payloads received since the last call. Wait if there are none."""
        if self._connection.closed:  # its descriptor may belong to another file by now
            message = "the connection that listens is closed"
            raise psycopg.OperationalError(message)
        # What was read together with a result is in the driver; the socket does not show it.
        self._collect()
        if not self._payloads and self._socket.poll(seconds * 1000):
            self._connection.pgconn.consume_input()
            self._collect()
        payloads, self._payloads = self._payloads, []
        return payloads

    def _collect(self) -> None:
        while (note := self._connection.pgconn.notifies()) is not None:
            self._payloads.append(note.extra.decode(errors="replace"))


# --- Store ---

log = logging.getLogger("mulligan.storage")

# A server that vanishes silently must be noticed well within a lease.
KEEPALIVE: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "mulligan",
}
UNAVAILABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    PoolTimeout,
    pg.SerializationFailure,
    pg.DeadlockDetected,
    pg.ReadOnlySqlTransaction,
)
CONNECTION_ERRORS = (*UNAVAILABLE, psycopg.InternalError)
IDLE_TRUST = 0.5  # seconds for which an idle connection is used without a check
DISCARD_INTERVAL = 10.0  # seconds between two DISCARD PLANS of one connection
LISTEN_PROOF_TIMEOUT = 2.0  # seconds to wait for our own notification
LISTEN_PROOF_INTERVAL = 60.0  # seconds between two tests of LISTEN
AUTHENTICATION_REFUSED = re.compile(
    r'authentication failed|no password supplied|no pg_hba.conf entry|role ".*" does not exist'
)
# In autocommit mode there is no BEGIN that could set the isolation level.
READ_COMMITTED = "SELECT set_config('default_transaction_isolation', 'read committed', false)"
# A generic plan does not know the LIMIT, so it looks expensive and would be compiled on every run.
CACHE_PLANS = (
    f"{READ_COMMITTED}, set_config('plan_cache_mode', 'force_generic_plan', false), "
    "set_config('jit', 'off', false)"
)

T = TypeVar("T")


class _ListeningConnection(threading.local):
    """Connection of a thread that listens, while it calls `hint` or `idle`."""

    connection: psycopg.Connection[Any] | None = None


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
        self._lock = threading.Lock()
        self._listening = _ListeningConnection()
        self._pool: ConnectionPool[psycopg.Connection[Any]] | None = None
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
                store._listening = self._listening
                self._dedicated = store
            return self._dedicated

    def _open_pool(self) -> ConnectionPool[psycopg.Connection[Any]]:
        with self._lock:
            if self._pool is None:
                options = KEEPALIVE | {"prepare_threshold": self._prepare_threshold}
                self._pool = ConnectionPool(
                    self.dsn,
                    connection_class=PooledConnection,
                    kwargs=options,
                    min_size=0,
                    max_size=16,
                    max_idle=120,
                    timeout=10,
                    reconnect_timeout=0.5,
                    open=True,
                    name="mulligan",
                    configure=self._configure,
                    check=self._check,
                )
            return self._pool

    @property
    def _prepare_threshold(self) -> int | None:
        """Number of executions after which the driver prepares a statement. None: never."""
        if not self.prepared:
            return None
        return 1 if self._caches_plans else 5

    def after_fork(self) -> None:
        """Forget the parent's connections in a forked child: their sockets belong to the parent."""
        _inherited.append(self._pool)
        self._pool = None
        self._lock = threading.Lock()

    def _configure(self, connection: psycopg.Connection[Any]) -> None:
        """Set the isolation level of a new connection, and test for a pooler.

        Each statement must see what was committed before it, whatever the database's default is. A
        pooler between us and the server shows by another process id. Statements prepared through it
        may be missing later.
        """
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        with connection.transaction():
            found = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
            pooled = found is not None and found[0] != connection.info.backend_pid
            if not pooled:  # a pooler would pass the setting on to other clients
                connection.execute(
                    CACHE_PLANS if self._caches_plans else READ_COMMITTED, prepare=False
                )
        if pooled:
            connection.prepare_threshold = None

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        """Test a connection if it is new, older than the last failure, or has unread input."""
        last_used = connection.last_used if isinstance(connection, PooledConnection) else 0.0
        idle = time.monotonic() - last_used
        suspect = last_used <= self._last_failure
        if suspect or (idle > IDLE_TRUST and _has_input(connection)):
            ConnectionPool.check_connection(connection)

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Borrow a connection for one transaction."""
        borrowed: list[psycopg.Connection[Any]] = []
        try:
            with self._open_pool().connection() as connection:
                borrowed.append(connection)
                if connection.autocommit:
                    connection.autocommit = False
                yield connection
                self.mark_used(connection)
        except CONNECTION_ERRORS as error:
            self.raise_if_unavailable(error, borrowed)
            raise

    def raise_if_unavailable(
        self, error: BaseException, borrowed: Sequence[psycopg.Connection[Any]]
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

    def borrow_connection(
        self,
    ) -> tuple[ConnectionPool[psycopg.Connection[Any]], psycopg.Connection[Any]]:
        """Borrow a connection in autocommit mode. Return it with its pool."""
        pool = self._pool or self._open_pool()
        connection = pool.getconn()
        try:
            if not connection.autocommit:
                connection.autocommit = True
        except BaseException:
            pool.putconn(connection)
            raise
        return pool, connection

    def mark_used(self, connection: psycopg.Connection[Any]) -> None:
        """Record that a connection works."""
        if isinstance(connection, PooledConnection):
            connection.last_used = time.monotonic()

    @property
    def listening_connection(self) -> psycopg.Connection[Any] | None:
        """Connection that listens in this thread, if `watch` is calling back."""
        return self._listening.connection

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

    def warm_up(self) -> None:
        if self.prepared:
            with self.single_statement() as tx:
                warm_up(tx)

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
    def watch(
        self,
        hint: Callable[[], None],
        stop: threading.Event,
        busy: Callable[[], bool] = lambda: False,
        idle: Callable[[], float] = lambda: MAX_IDLE_WAIT,
    ) -> None:
        """LISTEN until stopped. If LISTEN fails, the caller still polls."""
        del busy  # listening does not delay writers
        warned = False
        while not stop.is_set():
            try:
                listening = self._listen(hint, stop, idle)
            except UNAVAILABLE:
                hint()  # no notifications from now on
                stop.wait(1.0)
                continue
            if not listening and not stop.is_set():
                hint()
                if not warned:
                    log.warning(
                        "LISTEN does not reach this process (a transaction pooler?): polling "
                        "instead, prepared statements off. Set listen_url to a direct connection "
                        "to get wake-ups."
                    )
                    warned = True
                self.disable_prepared_statements()
                stop.wait(LISTEN_PROOF_INTERVAL)

    def _listen(
        self, hint: Callable[[], None], stop: threading.Event, idle: Callable[[], float]
    ) -> bool:
        """Listen until stopped. False: our own notification did not arrive, so none will."""
        with PooledConnection.connect(self._listen_dsn, autocommit=True, **KEEPALIVE) as connection:
            self._configure(connection)
            reader = NotifyReader(connection)
            connection.execute(f'LISTEN "{self.channel}"')
            hint()  # for what was written before LISTEN
            last_proof = 0.0
            max_wait = MAX_IDLE_WAIT
            while not stop.is_set():
                if time.monotonic() - last_proof > LISTEN_PROOF_INTERVAL:
                    if not self._test_listen(reader, hint):
                        return False
                    self._warm_up_listener(connection)
                    last_proof = time.monotonic()
                if reader.wait_for_payloads(min(max_wait, MAX_IDLE_WAIT)):
                    self._call_with(connection, hint)
                else:
                    max_wait = self._call_with(connection, idle)
        return True

    def _warm_up_listener(self, connection: psycopg.Connection[Any]) -> None:
        """Run a claim without effect, so that the first claim after a hint has a cached plan.

        The server would plan it ten times first, each time several times as long as the claim.
        """
        if self._listen_dsn != self.dsn or connection.prepare_threshold is None:
            return
        connection.prepare_threshold = 0
        connection.execute(CACHE_PLANS, prepare=False)
        tx = PostgresTransaction(connection, self, autocommit=True)
        warm_up_claim(tx)

    def _call_with(self, connection: psycopg.Connection[Any], call: Callable[[], T]) -> T:
        """Let transactions within `call` use the listening connection, whose session is awake."""
        if self._listen_dsn == self.dsn:
            self._listening.connection = connection
        try:
            return call()
        finally:
            self._listening.connection = None

    def _test_listen(self, reader: NotifyReader, hint: Callable[[], None]) -> bool:
        """Send a notification to ourselves. True if it arrives."""
        nonce = f"nonce {uuid4()}"
        with self._connection() as other:
            other.execute("SELECT pg_notify(%s, %s)", (self.channel, nonce))
        deadline = time.monotonic() + LISTEN_PROOF_TIMEOUT
        while (remaining := deadline - time.monotonic()) > 0:
            payloads = reader.wait_for_payloads(remaining)
            if any(payload != nonce for payload in payloads):
                hint()
            if nonce in payloads:
                return True
        return False

    def disable_prepared_statements(self) -> None:
        """Stop preparing statements: a pooler is between us and the server."""
        with self._lock:
            if not self.prepared:
                return
            self.prepared = False
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(timeout=5)
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
        with psycopg.connect(self._listen_dsn, autocommit=True, **KEEPALIVE) as connection:
            connection.execute(f'LISTEN "{self.channel}"')
            return self._test_listen(NotifyReader(connection), lambda: None)

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
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(timeout=5)
        if self._dedicated is not None:
            self._dedicated.close()


class _Autocommit(AbstractContextManager[PostgresTransaction]):
    """Block in which each statement is a transaction.

    Not a generator, and not the block of the pool, which would commit: every enqueue pays for it.
    """

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._borrowed: (
            tuple[ConnectionPool[psycopg.Connection[Any]], psycopg.Connection[Any]] | None
        ) = None

    def __enter__(self) -> PostgresTransaction:
        listening = self._store.listening_connection
        if listening is not None:
            return PostgresTransaction(listening, self._store, autocommit=True)
        try:
            self._borrowed = self._store.borrow_connection()
        except CONNECTION_ERRORS as error:
            self._store.raise_if_unavailable(error, ())
            raise
        return PostgresTransaction(self._borrowed[1], self._store, autocommit=True)

    def __exit__(self, cls: object, error: BaseException | None, trace: object) -> None:
        if self._borrowed is None:
            if isinstance(error, UNAVAILABLE):
                raise unavailable(error) from error
            return
        pool, connection = self._borrowed
        if error is None:
            self._store.mark_used(connection)
        pool.putconn(connection)
        if isinstance(error, CONNECTION_ERRORS):
            self._store.raise_if_unavailable(error, [connection])


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
