"""What tells the world of what happened works beside the engine, and the engine knows nothing of it but this.

A dispatcher of messages, a fold of numbers, a look for alerts: each is an outlet. A worker takes turns at them on a
thread of their own, so that none of them delays a claim, a renewal or a sweep.
"""

from __future__ import annotations

from typing import Protocol

from mulligan.store.base import Store


class Outlet(Protocol):
    name: str
    every: float  # seconds between turns while there is nothing to do

    def turn(self, store: Store) -> bool:
        """One short step, of some 20 ms at most. True: there is more to do, come again at once.

        Several workers take turns at the same time: whoever finds another at it returns False without waiting.
        """
        ...
