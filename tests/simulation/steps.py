"""Steps of a script. Each takes three small numbers and accepts any values.

So any part of a script is a script, and a failing one can be shortened by removing steps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mulligan.core.attempt import Ending
from mulligan.core.durations import SECOND
from mulligan.core.errors import MulliganError, NotFound, StoreUnavailable
from mulligan.worker.service import drain_workers
from simulation.outcomes import NAMES, OUTCOMES
from simulation.shop import HEARTBEAT, LEASE
from simulation.shop import KINDS as SHOP
from simulation.world import World

Answer = Any
Do = Callable[[World, int, int, int], Answer]

KINDS = (*SHOP, "unknown")
OWNERS = ("", "acme", "bee")
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"delay": 30},
    {"priority": -3},
    {"priority": 4},
    {"deadline": 40},
    {"max_retries": 0},
    {"queue": "narrow"},
    {"delay": 600, "deadline": 1200},
    {"max_retries": 5, "queue": "fair"},
    {"timeout": 5},
)
SPANS = (0.5, 1, 5, 12, 12, 31, 31, 61, 300, 900, 3700, 7300, 90_000)
OVERRIDES: tuple[dict[str, Any] | None, ...] = (
    None,
    None,
    {"max_retries": 1},
    {"queue": "narrow"},
    {"priority": 2},
    {"payload": {"n": 9}},
)
FILTERS = (
    "state:dead",
    "state:queued",
    "kind:plain",
    "kind:calls",
    "state:parked",
    "owner:acme",
    "state:cancelled",
)
STEPS: dict[str, Do] = {}
WEIGHTED_STEPS: list[str] = []  # each name as often as its weight


def step(name: str, weight: int = 1) -> Callable[[Do], Do]:
    def register(do: Do) -> Do:
        STEPS[name] = do
        WEIGHTED_STEPS.extend([name] * weight)
        return do

    return register


@step("rest", 1)
def rest(world: World, a: int, b: int, c: int) -> Answer:
    """Do nothing. Registered first, so that Hypothesis shrinks towards it."""


# -- enqueue -------------------------------------------------------------------------------------
@step("enqueue", 6)
def enqueue(world: World, a: int, b: int, c: int) -> Answer:
    options = {**OPTIONS[c % len(OPTIONS)], "owner": OWNERS[b % 3]}
    return world.record_jobs(
        world.app.insert(
            [world.app.build_job(KINDS[a % 10], {"n": n}, **options) for n in range(b % 3 + 1)]
        )
    )


@step("enqueue unique", 2)
def enqueue_unique(world: World, a: int, b: int, c: int) -> Answer:
    kind = KINDS[(0, 1, 7)[c % 3]]
    owner = OWNERS[b % 2]
    return world.record_jobs(
        [world.app.enqueue(kind, {"n": b % 2}, unique=f"key {a % 3}", owner=owner)]
    )


@step("enqueue in a transaction", 2)
def enqueue_joined(world: World, a: int, b: int, c: int) -> Answer:
    """Enqueue in the caller's transaction, which may be rolled back."""
    jobs = []
    with suppress(_RolledBack), world.app.transaction() as connection:
        for n in range(b % 3 + 1):
            unique = {"unique": f"key {c % 3}"} if a % 2 else {}
            jobs.append(
                world.app.enqueue(
                    KINDS[a % 10], {"n": n}, connection=connection, owner="bee", **unique
                )
            )
        if c % 3 == 0:
            raise _RolledBack
        return world.record_jobs(jobs)
    world.record_rollback([job.id for job in jobs if not job.deduplicated])
    return "rolled back"


class _RolledBack(Exception):
    pass


# -- batches -------------------------------------------------------------------------------------
@step("batch", 2)
def batch(world: World, a: int, b: int, c: int) -> Answer:
    options: dict[str, Any] = {
        "tolerance": (0, 1, "50%")[a % 3],
        "expires_in": (None, None, 600)[b % 3],
    }
    if c % 2:
        options["on_complete"] = "sums"
    return world.record_batch(world.app.batch(f"batch {a % 4}", owner=OWNERS[b % 2], **options))


@step("add to a batch", 4)
def add(world: World, a: int, b: int, c: int) -> Answer:
    batch_id = world.batch(a)
    options = {
        "batch": batch_id,
        "must_have": c % 5 == 0,
        **({"unique": f"member {c % 3}"} if c % 3 == 1 else {}),
    }
    jobs = [world.app.build_job(KINDS[(b + n) % 6], {"n": n}, **options) for n in range(b % 3 + 1)]
    return world.record_jobs(world.app.insert(jobs))


