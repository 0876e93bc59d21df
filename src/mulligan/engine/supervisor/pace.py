"""How many jobs to hold at once: as many as run side by side, and, while they are short, some more in line.

A no-op ends long before a commit does. With only `concurrency` jobs in hand the runner would wait for the
database between batches, so the line grows while every claim comes back full and jobs are short, up to what is done in
half a second, and is given up as soon as they are not.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_AHEAD = 4000
MOST_AT_ONCE = 2000  # in one claim: what was claimed before runs meanwhile
LINE_MS = 500  # of work for each place
LEAST_MS = 0.25  # of a job: what else it costs
SHORT_MS = 20
RARE = 100  # one in so many may be longer
FEW = 10  # one in so many, if no more than run side by side: a runner that is kept waiting makes all of those long
GROWTH = 4  # times from one turn to the next
FEW_TELLERS, SHARE = 3, 3


def tellers(concurrency: int) -> int:
    """Places for messages, beside all others: who is told must not wait until a long job has ended. Enough of them
    that one address that hangs leaves some to the rest.
    """
    return max(FEW_TELLERS, concurrency // SHARE)


class Pace:
    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._lately: list[int] = []  # how long what ended last took
        self.ahead = 0

    def room(self, in_hand: int) -> int:
        return min(MOST_AT_ONCE, self._concurrency + self.ahead - in_hand)

    def hold_back(self) -> None:
        """No line for now: these jobs want runners of their own, are heavy, or did not move."""
        self.ahead = 0

    def turned(self, asked: int, got: int, durations_ms: Sequence[int]) -> None:
        """Learn from a turn, and from what has ended since the one before."""
        lately = self._with_those_before(durations_ms)
        if self._too_long(lately):
            self.ahead, self._lately = 0, []
        elif durations_ms and 0 < asked <= got:
            each = sum(lately) / len(lately) + LEAST_MS
            most = min(MOST_AHEAD, int(self._concurrency * LINE_MS / each))
            self.ahead = min(most, GROWTH * max(self._concurrency, self.ahead))

    def _with_those_before(self, durations_ms: Sequence[int]) -> Sequence[int]:
        """Few say little: one moment in which the runner stood still may be all that ended since the last turn."""
        enough = FEW * self._concurrency
        lately = durations_ms if len(durations_ms) >= enough else [*self._lately, *durations_ms][-enough:]
        self._lately = [*lately[-enough:]]
        return lately

    def _too_long(self, durations_ms: Sequence[int]) -> bool:
        """Is it jobs that are long, and not one moment?"""
        long = sum([took > SHORT_MS for took in durations_ms])
        return long * (FEW if long <= self._concurrency else RARE) > len(durations_ms)
