"""The gateway of the outage tests is itself to be trusted: it does and tells what they believe."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from math import inf

import pytest

from support.gateway import (
    CLIENT_GONE,
    FLAP,
    HANG,
    OK,
    REFUSE,
    SLOW,
    Call,
    Gateway,
    Mode,
    bad_periods,
    busiest_second,
    most_in_flight,
    per_second,
)
from support.waiting import until

pytestmark = pytest.mark.processes


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway(capacity=5, takes=0.05)
    yield made
    made.close()


def status(gateway: Gateway, tag: str = "a", timeout: float = 5.0) -> int:
    try:
        with urllib.request.urlopen(f"{gateway.url}/call/{tag}?by=7", timeout=timeout) as answer:  # noqa: S310 - our own gateway
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return CLIENT_GONE


def test_the_gateway_serves_its_capacity_and_refuses_more_within_a_second(gateway: Gateway) -> None:
    threads = [threading.Thread(target=status, args=(gateway,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(call.status for call in gateway.calls()) == [200] * 5 + [503] * 3
    until(lambda: status(gateway) == 200, 3, "a second later it serves again")


def test_the_gateway_fails_is_slow_or_recovers_on_command(gateway: Gateway) -> None:
    assert status(gateway) == 200
    gateway.set_mode(REFUSE)
    assert status(gateway) == 503
    gateway.set_mode(SLOW, 10)
    assert status(gateway) == 200
    gateway.set_mode(OK)
    gateway.poison("bad")
    assert (status(gateway, "bad"), status(gateway, "good")) == (500, 200)
    took = [call.ended - call.began for call in gateway.calls() if call.ended]
    assert took[2] >= 0.5
    assert max(took[0], took[1], took[3]) < 0.4


def test_the_gateway_hangs_until_its_caller_disconnects(gateway: Gateway) -> None:
    gateway.set_mode(HANG)
    thread = threading.Thread(target=status, args=(gateway, "hung", 0.5))
    thread.start()
    assert until(gateway.in_flight) == [("hung", 7)]
    thread.join()
    until(lambda: not gateway.in_flight(), 2)
    assert [(call.tag, call.status) for call in gateway.calls()] == [("hung", CLIENT_GONE)]


def test_a_flapping_gateway_begins_with_failures(gateway: Gateway) -> None:
    since = gateway.set_mode(FLAP, 0.5)
    assert status(gateway) == 503
    until(lambda: time.monotonic() > since + 0.55)
    assert status(gateway) == 200
    assert bad_periods(gateway.modes(), since + 1.2)[-2:] == [
        (since, since + 0.5, REFUSE),
        (since + 1.0, since + 1.2, REFUSE),
    ]


def test_recorded_calls_are_counted_by_second_and_by_span() -> None:
    calls = [
        Call(0.0, "a", 1, 1, 3.0, 200),
        Call(0.9, "b", 1, 2, 1.0, 503),
        Call(1.5, "c", 1, 2, None, None),
    ]
    assert per_second(calls, 0, 2) == [(1, 1), (0, 1), (0, 0)]
    assert busiest_second(calls, 0, inf) == 2
    assert [most_in_flight(calls, *span) for span in ((0, 9), (1.1, 1.4), (3.1, 9))] == [2, 1, 1]
    assert bad_periods([Mode(0, OK), Mode(1, HANG), Mode(2, OK)], 5) == [(1, 2, HANG)]
