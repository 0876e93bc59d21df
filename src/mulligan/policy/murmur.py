"""How often the same may be said: the first few of each second, then one sentence with their number.

When thousands of jobs fail of one cause, a line for each costs more than the failures and hides everything else. All of
them are in the history; the log says what is going on.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from mulligan.job import SECOND, Micros

MOST = 20  # of one thing, in one second
MOST_KNOWN = 1000  # things; beyond that, nothing is counted together any more

Key = TypeVar("Key", bound=Hashable)
Said = TypeVar("Said")


class Murmur(Generic[Key]):
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._second = 0
        self._said: dict[Key, int] = {}

    def may_say(self, key: Key) -> bool:
        """False: it was said often enough in this second; it is counted."""
        count = self._said.get(key, 0) + 1
        if count == 1 and len(self._said) >= MOST_KNOWN:
            return True
        self._said[key] = count
        return count <= self._most

    def few(self, key: Key, many: Sequence[Said]) -> Sequence[Said]:
        """Of many that are the same, those that may be said; all of them are counted."""
        before = self._said.get(key, 0)
        if before == 0 and len(self._said) >= MOST_KNOWN:
            return many
        self._said[key] = before + len(many)
        return many[: max(0, self._most - before)]

    def unsaid(self, now: Micros) -> list[tuple[Key, int]]:
        """A second is over: what was counted in it and not said, and how often."""
        second = now // SECOND
        if second == self._second or not self._said:
            self._second = second
            return []
        left = [(key, count - self._most) for key, count in self._said.items() if count > self._most]
        self._second, self._said = second, {}
        return left
