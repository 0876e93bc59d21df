"""Two real PostgreSQL servers with synchronous streaming replication, for tests of failover."""

from __future__ import annotations

import time
from typing import Self
from urllib.parse import urlsplit

import psycopg

from support.postgres import PostgresServer, PostgresUnavailable, free_port

SLOT_TIME = 30.0  # seconds until a new standby streams


class Standby(PostgresServer):
    """A copy of a primary that follows it until it is promoted."""

    def __init__(self, primary: PostgresServer, port: int | None = None) -> None:
        self._primary = primary
        self._port = port or free_port()
        super().__init__()

    def _initialise(self) -> None:
        source = self._primary.url("postgres")
        done = self._run(
            "pg_basebackup",
            "--no-sync",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--write-recovery-conf",
            f"--dbname={source}",
            "-D",
            self._data,
        )
        if done.returncode:
            raise PostgresUnavailable(f"pg_basebackup failed: {done.stdout}")
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(f"port = '{self._port}'\n")
        parts = urlsplit(source)
        host = f"{parts.username}:{parts.password}@127.0.0.1:{self._port}"
        self._admin_url = f"postgresql://{host}/postgres"

    def promote(self) -> None:
        """Let it accept writes. Its transactions wait for no standby until it has one."""
        run_sql(self, "ALTER SYSTEM SET synchronous_standby_names = ''")
        run_sql(self, "SELECT pg_reload_conf()")
        run_sql(self, "SELECT pg_promote(true, 60)")


def run_sql(server: PostgresServer, statement: str) -> list[tuple[object, ...]]:
    """Run a statement on a connection of its own."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


class Pair:
    """A primary and a standby whose transactions commit on both. `fail_over` swaps them."""

    def __init__(self) -> None:
        self.primary: PostgresServer = PostgresServer()
        self.standby = Standby(self.primary)
        self._ports = (_port(self.primary), _port(self.standby))
        self._wait_for_commits()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.standby.close()
        self.primary.close()

    def url(self, database: str) -> str:
        """Return a URL with both hosts, in one order however often they were swapped."""
        parts = urlsplit(self.primary.url(database))
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"postgresql://{parts.username}:{parts.password}@{hosts}{parts.path}"

    def fail_over(self) -> None:
        """Kill the primary like a crash of its host, and promote the standby."""
        self.primary.stop("immediate")
        self.standby.promote()

    def rebuild(self) -> None:
        """Make a new standby in place of the server that failed."""
        old, new_primary = self.primary, self.standby
        port = _port(old)
        old.close()
        self.primary = new_primary
        self.standby = Standby(new_primary, port)
        self._wait_for_commits()

    def _wait_for_commits(self) -> None:
        """Let commits wait for the standby, once it streams."""
        run_sql(self.primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        run_sql(self.primary, "SELECT pg_reload_conf()")
        deadline = time.monotonic() + SLOT_TIME
        streaming = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        while not run_sql(self.primary, streaming):
            assert time.monotonic() < deadline, f"no standby streams: {self.standby.log()}"
            time.sleep(0.05)


def _port(server: PostgresServer) -> int:
    port = urlsplit(server.url("postgres")).port
    assert port is not None
    return port