@step("seal", 3)
def seal(world: World, a: int, b: int, c: int) -> Answer:
    if c % 4 == 0:
        with world.app.transaction() as connection:
            world.app.batches.seal(world.batch(a), connection=connection)
        return "sealed by a caller"
    return world.app.batches.seal(world.batch(a)).state


@step("change a batch", 1)
def change_batch(world: World, a: int, b: int, c: int) -> Answer:
    if b % 3:
        return sorted(world.app.batches.retry_failed(world.batch(a), reason="once more").jobs)
    return world.app.batches.cancel(world.batch(a), reason="not wanted").state


# -- workers -------------------------------------------------------------------------------------
@step("turn", 14)
def turn(world: World, a: int, b: int, c: int) -> Answer:
    worker = world.worker(a)
    if worker.frozen:
        return "frozen"
    for n in range(b % 4):
        worker.end(b // 4, NAMES[(c + n * 7) % len(NAMES)])
    before = world.open_to_claims()
    verdicts, leases = worker.turn(a // 4 % 4 + 1, hinted=b % 2 == 0)
    world.claimed(leases, before)
    decided = [
        (v.lease.fence, v.decision and (v.decision.verb, v.decision.state)) for v in verdicts
    ]
    return decided, [lease.fence for lease in leases]


@step("turn, all well", 4)
def turn_well(world: World, a: int, b: int, c: int) -> Answer:
    return turn(world, a, b % 4 + 4 * (b // 4), 0)


@step("settle late", 3)
def settle_late(world: World, a: int, b: int, c: int) -> Answer:
    """Settle any lease this worker ever had: running, settled or lost."""
    worker = world.worker(b)
    if not worker.leases:
        return "nothing"
    lease = worker.leases[a % len(worker.leases)]
    found = worker.turns.settle_and_claim(
        [Ending(lease, OUTCOMES[NAMES[c % len(NAMES)]], 7)], 0, world.clock.wall, None
    )
    worker.flights.pop(lease.fence, None)
    worker.endings = [ending for ending in worker.endings if ending.lease.fence != lease.fence]
    return [(v.lease.fence, v.decision and v.decision.verb) for v in found.verdicts]


@step("get ahead", 2)
def get_ahead(world: World, a: int, b: int, c: int) -> Answer:
    worker = world.worker(b)
    if not worker.leases:
        return "nothing"
    lease = worker.leases[a % len(worker.leases)]
    worker.chores.write_progress(worker.id, [(lease.id, lease.token, 0.5, "half")])
    return worker.save_checkpoint(lease, f"page {c % 2}")


@step("freeze", 1)
def freeze(world: World, a: int, b: int, c: int) -> Answer:
    world.worker(a).frozen = not world.worker(a).frozen


@step("kill", 2)
def kill(world: World, a: int, b: int, c: int) -> Answer:
    """Replace a worker without any write."""
    world.replace(world.worker(a))


@step("leave", 1)
def leave(world: World, a: int, b: int, c: int) -> Answer:
    worker = world.worker(a)
    if not worker.frozen:
        worker.leave()
        world.replace(worker)


@step("ask to drain", 1)
def drain(world: World, a: int, b: int, c: int) -> Answer:
    with suppress(NotFound):  # it may have left
        drain_workers(world.store, [world.worker(a).id], "ann", "an update")


@step("sweep", 6)
def sweep(world: World, a: int, b: int, c: int) -> Answer:
    worker = world.worker(a)
    if worker.frozen:
        return "frozen"
    if c % 3 == 0:
        worker.chores.request_full_sweep()
    return worker.chores.sweep(worker.id)


@step("watch", 2)
def watch(world: World, a: int, b: int, c: int) -> Answer:
    worker = world.worker(a)
    running = [(lease, 1000.0 * (b + 1)) for lease in worker.flights.values()]
    worker.turns.check_dependencies(running, fold=True)


@step("run a periodic task", 4)
def run_periodic_task(world: World, a: int, b: int, c: int) -> Answer:
    return world.periodic_tasks[a % len(world.periodic_tasks)].run_once(world.store)


# -- time ----------------------------------------------------------------------------------------
@step("wait", 10)
def wait(world: World, a: int, b: int, c: int) -> Answer:
    """Let time pass. Live workers renew and sweep, but only during the last three leases."""
    span = SPANS[a % len(SPANS)]
    simulated = min(span, 3 * LEASE)
    world.advance(span - simulated)
    while simulated > 0:
        world.advance(min(simulated, HEARTBEAT))
        simulated -= HEARTBEAT
        world.beat()


@step("set the clock", 1)
def set_clock(world: World, a: int, b: int, c: int) -> Answer:
    """Set only the wall clock: leases must not be affected."""
    span = (-2, -70, 45, -4000, 4000)[a % 5]
    world.clock_set_back = world.clock_set_back or span < 0
    world.clock.wall += span * SECOND
    world.store.set_database_time()


# -- Actions of people -------------------------------------------------------------------------------------
@step("by hand", 8)
def by_hand(world: World, a: int, b: int, c: int) -> Answer:
    job_id, jobs = world.job(a), world.app.jobs
    verb = ("retry", "cancel", "release", "discard", "retry")[b % 5]
    if verb == "retry":
        return jobs.retry(
            job_id, reason="again", overrides=OVERRIDES[c % 6], at=60 if c % 7 == 0 else None
        ).state
    if verb == "release":
        return jobs.release(job_id, choice=("us", None, "neither")[c % 3], reason="decided").state
    return getattr(jobs, verb)(job_id, reason="by hand").state


@step("change a queue", 3)
def change_queue(world: World, a: int, b: int, c: int) -> Answer:
    queues, name = world.app.queues, ("default", "narrow", "paced", "fair")[a % 4]
    if b % 5 == 0:
        return queues.pause(name, until=(None, 30)[c % 2], reason="later").paused
    if b % 5 == 1:
        return queues.set(
            name, concurrency=c % 3 + 1, rate=(None, "30/m")[c % 2], until=(None, 60)[a % 2]
        ).paused
    return queues.clear(name).paused if b % 5 == 2 else queues.resume(name).paused


@step("change a dependency", 2)
def change_dependency(world: World, a: int, b: int, c: int) -> Answer:
    dependencies, key = world.app.dependencies, ("gateway", "bucket")[a % 2]
    if b % 5 == 0:
        return dependencies.open(key, until=(None, 30)[c % 2], reason="by hand").key
    if b % 5 == 1:
        return dependencies.set(key, concurrency=c % 2 + 1).key
    if b % 5 == 2:
        return dependencies.probe(key).key
    return dependencies.clear(key).key if b % 5 == 3 else dependencies.close(key).key


@step("hold a kind", 1)
def hold_kind(world: World, a: int, b: int, c: int) -> Answer:
    name = KINDS[a % 6]
    if b % 2:
        return world.app.kinds.hold(name, until=(None, 30)[c % 2], reason="look at it").name
    return world.app.kinds.release(name).name


@step("change a schedule", 1)
def change_schedule(world: World, a: int, b: int, c: int) -> Answer:
    name = ("often", "each", "never-late")[a % 3]
    if b % 3 == 0:
        return world.app.schedules.pause(name, until=(None, 600)[c % 2]).name
    if b % 3 == 1:
        return world.app.schedules.resume(name).name
    return world.record_jobs([world.app.schedules.run(name)])


# -- operations ----------------------------------------------------------------------------------
@step("operation", 2)
def operation(world: World, a: int, b: int, c: int) -> Answer:
    action = ("retry", "retry", "cancel", "discard", "release", "move")[a % 6]
    options: dict[str, Any] = {"queue": "narrow"} if action == "move" else {}
    steps = (None, [1, "rest"], [1, 2, "rest"])[c % 3]
    found = world.app.operations.start(
        action, FILTERS[b % 7], steps=steps, reason="all of them", **options
    )
    return world.record_operation(found)


@step("operate", 4)
def operate(world: World, a: int, b: int, c: int) -> Answer:
    return world.worker(a).chores.run_operations()


@step("change an operation", 1)
def change_operation(world: World, a: int, b: int, c: int) -> Answer:
    verb = ("pause", "resume", "abort")[b % 3]
    return getattr(world.app.operations, verb)(world.operation(a), reason="wait").state


def do(world: World, name: str, *numbers: int) -> Answer:
    """Return the answer; a refusal and an unavailable database are answers too."""
    try:
        return STEPS[name](world, *numbers)
    except StoreUnavailable:
        return "unavailable"
    except MulliganError as refused:
        return type(refused).__name__, refused.code
