"""Runners and workers are killed at random instants: no recorded step and no undo runs twice.

`STEP_SEEDS=500 STEP_FIRST=17 pytest -m slow tests/steps/test_kills.py` chooses the seeds.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby, pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from mulligan import Job, Mulligan, State
from mulligan.doctor.verify import verify
from mulligan.steps.queries import StepQueries
from support.app_tools import load_attempts
from support.killed_steps import NAMES, UNDOABLE, Call, read_calls
from support.waiting import until
from support.worker import Worker

log = logging.getLogger(__name__)
APP = "support.killed_steps:app"
SEEDS = int(os.environ.get("STEP_SEEDS", "500"))
FIRST = int(os.environ.get("STEP_FIRST", "1"))
PATIENCE = 60.0
UNDONE = {  # steps that are undone in the end, in this order
    State.SUCCEEDED: [],
    State.DEAD: ["ship", "pack", "reserve", "charge"],
    State.PARKED: ["ship", "pack"],
}

pytestmark = pytest.mark.processes


class Order(NamedTuple):
    """A job of a seed, and how it must end."""

    name: str
    job: Job
    state: State


class Fleet:
    """Two workers. A killed one is replaced at once."""

    def __init__(self, url: str, folder: Path) -> None:
        self._start = lambda: Worker(url, folder, app=APP, worker__concurrency="3")
        self.workers = [self._start(), self._start()]
        self.kills: Counter[str] = Counter()
        for worker in self.workers:
            worker.ready()

    def kill_one(self, rng: Random) -> None:
        """Kill a worker one time in four, else a runner."""
        busy = [place for place, worker in enumerate(self.workers) if worker.runners()]
        place = rng.choice(busy or [0, 1])
        victim = self.workers[place]
        if rng.random() < 0.25:
            victim.kill()
            self.kills["worker"] += 1
            self.workers[place] = self._start()
            return
        for runner in victim.runners()[:1]:
            with suppress(ProcessLookupError):
                os.kill(runner, signal.SIGKILL)
                self.kills["runner"] += 1

    def end(self) -> None:
        for worker in self.workers:
            worker.end()


@pytest.fixture
def fleet(store_url: str, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(store_url, tmp_path)
    yield fleet
    fleet.end()


def test_no_recorded_step_runs_twice_in_ten_kills(
    app: Mulligan, fleet: Fleet, tmp_path: Path
) -> None:
    kill_at_random_instants(app, fleet, tmp_path, range(1, 11))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_recorded_step_runs_twice_in_hundreds_of_kills(
    app: Mulligan, fleet: Fleet, tmp_path: Path
) -> None:
    kill_at_random_instants(app, fleet, tmp_path, range(FIRST, FIRST + SEEDS))


def kill_at_random_instants(app: Mulligan, fleet: Fleet, folder: Path, seeds: range) -> None:
    """Play the seeds and check all their orders."""
    orders = [order for seed in seeds for order in play(app, fleet, seed)]
    found = read_calls(folder)
    attempts = 0
    for order in orders:
        attempts += check(app, order, found[order.name])
    lost = attempts - sum(1 if order.state is State.SUCCEEDED else 2 for order in orders)
    again = sum(len(calls) - len(set(map(without_token, calls))) for calls in found.values())
    log.info("%s: %s, %d attempts lost, %d calls repeated", seeds, fleet.kills, lost, again)
    assert lost > 0
    assert not verify(app.store).violations


def play(app: Mulligan, fleet: Fleet, seed: int) -> list[Order]:
    """Enqueue three orders, kill once at a random instant, and wait for the ends."""
    rng = Random(seed)
    orders = []
    for kind, state in (
        ("succeeds", State.SUCCEEDED),
        ("undoes", State.DEAD),
        ("undoes", State.PARKED),
    ):
        name = f"{seed}-{'stuck' if state is State.PARKED else kind}"
        payload = {"order": name, "seconds": rng.uniform(0, 0.02)}
        orders.append(Order(name, app.enqueue(kind, payload), state))
    time.sleep(rng.uniform(0, 0.15))  # the instant of the kill, not a wait for a condition
    fleet.kill_one(rng)
    until(lambda: all(has_ended(app, order) for order in orders), PATIENCE, f"end of seed {seed}")
    return orders


def has_ended(app: Mulligan, order: Order) -> bool:
    return app.jobs.get(order.job.id).state in {State.SUCCEEDED, State.DEAD, State.PARKED}


def check(app: Mulligan, order: Order, calls: list[Call]) -> int:
    """Check the end, calls, steps and events of an order. Return how many attempts it had."""
    job = app.jobs.get(order.job.id)
    assert job.state is order.state, (order.name, job.why, calls)
    done = [call for call in calls if call.verb == "do"]
    undone = [call for call in calls if call.verb == "undo"]
    attempts = load_attempts(app, order.job)
    if order.state is State.SUCCEEDED:
        assert job.result == [f"{name} {order.name}" for name in NAMES]
        check_steps(app, order, done, NAMES)
        assert not undone
    else:
        check_steps(app, order, done, UNDOABLE)
        called = UNDONE[order.state] + (["reserve"] if order.state is State.PARKED else [])
        # An undo that a kill interrupted is called again, before any other.
        in_order = [call.step for call, _ in groupby(undone)]
        assert in_order == called, (order.name, undone)
    assert len(calls) - len(set(map(without_token, calls))) <= len(attempts) - 1, calls
    return len(attempts)


def check_steps(app: Mulligan, order: Order, done: list[Call], names: tuple[str, ...]) -> None:
    """Check that only the step in flight was called again, and that the last call was recorded."""
    assert [step for step, _ in groupby(call.step for call in done)] == list(names), done
    for before, after in pairwise(done):
        assert before.step != after.step or before.token < after.token, done
    assert count_finished(app, order, "done") == dict.fromkeys(names, 1), order.name
    with app.store.read() as tx:
        rows = [row for row in StepQueries(tx).list_steps(order.job.id) if row.kind == "step"]
    undone = dict.fromkeys((row.name for row in rows if row.state == "undone"), 1)
    assert list(reversed(undone)) == UNDONE[order.state], order.name
    assert count_finished(app, order, "undone") == undone, order.name
    last_call = {call.step: call.token for call in done}
    for row in rows:
        assert row.state != "done" or row.token == last_call[row.name], (order.name, row, done)


def count_finished(app: Mulligan, order: Order, state: str) -> Counter[str]:
    """Count the events of steps that ended in a state, by step."""
    return Counter(
        event.data["step"]
        for event in app.jobs.history(order.job.id)
        if event.type == "job.step_finished" and event.data["state"] == state
    )


def without_token(call: Call) -> Call:
    return call._replace(token=0)
