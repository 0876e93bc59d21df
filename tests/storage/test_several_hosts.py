"""Several hosts in the URL of PostgreSQL."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from mulligan import Mulligan
from mulligan.core.format import mask_password
from mulligan.storage.postgres_connections import PostgresListener, connect_options, split_hosts
from support.postgres import free_port


@pytest.fixture
def first_host_is_down(postgres_url):
    """Return the URL of a database whose first host does not listen."""
    parts = urlsplit(postgres_url)
    hosts = f"127.0.0.1:{free_port()},{parts.hostname}:{parts.port}"
    return f"postgresql://{parts.username}:{parts.password}@{hosts}{parts.path}"


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://a@db/app", [("db", None)]),
        ("postgresql:///app", [(None, None)]),
        ("postgresql://a@db1:1,db2:2/app", [("db1", "1"), ("db2", "2")]),
        ("postgresql://a@db1,db2/app?port=6432", [("db1", "6432"), ("db2", "6432")]),
    ],
)
def test_each_host_has_its_port(url, hosts):
    found = [(one.get("host"), one.get("port")) for one in split_hosts(url)]
    assert found == hosts


def test_of_several_hosts_the_one_that_accepts_writes_is_used():
    several = "postgresql://a@db1,db2/app"
    assert connect_options(several)["target_session_attrs"] == "read-write"
    assert "target_session_attrs" not in connect_options("postgresql://a@db1/app")
    assert "target_session_attrs" not in connect_options(f"{several}?target_session_attrs=any")


def test_the_password_of_several_hosts_is_masked():
    masked = mask_password("postgresql://app:secret@db1:5432,db2:5432/app")
    assert masked == "postgresql://app:***@db1:5432,db2:5432/app"


def test_jobs_run_while_the_first_host_is_down(first_host_is_down):
    app = Mulligan(first_host_is_down)
    app.job(name="add")(lambda a, b: a + b)
    job = app.enqueue("add", {"a": 1, "b": 2})
    app.run_inline()
    assert app.jobs.get(job.id).result == 3
    app.close()


def test_a_listener_goes_on_to_the_next_host(first_host_is_down, postgres_url):
    app = Mulligan(postgres_url).open()

    def notify(text):
        with app.store.transaction() as connection:
            connection.execute("SELECT pg_notify('several', %s)", (text,))

    listener = PostgresListener(first_host_is_down, "several", notify)
    assert listener.prove()
    listener.close()
    app.close()
