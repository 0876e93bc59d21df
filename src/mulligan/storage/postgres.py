"""PostgreSQL store: transactions, schema, upkeep.

Works behind a transaction pooler: no session settings, no session locks, qualified names. Whether
LISTEN and prepared statements work on the way to the server is tested, not assumed (`watch`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg

from mulligan.core.durations import Micros
from mulligan.core.errors import (
    AccessDenied,
    ConnectionRefused,
    StatementAborted,
    StatementRefused,
    StoreUnavailable,
)
from mulligan.core.format import mask_password
from mulligan.storage import migrations
from mulligan.storage.base import HintListener, Store
from mulligan.storage.foreign import (
    JoinedConnection,
    PostgresConnection,
    open_postgres_connection,
)
from mulligan.storage.postgres_connections import (
    ANSWER_TIME,
    CONNECT_PATIENCE,
    CONNECT_TIMEOUT,
    ConnectionStack,
    PostgresListener,
    answers,
    check_url,
    connect_options,
    has_input,
    is_refusal,
)
from mulligan.storage.postgres_transaction import (
    WHICH_DATABASE,
    PooledConnection,
    PostgresTransaction,
)

log = logging.getLogger("mulligan.storage")

UNAVAILABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    pg.SerializationFailure,
    pg.DeadlockDetected,
    pg.ReadOnlySqlTransaction,
)
ABORTED = frozenset({"57014", "55P03", "53200"})  # timeout or cancelled, lock timeout, no memory
LIMIT_EXCEEDED = "54"  # class of SQLSTATE: too large or too complex
CONNECTION_ERRORS = (*UNAVAILABLE, psycopg.InternalError)
IDLE_TRUST = 0.5  # seconds for which an idle connection is used without a check
DISCARD_INTERVAL = 10.0  # seconds between two DISCARD PLANS of one connection
# In autocommit mode there is no BEGIN that could set the isolation level.
READ_COMMITTED = "SELECT set_config('default_transaction_isolation', 'read committed', false)"
# A generic plan does not know the LIMIT, so it looks expensive and would be compiled on every run.
CACHE_PLANS = (
    "set_config('plan_cache_mode', 'force_generic_plan', false), set_config('jit', 'off', false)"
)
MIGRATION_LOCK_PAUSE = 0.1  # seconds between two tries to get a lock
# A shorter timeout of the role, the database or the URL stays.
STATEMENT_TIMEOUT = (
    "set_config('statement_timeout', (SELECT COALESCE(least(NULLIF(CAST(setting AS bigint), 0), "
    "{0}), {0}) FROM pg_settings WHERE name = 'statement_timeout') || 'ms', false)"
)


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
        check_url("database_url", self.dsn)
        check_url("listen_url", self._listen_dsn)
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
        self._lock_limit: float | None = None
        self._last_failure = 0.0  # monotonic time of the last broken connection
        # (name, start of the server): ours, and those of callers' connections.
        self._database: tuple[Any, ...] = ()
        self._joined_databases: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = (
            weakref.WeakKeyDictionary()
        )
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

    def limit_lock_waits(self, seconds: float) -> None:
        self._lock_limit = seconds

    def _open_connections(self) -> ConnectionStack:
        with self._lock:
            if self._connections is None:
                # The claim/settle loop has its own pauses between tries.
                patience = 0.0 if self._caches_plans else CONNECT_PATIENCE
                self._connections = ConnectionStack(self._connect, self._is_working, patience)
            return self._connections

    def _connect(self) -> PooledConnection:
        options = connect_options(self.dsn) | {"prepare_threshold": self._prepare_threshold}
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
            settings.append(STATEMENT_TIMEOUT.format(milliseconds))
        if self._lock_limit is not None:
            milliseconds = round(self._lock_limit * 1000)
            settings.append(f"set_config('lock_timeout', '{milliseconds}', false)")
        return ", ".join(settings)

    def _is_working(self, connection: PooledConnection) -> bool:
        """Test a connection if it is older than the last failure, or has unread input."""
        if connection.closed:
            return False
        idle = time.monotonic() - connection.last_used
        suspect = connection.last_used <= self._last_failure
        if suspect or (idle > IDLE_TRUST and has_input(connection)):
            return answers(connection)
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
        """Raise StoreUnavailable if the error means that the connection is broken.

        An error about one statement says nothing about the connection.
        """
        state = getattr(error, "sqlstate", None) or ""
        if state in ABORTED:
            raise StatementAborted(f"PostgreSQL ended a statement: {error}") from error
        if state.startswith(LIMIT_EXCEEDED):
            raise StatementRefused(f"PostgreSQL refuses a statement: {error}") from error
        if isinstance(error, psycopg.InternalError) and not isinstance(error, UNAVAILABLE):
            if error.sqlstate is not None:  # an error of the server
                return
            # More results than statements, as a killed pooler may leave behind: the connection
            # cannot be trusted any more.
            for connection in borrowed:
                connection.close()
        if isinstance(error, pg.ReadOnlySqlTransaction):
            for connection in borrowed:  # its server is a standby now: connect to the primary
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
        joined = open_postgres_connection(connection)
        self._refuse_other_database(joined)
        return PostgresTransaction(joined, self)

    def _refuse_other_database(self, joined: JoinedConnection) -> None:
        """Raise ConnectionRefused if a caller's connection is not on our database.

        Each connection is asked once.
        """
        theirs = self._joined_databases.get(joined.driver_connection)
        if theirs is None:
            theirs = tuple(joined.execute(WHICH_DATABASE).fetchone())
            self._joined_databases[joined.driver_connection] = theirs
        if theirs == self._database:
            return
        with self.read() as tx:  # at first use, and after a restart of the server
            self._database = tx.which_database()
        if theirs != self._database:
            message = (
                f"connection= is open on database {theirs[0]}, not on that of {self.url}"
                f" ({self._database[0]}). Two ways out: (1) open both on the same database; "
                "(2) leave connection= out, and the job is committed on its own."
            )
            raise ConnectionRefused(message)

    # --- Schema ---
    def known_steps(self) -> list[migrations.Step]:
        return migrations.load_steps("postgres", self.prefix)

    def applied_steps(self) -> list[migrations.AppliedStep]:
        table = f"{self.prefix}schema"
        with self._connection() as connection:
            run: Callable[..., Any] = connection.execute
            if run("SELECT to_regclass(%s)", (table,)).fetchone()[0] is None:
                return []
            rows = run(f"SELECT {migrations.COLUMNS} FROM {table} ORDER BY 1").fetchall()
        return [migrations.AppliedStep(*row) for row in rows]

    def apply_steps(self, steps: Sequence[migrations.Step]) -> list[str]:
        with self._migration_lock():
            done = {row.number for row in self.applied_steps()}
            missing = [step for step in steps if step.row.number not in done]
            for group in migrations.group_steps(missing):
                self._apply_group(group)
        return [step.row.name for step in missing]

    @contextmanager
    def _migration_lock(self) -> Iterator[None]:
        """Let one process migrate at a time.

        CREATE INDEX CONCURRENTLY waits for all snapshots. So the lock is held by an idle
        transaction without one: a statement with parameters would keep its snapshot. Other
        processes poll, because a statement that waits for a lock has a snapshot too.
        """
        digest = hashlib.sha256(f"mulligan migrate {self.schema}".encode()).digest()
        key = int.from_bytes(digest[:8], signed=True)
        query = f"SELECT pg_try_advisory_xact_lock({key})"
        with self._connection() as connection:
            run: Callable[..., Any] = connection.execute
            run("SET LOCAL idle_in_transaction_session_timeout = 0", prepare=False)
            while not run(query, prepare=False).fetchone()[0]:
                time.sleep(MIGRATION_LOCK_PAUSE)
            yield

    def _apply_group(self, steps: Sequence[migrations.Step]) -> None:
        if steps[0].row.number == 1:
            self._create_schema(steps)
        elif steps[0].commits_each:
            for statement in steps[0].statements:
                self._run_by_itself(statement)
            self._run_locked([], steps)
        else:
            self._run_locked([step.text for step in steps], steps)

    def _create_schema(self, steps: Sequence[migrations.Step]) -> None:
        """Create the whole schema in one transaction. An empty one needs no CONCURRENTLY."""
        create_schema = f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"'
        create_table = (
            f"CREATE TABLE IF NOT EXISTS {self.prefix}schema (number INTEGER PRIMARY KEY, "
            "name TEXT NOT NULL, checksum TEXT NOT NULL, compatible_from INTEGER NOT NULL)"
        )
        texts = [step.text.replace(" CONCURRENTLY", "") for step in steps]
        self._run_locked([create_schema, create_table, *texts], steps)

    def _run_by_itself(self, statement: str) -> None:
        """Commit one statement. One with CONCURRENTLY blocks no other and may wait for locks."""
        if " CONCURRENTLY" not in statement:
            self._run_locked([statement], [])
            return
        with self.single_statement() as tx:
            tx.run_command(statement)

    def _run_locked(self, statements: Sequence[str], steps: Sequence[migrations.Step]) -> None:
        """Run statements and record steps in one transaction. Try again if a lock is taken."""
        for _ in range(migrations.LOCK_TRIES):
            try:
                with self._connection() as connection:
                    self._run_step(connection.execute, statements, steps)
            except StoreUnavailable as error:
                if not isinstance(error.__cause__, pg.LockNotAvailable):
                    raise
                time.sleep(MIGRATION_LOCK_PAUSE)
            else:
                return
        message = (
            f"a step of the schema got no lock in {migrations.LOCK_TRIES} tries of "
            f"{migrations.LOCK_TIMEOUT:g} s. Find long transactions in pg_stat_activity, end "
            "them, and run again: mulligan migrate"
        )
        raise StoreUnavailable(message)

    def _run_step(
        self,
        run: Callable[..., Any],
        statements: Sequence[str],
        steps: Sequence[migrations.Step],
    ) -> None:
        run(f"SET LOCAL lock_timeout = '{round(migrations.LOCK_TIMEOUT * 1000)}ms'")
        for statement in statements:
            run(statement)
        for step in steps:
            run(
                f"INSERT INTO {self.prefix}schema ({migrations.COLUMNS}) VALUES (%s, %s, %s, %s)",
                step.row,
            )

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
        options = connect_options(self.dsn) | {"connect_timeout": max(1, round(timeout))}
        try:
            psycopg.connect(self.dsn, **options).close()
        except psycopg.Error as error:
            if is_refusal(str(error)):
                message = f"PostgreSQL refused the connection: {error}"
                raise AccessDenied(message) from error
            raise unavailable(error) from error

    def receives_notifications(self) -> bool:
        # The listener tries again and again. This reports why it cannot connect.
        psycopg.connect(self._listen_dsn, connect_timeout=int(CONNECT_TIMEOUT)).close()
        listener = PostgresListener(self._listen_dsn, self.channel, self._send_notification)
        with closing(listener):
            return listener.prove()

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
        # The stack stays: a thread that is late uses a connection that is closed after its use.
        self._open_connections().close()
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


def unavailable(error: BaseException) -> StoreUnavailable:
    """Return the error for a server that cannot be used now."""
    return StoreUnavailable(f"PostgreSQL does not answer: {type(error).__name__}: {error}")


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
_inherited: list[Any] = []


def _after_fork() -> None:
    for store in list(_stores):
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
