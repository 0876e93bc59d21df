"""Virtual time, ids and random numbers: a run does not depend on the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

from mulligan.core.durations import SECOND, Micros
from mulligan.manifest.specs import Manifest

BEGINS: Micros = 1_790_000_000 * SECOND  # in September 2026
# Modules whose `time` is replaced by the virtual clock. Sleeping there is an error.
MODULES_WITH_TIME = (
    "mulligan.app.kind",
    "mulligan.operations.chore",
    "mulligan.jobs.repair",
    "mulligan.guards.gates",
    "mulligan.worker.liveness",
    "mulligan.worker.queries",
    "mulligan.worker.supervisor.chores",
    "mulligan.storage.sqlite",
    "mulligan.storage.postgres_transaction",
    "mulligan.jobs.queries",
)
MODULES_WITH_RANDOM = (
    "mulligan.guards.observer",
    "mulligan.worker.supervisor.transactions",
    "mulligan.worker.supervisor.chores",
)


class SleepInSimulation(AssertionError):
    """Code under test sleeps. In one process no other code can run meanwhile."""


class Clock:
    """Replacement of the module `time`. The wall clock may be set; the monotonic clock only grows."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.wall: Micros = BEGINS
        self.mono: Micros = 1000 * SECOND
        self.start_step(0)

    def start_step(self, step: int) -> None:
        """Reseed: ids and random numbers do not depend on how many the step before has used."""
        self.random = Random(step)
        self._drawn = (BEGINS // 1000 + step) << 12

    def tick(self, count: int) -> int:
        self._drawn += count
        return self._drawn - count + 1

    def advance(self, span: Micros) -> None:
        self.wall += span
        self.mono += span

    # --- As the module `time` ---
    def time_ns(self) -> int:
        return self.wall * 1000

    def time(self) -> float:
        return self.wall / SECOND

    def monotonic_ns(self) -> int:
        return self.mono * 1000

    def monotonic(self) -> float:
        return self.mono / SECOND

    def sleep(self, seconds: float) -> None:
        raise SleepInSimulation(f"sleeps {seconds} s")

    # --- As `os.urandom` and `SystemRandom` ---
    def urandom(self, count: int) -> bytes:
        return self.random.randbytes(count)

    def getrandbits(self, bits: int) -> int:
        return self.random.getrandbits(bits)


@contextmanager
def virtual_time(clock: Clock) -> Iterator[None]:
    """Make the engine in this process use this clock and its random numbers."""
    with ExitStack() as stack:
        for module in MODULES_WITH_TIME:
            stack.enter_context(patch(f"{module}.time", clock))
        for module in MODULES_WITH_RANDOM:
            stack.enter_context(patch(f"{module}.SystemRandom", lambda: clock))
        stack.enter_context(patch("mulligan.core.ids.os", SimpleNamespace(urandom=clock.urandom)))
        stack.enter_context(patch("mulligan.core.ids._reserve", clock.tick))
        # There are no processes to kill.
        stack.enter_context(patch("mulligan.worker.upkeep.kill_marked", lambda _: None))
        stack.enter_context(
            patch("mulligan.worker.supervisor.chores.liveness.remove_dead_folders", lambda *_: None)
        )
        # The manifest is read very often and never changes.
        stack.enter_context(patch.object(Manifest, "from_json", lru_cache(8)(Manifest.from_json)))
        stack.enter_context(patch.object(Manifest, "to_json", _cached(Manifest.to_json)))
        yield


def _cached(write: Callable[[Manifest], str]) -> Callable[[Manifest], str]:
    known: dict[int, tuple[Manifest, str]] = {}

    def written(manifest: Manifest) -> str:
        if id(manifest) not in known:
            known[id(manifest)] = (manifest, write(manifest))
        return known[id(manifest)][1]

    return written
