"""Slots of a worker: which are taken, and how many jobs to claim ahead of free ones.

A slot is taken from the claim of a job until its ending is durable. Only the transaction thread
uses these classes.

A job that does nothing ends long before a commit does. With only `concurrency` jobs at hand the
runner would wait for the database between batches. So jobs are claimed ahead while every claim is
full and jobs are short, up to half a second of work, and not at all as soon as jobs are long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from mulligan.core.attempt import Ending, Lease
from mulligan.core.job import parse_job_settings
from mulligan.guards.capacity import SlotLimits
from mulligan.manifest.specs import DELIVERY_QUEUE, SYSTEM_PREFIX, Manifest

MAX_PREFETCH = 4000
MAX_CLAIM = 2000  # jobs in one claim
PREFETCH_MS = 500  # of work to claim ahead, per slot
OVERHEAD_MS = 0.25  # added to the duration of each job
SHORT_MS = 20  # longer jobs are not claimed ahead
RARE_SHARE = 100  # one in 100 jobs may be longer
# One in 10, if at most `concurrency` are longer: a stalled runner delays all its running jobs.
STALL_SHARE = 10
GROWTH = 4  # at most, from one claim to the next
MIN_DELIVERY_SLOTS = 3
DELIVERY_SHARE = 3  # one for every three other slots
RESERVED_SHARE = 8  # one slot in 8 is reserved for jobs that do not use the same dependency
MIN_SLOTS_TO_RESERVE = 4  # with fewer slots, none is reserved
LARGE_PAYLOADS = 4 * 1024 * 1024  # characters of payload in one claim: prefetch nothing

Fence = tuple[str, int]  # job, token


def delivery_slots(concurrency: int) -> int:
    """Return how many slots are reserved for deliveries, in addition to all others.

    Deliveries must not wait until a long job has ended. There are enough slots that an endpoint
    that hangs leaves some for the others.
    """
    return max(MIN_DELIVERY_SLOTS, concurrency // DELIVERY_SHARE)


class Prefetch:
    """How many jobs to claim ahead of free slots. Adapts to how long jobs take."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._recent: list[int] = []  # durations of the last jobs, in ms
        self._each_ms = 0.0  # how long a job occupies its slot
        self.ahead = 0

    def free_slots(self, held: int) -> int:
        """Return how many jobs to claim if `held` are held already."""
        return min(MAX_CLAIM, self._concurrency + self.ahead - held)

    def work_ahead(self, held: int) -> float:
        """Return how many seconds `held` jobs keep all slots busy; 0 if none are claimed ahead."""
        return held * self._each_ms / self._concurrency / 1000 if self.ahead else 0.0

    def reset(self) -> None:
        """Claim nothing ahead: jobs are isolated, large, or did not start in time."""
        self.ahead = 0

    def learn(self, wanted: int, taken: int, durations_ms: Sequence[int]) -> None:
        """Adapt to one claim, and to the jobs that ended since the last one."""
        recent = self._with_recent(durations_ms)
        if self._are_long(recent):
            self.ahead, self._recent = 0, []
        elif durations_ms and 0 < wanted <= taken:
            self._each_ms = sum(recent) / len(recent) + OVERHEAD_MS
            most = min(MAX_PREFETCH, int(self._concurrency * PREFETCH_MS / self._each_ms))
            self.ahead = min(most, GROWTH * max(self._concurrency, self.ahead))

    def _with_recent(self, durations_ms: Sequence[int]) -> Sequence[int]:
        """Add earlier durations to a small sample, which a single stall would dominate."""
        enough = STALL_SHARE * self._concurrency
        recent = durations_ms
        if len(durations_ms) < enough:
            recent = [*self._recent, *durations_ms][-enough:]
        self._recent = [*recent[-enough:]]
        return recent

    def _are_long(self, durations_ms: Sequence[int]) -> bool:
        """True if jobs are long, rather than a runner having stalled once."""
        long = sum([took > SHORT_MS for took in durations_ms])
        may_be_a_stall = long <= self._concurrency
        share = STALL_SHARE if may_be_a_stall else RARE_SHARE
        return long * share > len(durations_ms)


