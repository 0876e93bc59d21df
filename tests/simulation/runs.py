"""Play scripts by seed and check them; shorten a script that fails."""

from __future__ import annotations

import logging
import shutil
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from simulation.clock import Clock, virtual_time
from simulation.play import Script, Step, compare, play
from simulation.scripts import scripts
from simulation.stores import open_simulated
from simulation.world import Home
from support.postgres import PostgresServer

RAM_DISK = Path("/dev/shm")  # avoids disk writes where it exists


class Failure(NamedTuple):
    """A script that breaks an invariant."""

    script: Script
    why: str
    trace: str

    @property
    def name(self) -> str:
        """The invariant. A shorter script must break the same one."""
        return self.why.partition(":")[0]


@contextmanager
def stores(names: Sequence[str]) -> Iterator[list[Home]]:
    """Open the stores once; each script empties them first."""
    clock = Clock()
    with ExitStack() as stack:
        urls = [stack.enter_context(_URLS[name]()) for name in names]
        stack.enter_context(virtual_time(clock))
        stack.enter_context(_logging_disabled())
        homes = [Home(open_simulated(url, clock), url) for url in urls]
        for home in homes:
            stack.callback(home.store.close)
        yield homes


@contextmanager
def _logging_disabled() -> Iterator[None]:
    """Disable logging: the engine would log thousands of simulated outages."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _sqlite() -> Iterator[str]:
    folder = tempfile.mkdtemp(dir=RAM_DISK if RAM_DISK.is_dir() else None)
    try:
        yield f"sqlite:///{folder}/mulligan.db"
    finally:
        shutil.rmtree(folder)


@contextmanager
def _postgres() -> Iterator[str]:
    server = PostgresServer.for_session()
    try:
        yield server.create_database()
    finally:
        server.close()


_URLS: dict[str, Any] = {"sqlite": _sqlite, "postgres": _postgres}


def find_failure(homes: Sequence[Home], script: Script) -> Failure | None:
    """Play the script. With two stores also compare them. Return None if everything holds."""
    try:
        played = [play(home, script) for home in homes]
        for other in played[1:]:
            compare(played[0], other)
    except Exception as error:  # noqa: BLE001 - every exception is a failure
        why = (
            f"{error}" if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        )
        return Failure(script, why, traceback.format_exc(limit=-6))
    return None


def script_of(number: int) -> Script:
    """Return the script of a seed: the last one drawn, since Hypothesis begins with the simplest."""
    drawn: list[Script] = []

    @seeded(number)
    @settings(
        max_examples=2,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(scripts)
    def draw(script: Script) -> None:
        drawn.append(script)

    draw()
    return drawn[-1]


def shorten(homes: Sequence[Home], script: Script, found: Failure) -> Failure:
    """Remove as many steps as possible, then as many faults."""
    steps, size = list(script), max(1, len(script) // 2)
    while size:
        place = 0
        while place < len(steps):
            found, steps, place = _try_shorter(
                homes, found, steps, steps[:place] + steps[place + size :], place, size
            )
        size //= 2
    for place, step in enumerate(steps):
        if step[4]:
            without_fault: list[Step] = [*steps[:place], (*step[:4], 0), *steps[place + 1 :]]
            found, steps, _ = _try_shorter(homes, found, steps, without_fault, place, 1)
    return found


def _try_shorter(
    homes: Sequence[Home],
    found: Failure,
    steps: list[Step],
    fewer: list[Step],
    place: int,
    size: int,
) -> tuple[Failure, list[Step], int]:
    again = find_failure(homes, fewer)
    if again is not None and again.name == found.name:
        return again, fewer, place
    return found, steps, place + size
