"""What an operation would do, before anybody does it: how many jobs, of what, at what price, with what chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mulligan.engine.bulk import Asked, fixed, fixed_words
from mulligan.engine.jobs import COUNT_MOST
from mulligan.engine.recording import frees_key
from mulligan.engine.unique import unique_hash
from mulligan.engine.upkeep import live_kinds
from mulligan.engine.view import traffic_now
from mulligan.job import Micros, State
from mulligan.policy.operation import Action, bound, planned
from mulligan.policy.phase import phase
from mulligan.store.base import Unit
from mulligan.store.matching import Where
from mulligan.store.operating import Matched

GROUPS_ASKED = 50  # the largest
PLACES_ASKED = 50  # (queue, kind, what it uses): the largest
DEATHS_LOOKED = 1000
COSTS_LOOKED = 10_000
KEYS_LOOKED = 1000
NAMED = 3


class Chance(NamedTuple):
    """What became of others that died of this and were retried by hand."""

    group: str
    code: str
    jobs: int  # of this operation
    retried: int
    recovered: int
    of: str  # "group", or "code": its other groups speak for it; "": nobody has tried yet


class Obstacle(NamedTuple):
    """Something that would keep jobs waiting, or refuse them."""

    jobs: int
    why: str


@dataclass(frozen=True, slots=True)
class Preview:
    """Nothing was changed. All numbers describe the same jobs, the first 10,000 if there are more."""

    action: str
    filter: str
    fixed: str  # what it means at this moment
    count: int
    capped: bool  # there may be more
    steps: tuple[int, ...]  # how many each would take
    codes: Mapping[str, int]
    kinds: Mapping[str, int]
    owners: Mapping[str, int]
    states: Mapping[str, int]
    cost: float  # so far
    estimated_cost: float  # of one more attempt each, by the mean of their kinds
    chances: tuple[Chance, ...]
    held: tuple[Obstacle, ...]  # what would wait, as things are
    refused: tuple[Obstacle, ...]  # as far as it can be known

    @property
    def retried(self) -> int:
        return sum(chance.retried for chance in _distinct(self.chances))

    @property
    def recovered(self) -> int:
        return sum(chance.recovered for chance in _distinct(self.chances))

    @property
    def chance(self) -> float | None:
        """The share that recovered when somebody retried others of these causes. None: nobody has tried yet."""
        known = [one for one in self.chances if one.retried]
        jobs = sum(one.jobs for one in known)
        return sum(one.jobs * one.recovered / one.retried for one in known) / jobs if jobs else None


def _distinct(chances: Iterable[Chance]) -> list[Chance]:
    return [chance for chance in chances if chance.of == "group"]


def preview(unit: Unit, wish: Asked) -> Preview:
    now = unit.now()
    where = fixed(unit, wish, now)
    found = unit.operation_preview(where, min(COUNT_MOST, bound(wish.steps) or COUNT_MOST))
    count = sum(row.jobs for row in found)
    retry = wish.action is Action.RETRY
    return Preview(
        action=wish.action.value,
        filter=wish.text,
        fixed=fixed_words(where),
        count=count,
        capped=count >= COUNT_MOST,
        steps=tuple(tally.size for tally in planned(wish.steps, count)),
        codes=_counted((row.code or "", row.jobs) for row in found if row.code),
        kinds=_counted((row.kind, row.jobs) for row in found),
        owners=_counted((row.owner, row.jobs) for row in found),
        states=_counted((row.state, row.jobs) for row in found),
        cost=sum(row.cost for row in found),
        estimated_cost=_estimated(unit, found) if retry or wish.action is Action.RELEASE else 0.0,
        chances=tuple(_chances(unit, found, wish.owner)) if retry else (),
        held=tuple(_held(unit, found, now)) if wish.action in {Action.RETRY, Action.RELEASE} else (),
        refused=tuple(_taken(unit, where) if retry else _there(found, wish.params.get("queue"))),
    )


def _counted(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for name, jobs in pairs:
        counts[name] += jobs
    return dict(counts.most_common())


def _estimated(unit: Unit, found: Sequence[Matched]) -> float:
    """By kind: the mean of the newest jobs' attempts; of a kind that is not among them, of these jobs' own."""
    newest = unit.operation_costs(COSTS_LOOKED)
    total = 0.0
    for kind in {row.kind for row in found}:
        rows = [row for row in found if row.kind == kind]
        own = sum(row.cost for row in rows), sum(row.claims for row in rows)
        cost, claims = newest[kind] if newest.get(kind, (0.0, 0))[1] else own
        total += sum(row.jobs for row in rows) * (cost / claims if claims else 0.0)
    return total


def _chances(unit: Unit, found: Sequence[Matched], owner: str | None) -> list[Chance]:
    jobs = _counted((row.group, row.jobs) for row in found if row.group)
    codes = {row.group: row.code or "" for row in found if row.group}
    asked = list(jobs)[:GROUPS_ASKED]
    again = unit.group_recovered(asked, owner, DEATHS_LOOKED)
    known = {name: again.get(name, (0, 0)) for name in asked}
    of_code: Counter[tuple[str, str]] = Counter()
    for name, (retried, recovered) in known.items():
        of_code[codes[name], "retried"] += retried
        of_code[codes[name], "recovered"] += recovered
    chances = []
    for name, (retried, recovered) in known.items():
        code = codes[name]
        if retried:
            chances.append(Chance(name, code, jobs[name], retried, recovered, "group"))
        else:
            tried = of_code[code, "retried"], of_code[code, "recovered"]
            chances.append(Chance(name, code, jobs[name], *tried, "code" if tried[0] else ""))
    return chances


def _held(unit: Unit, found: Sequence[Matched], now: Micros) -> list[Obstacle]:
    """What stands in the way of a job that would be due now, by what its like would say."""
    places = _counted(((f"{row.queue}|{row.kind}|{row.uses}"), row.jobs) for row in found)
    samples = {f"{row.queue}|{row.kind}|{row.uses}": row.sample for row in found}
    gates, known, traffic = unit.gates(), live_kinds(unit), traffic_now(unit, now)
    why: Counter[str] = Counter()
    for place, jobs in list(places.items())[:PLACES_ASKED]:
        row = unit.get(samples[place])
        if row is not None:
            stage, words = phase(row._replace(state=State.QUEUED, run_at=now), gates, now, known, traffic)
            why[words] += jobs if stage != "ready" else 0
    return [Obstacle(jobs, words) for words, jobs in why.most_common() if jobs]


def _there(found: Sequence[Matched], queue: str | None) -> list[Obstacle]:
    """Who is asked to move to where they are."""
    jobs = sum(row.jobs for row in found if row.queue == queue)
    return [Obstacle(jobs, f"in queue {queue} already")] if jobs else []


def _taken(unit: Unit, where: Where) -> list[Obstacle]:
    """Whose unique key another job holds by now."""
    keyed = [one for one in unit.keyed_jobs(where, KEYS_LOOKED) if not frees_key(one.unique_cover, State.QUEUED)]
    hashes = {unique_hash(one.owner, one.kind, one.unique_key): one.id for one in keyed}
    holders = unit.key_holders(list(hashes))
    if not holders:
        return []
    named = ", ".join(hashes[one] for one in list(holders)[:NAMED])
    more = ", …" if len(holders) > NAMED else ""
    return [Obstacle(len(holders), f"another job holds their unique key now [UNIQUE_TAKEN]: {named}{more}")]