class HeldSlots:
    """Leases that this worker holds, and the slots that are left."""

    def __init__(self, concurrency: int) -> None:
        self.isolated_kinds: frozenset[str] = frozenset()  # each job gets a single-use runner
        self._used_by_all: frozenset[str] = frozenset()  # dependencies that every kind uses
        self._concurrency = concurrency
        self._prefetch = Prefetch(concurrency)
        self._leases: dict[Fence, Lease] = {}
        self._uses: Counter[str] = Counter()
        self._deliveries = 0
        self._suspects: set[Fence] = set()
        self._durations: list[int] = []  # of jobs that ended since the last claim, in ms

    def apply_manifest(self, manifest: Manifest) -> None:
        """Use the kinds of the app as it is now."""
        self.isolated_kinds = isolated_kinds(manifest)
        self._used_by_all = _dependencies_of_all_kinds(manifest)

    @property
    def fences(self) -> set[Fence]:
        """Fences of all leases held."""
        return set(self._leases)

    @property
    def has_suspect(self) -> bool:
        """True if this worker holds a job that may kill the whole worker.

        While it is here nothing else is claimed, because the kill would take those jobs with it.
        """
        return bool(self._suspects)

    def add(self, leases: Iterable[Lease], is_suspect: Callable[[Lease], bool]) -> None:
        """Take a slot for each lease."""
        for lease in leases:
            self._leases[lease.fence] = lease
            if lease.uses:
                self._uses.update(lease.uses.split(","))
            if lease.queue == DELIVERY_QUEUE:
                self._deliveries += 1
            if lease.losses and is_suspect(lease):
                self._suspects.add(lease.fence)

    def remove(self, fences: Iterable[Fence]) -> None:
        """Free the slots of these leases."""
        for fence in fences:
            lease = self._leases.pop(fence, None)
            if lease is None:
                continue
            if lease.uses:
                self._uses.subtract(lease.uses.split(","))
            if lease.queue == DELIVERY_QUEUE:
                self._deliveries -= 1
            self._suspects.discard(fence)

    def free(self) -> int:
        """Return how many jobs to claim. Deliveries do not count: they have their own slots."""
        return max(0, self._prefetch.free_slots(self._held))

    def free_deliveries(self) -> int:
        """Return how many deliveries to claim."""
        return max(0, delivery_slots(self._concurrency) - self._deliveries)

    def limits(self) -> SlotLimits:
        """Return the limits for jobs with dependencies and for deliveries.

        Some slots are never given to jobs of one dependency: if it hangs, other jobs still run.
        """
        per_dependency = self._concurrency
        if self._concurrency >= MIN_SLOTS_TO_RESERVE:
            per_dependency -= max(1, self._concurrency // RESERVED_SHARE)
        return SlotLimits(
            free=min(self.free(), max(0, self._concurrency - self._held)),
            per_dependency=per_dependency,
            in_use=self._uses,
            used_by_all=self._used_by_all,
            deliveries=self.free_deliveries(),
        )

    @property
    def _held(self) -> int:
        return len(self._leases) - self._deliveries

    # --- Prefetch ---

    def work_ahead(self) -> float:
        """Return for how many seconds the jobs that are held keep all slots busy."""
        return self._prefetch.work_ahead(self._held)

    def stop_prefetch(self) -> None:
        """Claim nothing ahead until jobs have proven to be short again."""
        self._prefetch.reset()

    def note_durations(self, endings: Iterable[Ending]) -> None:
        """Learn how long jobs take."""
        self._durations += durations(endings, self.isolated_kinds)

    def adapt_prefetch(self, wanted: int, leases: Sequence[Lease]) -> None:
        """Claim more ahead while jobs are short; nothing ahead of isolated or large ones."""
        ended, self._durations = self._durations, []
        isolated = any(needs_single_use_runner(lease, self.isolated_kinds) for lease in leases)
        if isolated or sum([len(lease.payload) for lease in leases]) > LARGE_PAYLOADS:
            self._prefetch.reset()
        else:
            taken = count_without_deliveries(leases)
            self._prefetch.learn(wanted, taken, ended)


def count_without_deliveries(leases: Sequence[Lease]) -> int:
    """Return how many leases are not deliveries."""
    return sum([lease.queue != DELIVERY_QUEUE for lease in leases])


def isolated_kinds(manifest: Manifest) -> frozenset[str]:
    """Return the kinds whose jobs each get a single-use runner."""
    return frozenset(name for name, spec in manifest.kinds.items() if spec.alone)


def _dependencies_of_all_kinds(manifest: Manifest) -> frozenset[str]:
    """Return the dependencies that every kind of the app uses."""
    used = [
        frozenset(spec.uses.split(","))
        for name, spec in manifest.kinds.items()
        if not name.startswith(SYSTEM_PREFIX)
    ]
    if not used:
        return frozenset()
    return used[0].intersection(*used[1:]) - {""}


def needs_single_use_runner(lease: Lease, isolated_kinds: frozenset[str]) -> bool:
    """True if this attempt needs a single-use runner."""
    if lease.settings is not None and "memory_limit" in parse_job_settings(lease.settings):
        return True
    return lease.alone or lease.kind in isolated_kinds


def durations(endings: Iterable[Ending], isolated_kinds: frozenset[str]) -> list[int]:
    """Return the durations in ms of jobs in shared runners, without deliveries."""
    return [
        took
        for lease, _, took in endings
        if took is not None
        and lease.queue != DELIVERY_QUEUE
        and not (lease.alone or lease.kind in isolated_kinds)
        and (lease.settings is None or not needs_single_use_runner(lease, isolated_kinds))
    ]
