"""Scripts by number, played and judged; one that fails is made as short as it can be."""

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

from simulation.clock import Clock, ruled
from simulation.play import Script, Step, compare, play
from simulation.scripts import scripts
from simulation.stores import opened
from simulation.world import Home
from support.postgres import PostgresServer

MEMORY = Path("/dev/shm")  # where there is such a thing, files cost no disk


class Found(NamedTuple):
    """What a script has broken."""

    script: Script
    why: str
    trace: str

    @property
    def name(self) -> str:
        """Of the invariant: a shorter script must break the same."""
        return self.why.partition(":")[0]


@contextmanager
def stores(names: Sequence[str]) -> Iterator[list[Home]]:
    """Each made once, and emptied before every script."""
    clock = Clock()
    with ExitStack() as stack:
        urls = [stack.enter_context(_URLS[name]()) for name in names]
        stack.enter_context(ruled(clock))
        stack.enter_context(_quiet())
        homes = [Home(opened(url, clock), url) for url in urls]
        for home in homes:
            stack.callback(home.store.close)
        yield homes


@contextmanager
def _quiet() -> Iterator[None]:
    """What the engine says of databases that are away would be said thousands of times."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _sqlite() -> Iterator[str]:
    folder = tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None)
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


def judged(homes: Sequence[Home], script: Script) -> Found | None:
    """What it breaks; with two stores also whether they agree."""
    try:
        played = [play(home, script) for home in homes]
        for other in played[1:]:
            compare(played[0], other)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is found
        why = (
            f"{error}" if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        )
        return Found(script, why, traceback.format_exc(limit=-6))
    return None


def script_of(number: int) -> Script:
    """The script of a seed: the last of a few that Hypothesis draws for it, since its first is always the simplest."""
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


def shortened(homes: Sequence[Home], script: Script, found: Found) -> Found:
    """Leave out as many steps as can be, then as many faults: whatever is left is needed."""
    steps, size = list(script), max(1, len(script) // 2)
    while size:
        place = 0
        while place < len(steps):
            found, steps, place = _tried(
                homes, found, steps, steps[:place] + steps[place + size :], place, size
            )
        size //= 2
    for place, step in enumerate(steps):
        if step[4]:
            plain: list[Step] = [*steps[:place], (*step[:4], 0), *steps[place + 1 :]]
            found, steps, _ = _tried(homes, found, steps, plain, place, 1)
    return found


def _tried(
    homes: Sequence[Home], found: Found, steps: list[Step], fewer: list[Step], place: int, size: int
) -> tuple[Found, list[Step], int]:
    again = judged(homes, fewer)
    if again is not None and again.name == found.name:
        return again, fewer, place
    return found, steps, place + size
