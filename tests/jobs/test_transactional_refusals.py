"""A connection through which a job could be lost, or land elsewhere, is refused before anything is written."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import psycopg
import pytest
from sqlalchemy import create_engine

import mulligan.dbapi
from mulligan import Mulligan
from mulligan.core.errors import ConnectionRefused, SchemaError, StoreUnavailable, TwoLibraries

WAYS_OUT = r"(?s)\(1\).*\(2\)"


def with_ship(url: str) -> tuple[Mulligan, Any]:
    app = Mulligan(url)
    app.store.check_schema()

    @app.job(name="ship")
    def ship(order: int) -> None: ...

    return app, ship


@pytest.fixture
def shop(store_url: str) -> Iterator[tuple[Mulligan, Any]]:
    app, ship = with_ship(store_url)
    yield app, ship
    app.close()


@pytest.fixture
def shop_on_sqlite(sqlite_url: str) -> Iterator[tuple[Mulligan, Any]]:
    app, ship = with_ship(sqlite_url)
    yield app, ship
    app.close()


@pytest.fixture
def shop_on_postgres(postgres_url: str) -> Iterator[tuple[Mulligan, Any]]:
    app, ship = with_ship(postgres_url)
    yield app, ship
    app.close()


def file_of(app: Mulligan) -> Path:
    return Path(app.store.facts()["file"])


# -- another file --------------------------------------------------------------------------------
def test_a_connection_to_another_file_is_refused(shop_on_sqlite, tmp_path):
    app, ship = shop_on_sqlite
    with closing(mulligan.dbapi.connect(tmp_path / "other.db")) as other:
        with pytest.raises(ConnectionRefused, match=WAYS_OUT):
            ship.options(connection=other).enqueue(order=7)
        assert not other.in_transaction
    assert app.jobs.list() == []


def test_a_connection_to_another_postgres_database_is_refused(shop_on_postgres, ready_postgres_url):
    app, ship = shop_on_postgres
    with psycopg.connect(ready_postgres_url) as other:
        name = other.info.dbname
        for _ in range(2):
            with pytest.raises(
                ConnectionRefused, match=rf"(?s)on database {name}, not on.*\(1\).*\(2\)"
            ):
                ship.options(connection=other).enqueue(order=7)
        assert other.execute("SELECT count(*) FROM mulligan.job").fetchone() == (0,)
    assert app.jobs.list() == []


def test_a_connection_to_a_database_without_tables_is_refused(
    shop_on_postgres, postgres_server, postgres_url
):
    _, ship = shop_on_postgres
    empty = postgres_server.create_database()
    with (
        closing(psycopg.connect(empty)) as other,
        pytest.raises(ConnectionRefused, match="not on that of"),
    ):
        ship.options(connection=other).enqueue(order=7)
    postgres_server.drop_database(empty)


def test_a_caller_may_come_back_after_a_restart_of_the_server(postgres_server):
    app, ship = with_ship(postgres_server.create_database())
    url = app.settings.database_url
    with psycopg.connect(url) as connection:
        ship.options(connection=connection).enqueue(order=1)
    app.store._database = ("shop", "before the restart")
    with psycopg.connect(url) as connection:
        ship.options(connection=connection).enqueue(order=2)
    assert len(app.jobs.list()) == 2
    app.close()
    postgres_server.drop_database(url)


def test_a_connection_to_memory_is_refused(shop_on_sqlite):
    _, ship = shop_on_sqlite
    with (
        closing(mulligan.dbapi.connect(":memory:")) as other,
        pytest.raises(ConnectionRefused, match="temporary"),
    ):
        ship.options(connection=other).enqueue(order=7)


def test_another_path_to_the_same_file_is_accepted(shop_on_sqlite, tmp_path):
    app, ship = shop_on_sqlite
    link = tmp_path / "link.db"
    link.symlink_to(file_of(app))
    with closing(mulligan.dbapi.connect(link)) as connection, connection:
        ship.options(connection=connection).enqueue(order=7)
    assert len(app.jobs.list()) == 1


# -- another library -----------------------------------------------------------------------------
def test_two_threads_with_two_libraries_on_one_file_are_refused_and_lose_nothing(shop_on_sqlite):
    app, ship = shop_on_sqlite
    acknowledged: list[str] = []
    refused = threading.Event()

    def through_apsw() -> None:
        while not refused.is_set() or len(acknowledged) < 50:
            acknowledged.append(ship.enqueue(order=len(acknowledged)).id)

    thread = threading.Thread(target=through_apsw)
    thread.start()
    try:
        with pytest.raises(TwoLibraries, match=WAYS_OUT):
            enqueue_through_sqlite3(file_of(app), ship)
    finally:
        refused.set()
        thread.join()
    assert sorted(job.id for job in app.jobs.list(limit=len(acknowledged) + 1)) == sorted(
        acknowledged
    )


def enqueue_through_sqlite3(file: Path, ship: Any) -> None:
    with closing(sqlite3.connect(file)) as connection:
        ship.options(connection=connection).enqueue(order=-1)


def test_sqlalchemy_over_sqlite3_is_refused_with_the_fix(shop_on_sqlite):
    app, ship = shop_on_sqlite

    def through_sqlalchemy() -> None:
        engine = create_engine(f"sqlite:///{file_of(app)}")
        try:
            with engine.begin() as connection:
                ship.options(connection=connection).enqueue(order=7)
        finally:
            engine.dispose()

    with pytest.raises(TwoLibraries, match=r"sqlite\+mulligan"):
        through_sqlalchemy()
    assert app.jobs.list() == []


def test_sqlite3_cannot_open_a_file_held_by_apsw_even_for_reading(shop_on_sqlite):
    app, _ = shop_on_sqlite
    for name in (file_of(app), str(file_of(app)), f"file:{file_of(app)}?mode=ro"):
        with pytest.raises(TwoLibraries, match=WAYS_OUT):
            sqlite3.connect(name, uri=True)


def test_sqlite3_may_open_everything_else(shop_on_sqlite, tmp_path):
    for name in (":memory:", tmp_path / "other.db", str(tmp_path / "other.db").encode()):
        sqlite3.connect(name).close()


def test_a_file_that_sqlite3_holds_is_opened_neither_by_an_app_nor_by_our_dbapi(tmp_path):
    file = tmp_path / "app.db"
    with closing(sqlite3.connect(file)) as holder:
        holder.execute("CREATE TABLE orders (id)")
        with pytest.raises(TwoLibraries, match=WAYS_OUT):
            Mulligan(f"sqlite:///{file}").jobs.list()
        with pytest.raises(TwoLibraries, match=WAYS_OUT):
            mulligan.dbapi.connect(file)
    mulligan.dbapi.connect(file).close()


def test_an_app_on_the_standard_library_opens_a_file_that_sqlite3_holds(tmp_path):
    file = tmp_path / "app.db"
    with closing(sqlite3.connect(file)) as mine:
        mine.execute("CREATE TABLE orders (id)")
        app, ship = with_ship(f"sqlite+stdlib:///{file}")
        with mine:
            ship.options(connection=mine).enqueue(order=7)
        assert len(app.jobs.list()) == 1
        app.close()


def test_our_dbapi_is_refused_where_an_app_is_on_the_standard_library(tmp_path):
    app, _ = with_ship(f"sqlite+stdlib:///{tmp_path}/app.db")
    with pytest.raises(TwoLibraries, match=WAYS_OUT):
        mulligan.dbapi.connect(tmp_path / "app.db")
    app.close()


def test_a_closed_dbapi_connection_releases_the_file(tmp_path):
    mulligan.dbapi.connect(tmp_path / "app.db").close()
    app, _ = with_ship(f"sqlite+stdlib:///{tmp_path}/app.db")
    app.close()


def test_a_garbage_collected_dbapi_connection_releases_the_file(tmp_path):
    connection = mulligan.dbapi.connect(tmp_path / "app.db")
    connection.execute("CREATE TABLE orders (id)")
    del connection
    app, _ = with_ship(f"sqlite+stdlib:///{tmp_path}/app.db")
    app.close()


# -- another driver ------------------------------------------------------------------------------
class Psycopg2Connection:
    """Stands for psycopg2's: no async methods, and not psycopg 3."""

    __module__ = "psycopg2.extensions"
    __qualname__ = "connection"

    def cursor(self) -> None: ...
    def commit(self) -> None: ...


