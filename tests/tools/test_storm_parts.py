"""The parts of the fault storm: a plan that is one with its seed, a proxy that loses what it should, a count."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest
from storm.counting import Facts, violations
from storm.plan import counted, plan
from storm.pointed import caller
from storm.proxy import BLACKHOLE, HALF, LOSE, Proxies, Proxy

from support.waiting import until

WEIGHTS = {"kill": 5.0, "freeze": 2.0, "full_disk": 0.1}


def test_one_seed_is_one_plan_and_another_is_another() -> None:
    assert plan(1, 300, WEIGHTS, 3) == plan(1, 300, WEIGHTS, 3) != plan(2, 300, WEIGHTS, 3)


def test_every_fault_comes_at_least_once_where_there_is_time() -> None:
    assert counted(plan(3, 60, WEIGHTS, 3)).keys() == WEIGHTS.keys()


def test_faults_come_in_order_and_within_the_time() -> None:
    moments = [fault.at for fault in plan(4, 120, WEIGHTS, 2)]
    assert moments == sorted(moments)
    assert 0 < moments[0] < moments[-1] < 120


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    made = Proxies()
    yield made
    made.close()


@contextmanager
def echo() -> Iterator[int]:
    """A server that says what it hears."""
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


def dialled(proxy: Proxy) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    line.sendall(b"hello")
    assert line.recv(100) == b"hello"
    return line


def test_what_is_swallowed_arrives_when_the_hole_is_gone(proxies: Proxies) -> None:
    with echo() as port, dialled(proxy := proxies.to(port)) as line:
        with proxy.told(BLACKHOLE):
            until(lambda: proxy.mode == BLACKHOLE)
            line.settimeout(0.2)
            line.sendall(b"still there?")
            with pytest.raises(TimeoutError):
                line.recv(100)
        line.settimeout(10)
        assert line.recv(100) == b"still there?"


def test_a_line_on_which_answers_were_lost_is_reset(proxies: Proxies) -> None:
    with echo() as port, dialled(proxy := proxies.to(port)) as line:
        with proxy.told(HALF):
            until(lambda: proxy.mode == HALF)
            line.sendall(b"anybody?")
            line.settimeout(0.2)
            with pytest.raises(TimeoutError):
                line.recv(100)
        line.settimeout(10)
        with pytest.raises(ConnectionResetError):
            line.recv(100)


def test_a_commit_whose_answer_is_lost_has_happened(proxies: Proxies, postgres_url: str) -> None:
    direct = psycopg.conninfo.conninfo_to_dict(postgres_url)
    proxy = proxies.to(int(direct["port"]))
    way = psycopg.conninfo.make_conninfo(postgres_url, port=proxy.port)
    with psycopg.connect(postgres_url, autocommit=True) as seen:
        seen.execute("CREATE TABLE kept (n INTEGER)")
        with closing(psycopg.connect(way)) as connection:
            connection.execute("INSERT INTO kept VALUES (1)")
            with proxy.told(LOSE):
                until(lambda: proxy.mode == LOSE)
                with pytest.raises(psycopg.OperationalError):
                    connection.commit()
        assert proxy.lost == 1
        assert seen.execute("SELECT n FROM kept").fetchall() == [(1,)]


def test_a_point_is_named_by_who_opened_the_transaction() -> None:
    import sys

    assert caller(sys._getframe()).endswith(
        "test_parts.test_a_point_is_named_by_who_opened_the_transaction"
    )


def facts(**said: object) -> Facts:
    sound = {
        "jobs": {"a": ("plain", "succeeded", 1)},
        "ok": {"a"},
        "rolled_back": set(),
        "ended": {("a", 1)},
        "stories": {"a": ["job.queued", "job.started", "job.succeeded"]},
    }
    return Facts(**{**sound, **said})  # type: ignore[arg-type]


def test_counting_finds_nothing_in_a_sound_store() -> None:
    assert violations(facts()) == []


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"ok": {"a", "b"}}, "accepted and not there: b"),
        ({"rolled_back": {"a"}}, "rolled back and there: a"),
        ({"ended": set()}, "succeeded without having come to its end"),
        ({"stories": {"a": ["job.succeeded", "job.died"]}}, "ended twice"),
    ],
)
def test_counting_finds_what_is_wrong(said: dict[str, object], sentence: str) -> None:
    (found,) = violations(facts(**said))
    assert sentence in found
