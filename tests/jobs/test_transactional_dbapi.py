"""mulligan.dbapi: what sqlite3 promises, what SQLAlchemy asks for, and transactions that wait instead of failing."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, date, datetime, time
from pathlib import Path

import pytest
from sqlalchemy import (
    Date,
    DateTime,
    Integer,
    LargeBinary,
    String,
    create_engine,
    event,
    exc,
    inspect,
    select,
    text,
)
from sqlalchemy.engine import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from mulligan import dbapi

BOUND = 20.0  # seconds; only a deadlock waits this long


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with closing(dbapi.connect(tmp_path / "app.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT UNIQUE)")
    return tmp_path / "app.db"


@pytest.fixture
def connection(file: Path) -> Iterator[dbapi.Connection]:
    with closing(dbapi.connect(file)) as connection:
        yield connection


@pytest.fixture
def other(file: Path) -> Iterator[dbapi.Connection]:
    with closing(dbapi.connect(file)) as connection:
        yield connection


@pytest.fixture
def engine(file: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{file}", module=dbapi)
    yield engine
    engine.dispose()


def ids(connection: dbapi.Connection) -> list[int]:
    return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]


# -- transactions --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "write",
    [
        "INSERT INTO orders VALUES (1, 'a')",
        "/* why */ -- how\n UPDATE orders SET note = 'b'",
        "WITH new AS (SELECT 1) INSERT INTO orders (id) SELECT * FROM new",
        "CREATE TABLE more (id INTEGER)",
        "SAVEPOINT here",
    ],
)
def test_a_transaction_begins_before_the_first_write(connection, write):
    connection.execute(write)
    assert connection.in_transaction
    connection.rollback()
    assert not connection.in_transaction
    assert ids(connection) == []
    assert connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall() == [
        ("orders",)
    ]


@pytest.mark.parametrize(
    "read",
    [
        "SELECT * FROM orders",
        "PRAGMA user_version = 7",
        "EXPLAIN DELETE FROM orders",
        "VACUUM",
        "-- nothing",
    ],
)
def test_other_statements_begin_no_transaction(connection, read):
    connection.execute(read)
    assert not connection.in_transaction


def test_a_connection_that_read_first_waits_for_the_writer_and_then_writes(connection, other):
    committed = threading.Event()
    other.execute("INSERT INTO orders VALUES (1, 'theirs')")
    assert ids(connection) == []

    def write() -> bool:
        connection.execute("INSERT INTO orders VALUES (2, 'mine')")
        connection.commit()
        return committed.is_set()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(write)
        committed.set()
        other.commit()
        assert waiting.result(timeout=BOUND)
    assert ids(connection) == [1, 2]


def test_a_read_after_a_savepoint_stays_current_until_the_write(file, connection):
    """In a deferred transaction it can, and then the write is "database is locked" for good."""
    connection.execute("SAVEPOINT here")
    assert ids(connection) == []
    with (
        closing(dbapi.connect(file, timeout=0)) as hasty,
        pytest.raises(dbapi.OperationalError, match="locked"),
    ):
        hasty.execute("INSERT INTO orders VALUES (1, 'theirs')")
    connection.execute("INSERT INTO orders VALUES (1, 'mine')")
    connection.commit()
    assert ids(connection) == [1]


def test_a_partially_read_select_does_not_block_writes(connection, other):
    with connection:
        connection.executemany("INSERT INTO orders (id) VALUES (?)", [(1,), (2,), (3,)])
    reading = connection.execute("SELECT id FROM orders ORDER BY id")
    assert reading.fetchone() == (1,)
    with other:
        other.execute("INSERT INTO orders (id) VALUES (4)")
    with connection:
        connection.execute("INSERT INTO orders (id) VALUES (5)")
    assert reading.fetchall() == [(2,), (3,)]


def test_the_busy_timeout_is_the_callers(file, other):
    other.execute("INSERT INTO orders VALUES (1, 'theirs')")
    with (
        closing(dbapi.connect(file, timeout=0)) as hasty,
        pytest.raises(dbapi.OperationalError, match="locked"),
    ):
        hasty.execute("INSERT INTO orders VALUES (2, 'mine')")


def test_rows_of_a_write_need_not_be_read_before_the_commit(connection):
    cursor = connection.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b') RETURNING id")
    connection.commit()
    assert cursor.fetchall() == [(1,), (2,)]


def test_an_explicit_transaction_is_not_changed(connection):
    connection.isolation_level = None
    connection.execute("INSERT INTO orders VALUES (1, 'a')")
    assert not connection.in_transaction
    connection.execute("BEGIN")
    connection.execute("INSERT INTO orders VALUES (2, 'b')")
    connection.rollback()
    assert ids(connection) == [1]


def test_an_unknown_isolation_level_is_refused(connection):
    with pytest.raises(dbapi.ProgrammingError, match="isolation_level"):
        connection.isolation_level = "SERIALIZABLE"


def test_a_block_commits_or_rolls_back_and_leaves_the_connection_open(connection):
    with connection:
        connection.execute("INSERT INTO orders VALUES (1, 'a')")
    with pytest.raises(dbapi.IntegrityError), connection:
        connection.executemany("INSERT INTO orders VALUES (?, ?)", [(2, "b"), (2, "b")])
    assert ids(connection) == [1]


def test_close_rolls_back_and_may_be_called_twice(file):
    connection = dbapi.connect(file)
    connection.execute("INSERT INTO orders VALUES (1, 'a')")
    connection.close()
    connection.close()
    with closing(dbapi.connect(file)) as after:
        assert ids(after) == []


def test_what_is_committed_is_on_the_disk(connection):
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


# -- cursors -------------------------------------------------------------------------------------
def test_cursor_attributes_match_sqlite3(connection):
    with closing(sqlite3.connect(":memory:")) as reference:
        reference.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT UNIQUE)")
        attributes = [facts(reference.cursor()), facts(connection.cursor())]
    assert attributes[0] == attributes[1]


def facts(cursor: sqlite3.Cursor | dbapi.Cursor) -> list[object]:
    values: list[object] = []
    for sql, params in [
        ("INSERT INTO orders (note) VALUES (?)", ("a",)),
        ("INSERT INTO orders (note) VALUES (:note) -- trailing", {"note": "b"}),
        ("UPDATE orders SET note = note || '!'", ()),
        ("SELECT id, note AS n FROM orders WHERE id > 5", ()),
        ("SELECT id, note AS n FROM orders;", ()),
        ("DELETE FROM orders WHERE id = 1 RETURNING note", ()),
    ]:
        cursor.execute(sql, params)
        rows = cursor.fetchmany(1) + cursor.fetchall()
        values.append(
            (cursor.description, cursor.rowcount, cursor.lastrowid, rows, cursor.fetchone())
        )
    cursor.executemany("INSERT INTO orders (note) VALUES (?)", [("x",), ("y",)])
    return [*values, cursor.rowcount]


@pytest.mark.parametrize(
    ("sql", "params", "error"),
    [
        ("INSERT INTO orders VALUES ('x', 'a')", (), dbapi.IntegrityError),
        ("SELEC", (), dbapi.OperationalError),
        ("SELECT * FROM missing", (), dbapi.OperationalError),
        ("SELECT ?", (), dbapi.ProgrammingError),
        ("SELECT :a", {}, dbapi.ProgrammingError),
        ("SELECT ?", (object(),), dbapi.ProgrammingError),
        ("SELECT 1; SELECT 2", (), dbapi.ProgrammingError),
        ("INSERT INTO orders VALUES (1, 'a'); DROP TABLE orders", (), dbapi.ProgrammingError),
    ],
)
def test_error_classes_match_sqlite3(connection, sql, params, error):
    with pytest.raises(error):
        connection.execute(sql, params)
    assert issubclass(error, sqlite3.DatabaseError)
    assert ids(connection) == []


def test_a_closed_connection_raises_the_error_that_sqlalchemy_expects(connection):
    connection.close()
    with pytest.raises(dbapi.ProgrammingError, match=r"Cannot operate on a closed database\."):
        connection.execute("SELECT 1")


def test_a_file_that_is_no_database_is_refused_and_released(tmp_path):
    (tmp_path / "text.db").write_text("no database" * 1000)
    with pytest.raises(dbapi.DatabaseError):
        dbapi.connect(tmp_path / "text.db")
    with pytest.raises(dbapi.OperationalError, match="unable to open"):
        dbapi.connect(tmp_path / "missing" / "app.db")
    sqlite3.connect(tmp_path / "text.db").close()


def test_options_that_would_be_ignored_are_refused(file):
    for option in ({"uri": True}, {"detect_types": dbapi.PARSE_DECLTYPES}):
        with pytest.raises(dbapi.NotSupportedError):
            dbapi.connect(file, **option)


def test_dates_are_written_as_sqlite3_writes_them(connection):
    given = (datetime(2024, 2, 29, 12, 30, tzinfo=UTC), date(2024, 2, 29), time(12, 30))
    assert connection.execute("SELECT ?, ?, ?", given).fetchone() == (
        "2024-02-29 12:30:00+00:00",
        "2024-02-29",
        "12:30:00",
    )


def test_executescript_commits_first_and_runs_unchanged(connection):
    connection.execute("INSERT INTO orders VALUES (1, 'a')")
    connection.executescript(
        "INSERT INTO orders VALUES (2, 'b'); INSERT INTO orders VALUES (3, 'c');"
    )
    connection.rollback()
    assert ids(connection) == [1, 2, 3]


# -- SQLAlchemy ----------------------------------------------------------------------------------
class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "note"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(String(50), unique=True)
    body: Mapped[bytes] = mapped_column(LargeBinary)
    day: Mapped[date] = mapped_column(Date)
    at: Mapped[datetime] = mapped_column(DateTime)


NAIVE_TIME = datetime(2024, 2, 29, 12, 30)  # noqa: DTZ001 - DateTime columns hold naive times


def a_note(name: str) -> Note:
    return Note(name=name, body=b"\x00\xff", day=date(2024, 2, 29), at=NAIVE_TIME)


def test_the_orm_writes_reads_and_reflects(engine):
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([a_note(f"note {number}") for number in range(100)])
    with Session(engine) as session:
        note = session.scalars(select(Note).where(Note.name == "note 42")).one()
        assert (note.body, note.day, note.at) == (
            b"\x00\xff",
            date(2024, 2, 29),
            NAIVE_TIME,
        )
        note.name = "changed"
        session.commit()
        assert session.scalars(select(Note.name).where(Note.name.regexp_match("^chan"))).all() == [
            "changed"
        ]
    assert [column["name"] for column in inspect(engine).get_columns("note")] == [
        "id",
        "name",
        "body",
        "day",
        "at",
    ]


def test_sqlalchemy_wraps_our_errors(engine):
    Base.metadata.create_all(engine)
    with (
        pytest.raises(exc.IntegrityError, match="UNIQUE"),
        Session(engine) as session,
        session.begin(),
    ):
        session.add_all([a_note("twice"), a_note("twice")])


def test_tables_are_created_inside_the_transaction(engine):
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE more (id INTEGER)"))
        connection.rollback()
    assert not inspect(engine).has_table("more")


def test_a_nested_block_is_rolled_back_separately(engine):
    with engine.begin() as connection:
        nested = connection.begin_nested()
        connection.execute(text("INSERT INTO orders VALUES (1, 'a')"))
        nested.rollback()
        connection.execute(text("INSERT INTO orders VALUES (2, 'b')"))
    with engine.connect() as connection:
        assert connection.scalars(text("SELECT id FROM orders")).all() == [2]


def test_autocommit_behaves_as_sqlalchemy_defines_it(engine):
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("INSERT INTO orders VALUES (1, 'a')"))
    with engine.connect() as connection:
        assert connection.scalars(text("SELECT id FROM orders")).all() == [1]
        connection.execute(text("INSERT INTO orders VALUES (2, 'b')"))
        connection.rollback()
        assert connection.scalars(text("SELECT id FROM orders")).all() == [1]


def test_foreign_keys_are_enabled_as_in_the_sqlalchemy_manual(engine):
    @event.listens_for(engine, "connect")
    def switch_on(connection: dbapi.Connection, _: object) -> None:
        before, connection.autocommit = connection.autocommit, True
        connection.execute("PRAGMA foreign_keys=ON").close()
        connection.autocommit = before

    with engine.connect() as connection:
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1


def test_a_database_in_memory_is_bound_to_no_file():
    engine = create_engine("sqlite://", module=dbapi)
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT sqlite_version()")) == dbapi.sqlite_version
    engine.dispose()


def test_threads_that_open_a_new_file_at_once_use_one_library(tmp_path):
    """A descriptor that is open for an instant must not look like another SQLite library."""
    for attempt in range(30):
        file = tmp_path / f"{attempt}.db"
        start = threading.Barrier(8)

        def connect(file=file, start=start):
            start.wait()
            dbapi.connect(file).close()

        with ThreadPoolExecutor(8) as pool:
            for connected in [pool.submit(connect) for _ in range(8)]:
                connected.result()
