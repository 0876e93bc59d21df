"""Lanes: which are open, and in which order a claim takes their jobs.

Retry lanes get 10 to 30 % of the slots for which fresh jobs also wait. A failing kind cannot crowd
out fresh jobs, and fresh jobs cannot starve retries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from mulligan.core.durations import Micros
from mulligan.core.job import Gate, Lane

Candidate = tuple[int, Micros, str, str]  # priority, run_at, id, lane

MIN_RETRY_SHARE = 0.1
MAX_RETRY_SHARE = 0.3
_ONE_SLOT = 1 - 1e-9  # ten times 0.1 is slightly less than 1


def pick(
    fresh: Sequence[Candidate], retries: Sequence[Candidate], n: int, credit: float
) -> tuple[list[str], float]:
    """Return the ids of the next `n` jobs in order, and the credit to pass to the next call.

    Both sequences are sorted. For every slot that both want, retries earn a share of a slot: the
    maximum if the order would choose a retry, else the minimum. Retries take every whole slot that
    they have earned. Over any series of calls their share lies between both limits, even if each
    call takes a single job.
    """
    credit = min(max(credit, 0.0), 1.0)
    chosen: list[str] = []
    f = r = 0
    while len(chosen) < n and f < len(fresh) and r < len(retries):
        credit += MAX_RETRY_SHARE if retries[r] < fresh[f] else MIN_RETRY_SHARE
        if credit >= _ONE_SLOT:
            credit = max(0.0, credit - 1)
            chosen.append(retries[r][2])
            r += 1
        else:
            chosen.append(fresh[f][2])
            f += 1
    rest = fresh[f:] if f < len(fresh) else retries[r:]
    chosen.extend(candidate[2] for candidate in rest[: max(n, 0) - len(chosen)])
    return chosen, credit


def allot_retry_slots(n: int, credit: float, *, first: bool) -> tuple[int, float]:
    """Return how many of `n` slots retries get, and the credit to pass to the next call.

    Gives the same share as `pick` if enough of both wait. `first`: the order would choose a retry
    before fresh jobs.
    """
    share = MAX_RETRY_SHARE if first else MIN_RETRY_SHARE
    earned = min(max(credit, 0.0), 1.0) + n * share
    slots = min(n, int(earned + 1 - _ONE_SLOT))
    return slots, max(0.0, earned - slots)


def interleave_owners(
    candidates: Sequence[Candidate], served: Mapping[str, str], first: str = ""
) -> list[Candidate]:
    """Let the owners of a fair queue take turns.

    `served` is the owner share that each queue served last; `first` stands in for a queue that has
    served none. Each position keeps its queue and priority; only the owner that fills it changes.
    """
    lanes = [Lane.parse(candidate[3]) for candidate in candidates]
    queues: dict[tuple[int, str], dict[str, list[Candidate]]] = {}
    for candidate, lane in zip(candidates, lanes, strict=True):
        if lane.share:
            shares = queues.setdefault((candidate[0], lane.queue), {})
            shares.setdefault(lane.share, []).append(candidate)
    turns = {
        (priority, queue): _round_robin(shares, served.get(queue, first))
        for (priority, queue), shares in queues.items()
    }
    return [
        next(turns[candidate[0], lane.queue]) if lane.share else candidate
        for candidate, lane in zip(candidates, lanes, strict=True)
    ]


def _round_robin(shares: Mapping[str, Sequence[Candidate]], last: str) -> Iterator[Candidate]:
    order = sorted(shares, key=lambda share: (share <= last, share))
    for turn in zip_longest(*(shares[share] for share in order)):
        for candidate in turn:
            if candidate is not None:
                yield candidate


def find_open_lanes(
    lanes: Iterable[tuple[Lane, int]],
    gates: Iterable[Gate],
    now: Micros,
    queues: frozenset[str] | None,
    kinds: frozenset[str],
) -> list[tuple[str, int]]:
    """Return (lane key, priority) of every lane that this worker may claim from.

    A lane is open if its queue, its kind and all its dependencies are open.
    """
    closed = find_closed_keys(gates, now)
    closed_queues = closed["queue"]
    closed_kinds = closed["kind"]
    closed_dependencies = closed["dependency"]
    return [
        (lane.key, priority)
        for lane, priority in lanes
        if lane.kind in kinds
        and (queues is None or lane.queue in queues)
        and lane.queue not in closed_queues
        and lane.kind not in closed_kinds
        and not (
            closed_dependencies
            and lane.uses
            and closed_dependencies.intersection(lane.uses.split(","))
        )
    ]


def find_closed_keys(gates: Iterable[Gate], now: Micros) -> dict[str, set[str]]:
    """Return the closed queues, kinds and dependencies, by scope."""
    closed: dict[str, set[str]] = {"queue": set(), "kind": set(), "dependency": set()}
    for gate in gates:
        if is_closed(gate, now):
            closed.setdefault(gate.scope, set()).add(gate.key)
    return closed


def is_closed(gate: Gate, now: Micros) -> bool:
    return gate.until is None or gate.until > now
