"""Parts of the fault storm: the plan of faults, the proxy, the independent count."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest
from storm.commit_points import caller
from storm.counting import Facts, violations
from storm.plan import count_faults, plan
from storm.proxy import BLACKHOLE, HALF, HANG_LISTENERS, LOSE, Proxies, Proxy

from support.waiting import until

WEIGHTS = {"kill": 5.0, "freeze": 2.0, "full_disk": 0.1}


def test_the_plan_depends_only_on_the_seed() -> None:
    assert plan(1, 300, WEIGHTS, 3) == plan(1, 300, WEIGHTS, 3) != plan(2, 300, WEIGHTS, 3)


def test_every_fault_is_planned_at_least_once_if_there_is_time() -> None:
    assert count_faults(plan(3, 60, WEIGHTS, 3)).keys() == WEIGHTS.keys()


def test_faults_are_planned_in_order_and_within_the_time() -> None:
    times = [fault.at for fault in plan(4, 120, WEIGHTS, 2)]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < 120


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    made = Proxies()
    yield made
    made.close()


@contextmanager
def echo() -> Iterator[int]:
    """Run a server that echoes what it receives."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

        def talk(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                while data := connection.recv(1000):
                    connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def connect(proxy: Proxy) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    connection.sendall(b"hello")
    assert connection.recv(100) == b"hello"
    return connection


def test_blocked_bytes_arrive_when_the_blackhole_ends(proxies: Proxies) -> None:
    with echo() as port, connect(proxy := proxies.to(port)) as connection:
        with proxy.set_mode(BLACKHOLE):
            until(lambda: proxy.mode == BLACKHOLE)
            connection.settimeout(0.2)
            connection.sendall(b"still there?")
            with pytest.raises(TimeoutError):
                connection.recv(100)
        connection.settimeout(10)
        assert connection.recv(100) == b"still there?"


def test_a_connection_that_lost_answers_is_reset(proxies: Proxies) -> None:
    with echo() as port, connect(proxy := proxies.to(port)) as connection:
        with proxy.set_mode(HALF):
            until(lambda: proxy.mode == HALF)
            connection.sendall(b"anybody?")
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(100)
        connection.settimeout(10)
        with pytest.raises(ConnectionResetError):
            connection.recv(100)


def test_only_a_connection_that_listens_hangs(proxies: Proxies) -> None:
    with echo() as port:
        proxy = proxies.to(port)
        with connect(proxy) as listener, connect(proxy) as other:
            listener.sendall(b"LISTEN jobs")
            assert listener.recv(100) == b"LISTEN jobs"
            with proxy.set_mode(HANG_LISTENERS):
                until(lambda: proxy.mode == HANG_LISTENERS)
                listener.sendall(b"hello")
                other.sendall(b"hello")
                assert other.recv(100) == b"hello"
                listener.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    listener.recv(100)
            listener.settimeout(10)
            assert listener.recv(100) == b"hello"


def test_a_commit_whose_answer_is_lost_is_durable(proxies: Proxies, postgres_url: str) -> None:
    direct = psycopg.conninfo.conninfo_to_dict(postgres_url)
    proxy = proxies.to(int(direct["port"]))
    proxied_url = psycopg.conninfo.make_conninfo(postgres_url, port=proxy.port)
    with psycopg.connect(postgres_url, autocommit=True) as observer:
        observer.execute("CREATE TABLE item (n INTEGER)")
        with closing(psycopg.connect(proxied_url)) as connection:
            connection.execute("INSERT INTO item VALUES (1)")
            with proxy.set_mode(LOSE):
                until(lambda: proxy.mode == LOSE)
                with pytest.raises(psycopg.OperationalError):
                    connection.commit()
        assert proxy.lost == 1
        assert observer.execute("SELECT n FROM item").fetchall() == [(1,)]


def test_a_point_is_named_after_the_function_that_opened_the_transaction() -> None:
    import sys

    assert caller(sys._getframe()).endswith(
        "test_storm_parts.test_a_point_is_named_after_the_function_that_opened_the_transaction"
    )


def facts(**changes: object) -> Facts:
    consistent = {
        "jobs": {"a": ("plain", "succeeded", 1)},
        "ok": {"a"},
        "rolled_back": set(),
        "ended": {("a", 1)},
        "stories": {"a": ["job.queued", "job.started", "job.succeeded"]},
    }
    return Facts(**{**consistent, **changes})  # type: ignore[arg-type]


def test_counting_finds_no_violation_in_a_consistent_database() -> None:
    assert violations(facts()) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ok": {"a", "b"}}, "accepted but missing: b"),
        ({"rolled_back": {"a"}}, "rolled back but present: a"),
        ({"ended": set()}, "succeeded although its handler did not finish"),
        ({"stories": {"a": ["job.succeeded", "job.died"]}}, "ended twice"),
    ],
)
def test_counting_finds_violations(changes: dict[str, object], sentence: str) -> None:
    (found,) = violations(facts(**changes))
    assert sentence in found
