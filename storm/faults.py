"""Faults by name. Each is a function of the world and a random source of its own; it returns when the fault is over."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from storm.crew import Member, signalled
from storm.proxy import BLACKHOLE, DELAY, HALF, LOSE, Proxy
from storm.world import World

Fault = Callable[[World, Random], None]
BOTH, SQLITE, POSTGRES = ("sqlite", "postgres"), ("sqlite",), ("postgres",)
LEASE = 4.0


class Kind(NamedTuple):
    fault: Fault
    weight: float
    stores: tuple[str, ...]
    of: str | None  # two of one sort at a time would only hide each other


KINDS: dict[str, Kind] = {}


def fault(weight: float, stores: tuple[str, ...] = BOTH, *, of: str | None = None) -> Callable[[Fault], Fault]:
    def keep(function: Fault) -> Fault:
        KINDS[function.__name__] = Kind(function, weight, stores, of)
        return function

    return keep


# -- processes ----------------------------------------------------------------------------------------
@fault(8)
def kill_runner(world: World, rng: Random) -> None:
    runners = [pid for worker in world.workers for pid in worker.runners()]
    if runners:
        signalled(rng.choice(runners), signal.SIGKILL)


@fault(5)
def kill_supervisor(world: World, rng: Random) -> None:
    rng.choice(world.workers).kill()


@fault(1)
def kill_all_workers(world: World, rng: Random) -> None:
    del rng
    for worker in world.workers:
        worker.kill()


@fault(2)
def kill_web(world: World, rng: Random) -> None:
    rng.choice(world.crew.named("web")).kill()


@fault(2)
def kill_client(world: World, rng: Random) -> None:
    rng.choice(world.crew.named("client")).kill()


@fault(3)
def end_worker(world: World, rng: Random) -> None:
    """SIGTERM; after a moment, as a platform does, sometimes SIGKILL."""
    worker = rng.choice(world.workers)
    worker.expected = True
    signalled(worker.pid, signal.SIGTERM)
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0.2, 2))
        worker.kill()


@fault(3)
def freeze_runner(world: World, rng: Random) -> None:
    runners = [pid for worker in world.workers for pid in worker.runners()]
    if runners:
        _frozen([rng.choice(runners)], rng.uniform(0.5, 2 * LEASE))


@fault(4)
def freeze_worker(world: World, rng: Random) -> None:
    """Supervisor and runners, for less or for more than a lease."""
    _frozen(rng.choice(world.workers).family(), rng.uniform(1, 3 * LEASE))


@fault(2)
def freeze_supervisor(world: World, rng: Random) -> None:
    """Its runners go on meanwhile."""
    worker = rng.choice(world.workers)
    _frozen([pid for pid in worker.family() if pid not in worker.runners()], rng.uniform(1, 3 * LEASE))


@fault(1)
def freeze_everybody(world: World, rng: Random) -> None:
    """A laptop that is closed and opened again."""
    pids = [pid for member in world.crew.members.values() for pid in member.family()]
    _frozen(pids, rng.uniform(LEASE, 3 * LEASE))


@fault(1)
def freeze_web(world: World, rng: Random) -> None:
    _frozen(rng.choice(world.crew.named("web")).family(), rng.uniform(1, 8))


def _frozen(pids: list[int], seconds: float) -> None:
    stopped = [pid for pid in pids if signalled(pid, signal.SIGSTOP)]
    try:
        time.sleep(seconds)
    finally:
        for pid in stopped:
            signalled(pid, signal.SIGCONT)


# -- the database -------------------------------------------------------------------------------------
@fault(4, POSTGRES, of="server")
def restart_postgres(world: World, rng: Random) -> None:
    _server(world).restart(rng.choice(("immediate", "immediate", "fast")))


@fault(1.5, POSTGRES, of="server")
def stop_postgres(world: World, rng: Random) -> None:
    """Gone for longer than a lease."""
    _server(world).stop("immediate")
    time.sleep(rng.uniform(LEASE, 15))
    _server(world).start()


@fault(5, POSTGRES)
def terminate_backends(world: World, rng: Random) -> None:
    from storm.looking import AWAY, ask  # noqa: PLC0415 - only here

    who = "pid <> pg_backend_pid() AND application_name = 'mulligan'"
    one = "" if rng.random() < 0.3 else " ORDER BY random() LIMIT 1"
    try:
        ask(world.url, f"SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE {who}{one}) x")
    except AWAY:
        return


def _server(world: World):  # type: ignore[no-untyped-def]  # noqa: ANN202 - of the tests, untyped
    assert world.server is not None
    return world.server


# -- the way to it ------------------------------------------------------------------------------------
@fault(4, POSTGRES)
def reset_connections(world: World, rng: Random) -> None:
    for proxy in _some(world, rng):
        proxy.reset()


@fault(3, POSTGRES, of="proxy")
def blackhole(world: World, rng: Random) -> None:
    """No byte passes in either direction, and no FIN; at the end all of them do."""
    _told(_some(world, rng), BLACKHOLE, rng.uniform(2, 4 * LEASE))


@fault(2, POSTGRES, of="proxy")
def slow_network(world: World, rng: Random) -> None:
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
    from contextlib import ExitStack  # noqa: PLC0415 - only here

    with ExitStack() as stack:
        for proxy in proxies:
            stack.enter_context(proxy.told(mode, **how))
        time.sleep(seconds)


# -- what the jobs use --------------------------------------------------------------------------------
@fault(1.5)
def gateway_down(world: World, rng: Random) -> None:
    flag = world.folder / "gateway-down"
    flag.touch()
    time.sleep(rng.uniform(2, 8))
    flag.unlink(missing_ok=True)


def possible(world: World, only: set[str] | None = None) -> dict[str, float]:
    """Kinds that can be made here, with their weights."""
    return {
        name: kind.weight
        for name, kind in KINDS.items()
        if world.store_name in kind.stores and name not in world.skipped and (only is None or name in only)
    }


class Injector:
    """Makes faults, each in a thread of its own; counts what was made."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.made: dict[str, int] = {}
        self.broken: list[str] = []  # faults that could not be made: a mistake of ours
        self.now: dict[int, str] = {}
        self._threads: list[threading.Thread] = []
        self._locks = {kind.of: threading.Lock() for kind in KINDS.values() if kind.of}
        self._lock = threading.Lock()

    def make(self, name: str, seed: int) -> None:
        thread = threading.Thread(target=self._run, args=(name, seed), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, name: str, seed: int) -> None:
        kind = KINDS[name]
        lock = self._locks.get(kind.of)
        if lock is not None and not lock.acquire(timeout=30):
            return
        me = threading.get_ident()
        self.now[me] = name
        try:
            kind.fault(self.world, Random(seed))
            with self._lock:
                self.made[name] = self.made.get(name, 0) + 1
        except Exception as error:  # noqa: BLE001 - told at the end
            self.broken.append(f"{name}: {type(error).__name__}: {error}")
        finally:
            self.now.pop(me, None)
            if lock is not None:
                lock.release()

    def wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def worker_of(world: World, rng: Random) -> Member:
    return rng.choice(world.workers)
