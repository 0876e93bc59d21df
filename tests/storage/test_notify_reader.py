"""NotifyReader: no notification is lost, however it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from mulligan.storage.postgres import NotifyReader

Connection = psycopg.Connection[Any]


@pytest.fixture
def listening(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("LISTEN updates")
        yield connection


@pytest.fixture
def caller(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def test_each_notification_is_received_once(listening: Connection, caller: Connection) -> None:
    reader = NotifyReader(listening)
    for payload in ("one", "two"):
        caller.execute("SELECT pg_notify('updates', %s)", (payload,))
    payloads: list[str] = []
    while len(payloads) < 2:
        payloads += reader.wait_for_payloads(20)
    assert payloads == ["one", "two"]
    assert reader.wait_for_payloads(0) == []


@pytest.mark.parametrize("questions", [1, 3])
def test_a_notification_that_arrives_with_a_result_is_received(
    listening: Connection, caller: Connection, questions: int
) -> None:
    reader = NotifyReader(listening)
    caller.execute("NOTIFY updates, 'one'")
    for _ in range(questions):
        listening.execute("SELECT 1")
    assert reader.wait_for_payloads(20) == ["one"]


def test_a_notification_to_itself_during_a_result_is_received(listening: Connection) -> None:
    reader = NotifyReader(listening)
    listening.execute("SELECT pg_notify('updates', n::text) FROM generate_series(1, 50) AS n")
    assert reader.wait_for_payloads(20) == [str(n) for n in range(1, 51)]


def test_without_notifications_it_waits_no_longer_than_the_timeout(listening: Connection) -> None:
    assert NotifyReader(listening).wait_for_payloads(0.001) == []


def test_a_closed_connection_raises(listening: Connection, caller: Connection) -> None:
    reader = NotifyReader(listening)
    caller.execute("SELECT pg_terminate_backend(%s)", (listening.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        [reader.wait_for_payloads(20) for _ in range(100)]


def test_a_connection_that_broke_during_a_query_raises_even_if_its_descriptor_was_reused(
    listening: Connection, caller: Connection
) -> None:
    reader = NotifyReader(listening)
    caller.execute("SELECT pg_terminate_backend(%s)", (listening.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        [listening.execute("SELECT 1") for _ in range(100)]
    with pytest.raises(psycopg.OperationalError, match="closed"):
        reader.wait_for_payloads(0)


def test_a_payload_that_is_not_utf8_is_received(postgres_url: str, caller: Connection) -> None:
    with psycopg.connect(postgres_url, autocommit=True, client_encoding="latin1") as listening:
        listening.execute("LISTEN updates")
        reader = NotifyReader(listening)
        caller.execute("SELECT pg_notify('updates', %s)", ("für alle",))
        assert len(reader.wait_for_payloads(20)) == 1