class AiomysqlConnection:
    """Stands for the connection of an async driver of another database."""

    __module__ = "asyncmy.connection"
    __qualname__ = "Connection"

    async def commit(self) -> None: ...


def test_a_foreign_driver_is_refused_by_its_name(shop):
    app, ship = shop
    with pytest.raises(ConnectionRefused, match=rf"psycopg2.extensions.connection.*{WAYS_OUT[4:]}"):
        ship.options(connection=Psycopg2Connection()).enqueue(order=7)
    assert app.jobs.list() == []


def test_an_unknown_driver_inside_sqlalchemy_is_refused_by_its_name(shop_on_postgres):
    _, ship = shop_on_postgres
    as_in_run_sync = SimpleNamespace(
        connection=SimpleNamespace(driver_connection=AiomysqlConnection()),
        in_transaction=lambda: True,
    )
    with pytest.raises(ConnectionRefused, match=r"asyncmy\.connection\.Connection"):
        ship.options(connection=as_in_run_sync).enqueue(order=7)


@pytest.mark.parametrize("nonsense", ["postgresql://", 7, object()])
def test_an_object_that_is_no_connection_is_refused(shop, nonsense):
    _, ship = shop
    with pytest.raises(ConnectionRefused, match=WAYS_OUT):
        ship.options(connection=nonsense).enqueue(order=7)


