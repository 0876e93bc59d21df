"""Faults of PostgreSQL and of the network to it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from random import Random

from storm.faults import LEASE, POSTGRES, fault
from storm.proxy import BLACKHOLE, DELAY, HALF, HANG_LISTENERS, LOSE, Proxy
from storm.queries import DATABASE_ERRORS, query
from storm.world import World


@fault(4, POSTGRES, group="server")
def restart_postgres(world: World, rng: Random) -> None:
    """PostgreSQL is restarted, mostly as after a crash."""
    _server(world).restart(rng.choice(("immediate", "immediate", "fast")))


@fault(1.5, POSTGRES, group="server")
def stop_postgres(world: World, rng: Random) -> None:
    """PostgreSQL is down for longer than a lease."""
    _server(world).stop("immediate")
    time.sleep(rng.uniform(LEASE, 15))
    _server(world).start()


@fault(5, POSTGRES)
def terminate_backends(world: World, rng: Random) -> None:
    """The server terminates one of our sessions, or all."""
    condition = "pid <> pg_backend_pid() AND application_name = 'mulligan'"
    limit = "" if rng.random() < 0.3 else " ORDER BY random() LIMIT 1"
    sessions = f"SELECT pid FROM pg_stat_activity WHERE {condition}{limit}"  # noqa: S608 - constants
    try:
        query(world.url, f"SELECT pg_terminate_backend(pid) FROM ({sessions}) x")  # noqa: S608 - same
    except DATABASE_ERRORS:
        return


def _server(world: World):  # type: ignore[no-untyped-def]  # noqa: ANN202 - the tests are untyped
    assert world.server is not None
    return world.server


# --- Network ---
@fault(4, POSTGRES)
def reset_connections(world: World, rng: Random) -> None:
    """Connections are reset (RST)."""
    for proxy in _pick_proxies(world, rng):
        proxy.reset()


@fault(3, POSTGRES, group="proxy")
def blackhole(world: World, rng: Random) -> None:
    """No byte and no FIN passes in either direction; at the end all of them arrive."""
    _set_mode(_pick_proxies(world, rng), BLACKHOLE, rng.uniform(2, 4 * LEASE))


@fault(2, POSTGRES, group="proxy")
def hung_listener(world: World, rng: Random) -> None:
    """Connections that listen hang without a FIN; all others work."""
    _set_mode([world.proxies["workers"]], HANG_LISTENERS, rng.uniform(2 * LEASE, 8 * LEASE))


@fault(2, POSTGRES, group="proxy")
def slow_network(world: World, rng: Random) -> None:
    """Every byte is delayed by 20 to 200 ms."""
    _set_mode(_pick_proxies(world, rng), DELAY, rng.uniform(3, 10), pause=rng.uniform(0.02, 0.2))


@fault(3, POSTGRES, group="proxy")
def half_open(world: World, rng: Random) -> None:
    """Requests reach the server, answers are lost."""
    _set_mode(_pick_proxies(world, rng), HALF, rng.uniform(1, 2 * LEASE))


@fault(6, POSTGRES, group="proxy")
def lose_commit_answers(world: World, rng: Random) -> None:
    """A COMMIT succeeds, but the connection is reset before its answer arrives."""
    _set_mode(_pick_proxies(world, rng), LOSE, rng.uniform(1, 5), share=rng.choice((0.1, 0.3, 1.0)))


def _pick_proxies(world: World, rng: Random) -> list[Proxy]:
    proxies = list(world.proxies.values())
    return proxies if rng.random() < 0.3 else [rng.choice(proxies)]


def _set_mode(proxies: list[Proxy], mode: str, seconds: float, **options: float) -> None:
    with ExitStack() as stack:
        for proxy in proxies:
            stack.enter_context(proxy.set_mode(mode, **options))
        time.sleep(seconds)
