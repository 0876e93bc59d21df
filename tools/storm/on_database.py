"""Faults of PostgreSQL and of the way to it: restarts, ended sessions, a network that resets, swallows and delays."""

from __future__ import annotations

import time
from contextlib import ExitStack
from random import Random

from storm.faults import LEASE, POSTGRES, fault
from storm.looking import AWAY, ask
from storm.proxy import BLACKHOLE, DELAY, HALF, LOSE, Proxy
from storm.world import World


@fault(4, POSTGRES, of="server")
def restart_postgres(world: World, rng: Random) -> None:
    """PostgreSQL is restarted, mostly as by a crash."""
    _server(world).restart(rng.choice(("immediate", "immediate", "fast")))


@fault(1.5, POSTGRES, of="server")
def stop_postgres(world: World, rng: Random) -> None:
    """PostgreSQL is gone for longer than a lease."""
    _server(world).stop("immediate")
    time.sleep(rng.uniform(LEASE, 15))
    _server(world).start()


@fault(5, POSTGRES)
def terminate_backends(world: World, rng: Random) -> None:
    """The server ends one of our sessions, or all."""
    who = "pid <> pg_backend_pid() AND application_name = 'mulligan'"
    one = "" if rng.random() < 0.3 else " ORDER BY random() LIMIT 1"
    try:
        ask(
            world.url,
            f"SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE {who}{one}) x",
        )  # noqa: S608 - of our own words
    except AWAY:
        return


def _server(world: World):  # type: ignore[no-untyped-def]  # noqa: ANN202 - of the tests, untyped
    assert world.server is not None
    return world.server


# -- the way to it -------------------------------------------------------------------------------
@fault(4, POSTGRES)
def reset_connections(world: World, rng: Random) -> None:
    """Connections get a RST."""
    for proxy in _some(world, rng):
        proxy.reset()


@fault(3, POSTGRES, of="proxy")
def blackhole(world: World, rng: Random) -> None:
    """No byte passes in either direction, and no FIN; at the end all of them do."""
    _told(_some(world, rng), BLACKHOLE, rng.uniform(2, 4 * LEASE))


@fault(2, POSTGRES, of="proxy")
def slow_network(world: World, rng: Random) -> None:
    """Every byte is late by 20 to 200 ms."""
    _told(_some(world, rng), DELAY, rng.uniform(3, 10), pause=rng.uniform(0.02, 0.2))


@fault(3, POSTGRES, of="proxy")
def half_open(world: World, rng: Random) -> None:
    """Questions arrive, answers do not."""
    _told(_some(world, rng), HALF, rng.uniform(1, 2 * LEASE))


@fault(6, POSTGRES, of="proxy")
def lose_commit_answers(world: World, rng: Random) -> None:
    """COMMIT is done, and nobody is told: the connection is reset instead."""
    _told(_some(world, rng), LOSE, rng.uniform(1, 5), share=rng.choice((0.1, 0.3, 1.0)))


def _some(world: World, rng: Random) -> list[Proxy]:
    proxies = list(world.proxies.values())
    return proxies if rng.random() < 0.3 else [rng.choice(proxies)]


def _told(proxies: list[Proxy], mode: str, seconds: float, **how: float) -> None:
    with ExitStack() as stack:
        for proxy in proxies:
            stack.enter_context(proxy.told(mode, **how))
        time.sleep(seconds)
