"""Time, ids and chance as one script wants them: nothing that a run does hangs on the machine it runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

from mulligan.core.durations import SECOND, Micros
from mulligan.manifest.specs import Manifest

BEGINS: Micros = 1_790_000_000 * SECOND  # a moment in September 2026
# Whoever there asks what time it is, is told what the script says. Waiting there would be waiting for nobody.
TOLD = (
    "mulligan.app.mulligan",
    "mulligan.operations.chore",
    "mulligan.jobs.repair",
    "mulligan.guards.gates",
    "mulligan.guards.dependencies",
    "mulligan.worker.liveness",
    "mulligan.worker.supervisor.chores",
    "mulligan.storage.sqlite_transaction",
    "mulligan.storage.postgres_transaction",
    "mulligan.storage.search_queries",
)
DRAWS = (
    "mulligan.guards.observer",
    "mulligan.worker.supervisor.transactions",
    "mulligan.worker.supervisor.chores",
)


class Waits(AssertionError):
    """In one process nobody else can end what is waited for."""


class Clock:
    """Stands where `time` stands. The wall may be set; the monotonic clock only ever goes on."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.wall: Micros = BEGINS
        self.mono: Micros = 1000 * SECOND
        self.turn_over(0)

    def turn_over(self, step: int) -> None:
        """Every step draws anew: whatever the one before has drawn and thrown away, ids and chances are the same."""
        self.chance = Random(step)
        self._drawn = (BEGINS // 1000 + step) << 12

    def tick(self, count: int) -> int:
        self._drawn += count
        return self._drawn - count + 1

    def pass_by(self, span: Micros) -> None:
        self.wall += span
        self.mono += span

    # -- as the module `time` ---------------------------------------------------------------------
    def time_ns(self) -> int:
        return self.wall * 1000

    def time(self) -> float:
        return self.wall / SECOND

    def monotonic_ns(self) -> int:
        return self.mono * 1000

    def monotonic(self) -> float:
        return self.mono / SECOND

    def sleep(self, seconds: float) -> None:
        raise Waits(f"waits {seconds} s for somebody else")

    # -- as `os.urandom` and `SystemRandom` -------------------------------------------------------
    def urandom(self, count: int) -> bytes:
        return self.chance.randbytes(count)

    def getrandbits(self, bits: int) -> int:
        return self.chance.getrandbits(bits)


@contextmanager
def ruled(clock: Clock) -> Iterator[None]:
    """Everything that rules jobs, in this process, asks this clock and draws from it."""
    with ExitStack() as stack:
        for module in TOLD:
            stack.enter_context(patch(f"{module}.time", clock))
        for module in DRAWS:
            stack.enter_context(patch(f"{module}.SystemRandom", lambda: clock))
        stack.enter_context(patch("mulligan.core.ids.os", SimpleNamespace(urandom=clock.urandom)))
        stack.enter_context(patch("mulligan.core.ids._reserve", clock.tick))
        stack.enter_context(
            patch("mulligan.worker.upkeep.kill_marked", lambda _: None)
        )  # no process is anybody's
        stack.enter_context(
            patch("mulligan.worker.supervisor.chores.liveness.remove_dead_folders", lambda *_: None)
        )
        # What the shop declares is read again and again, and is the same each time.
        stack.enter_context(patch.object(Manifest, "from_json", lru_cache(8)(Manifest.from_json)))
        stack.enter_context(patch.object(Manifest, "to_json", _once(Manifest.to_json)))
        yield


def _once(write: Callable[[Manifest], str]) -> Callable[[Manifest], str]:
    known: dict[int, tuple[Manifest, str]] = {}

    def written(manifest: Manifest) -> str:
        if id(manifest) not in known:
            known[id(manifest)] = (manifest, write(manifest))
        return known[id(manifest)][1]

    return written
