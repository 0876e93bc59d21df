"""Faults of processes: killed, ended, frozen; and of what their jobs use."""

from __future__ import annotations

import signal
import time
from random import Random

from storm.crew import inner, signalled
from storm.faults import LEASE, NotNow, a_nursery, a_runner, fault
from storm.pointed import AFTER, BEFORE, EXIT, LOSE
from storm.world import World


@fault(8)
def kill_runner(world: World, rng: Random) -> None:
    """kill -9 of one runner."""
    signalled(a_runner(world, rng), signal.SIGKILL)


@fault(2)
def kill_nursery(world: World, rng: Random) -> None:
    """kill -9 of what runners are forked from."""
    signalled(a_nursery(world, rng), signal.SIGKILL)


@fault(5)
def kill_supervisor(world: World, rng: Random) -> None:
    """kill -9 of one supervisor; its runners must follow by themselves."""
    rng.choice(world.workers).kill()


@fault(1)
def kill_all_workers(world: World, rng: Random) -> None:
    """kill -9 of every supervisor at once."""
    del rng
    for worker in world.workers:
        worker.kill()


@fault(8)
def fall_at_commit(world: World, rng: Random) -> None:
    """At one of the next commits of a supervisor, before or after it: kill -9, or the connection is lost."""
    worker = rng.choice(world.workers)
    order = f"{rng.choice((EXIT, LOSE))} {rng.choice((BEFORE, AFTER))} {rng.randint(1, 12)}"
    if not worker.settled or (file := world.folder / f"point-{worker.name}").exists():
        raise NotNow
    worker.expected = order.startswith(EXIT)
    draft = file.with_suffix(".draft")
    draft.write_text(order)
    draft.replace(file)


@fault(2)
def kill_web(world: World, rng: Random) -> None:
    """kill -9 of the web server."""
    rng.choice(world.crew.named("web")).kill()


@fault(2)
def kill_client(world: World, rng: Random) -> None:
    """kill -9 of a client, perhaps in the middle of a call."""
    rng.choice(world.crew.named("client")).kill()


@fault(3)
def end_worker(world: World, rng: Random) -> None:
    """SIGTERM; after a moment, as a platform does, sometimes SIGKILL."""
    worker = rng.choice(world.workers)
    worker.expected = True
    signalled(inner(worker.pid), signal.SIGTERM)
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0.2, 2))
        worker.kill()


@fault(3)
def freeze_runner(world: World, rng: Random) -> None:
    """SIGSTOP of one runner, for less or for more than a lease."""
    _frozen([a_runner(world, rng)], rng.uniform(0.5, 2 * LEASE))


@fault(2)
def freeze_nursery(world: World, rng: Random) -> None:
    """SIGSTOP of what runners are forked from: it may be killed for it."""
    _frozen([a_nursery(world, rng)], rng.uniform(0.5, 2 * LEASE))


@fault(4)
def freeze_worker(world: World, rng: Random) -> None:
    """SIGSTOP of a supervisor and its runners, for less or for more than a lease."""
    _frozen(rng.choice(world.workers).family(), rng.uniform(1, 3 * LEASE))


@fault(2)
def freeze_supervisor(world: World, rng: Random) -> None:
    """SIGSTOP of a supervisor; its runners go on meanwhile."""
    worker = rng.choice(world.workers)
    _frozen(
        [pid for pid in worker.family() if pid not in worker.runners()], rng.uniform(1, 3 * LEASE)
    )


@fault(1)
def freeze_everybody(world: World, rng: Random) -> None:
    """SIGSTOP of every process: a laptop that is closed and opened again."""
    pids = [pid for member in world.crew.members.values() for pid in member.family()]
    _frozen(pids, rng.uniform(LEASE, 3 * LEASE))


@fault(1)
def freeze_web(world: World, rng: Random) -> None:
    """SIGSTOP of the web server."""
    _frozen(rng.choice(world.crew.named("web")).family(), rng.uniform(1, 8))


def _frozen(pids: list[int], seconds: float) -> None:
    stopped = [pid for pid in pids if signalled(pid, signal.SIGSTOP)]
    try:
        time.sleep(seconds)
    finally:
        for pid in stopped:
            signalled(pid, signal.SIGCONT)


@fault(1.5)
def gateway_down(world: World, rng: Random) -> None:
    """What some jobs call refuses them, for a while."""
    flag = world.folder / "gateway-down"
    flag.touch()
    time.sleep(rng.uniform(2, 8))
    flag.unlink(missing_ok=True)