def test_an_async_connection_is_refused_with_what_to_do(shop):
    app, ship = shop
    with pytest.raises(ConnectionRefused, match=r"enqueue_async.*run_sync.*to_thread"):
        ship.options(connection=AiomysqlConnection()).enqueue(order=7)
    with pytest.raises(ConnectionRefused, match=r"asyncmy\.connection\.Connection.*\(1\)"):
        asyncio.run(ship.options(connection=AiomysqlConnection()).enqueue_async(order=7))
    assert app.jobs.list() == []


def test_psycopgs_async_connection_in_autocommit_is_refused(shop_on_postgres, postgres_url):
    app, ship = shop_on_postgres

    async def enqueue() -> None:
        connecting = psycopg.AsyncConnection.connect(postgres_url, autocommit=True)
        async with await connecting as connection:
            await ship.options(connection=connection).enqueue_async(order=7)

    with pytest.raises(ConnectionRefused, match="autocommit"):
        asyncio.run(enqueue())
    assert app.jobs.list() == []


# -- no transaction ------------------------------------------------------------------------------
def test_enqueue_without_a_transaction_is_refused_on_sqlite(shop_on_sqlite):
    app, ship = shop_on_sqlite
    engine = create_engine(
        f"sqlite:///{file_of(app)}", module=mulligan.dbapi, isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as core, pytest.raises(ConnectionRefused, match="autocommit"):
        ship.options(connection=core).enqueue(order=7)
    engine.dispose()
    with (
        closing(apsw.Connection(str(file_of(app)))) as raw,
        pytest.raises(ConnectionRefused, match=WAYS_OUT),
    ):
        ship.options(connection=raw).enqueue(order=7)
    assert app.jobs.list() == []


def test_enqueue_without_a_transaction_is_refused_on_the_standard_library(tmp_path):
    app, ship = with_ship(f"sqlite+stdlib:///{tmp_path}/app.db")
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as connection:
        with pytest.raises(ConnectionRefused, match="autocommit"):
            ship.options(connection=connection).enqueue(order=7)
        connection.execute("BEGIN")
        ship.options(connection=connection).enqueue(order=7)
        connection.execute("COMMIT")
    assert len(app.jobs.list()) == 1
    app.close()


def test_enqueue_without_a_transaction_is_refused_on_postgres(shop_on_postgres, postgres_url):
    app, ship = shop_on_postgres
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        with pytest.raises(ConnectionRefused, match="autocommit"):
            ship.options(connection=connection).enqueue(order=7)
        with connection.transaction():
            ship.options(connection=connection).enqueue(order=7)
    assert len(app.jobs.list()) == 1


def test_on_an_empty_sqlite_file_missing_tables_are_reported_at_once(sqlite_url):
    with (
        closing(mulligan.dbapi.connect(sqlite_url.partition("///")[2])) as connection,
        closing(Mulligan(sqlite_url)) as app,
    ):
        connection.execute("CREATE TABLE orders (id INTEGER)")
        with pytest.raises(SchemaError, match=r"mulligan migrate.*app\.open\(\)"):
            app.enqueue("ship", {"order": 7}, queue="post", connection=connection)
        connection.commit()
        app.open()
        app.enqueue("ship", {"order": 7}, connection=connection)
        connection.commit()
        assert len(app.jobs.list()) == 1


def test_on_a_foreign_file_the_error_names_the_fix(tmp_path):
    with closing(sqlite3.connect(tmp_path / "legacy.db")) as mine:
        mine.execute("CREATE TABLE orders (id INTEGER)")
        mine.execute("INSERT INTO orders VALUES (7)")
        with closing(Mulligan(f"sqlite+stdlib:///{tmp_path}/legacy.db")) as app:
            with pytest.raises(StoreUnavailable, match=r"app\.open\(\)"):
                app.enqueue("ship", {"order": 7}, connection=mine)
            mine.commit()
            app.open()
            app.enqueue("ship", {"order": 7}, connection=mine)
            mine.commit()
            assert len(app.jobs.list()) == 1


def test_a_postgresql_connection_on_a_sqlite_store_names_the_setting_of_tests(
    tmp_path, postgres_url
):
    _, ship = with_ship(f"sqlite:///{tmp_path}/jobs.db")
    with (
        psycopg.connect(postgres_url) as connection,
        pytest.raises(ConnectionRefused, match="MULLIGAN_TEST_URL"),
    ):
        ship.options(connection=connection).enqueue(order=7)
