"""The listener of PostgreSQL: no hint is lost, nothing blocks, and a silent connection is replaced."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from mulligan.core.errors import StoreUnavailable
from mulligan.storage import postgres_connections
from mulligan.storage.postgres_connections import ListenState, PostgresListener
from support.network import Network, network_to
from support.waiting import until

Connection = psycopg.Connection[Any]
LISTENERS = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"


@pytest.fixture
def caller(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def notify(caller: Connection) -> Callable[[str], None]:
    def send(payload: str) -> None:
        caller.execute("SELECT pg_notify('updates', %s)", (payload,))

    return send


@pytest.fixture
def network(postgres_url: str) -> Iterator[Network]:
    with network_to(postgres_url) as network:
        yield network


@pytest.fixture
def unproven() -> list[int]:
    return []


@pytest.fixture
def listener(
    network: Network, notify: Callable[[str], None], unproven: list[int]
) -> Iterator[PostgresListener]:
    opened = PostgresListener(network.url, "updates", notify, lambda: unproven.append(1))
    with closing(opened) as listener:
        yield listener


def reach(listener: PostgresListener, state: ListenState) -> None:
    """Run the listener until it is in a state and has no hint left."""

    def reached() -> bool:
        listener.wait(0.01)
        return listener.state is state

    until(reached, 20, f"the listener reaches {state}")
    while listener.wait(0):
        pass


def test_each_notification_is_a_hint_and_the_proof_is_none(
    listener: PostgresListener, notify: Callable[[str], None]
) -> None:
    assert listener.wait(20)  # for what was written before LISTEN
    reach(listener, ListenState.LISTENING)
    for payload in ("one", "two", "f\u00fcr alle"):
        notify(payload)
        assert listener.wait(20)
    assert not listener.wait(0.05)


def test_without_a_hint_it_waits_no_longer_than_the_timeout(listener: PostgresListener) -> None:
    reach(listener, ListenState.LISTENING)
    began = time.monotonic()
    assert not listener.wait(0.05)
    assert time.monotonic() - began >= 0.05


def test_a_wait_ends_when_it_is_woken(listener: PostgresListener) -> None:
    reach(listener, ListenState.LISTENING)
    reading, writing = os.pipe()
    os.write(writing, b"x")
    assert not listener.wait(60, reading)
    os.close(reading)
    os.close(writing)


def test_a_connection_that_the_server_closes_is_replaced(
    listener: PostgresListener, caller: Connection, notify: Callable[[str], None]
) -> None:
    reach(listener, ListenState.LISTENING)
    [(pid,)] = caller.execute(LISTENERS).fetchall()
    caller.execute("SELECT pg_terminate_backend(%s)", (pid,))
    assert listener.wait(20)  # something may have been written meanwhile
    reach(listener, ListenState.LISTENING)
    notify("one")
    assert listener.wait(20)


def test_a_connection_that_becomes_silent_is_replaced_after_the_next_proof(
    listener: PostgresListener,
    network: Network,
    unproven: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_connections, "LISTEN_PROOF_INTERVAL", 0.1)
    monkeypatch.setattr(postgres_connections, "LISTEN_PROOF_TIMEOUT", 0.5)
    reach(listener, ListenState.LISTENING)
    connected = network.listening
    network.mute_existing()
    until(lambda: listener.wait(0.01) is None or network.listening > connected, 20)
    reach(listener, ListenState.LISTENING)
    assert unproven == []  # a connection that once worked is not behind a pooler


def test_a_connection_whose_first_notification_is_lost_is_reported(
    listener: PostgresListener,
    network: Network,
    unproven: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_connections, "LISTEN_PROOF_TIMEOUT", 0.2)
    monkeypatch.setattr(listener, "_notify", lambda _: None)
    until(lambda: listener.wait(0.01) is None or unproven, 20)
    assert listener.state is ListenState.CLOSED


@pytest.mark.parametrize("answers", [False, True], ids=["never answers", "hangs at LISTEN"])
def test_a_server_that_does_not_answer_blocks_nothing(
    network: Network,
    listener: PostgresListener,
    monkeypatch: pytest.MonkeyPatch,
    answers: bool,
) -> None:
    monkeypatch.setattr(postgres_connections, "CONNECT_TIMEOUT", 0.3)
    monkeypatch.setattr(postgres_connections, "RECONNECT_PAUSE", 0.01)
    network.mute_new = not answers
    network.mute_listeners = answers
    began, longest = time.monotonic(), 0.0
    while time.monotonic() < began + 2:
        step = time.monotonic()
        listener.wait(0.02)
        longest = max(longest, time.monotonic() - step)
    assert longest < 0.3
    network.mute_new = network.mute_listeners = False
    reach(listener, ListenState.LISTENING)


def test_an_unreachable_server_blocks_nothing_and_raises_nothing() -> None:
    with closing(PostgresListener("postgresql://x@127.0.0.1:1/x", "updates", print)) as listener:
        for _ in range(3):
            began = time.monotonic()
            listener.wait(0.05)
            assert time.monotonic() - began < 2


def test_a_proof_that_cannot_be_sent_says_nothing_about_the_listener(
    listener: PostgresListener, unproven: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def unavailable(_: str) -> None:
        tries.append(1)
        raise StoreUnavailable("away")

    monkeypatch.setattr(postgres_connections, "RECONNECT_PAUSE", 0.01)
    notify = listener._notify
    monkeypatch.setattr(listener, "_notify", unavailable)
    until(lambda: listener.wait(0.01) is None or len(tries) > 2, 20)
    monkeypatch.setattr(listener, "_notify", notify)
    until(lambda: listener.wait(0.01) is None or listener.is_proven, 20)
    assert unproven == []
