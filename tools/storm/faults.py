"""Faults by name. Each is a function of the world and a random source of its own; it returns when the fault is over."""

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


class Kind(NamedTuple):
    fault: Fault
    weight: float
    stores: tuple[str, ...]
    of: str | None  # two of one sort at a time would only hide each other


class NotNow(Exception):
    """It cannot be made at this moment: not counted."""


KINDS: dict[str, Kind] = {}


def fault(
    weight: float, stores: tuple[str, ...] = BOTH, *, of: str | None = None
) -> Callable[[Fault], Fault]:
    def keep(function: Fault) -> Fault:
        KINDS[function.__name__] = Kind(function, weight, stores, of)
        return function

    return keep


def a_runner(world: World, rng: Random) -> int:
    """The pid of one; all may be gone at this moment."""
    runners = [pid for worker in world.workers for pid in worker.runners()]
    if not runners:
        raise NotNow
    return rng.choice(runners)


def a_nursery(world: World, rng: Random) -> int:
    nurseries = [pid for worker in world.workers for pid in worker.nurseries()]
    if not nurseries:
        raise NotNow
    return rng.choice(nurseries)


def possible(world: World, only: set[str] | None = None) -> dict[str, float]:
    """Kinds that can be made here, with their weights."""
    return {
        name: kind.weight
        for name, kind in KINDS.items()
        if world.store_name in kind.stores
        and name not in world.skipped
        and (only is None or name in only)
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
        except NotNow:
            return
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
