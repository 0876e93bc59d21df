"""Registry of faults. A fault is a function of the world and an rng; it returns when it is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from storm.world import World

Fault = Callable[[World, Random], None]
BOTH, SQLITE, POSTGRES = ("sqlite", "postgres"), ("sqlite",), ("postgres",)
LEASE = 4.0


class FaultSpec(NamedTuple):
    """A registered fault."""

    fault: Fault
    weight: float
    stores: tuple[str, ...]
    group: str | None  # at most one fault of a group at a time: two would hide each other


class NotPossibleNow(Exception):
    """The fault cannot be injected now; it is not counted."""


FAULTS: dict[str, FaultSpec] = {}


def fault(
    weight: float, stores: tuple[str, ...] = BOTH, *, group: str | None = None
) -> Callable[[Fault], Fault]:
    """Register a function as a fault. A heavier fault is injected more often."""

    def register(function: Fault) -> Fault:
        FAULTS[function.__name__] = FaultSpec(function, weight, stores, group)
        return function

    return register


def pick_runner(world: World, rng: Random) -> int:
    """Return the pid of a runner. Raise NotPossibleNow if none runs."""
    runners = [pid for worker in world.workers for pid in worker.runners()]
    if not runners:
        raise NotPossibleNow
    return rng.choice(runners)


def pick_fork_server(world: World, rng: Random) -> int:
    """Return the pid of a fork server. Raise NotPossibleNow if none runs."""
    fork_servers = [pid for worker in world.workers for pid in worker.fork_servers()]
    if not fork_servers:
        raise NotPossibleNow
    return rng.choice(fork_servers)


def possible_faults(world: World, only: set[str] | None = None) -> dict[str, float]:
    """Return the weights of the faults that can be injected on this machine and database."""
    weights = {}
    for name, spec in FAULTS.items():
        is_possible = world.store_name in spec.stores and name not in world.skipped
        if is_possible and (only is None or name in only):
            weights[name] = spec.weight
    return weights


class Injector:
    """Inject faults, each in its own thread, and count them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counts: dict[str, int] = {}
        self.broken: list[str] = []  # faults that raised: an error of the storm itself
        self.active: dict[int, str] = {}
        self._threads: list[threading.Thread] = []
        self._locks = {spec.group: threading.Lock() for spec in FAULTS.values() if spec.group}
        self._lock = threading.Lock()

    def inject(self, name: str, seed: int) -> None:
        thread = threading.Thread(target=self._run, args=(name, seed), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, name: str, seed: int) -> None:
        spec = FAULTS[name]
        lock = self._locks.get(spec.group)
        if lock is not None and not lock.acquire(timeout=30):
            return
        thread_id = threading.get_ident()
        self.active[thread_id] = name
        try:
            spec.fault(self.world, Random(seed))
            with self._lock:
                self.counts[name] = self.counts.get(name, 0) + 1
        except NotPossibleNow:
            return
        except Exception as error:  # noqa: BLE001 - reported at the end
            self.broken.append(f"{name}: {type(error).__name__}: {error}")
        finally:
            self.active.pop(thread_id, None)
            if lock is not None:
                lock.release()

    def wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
