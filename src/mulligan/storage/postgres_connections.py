"""Connections to PostgreSQL: their options, the stack of idle ones, and the one that listens."""

from __future__ import annotations

import contextlib
import logging
import re
import select
import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus, PGconn, PollingStatus, TransactionStatus
from psycopg.pq.abc import PGconn as Libpq

from mulligan.core.errors import ConfigError, StoreUnavailable
from mulligan.core.format import mask_password
from mulligan.storage.base import HintListener
from mulligan.storage.postgres_transaction import PooledConnection

log = logging.getLogger("mulligan.storage")

# --- Options ---

# A server that vanishes silently must be noticed well within a lease.
KEEPALIVE: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "mulligan",
}


def connect_options(url: str) -> dict[str, Any]:
    """Return our options for a connection, without those that the URL has.

    Of several hosts only the one that accepts writes is used, unless the URL says otherwise.
    """
    in_url = conninfo_to_dict(url)
    options = dict(KEEPALIVE)
    if len(split_hosts(url)) > 1:
        options["target_session_attrs"] = "read-write"
    return {name: value for name, value in options.items() if name not in in_url}


def split_hosts(url: str) -> list[dict[str, Any]]:
    """Return the connection parameters of each host in a URL."""
    parameters = conninfo_to_dict(url)
    lists = {
        name: str(parameters[name]).split(",")
        for name in ("host", "hostaddr", "port")
        if parameters.get(name)
    }
    hosts = max((len(values) for values in lists.values()), default=1)
    # One port may stand for all hosts.
    return [
        parameters | {name: values[place % len(values)] for name, values in lists.items()}
        for place in range(hosts)
    ]


def check_url(name: str, url: str) -> None:
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


# --- Connections ---

MAX_CONNECTIONS = 16  # of one store
MAX_IDLE = 30.0  # seconds after which a connection that is not needed is closed
CONNECT_PATIENCE = 10.0  # seconds that a caller waits for a connection
CONNECT_RETRY = 0.2  # seconds between two tries
AUTHENTICATION_REFUSED = re.compile(
    r'authentication failed|no password supplied|no pg_hba.conf entry|role ".*" does not exist'
)
ANSWER_TIME = 2.0  # seconds for an answer that takes the server no work


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
                if is_refusal(str(error)) or time.monotonic() + CONNECT_RETRY > deadline:
                    raise
            else:
                connection.stack = self
                return connection
            time.sleep(CONNECT_RETRY)

    def give_back(self, connection: PooledConnection) -> None:
        """Take a connection back, and close those that were not needed recently."""
        is_clean = roll_back(connection)
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


def roll_back(connection: PooledConnection) -> bool:
    """Roll back what a block left open. False: the connection cannot be used any more."""
    status = connection.pgconn.transaction_status
    if status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
        with contextlib.suppress(psycopg.Error):
            connection.rollback()
        status = connection.pgconn.transaction_status
    return bool(status == TransactionStatus.IDLE)


def answers(connection: PooledConnection) -> bool:
    """True if the server answers soon on this connection."""
    limit = connection.statement_limit
    connection.statement_limit = ANSWER_TIME
    try:
        connection.execute("SELECT 1", prepare=False)
    except psycopg.Error:
        return False
    finally:
        connection.statement_limit = limit
    return roll_back(connection)


def has_input(connection: psycopg.Connection[Any]) -> bool:
    """True if there is unread input. A closed connection counts as input."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def is_refusal(text: str) -> bool:
    """True if the server refused to authenticate. libpq has no code for failed connections."""
    return AUTHENTICATION_REFUSED.search(text) is not None


# --- Listener ---

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
        # One host at a time: libpq would spend all the time on one that is silent.
        options = connect_options(url)
        self._hosts = [make_conninfo(**host, **options).encode() for host in split_hosts(url)]
        self._host = 0
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
            self._connection = PGconn.connect_start(self._hosts[self._host])
        except psycopg.Error as error:
            self._disconnect(RECONNECT_PAUSE, str(error))

    def _disconnect(self, pause: float, reason: str) -> None:
        """Close the connection. What was written since counts as a hint."""
        log.debug("the connection that listens is closed: %s", reason)
        if self.state in {ListenState.CONNECTING, ListenState.SUBSCRIBING}:
            self._host = (self._host + 1) % len(self._hosts)
            if self._host:
                pause = 0.0
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

    def prove(self) -> bool:
        """Wait until our own notification arrives. False: it did not within a few seconds."""
        deadline = time.monotonic() + CONNECT_TIMEOUT + LISTEN_PROOF_TIMEOUT
        while self.state is not ListenState.LISTENING and time.monotonic() < deadline:
            self.wait(0.1)
        return self.is_proven

    def close(self) -> None:
        if self._connection is not None:
            self._connection.finish()
            self._connection = None
