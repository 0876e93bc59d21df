"""PostgreSQL: a pool, transactions, LISTEN as a hint, the schema.

Works behind a transaction pooler: no session settings, no session locks, names fully qualified. Whether
LISTEN and prepared statements survive the way to the server is tried, not assumed (`watch`).
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
from mulligan.storage.base import MAX_IDLE_WAIT, Store, UnlimitedLanes
from mulligan.storage.foreign import PostgresConnection, open_postgres_connection
from mulligan.storage.postgres_transaction import PooledConnection, PostgresTransaction, warm_up
from mulligan.storage.url import mask_password

# What a connection is told by NOTIFY, with as little between the socket and who waits as there can be: an idle worker


class NotifyReader:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._told: list[str] = []
        self._socket = select.poll()
        self._socket.register(connection.fileno(), select.POLLIN)
        connection.add_notify_handler(
            lambda note: self._told.append(note.payload)
        )  # what comes with an answer

    def wait_for_payloads(self, seconds: float) -> list[str]:
        """What it was told since it was last asked; waits for it."""
        if self._connection.closed:  # and its descriptor may be somebody else's by now
            message = "the connection that listens is closed"
            raise psycopg.OperationalError(message)
        self._take_in()  # what was read with an answer lies in the driver: the socket does not tell of it
        if not self._told and self._socket.poll(seconds * 1000):
            self._connection.pgconn.consume_input()
            self._take_in()
        told, self._told = self._told, []
        return told

    def _take_in(self) -> None:
        while (note := self._connection.pgconn.notifies()) is not None:
            self._told.append(note.extra.decode(errors="replace"))


# PostgreSQL: a pool, transactions, LISTEN as a hint, the schema.

log = logging.getLogger("mulligan.storage")

# A server that is gone without a word must be noticed well within a lease.
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
IDLE_TRUST = 0.5  # seconds for which a connection that just worked is believed to work
REPLAN_EVERY = 10.0  # seconds
LISTEN_PROOF_TIMEOUT = 2.0  # seconds to wait for our own nonce
LISTEN_PROOF_INTERVAL = 60.0
AUTHENTICATION_REFUSED = re.compile(
    r'authentication failed|no password supplied|no pg_hba.conf entry|role ".*" does not exist'
)
# A statement alone has no BEGIN that would say so.
READ_COMMITTED = "SELECT set_config('default_transaction_isolation', 'read committed', false)"
# A plan that does not know how few are wanted looks expensive where many wait, and would be compiled each time it runs.
KEEP_PLANS = f"{READ_COMMITTED}, set_config('plan_cache_mode', 'force_generic_plan', false), set_config('jit', 'off', false)"

T = TypeVar("T")


class _ListeningConnection(threading.local):
    connection: psycopg.Connection[Any] | None = None


class PostgresStore(Store):
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
        for name, given in (("database_url", self.dsn), ("listen_url", self._listen_dsn)):
            _check_url(name, given)
        self.url = mask_password(self.dsn)
        self.schema = schema
        self.prefix = f'"{schema}".'
        self.channel = f"mulligan_{schema}"
        self.notify_callers = notify_callers
        self.prepared = True
        self._habits = False
        self._apart: PostgresStore | None = None
        self._lock = threading.Lock()
        self._at_hand = _ListeningConnection()
        self._pool: ConnectionPool[psycopg.Connection[Any]] | None = None
        self._doubted = 0.0  # when a way to the server was last found broken
        self._replanned: weakref.WeakKeyDictionary[psycopg.Connection[Any], float] = (
            weakref.WeakKeyDictionary()
        )
        _stores.add(self)

    # -- connections ------------------------------------------------------------------------------
    def dedicated(self) -> PostgresStore:
        """With connections of its own, on which plans are kept from the first time on. A pool hands its connections out
        in turns, and each would plan each statement ten times before it keeps the plan: 1.5 to 2 ms each time.
        """
        with self._lock:
            if self._apart is None:
                twin = PostgresStore(
                    self.dsn, schema=self.schema, notify_callers=self.notify_callers
                )
                twin.prepared, twin._habits, twin._at_hand = self.prepared, True, self._at_hand
                self._apart = twin
            return self._apart

    def _open_pool(self) -> ConnectionPool[psycopg.Connection[Any]]:
        with self._lock:
            if self._pool is None:
                self._pool = ConnectionPool(
                    self.dsn,
                    connection_class=PooledConnection,
                    kwargs=KEEPALIVE
                    | {"prepare_threshold": self._prepare_after if self.prepared else None},
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
    def _prepare_after(self) -> int:
        return 1 if self._habits else 5

    def after_fork(self) -> None:
        """In a forked child the parent's sockets are not ours: leave them alone and start afresh."""
        _inherited.append(self._pool)
        self._pool = None
        self._lock = threading.Lock()

    def _configure(self, connection: psycopg.Connection[Any]) -> None:
        """Each statement must see what was committed before it, whatever the database's own default says.

        A pooler between us and the server gives itself away by the wrong process id; what one statement prepares
        there, the next one may not find.
        """
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        with connection.transaction():
            found = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
            pooled = found is not None and found[0] != connection.info.backend_pid
            if not pooled:  # a pooler would hand it on to others
                connection.execute(KEEP_PLANS if self._habits else READ_COMMITTED, prepare=False)
        if pooled:
            connection.prepare_threshold = None

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        """Ask one that is new or in doubt, and one that was idle if it has something to say: who leaves says so."""
        used = connection.last_used if isinstance(connection, PooledConnection) else 0.0
        if used <= self._doubted or (time.monotonic() - used > IDLE_TRUST and _speaks(connection)):
            ConnectionPool.check_connection(connection)

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction."""
        lent: list[psycopg.Connection[Any]] = []
        try:
            with self._open_pool().connection() as connection:
                lent.append(connection)
                if connection.autocommit:
                    connection.autocommit = False
                yield connection
                self.mark_used(connection)
        except CONNECTION_ERRORS as error:
            self.raise_if_unavailable(error, lent)
            raise

    def raise_if_unavailable(
        self, error: BaseException, lent: Sequence[psycopg.Connection[Any]]
    ) -> None:
        """Say it in our words if it speaks of the way to the server."""
        if isinstance(error, psycopg.InternalError) and not isinstance(error, UNAVAILABLE):
            if error.sqlstate is not None:  # the server's own word
                return
            # More answers than questions, as a pooler may leave them that was killed: no word on this line counts.
            for connection in lent:
                connection.close()
        self._doubted = (
            time.monotonic()
        )  # where one is dead the others may be: ask each before its next use
        raise unavailable(error) from error

    def borrow_connection(
        self,
    ) -> tuple[ConnectionPool[psycopg.Connection[Any]], psycopg.Connection[Any]]:
        """A connection on which each statement is a transaction, and where to put it back."""
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
        if isinstance(connection, PooledConnection):
            connection.last_used = time.monotonic()

    @property
    def listening_connection(self) -> psycopg.Connection[Any] | None:
        """One that is awake in this thread already."""
        return self._at_hand.connection

    def discard_plans(self, connection: PostgresConnection) -> None:
        """But not over and over: it may be slow for other reasons."""
        if not isinstance(connection, psycopg.Connection):
            return
        now = time.monotonic()
        if now - self._replanned.get(connection, -REPLAN_EVERY) >= REPLAN_EVERY:
            self._replanned[connection] = now
            connection.execute("DISCARD PLANS", prepare=False)

    @contextmanager
    def begin(self) -> Iterator[PostgresTransaction]:
        with self._connection() as connection:
            yield PostgresTransaction(connection, self)

    def single_statement(self) -> AbstractContextManager[PostgresTransaction]:
        """A statement alone is a transaction: one trip instead of three."""
        return _Once(self)

    def read(self) -> AbstractContextManager[PostgresTransaction]:
        """Nothing is written and no two answers need to agree: each statement for itself."""
        return _Once(self)

    def warm_up(self) -> None:
        if self.prepared:
            with self.single_statement() as unit:
                warm_up(unit)

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

    # -- schema -----------------------------------------------------------------------------------
    def migrate(self, *, dry_run: bool = False) -> list[str]:
        todo = migrations.pending_steps(
            migrations.load_steps("postgres", self.prefix), self._applied()
        )
        return migrations.apply_steps(todo, self._take_steps, dry_run=dry_run)

    def is_empty(self) -> bool:
        return not self._applied()

    def check_schema(self) -> None:
        if migrations.pending_steps(
            migrations.load_steps("postgres", self.prefix), self._applied()
        ):
            message = (
                f"schema {self.schema!r} of {self.url} is not up to date; run: mulligan migrate"
            )
            raise SchemaError(message)

    def _take_steps(self, steps: list[migrations.Step]) -> list[str]:
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
            return [step.name for step in steps if self._take_step(run, step)]

    def _take_step(self, run: Callable[..., Any], step: migrations.Step) -> bool:
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

    # -- hints and upkeep ---------------------------------------------------------------------------
    def watch(
        self,
        hint: Callable[[], None],
        stop: threading.Event,
        busy: Callable[[], bool] = lambda: False,
        idle: Callable[[], float] = lambda: MAX_IDLE_WAIT,
    ) -> None:
        """LISTEN until stopped; whatever breaks, the caller's poll goes on underneath."""
        del busy  # to listen costs nothing
        warned = False
        while not stop.is_set():
            try:
                heard = self._listen(hint, stop, idle)
            except UNAVAILABLE:
                hint()  # nobody hears from now on
                stop.wait(1.0)
                continue
            if not heard and not stop.is_set():
                hint()
                if not warned:
                    log.warning(
                        "LISTEN does not reach this process (a transaction pooler?): polling instead, "
                        "prepared statements off. Set listen_url to a direct connection to get wake-ups."
                    )
                    warned = True
                self.disable_prepared_statements()
                stop.wait(LISTEN_PROOF_INTERVAL)

    def _listen(
        self, hint: Callable[[], None], stop: threading.Event, quiet: Callable[[], float]
    ) -> bool:
        """False: we did not hear our own nonce, so nothing else will arrive either."""
        with PooledConnection.connect(self._listen_dsn, autocommit=True, **KEEPALIVE) as connection:
            self._configure(connection)
            ear = NotifyReader(connection)
            connection.execute(f'LISTEN "{self.channel}"')
            hint()  # for what came before we could hear it
            proved, pause = 0.0, MAX_IDLE_WAIT
            while not stop.is_set():
                if time.monotonic() - proved > LISTEN_PROOF_INTERVAL:
                    if not self._hears(ear, hint):
                        return False
                    self._rehearse(connection)
                    proved = time.monotonic()
                if ear.wait_for_payloads(min(pause, MAX_IDLE_WAIT)):
                    self._over(connection, hint)
                else:
                    pause = self._over(connection, quiet)
        return True

    def _rehearse(self, connection: psycopg.Connection[Any]) -> None:
        """A claim for nobody, so that the first ones after a hint need not wait for a plan: it takes ten of them until
        the server keeps one by itself, each several times as long as the claim.
        """
        if self._listen_dsn != self.dsn or connection.prepare_threshold is None:
            return
        connection.prepare_threshold = 0
        connection.execute(KEEP_PLANS, prepare=False)  # of this session, as LISTEN is
        PostgresTransaction(connection, self, autocommit=True).read_state_and_claim_one(
            "", UnlimitedLanes((), 0, 0)
        )

    def _over(self, connection: psycopg.Connection[Any], call: Callable[[], T]) -> T:
        """What the one who is called asks next, it asks over the connection that is awake already."""
        if self._listen_dsn == self.dsn:
            self._at_hand.connection = connection
        try:
            return call()
        finally:
            self._at_hand.connection = None

    def _hears(self, ear: NotifyReader, hint: Callable[[], None]) -> bool:
        nonce = f"nonce {uuid4()}"
        with self._connection() as other:
            other.execute("SELECT pg_notify(%s, %s)", (self.channel, nonce))
        deadline = time.monotonic() + LISTEN_PROOF_TIMEOUT
        while (left := deadline - time.monotonic()) > 0:
            told = ear.wait_for_payloads(left)
            if any(said != nonce for said in told):
                hint()
            if nonce in told:
                return True
        return False

    def disable_prepared_statements(self) -> None:
        """Somebody stands between us and the server."""
        with self._lock:
            if not self.prepared:
                return
            self.prepared = False
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(timeout=5)
        if self._apart is not None:
            self._apart.disable_prepared_statements()

    def check_connection(self, timeout: float = 5.0) -> None:
        """A pool tries until its time is up and does not say why; one plain connection does."""
        try:
            psycopg.connect(
                self.dsn, **KEEPALIVE | {"connect_timeout": max(1, round(timeout))}
            ).close()
        except psycopg.Error as error:
            if _is_refusal(str(error)):
                message = f"PostgreSQL does not let us in: {error}"
                raise AccessDenied(message) from error
            raise unavailable(error) from error

    def receives_notifications(self) -> bool:
        with psycopg.connect(self._listen_dsn, autocommit=True, **KEEPALIVE) as connection:
            connection.execute(f'LISTEN "{self.channel}"')
            return self._hears(NotifyReader(connection), lambda: None)

    def reclaim_space(self) -> None:
        """Autovacuum is told to come early by the schema; there is nothing to do by hand."""

    def shift_clock(self, by: Micros) -> None:
        with self._connection() as connection:
            run: Callable[..., Any] = connection.execute
            moved = run(
                f"INSERT INTO {self.prefix}meta VALUES ('clock_offset', %s) ON CONFLICT (key) DO UPDATE "
                f"SET value = CAST(CAST({self.prefix}meta.value AS bigint) + CAST(excluded.value AS bigint) AS text) "
                "RETURNING xmax <> 0",
                (str(by),),
            ).fetchone()[0]
            if not moved:  # for the first time; a new function makes every session plan anew
                run(
                    f"CREATE OR REPLACE FUNCTION {self.prefix}now_us() RETURNS BIGINT LANGUAGE sql STABLE AS $$ "
                    "SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) + "
                    f"(SELECT CAST(value AS bigint) FROM {self.prefix}meta WHERE key = 'clock_offset') $$"
                )
            run("SELECT pg_notify(%s, '')", (self.channel,))  # something may have become due

    def erase(self) -> None:
        with self._connection() as connection:
            run: Callable[..., Any] = connection.execute
            run(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE')

    def facts(self) -> dict[str, str]:
        with self._connection() as connection:
            run: Callable[..., Any] = connection.execute
            version, sync, fsync, size, pid = run(
                "SELECT current_setting('server_version'), current_setting('synchronous_commit'), "
                "current_setting('fsync'), pg_size_pretty(pg_database_size(current_database())), pg_backend_pid()"
            ).fetchone()
            pooled = pid != connection.info.backend_pid
        return {
            "store": "postgresql",
            "url": self.url,
            "schema": self.schema,
            "server": version,
            "synchronous_commit": sync
            if sync in {"on", "remote_apply"}
            else f"{sync} (weaker than on)",
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
        if self._apart is not None:
            self._apart.close()


class _Once(AbstractContextManager[PostgresTransaction]):
    """Not a generator, and not the pool's own block, which would commit: every enqueue passes here."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._lent: (
            tuple[ConnectionPool[psycopg.Connection[Any]], psycopg.Connection[Any]] | None
        ) = None

    def __enter__(self) -> PostgresTransaction:
        at_hand = self._store.listening_connection
        if at_hand is not None:
            return PostgresTransaction(at_hand, self._store, autocommit=True)
        try:
            self._lent = self._store.borrow_connection()
        except CONNECTION_ERRORS as error:
            self._store.raise_if_unavailable(error, ())
            raise
        return PostgresTransaction(self._lent[1], self._store, autocommit=True)

    def __exit__(self, cls: object, error: BaseException | None, trace: object) -> None:
        if self._lent is None:
            if isinstance(error, UNAVAILABLE):
                raise unavailable(error) from error
            return
        pool, connection = self._lent
        if error is None:
            self._store.mark_used(connection)
        pool.putconn(connection)
        if isinstance(error, CONNECTION_ERRORS):
            self._store.raise_if_unavailable(error, [connection])


def _speaks(connection: psycopg.Connection[Any]) -> bool:
    """Is there something to read that nobody asked for? An end of the line is read too."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _is_refusal(text: str) -> bool:
    """libpq gives no code for a connection that was never made."""
    return AUTHENTICATION_REFUSED.search(text) is not None


def unavailable(error: BaseException) -> StoreUnavailable:
    return StoreUnavailable(f"PostgreSQL does not answer: {type(error).__name__}: {error}")


def _check_url(name: str, url: str) -> None:
    """What the driver would say of one it cannot read may be the very password that is written wrongly."""
    try:
        readable = "@" not in str(conninfo_to_dict(url).get("host", ""))
    except psycopg.ProgrammingError:
        readable = False
    if not readable:
        message = (
            f"{name} cannot be read as an address of PostgreSQL ({mask_password(url)}); "
            "in a password write %20 for a space, %25 for %, %2F for / and %40 for @"
        )
        raise ConfigError(message)


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
_inherited: list[Any] = []


def _after_fork() -> None:
    for store in list(_stores):
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
