"""Faults of processes (killed, stopped, frozen) and of the service that jobs call."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from storm.commit_points import AFTER, BEFORE, EXIT, LOSE
from storm.faults import LEASE, NotPossibleNow, fault, pick_fork_server, pick_runner
from storm.processes import main_pid, send_signal
from storm.world import World


@fault(8)
def kill_runner(world: World, rng: Random) -> None:
    """kill -9 of one runner."""
    send_signal(pick_runner(world, rng), signal.SIGKILL)


@fault(2)
def kill_fork_server(world: World, rng: Random) -> None:
    """kill -9 of the fork server."""
    send_signal(pick_fork_server(world, rng), signal.SIGKILL)


@fault(5)
def kill_supervisor(world: World, rng: Random) -> None:
    """kill -9 of one supervisor; its runners must exit by themselves."""
    rng.choice(world.workers).kill()


@fault(1)
def kill_all_workers(world: World, rng: Random) -> None:
    """kill -9 of every supervisor at once."""
    del rng
    for worker in world.workers:
        worker.kill()


@fault(8)
def fall_at_commit(world: World, rng: Random) -> None:
    """Before or after one of its next commits, a supervisor is killed or loses its connection."""
    worker = rng.choice(world.workers)
    order = f"{rng.choice((EXIT, LOSE))} {rng.choice((BEFORE, AFTER))} {rng.randint(1, 12)}"
    if not worker.is_ready or (file := world.folder / f"point-{worker.name}").exists():
        raise NotPossibleNow
    worker.expected = order.startswith(EXIT)
    draft = file.with_suffix(".draft")
    draft.write_text(order)
    draft.replace(file)


@fault(2)
def kill_web(world: World, rng: Random) -> None:
    """kill -9 of the web server."""
    rng.choice(world.processes.with_prefix("web")).kill()


@fault(2)
def kill_client(world: World, rng: Random) -> None:
    """kill -9 of a client, perhaps in the middle of a call."""
    rng.choice(world.processes.with_prefix("client")).kill()


@fault(3)
def end_worker(world: World, rng: Random) -> None:
    """SIGTERM of a worker, in half of the cases followed by SIGKILL within 2 seconds."""
    worker = rng.choice(world.workers)
    worker.expected = True
    send_signal(main_pid(worker.pid), signal.SIGTERM)
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0.2, 2))
        worker.kill()


@fault(3)
def freeze_runner(world: World, rng: Random) -> None:
    """SIGSTOP of one runner, for less or more than a lease."""
    _freeze([pick_runner(world, rng)], rng.uniform(0.5, 2 * LEASE))


@fault(2)
def freeze_fork_server(world: World, rng: Random) -> None:
    """SIGSTOP of the fork server; its worker may kill it."""
    _freeze([pick_fork_server(world, rng)], rng.uniform(0.5, 2 * LEASE))


@fault(4)
def freeze_worker(world: World, rng: Random) -> None:
    """SIGSTOP of a supervisor and its runners, for less or more than a lease."""
    _freeze(rng.choice(world.workers).process_tree(), rng.uniform(1, 3 * LEASE))


@fault(2)
def freeze_supervisor(world: World, rng: Random) -> None:
    """SIGSTOP of a supervisor while its runners continue."""
    worker = rng.choice(world.workers)
    _freeze(
        [pid for pid in worker.process_tree() if pid not in worker.runners()],
        rng.uniform(1, 3 * LEASE),
    )


@fault(1)
def freeze_everybody(world: World, rng: Random) -> None:
    """SIGSTOP of every process, as when a laptop is closed and opened again."""
    pids = [pid for process in world.processes.by_name.values() for pid in process.process_tree()]
    _freeze(pids, rng.uniform(LEASE, 3 * LEASE))


@fault(1)
def freeze_web(world: World, rng: Random) -> None:
    """SIGSTOP of the web server."""
    _freeze(rng.choice(world.processes.with_prefix("web")).process_tree(), rng.uniform(1, 8))


def _freeze(pids: list[int], seconds: float) -> None:
    stopped = [pid for pid in pids if send_signal(pid, signal.SIGSTOP)]
    try:
        time.sleep(seconds)
    finally:
        for pid in stopped:
            send_signal(pid, signal.SIGCONT)


@fault(1.5, group="gateway")
def gateway_down(world: World, rng: Random) -> None:
    """The service that some jobs call refuses connections for 2 to 8 seconds."""
    with _flag(world, "gateway-down"):
        time.sleep(rng.uniform(2, 8))


@fault(0.7, group="gateway")
def kill_prober(world: World, rng: Random) -> None:
    """The service is down, and the worker that probes it is killed by kill -9."""
    with _flag(world, "gateway-down"):
        time.sleep(rng.uniform(4, 6))  # the circuit breaker opens
        with _flag(world, "gateway-kills"):
            time.sleep(rng.uniform(2, 3))


@fault(0.7, group="gateway")
def hang_prober(world: World, rng: Random) -> None:
    """The service is down, then hangs while it is probed."""
    with _flag(world, "gateway-down"):
        time.sleep(rng.uniform(4, 6))  # the circuit breaker opens
    with _flag(world, "gateway-hangs"):
        time.sleep(rng.uniform(4, 10))


@contextmanager
def _flag(world: World, name: str) -> Iterator[None]:
    """Create a file that handlers look for, for the length of a block."""
    flag = world.folder / name
    flag.touch()
    try:
        yield
    finally:
        flag.unlink(missing_ok=True)
