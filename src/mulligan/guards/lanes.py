"""What to claim: which lanes are open, and in which order their jobs go.

Retry lanes get 10 to 30 % of the slots for which fresh work waits too: a failing kind cannot crowd out
new work, and new work cannot starve what failed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from mulligan.core.job import Gate, Lane, Micros

Candidate = tuple[int, Micros, str, str]  # priority, run_at, id, lane

LEAST, MOST = 0.1, 0.3
_WHOLE = 1 - 1e-9  # ten times 0.1 is not quite 1


def pick(
    fresh: Sequence[Candidate], retries: Sequence[Candidate], n: int, credit: float
) -> tuple[list[str], float]:
    """The ids of the next `n` jobs in order, and the credit to hand in next time.

    Both sequences are sorted. For every contested slot the retries earn a part of a slot: the most if the
    order alone would choose them, else the least. A whole slot earned is taken. So their share lies
    between both over any row of calls, also when each claims a single job.
    """
    credit = min(max(credit, 0.0), 1.0)
    chosen: list[str] = []
    f = r = 0
    while len(chosen) < n and f < len(fresh) and r < len(retries):
        credit += MOST if retries[r] < fresh[f] else LEAST
        if credit >= _WHOLE:
            credit = max(0.0, credit - 1)
            chosen.append(retries[r][2])
            r += 1
        else:
            chosen.append(fresh[f][2])
            f += 1
    rest = fresh[f:] if f < len(fresh) else retries[r:]
    chosen.extend(candidate[2] for candidate in rest[: max(n, 0) - len(chosen)])
    return chosen, credit


def share(n: int, credit: float, *, first: bool) -> tuple[int, float]:
    """Of `n` slots for which enough of both waits, how many are the retries', and the credit to hand in next time.

    As `pick` gives them; `first`: the order would choose a retry before fresh work.
    """
    earned = min(max(credit, 0.0), 1.0) + n * (MOST if first else LEAST)
    whole = min(n, int(earned + 1 - _WHOLE))
    return whole, max(0.0, earned - whole)


def in_turn(
    found: Sequence[Candidate], served: Mapping[str, str], first: str = ""
) -> list[Candidate]:
    """In a fair queue owners take turns, whoever's jobs are older.

    `served`: the share each queue gave to last; `first`: as if, where it gave to none yet.

    The places stay as the times gave them; only who fills a place of a fair queue changes.
    """
    queues: dict[tuple[int, str], dict[str, list[Candidate]]] = {}
    lanes = [Lane.parse(candidate[3]) for candidate in found]
    for candidate, lane in zip(found, lanes, strict=True):
        if lane.share:
            queues.setdefault((candidate[0], lane.queue), {}).setdefault(lane.share, []).append(
                candidate
            )
    turns = {
        place: _round_robin(shares, served.get(place[1], first)) for place, shares in queues.items()
    }
    return [
        next(turns[candidate[0], lane.queue]) if lane.share else candidate
        for candidate, lane in zip(found, lanes, strict=True)
    ]


def _round_robin(shares: Mapping[str, Sequence[Candidate]], last: str) -> Iterator[Candidate]:
    order = sorted(shares, key=lambda share: (share <= last, share))
    rounds = zip_longest(*(shares[share] for share in order))
    return (candidate for one_round in rounds for candidate in one_round if candidate is not None)


def open_lanes(
    lanes: Iterable[tuple[Lane, int]],
    gates: Iterable[Gate],
    now: Micros,
    queues: frozenset[str] | None,
    kinds: frozenset[str],
) -> list[tuple[str, int]]:
    """(lane key, priority) of each lane whose queue, kind and every dependency are open to this worker."""
    closed = closed_keys(gates, now)
    shut_queues, shut_kinds, shut_dependencies = (
        closed["queue"],
        closed["kind"],
        closed["dependency"],
    )
    return [
        (lane.key, priority)
        for lane, priority in lanes
        if lane.kind in kinds
        and (queues is None or lane.queue in queues)
        and lane.queue not in shut_queues
        and lane.kind not in shut_kinds
        and not (
            shut_dependencies and lane.uses and shut_dependencies.intersection(lane.uses.split(","))
        )
    ]


def closed_keys(gates: Iterable[Gate], now: Micros) -> dict[str, set[str]]:
    closed: dict[str, set[str]] = {"queue": set(), "kind": set(), "dependency": set()}
    for gate in gates:
        if is_closed(gate, now):
            closed.setdefault(gate.scope, set()).add(gate.key)
    return closed


def is_closed(gate: Gate, now: Micros) -> bool:
    return gate.until is None or gate.until > now
