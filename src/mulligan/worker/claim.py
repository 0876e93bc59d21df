"""One turn at the store: write what ended, take what is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from mulligan.core.attempt import Ended, Ending, Lease, Outcome
from mulligan.core.job import SECOND, Gate, Guarded, Lane, Limit, Micros, PreviousAttempts
from mulligan.failures.codes import dependency_unavailable
from mulligan.guards.breaker import may_probe
from mulligan.guards.capacity import SLOTS, SOON, Capacity
from mulligan.guards.lanes import (
    Candidate,
    closed_keys,
    in_turn,
    is_closed,
    open_lanes,
    pick,
    share,
)
from mulligan.guards.limits import effective, share_of, tighter
from mulligan.guards.observer import OF_ENDPOINTS, DependencyObserver
from mulligan.guards.probes import Prober, let_go
from mulligan.guards.state import GuardState
from mulligan.manifest.declared import (
    holding_manifests,
    limits_of,
    limits_of_all,
    terms_of,
    terms_of_all,
)
from mulligan.manifest.specs import DELIVERY_QUEUE, ENDPOINT, Manifest
from mulligan.storage.base import ClaimMark, Look, Transaction, UnlimitedLanes

MOST_CROWD = 2000  # candidates of fair or limited lanes in one claim
MOST_PLAIN = 50  # lanes that are worth a claim in one trip
MOST_REFUSED = 100  # of one lane, ended in one claim
TICK = 0.1  # seconds: a ramp's starts are spread over each
MANY = 100  # jobs in one claim: after fewer, everything is looked at again
ON_TRUST = (
    SECOND // 4
)  # for which nobody looks what else is due, while one lane gives all that is wanted
DECLARED_TRUST = 5 * SECOND  # for which the limits that code declares are believed

Open = tuple[str, int]  # lane key, priority


@dataclass
class Claimer:
    """What one worker may claim, and its memory of fairness between claims."""

    worker: str
    kinds: frozenset[str]
    queues: frozenset[str] | None = None
    mindful: frozenset[str] = frozenset()  # kinds that are given what earlier attempts left behind
    own: Mapping[Guarded, Limit] = field(
        default_factory=dict
    )  # what this worker's app declares: holds in any case
    watch: DependencyObserver = field(default_factory=DependencyObserver)
    end: Callable[[Transaction, Sequence[Ending]], None] = lambda *_: None  # the one door
    credit: float = field(default=0.0)
    _served: dict[str, str] = field(default_factory=dict)  # fair queue → the share it gave to last
    _declared: Mapping[Guarded, Limit] = field(default_factory=dict)
    _declared_at: Micros = 0
    _plain: tuple[
        str, ...
    ] = ()  # lanes that were due alone, or as a pair, and no code limits, the last one first
    _plain_by: tuple[object, object] = (
        (),
        (),
    )  # the kinds and declarations under which that was so
    full: bool = False  # the last claim took all it wanted
    _marks: tuple[
        ClaimMark, ...
    ] = ()  # and where in its lane it ended, or in both: fresh work, then retries
    _seen: Look | None = None  # when nothing else was due
    _reached: tuple[
        Micros, ...
    ] = ()  # when the last one taken was due, of fresh work and of retries

    def __post_init__(self) -> None:
        self._prober = Prober(self.worker, self.watch, {})

    def learn(self, manifest: Manifest) -> None:
        """The app as it is now."""
        self.kinds = frozenset(manifest.kinds)
        self.mindful = frozenset(name for name, spec in manifest.kinds.items() if spec.remembers)
        self.own = limits_of(manifest)
        self.watch.own = terms_of(manifest)
        self._prober.timeouts = {name: spec.timeout for name, spec in manifest.kinds.items()}

    def claim(
        self, unit: Transaction, free: int, *, hinted: bool = False, places: Places | None = None
    ) -> Claimed:
        self._reached = ()
        look, leases, rest = self._look(unit, free, places, hopeful=hinted or self.full)
        at_once = not leases or rest == 0  # not some by a mark and others after a look
        # Who was hinted has somebody waiting: what is declared is read again before, by a turn that has not.
        self._learn(unit, look.now, DECLARED_TRUST if hinted else DECLARED_TRUST - SECOND)
        guards = self.watch.read(look.guards)
        view = View(look, self._shut(unit, look, free), self.queues, self.kinds)
        self.watch.waiting = view.waiting()
        told, due = parted(view.due) if places is not None else ([], view.due)
        later = None
        if rest > 0 and (look.guards or due):
            probes = self._pass(unit, view, guards)
            leases, rest = leases + probes, rest - len(probes)
            if due and rest > 0:
                more, later = self._take(unit, due, rest, look, guards, places)
                leases = leases + more
        self.full = 0 < free <= len(leases)
        self._marks = self._marked(look, due, leases) if self.full and at_once else ()
        if places is not None and places.deliveries > 0:
            leases = leases + self._tell(unit, view, told, guards, places, idle=free > 0)
        wakes = view.wakes(guards)
        wakes += [] if later is None else [later]
        passing = [key for key in guards if self._passes(unit, view, key, guards)]
        messages = bool(parted(view.due)[0]) or any(key.startswith(ENDPOINT) for key in passing)
        return Claimed(
            leases, look.now, min(wakes, default=None), bool(view.due or passing), messages
        )

    def _tell(
        self,
        unit: Transaction,
        view: View,
        told: Sequence[Open],
        guards: Mapping[str, GuardState],
        places: Places,
        *,
        idle: bool,
    ) -> list[Lease]:
        """Messages have places of their own. While all others are taken, who may probe an address does so there."""
        held = (
            {}
            if idle
            else {key: guard for key, guard in guards.items() if key.startswith(ENDPOINT)}
        )
        leases = self._pass(unit, view, held)
        rest = places.deliveries - len(leases)
        if not told or rest <= 0:
            return leases
        own = places._replace(free=rest, each=OF_ENDPOINTS.most or rest)
        return leases + self._take(unit, told, rest, view.look, guards, own)[0]

    def _shut(self, unit: Transaction, look: Look, free: int) -> list[Gate]:
        """The closed gates. The hold of a dependency whose time is over ends on a ramp, by the first who comes."""
        over = [
            gate
            for gate in look.gates
            if gate.scope == "dependency" and not is_closed(gate, look.now)
        ]
        still = (
            []
            if free <= 0
            else [gate for gate in over if not let_go(unit, self.watch, gate, look.now)]
        )
        return [gate for gate in look.gates if is_closed(gate, look.now)] + [
            gate._replace(until=look.now + SOON) for gate in still
        ]

    # -- what a breaker lets pass ---------------------------------------------------------------------
    def _passes(
        self, unit: Transaction, view: View, key: str, guards: Mapping[str, GuardState]
    ) -> bool:
        """Is there something to do for a dependency that is down?"""
        guard, now = guards[key], view.look.now
        if not guard.is_down(now):
            return False
        if self._fails_fast(key) and view.in_the_way(key):
            return True
        if not may_probe(guard, now) or not (
            self._has_function(key) or self._behind(view, key, guards)
        ):
            return False
        return self._prober.may(unit, guard, now)

    def _behind(self, view: View, key: str, guards: Mapping[str, GuardState]) -> list[Open]:
        """Due lanes that can look for it: this one alone is in the way, or others of which it is time to look too."""
        now = view.look.now
        others = {
            other
            for other, guard in guards.items()
            if may_probe(guard, now) and not self._asks(other)
        }
        return view.in_the_way(key, others)

    def _asks(self, key: str) -> bool:
        """Is a function asked, not a job?"""
        return self.watch.terms(key).probe

    def _fails_fast(self, key: str) -> bool:
        return self.watch.terms(key).mode == "fail_fast"

    def _has_function(self, key: str) -> bool:
        own = self.watch.own.get(key)
        return own is not None and own.probe

    def _pass(self, unit: Transaction, view: View, guards: Mapping[str, GuardState]) -> list[Lease]:
        """Probes to run; and what is not to wait ends here."""
        probes = []
        for key, guard in guards.items():
            if not self._passes(unit, view, key, guards):
                continue
            probe = self._prober.take(unit, key, self._behind(view, key, guards), view.look.now)
            probes += [] if probe is None else [probe]
            if self._fails_fast(key):
                self._refuse(unit, key, guard, view.in_the_way(key))
        return probes

    def _refuse(
        self, unit: Transaction, key: str, guard: GuardState, lanes: Sequence[Open]
    ) -> None:
        with unit.together():
            leases = [
                lease for lane in lanes for lease in unit.take_due(self.worker, *lane, MOST_REFUSED)
            ]
            failure = dependency_unavailable(key, guard.reason)
            self.end(
                unit,
                [
                    Ending(lease, Outcome(Ended.FAILED, failure=failure, final=True))
                    for lease in leases
                ],
            )

    def _look(
        self, unit: Transaction, free: int, places: Places | None, *, hopeful: bool
    ) -> tuple[Look, list[Lease], int]:
        """What is there, what was taken at once, and how many more are wanted. Taking is tried with the first look only
        where something is likely to be there: it costs more.
        """
        if not hopeful or free <= 0 or self._plain_by != (self.kinds, self._declared):
            return unit.look(), [], free
        lanes = [
            lane
            for lane in self._plain
            if places is None or not self._bounds([Lane.parse(lane)], free, places)
        ]
        if not lanes:
            return unit.look(), [], free
        if (
            self._seen is not None
            and self._marks
            and all(mark.lane in lanes for mark in self._marks)
        ):
            leases = self._go_on(unit, free)
            if len(leases) == free:
                return self._seen._replace(now=leases[0].started_at), leases, 0
            if leases:
                return unit.look(), leases, free - len(leases)
        plain = UnlimitedLanes(
            lanes, self._declared_at - DECLARED_TRUST, self._declared_at + DECLARED_TRUST
        )
        if not self.full:  # an idle worker has heard of something: of one job, most likely
            look, leases = unit.look_and_take_one(self.worker, plain)
            return look, leases, free - len(leases)
        look, leases = unit.look_and_take(self.worker, plain, free)
        return look, leases, 0 if leases else free

    def _go_on(self, unit: Transaction, free: int) -> list[Lease]:
        def take(mark: ClaimMark, most: int) -> list[Lease]:
            return unit.take_on(self.worker, mark, most)

        return (
            take(self._marks[0], free)
            if len(self._marks) == 1
            else self._of_both(self._marks, free, take)
        )

    def _of_both(
        self, pair: Sequence[ClaimMark], free: int, take: Callable[[ClaimMark, int], list[Lease]]
    ) -> list[Lease]:
        """From two lanes by the share that retries have, without looking at each job; less where one runs dry."""
        fresh, retries = pair
        first = (retries.priority, retries.run_at) < (fresh.priority, fresh.run_at)
        wanted, credit = share(free, self.credit, first=first)
        again = take(retries, wanted) if wanted else []
        new = take(fresh, free - len(again))
        if new or again:
            self.credit = credit if len(again) == wanted and len(new) == free - wanted else 0.0
        taken = ((fresh, new), (retries, again))
        self._reached = tuple(
            max([mark.run_at, *[lease.run_at for lease in leases]]) for mark, leases in taken
        )
        return new + again

    def _marked(
        self, look: Look, due: Sequence[Open], leases: Sequence[Lease]
    ) -> tuple[ClaimMark, ...]:
        """Where the next claim may go on. What waits elsewhere is seen again soon, as is what came to wait before the
        mark: a job that was given back, or was enqueued in a transaction that took its time.
        """
        lanes = due if len(due) == 1 else _pair(due)
        reached = self._reached if len(lanes) > 1 else (max([lease.run_at for lease in leases]),)
        if (
            len(leases) < MANY
            or not (lanes and reached)
            or any(lane not in self._plain for lane, _ in lanes)
        ):
            return ()
        if (
            look.guards
            or look.limits
            or any(g.scope == "dependency" or is_closed(g, look.now) for g in look.gates)
        ):
            return ()  # `take_on` would take nothing
        same = [(mark.lane, mark.priority) for mark in self._marks] == [*lanes]
        if not same or self._seen is None or look.lanes is not self._seen.lanes:
            self._seen, self._marks = look, self._heads(look, lanes)
        return tuple(
            mark._replace(run_at=at) for mark, at in zip(self._marks, reached, strict=True)
        )

    def _heads(self, look: Look, lanes: Sequence[Open]) -> tuple[ClaimMark, ...]:
        until = min(look.now + ON_TRUST, self._declared_at + DECLARED_TRUST)
        heads = {(lane, priority): run_at for lane, priority, run_at in look.lanes}
        return tuple(ClaimMark(*lane, heads[lane], look.now, until) for lane in lanes)

    def _know(self, lane: str) -> None:
        """It was due alone, or as one of a pair. What code limits is no plain lane, whatever an operator has said."""
        limited, parsed = effective(self._declared, {}), Lane.parse(lane)
        if (
            any(key in limited for key in parsed.guards)
            or (parsed.retry and parsed.uses)
            or _endpoints(parsed.guards)
        ):
            return  # of retries there are only so many
        by = (self.kinds, self._declared)
        others = [other for other in self._plain if other != lane] if self._plain_by == by else []
        self._plain, self._plain_by = (lane, *others[: MOST_PLAIN - 1]), by

    def _learn(self, unit: Transaction, now: Micros, trust: Micros) -> None:
        if abs(now - self._declared_at) > trust:
            manifests = holding_manifests(unit, now)
            self._declared = {**self.own, **limits_of_all(manifests)}
            self.watch.others = terms_of_all(manifests)
            self._declared_at = now

    def _take(
        self,
        unit: Transaction,
        due: Sequence[Open],
        free: int,
        look: Look,
        guards: Mapping[str, GuardState],
        places: Places | None,
    ) -> tuple[list[Lease], Micros | None]:
        """The leases, and when a rate that stands in the way allows more."""
        lanes = [Lane.parse(lane) for lane, _ in due]
        on_the_way = {key for lane in lanes for key in lane.guards}
        limits = {**_endpoints(on_the_way), **effective(self._declared, look.limits)}
        limits = {key: limit for key, limit in guarded(limits, guards).items() if key in on_the_way}
        bounds = self._bounds(lanes, free, places) | self._retries(lanes, free, look.now)
        if limits or bounds:
            with unit.together():
                leases, later = self._take_within(
                    unit, due, free, Capacity(unit, limits, look.now, bounds)
                )
            tokens = [
                self.watch.next_retry(key, look.now) for scope, key in bounds if scope == "budget"
            ]
            return leases, min((at for at in (later, *tokens) if at is not None), default=None)
        if len(due) == 1:
            self._know(due[0][0])
            leases = unit.take_due(self.worker, *due[0], free)
            self.watch.started(leases)
            return leases, None
        pair = _pair(due) if free >= MANY else []
        if pair:
            leases = self._take_both(unit, pair, free, look)
        else:
            fresh, retries = self._candidates(unit, due, free * unit.overask)
            chosen, _ = pick(fresh, retries, free * unit.overask, self.credit)
            leases = unit.take(self.worker, chosen, free)
            self._remember(fresh, retries, leases)
        self.watch.started(leases)
        return leases, None

    def _take_both(
        self, unit: Transaction, pair: Sequence[Open], free: int, look: Look
    ) -> list[Lease]:
        """Many jobs, of fresh work and of retries: in the end it does not matter which of them goes first."""
        for lane, _ in pair:
            self._know(lane)

        def take(mark: ClaimMark, most: int) -> list[Lease]:
            return unit.take_due(self.worker, mark.lane, mark.priority, most)

        leases = self._of_both(self._heads(look, pair), free, take)
        short = free - len(leases)
        return leases + unit.take_due(self.worker, *pair[1], short) if short else leases

    def _bounds(
        self, lanes: Sequence[Lane], free: int, places: Places | None
    ) -> dict[Guarded, int]:
        """Jobs that use something are not claimed ahead, or they would start after it went down; and no dependency
        gets all places of a worker, or one that hangs would stop everybody.
        """
        used = {key for lane in lanes if lane.uses for key in lane.uses.split(",")}
        if not used or places is None:
            return {}
        left = {
            ("here", key): places.each - places.here.get(key, 0) for key in used - places.shared
        }
        bounds = {key: bound for key, bound in left.items() if bound < free}
        return bounds | ({SLOTS: places.free} if places.free < free else {})

    def _retries(self, lanes: Sequence[Lane], free: int, now: Micros) -> dict[Guarded, int]:
        """How many retries each dependency bears, where they are few."""
        used = {key for lane in lanes if lane.retry and lane.uses for key in lane.uses.split(",")}
        left = {key: self.watch.retries_left(key, now) for key in used}
        return {
            ("budget", key): count
            for key, count in left.items()
            if count is not None and count < free
        }

    def _take_within(
        self, unit: Transaction, due: Sequence[Open], free: int, rooms: Capacity
    ) -> tuple[list[Lease], Micros | None]:
        roomy = [lane for lane in due if rooms.of(lane[0]) != 0]
        fresh, retries = self._candidates(unit, roomy, free * unit.overask, rooms)
        by_id = {candidate[2]: candidate for candidate in (*fresh, *retries)}
        chosen, _ = pick(fresh, retries, len(by_id), self.credit)
        admitted = rooms.admit(by_id[job_id] for job_id in chosen)
        leases = unit.take(self.worker, [candidate[2] for candidate in admitted], free)
        rooms.spend(unit, leases)
        self.watch.started(leases)
        self._remember(fresh, retries, leases)
        return leases, rooms.next_start()

    def _candidates(
        self, unit: Transaction, due: Sequence[Open], wanted: int, rooms: Capacity | None = None
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Fresh work and retries, each in its order; in fair queues owners in turn."""
        groups = self._groups(due, wanted, rooms)
        return self._of(unit, groups, "|0", wanted), self._of(unit, groups, "|1", wanted)

    def _groups(
        self, due: Sequence[Open], wanted: int, rooms: Capacity | None
    ) -> dict[int | None, list[Open]]:
        """Lanes by how many of each are wanted at most: a crowd in one must not hide the others. None: no matter."""
        shared = sum(1 for lane, _ in due if Lane.parse(lane).share)
        turns = max(2, min(wanted, MOST_CROWD // shared)) if shared else None
        groups: dict[int | None, list[Open]] = {}
        for lane in due:
            bounds = [
                turns if Lane.parse(lane[0]).share else None,
                None if rooms is None else rooms.of(lane[0]),
            ]
            said = [bound for bound in bounds if bound is not None]
            groups.setdefault(min(*said, wanted) if said else None, []).append(lane)
        return groups

    def _of(
        self,
        unit: Transaction,
        groups: Mapping[int | None, Sequence[Open]],
        ending: str,
        wanted: int,
    ) -> list[Candidate]:
        found: list[Candidate] = []
        for each, lanes in groups.items():
            most = wanted if each is None else 2 * MOST_CROWD
            found += unit.candidates(
                [lane for lane in lanes if lane[0].endswith(ending)], most, each=each
            )
        if list(groups) == [None]:
            return found
        return in_turn(
            sorted(found), self._served, share_of(self.worker)
        )  # not all workers begin with the same

    def _remember(
        self, fresh: Sequence[Candidate], retries: Sequence[Candidate], leases: Sequence[Lease]
    ) -> None:
        """Only what was taken was earned."""
        _, self.credit = pick(fresh, retries, len(leases), self.credit)
        lanes = {candidate[2]: candidate[3] for candidate in (*fresh, *retries)}
        taken = [Lane.parse(lanes[lease.id]) for lease in leases if lease.id in lanes]
        self._served |= {lane.queue: lane.share for lane in taken if lane.share}


def claimer_of(worker: str, manifest: Manifest, queues: frozenset[str] | None = None) -> Claimer:
    # Whoever works tells too: workers that were given queues of their own would leave messages to nobody.
    claimer = Claimer(worker, frozenset(), None if queues is None else queues | {DELIVERY_QUEUE})
    claimer.learn(manifest)
    return claimer


def _pair(due: Sequence[Open]) -> list[Open]:
    """Fresh work and retries, if these two alone are due and no owners take turns."""
    if len(due) != 2:
        return []
    pair = sorted(due, key=lambda lane: lane[0][-1])
    lanes = [Lane.parse(lane) for lane, _ in pair]
    return pair if [(lane.retry, lane.share) for lane in lanes] == [(False, ""), (True, "")] else []


def parted(due: Sequence[Open]) -> tuple[list[Open], list[Open]]:
    """Messages, and all the rest."""
    told = [lane for lane in due if lane[0].startswith(f"{DELIVERY_QUEUE}|")]
    return told, [lane for lane in due if lane not in told] if told else list(due)


class Places(NamedTuple):
    """The places of this worker for jobs that use something."""

    free: int  # without a line
    each: int  # for jobs that use the same
    here: Mapping[str, int]  # in use, by dependency
    shared: AbstractSet[str] = frozenset()  # what all kinds use: such jobs may have every place
    deliveries: int = 0  # for messages, beside all others


@dataclass
class View:
    """What waits for this worker behind which gates."""

    look: Look
    shut: Sequence[Gate]
    queues: frozenset[str] | None
    kinds: frozenset[str]

    def __post_init__(self) -> None:
        self._known = [
            (Lane.parse(key), priority, run_at) for key, priority, run_at in self.look.lanes
        ]
        self._shut = closed_keys(self.shut, self.look.now)["dependency"]
        self._ahead = self._open(self.shut)
        self.due = [
            (key, priority) for key, priority, run_at in self._ahead if run_at <= self.look.now
        ]

    def _open(self, shut: Sequence[Gate]) -> list[tuple[str, int, Micros]]:
        lanes = ((lane, priority) for lane, priority, _ in self._known)
        mine = set(open_lanes(lanes, shut, self.look.now, self.queues, self.kinds))
        return [(lane.key, p, run_at) for lane, p, run_at in self._known if (lane.key, p) in mine]

    def in_the_way(self, key: str, others: AbstractSet[str] | None = None) -> list[Open]:
        """Due lanes for which only dependencies are in the way, this one and at most these others; None: any."""
        found = self._held.get(key, ())
        return [
            lane
            for lane, shut in found
            if others is None or all(one == key or one in others for one in shut)
        ]

    @cached_property
    def _held(self) -> dict[str, list[tuple[Open, AbstractSet[str]]]]:
        """By dependency that is shut, the due lanes behind it, each with all that is shut on its way."""
        held: dict[str, list[tuple[Open, AbstractSet[str]]]] = {}
        for lane, priority, run_at in self._open(
            [gate for gate in self.shut if gate.scope != "dependency"]
        ):
            shut = (
                self._shut.intersection(Lane.parse(lane).uses.split(","))
                if run_at <= self.look.now
                else ()
            )
            for key in shut:
                held.setdefault(key, []).append(((lane, priority), frozenset(shut)))
        return held

    def waiting(self) -> frozenset[str]:
        """What the jobs use that have been due for more than a moment, of whatever kind, and that nothing holds: a
        ramp must not wait for a queue that is paused.
        """
        late, kinds = self.look.now - SECOND, frozenset(lane.kind for lane, _, _ in self._known)
        due = [(lane, priority) for lane, priority, at in self._known if lane.uses and at < late]
        free = open_lanes(due, self.shut, self.look.now, None, kinds) if due else []
        return frozenset(key for lane, _ in free for key in Lane.parse(lane).uses.split(","))

    def wakes(self, guards: Mapping[str, GuardState]) -> list[Micros]:
        """When something not due yet becomes due, a gate opens or a probe may go."""
        now = self.look.now
        wakes = [run_at for _, _, run_at in self._ahead if run_at > now]
        wakes += [gate.until for gate in self.shut if gate.until is not None and gate.until > now]
        return wakes + [
            guard.probe_at for guard in guards.values() if guard.open and guard.probe_at > now
        ]


def _endpoints(keys: Iterable[Guarded]) -> dict[Guarded, Limit]:
    """One that hangs holds no more than these."""
    return {key: Limit(OF_ENDPOINTS.most) for key in keys if key[1].startswith(ENDPOINT)}


def guarded(
    limits: Mapping[Guarded, Limit], guards: Mapping[str, GuardState]
) -> dict[Guarded, Limit]:
    """With what guards say: the rate of a ramp, and how many at a time after a dependency asked for less."""
    both = dict(limits)
    for key, guard in guards.items():
        rate = None if guard.ramp is None else guard.ramp.rate
        tight = tighter(
            both.get(("dependency", key), Limit()),
            guard.reduced.limit,
            rate,
            1 + (rate or 0.0) * TICK,
        )
        if tight != Limit():
            both["dependency", key] = tight
    return both


class Claimed(NamedTuple):
    leases: list[Lease]
    now: Micros
    next_due: (
        Micros | None
    )  # when something not due yet becomes due, a gate opens or a rate allows more
    more: bool  # there were due lanes: there may be more than was taken
    messages: bool = False  # some of them of messages


def memories(
    unit: Transaction, leases: Sequence[Lease], mindful: frozenset[str] | None = None
) -> dict[str, PreviousAttempts]:
    """Only jobs that ran before can have any; of other kinds than the mindful ones nobody could look at them."""
    again = [lease for lease in leases if lease.token > 1]
    return (
        unit.memories([lease.id for lease in again if mindful is None or lease.kind in mindful])
        if again
        else {}
    )
