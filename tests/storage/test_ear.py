"""The ear of a connection: nothing that NOTIFY told is left unheard, however it came."""

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
        connection.execute("LISTEN news")
        yield connection


@pytest.fixture
def caller(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def test_it_hears_what_others_tell_and_each_word_once(
    listening: Connection, caller: Connection
) -> None:
    ear = NotifyReader(listening)
    for said in ("one", "two"):
        caller.execute("SELECT pg_notify('news', %s)", (said,))
    told: list[str] = []
    while len(told) < 2:
        told += ear.wait_for_payloads(20)
    assert told == ["one", "two"]
    assert ear.wait_for_payloads(0) == []


@pytest.mark.parametrize("questions", [1, 3])
def test_it_hears_what_came_with_an_answer_to_somebodys_question(
    listening: Connection, caller: Connection, questions: int
) -> None:
    ear = NotifyReader(listening)
    caller.execute("NOTIFY news, 'said'")
    for _ in range(questions):
        listening.execute("SELECT 1")
    assert ear.wait_for_payloads(20) == ["said"]


def test_it_hears_what_it_told_itself_in_the_middle_of_an_answer(listening: Connection) -> None:
    ear = NotifyReader(listening)
    listening.execute("SELECT pg_notify('news', n::text) FROM generate_series(1, 50) AS n")
    assert ear.wait_for_payloads(20) == [str(n) for n in range(1, 51)]


def test_where_nobody_speaks_it_waits_no_longer_than_it_may(listening: Connection) -> None:
    assert NotifyReader(listening).wait_for_payloads(0.001) == []


def test_an_end_of_the_line_is_told_by_an_error(listening: Connection, caller: Connection) -> None:
    ear = NotifyReader(listening)
    caller.execute("SELECT pg_terminate_backend(%s)", (listening.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        [ear.wait_for_payloads(20) for _ in range(100)]


def test_a_line_that_broke_under_a_question_is_told_by_an_error_whoever_has_its_number_now(
    listening: Connection, caller: Connection
) -> None:
    ear = NotifyReader(listening)
    caller.execute("SELECT pg_terminate_backend(%s)", (listening.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        [listening.execute("SELECT 1") for _ in range(100)]
    with pytest.raises(psycopg.OperationalError, match="closed"):
        ear.wait_for_payloads(0)


def test_a_word_that_is_no_text_is_heard_all_the_same(
    postgres_url: str, caller: Connection
) -> None:
    with psycopg.connect(postgres_url, autocommit=True, client_encoding="latin1") as listening:
        listening.execute("LISTEN news")
        ear = NotifyReader(listening)
        caller.execute("SELECT pg_notify('news', %s)", ("für alle",))
        assert len(ear.wait_for_payloads(20)) == 1
