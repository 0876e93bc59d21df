"""Campaigns while workers are killed: one completion each, counts that are true, and what failed can be retried."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest

from mulligan import Batch, Mulligan
from support.waiting import until
from support.worker import Worker

Start = Callable[..., Worker]

FATES = ("well", "well", "well", "fails", "splits", "dies")
KILLS = 20  # of so many batches one has a member that kills its process


def campaigns(app: Mulligan, count: int, most: int, rng: Random) -> dict[str, list[str]]:
    """Sealed batches of 0 to `most` members, and what becomes of each at first; some in one transaction."""
    made = {}
    for n in range(count):
        only = rng.choice((FATES, FATES, FATES, ("dies",), ("well",)))
        fates = [rng.choice(only) for _ in range(rng.randint(0, most) if n else 0)]
        if n % KILLS == 1:
            fates.append("kills")
        with (
            app.transaction() as tx,
            app.batch(f"campaign {n}", on_complete="completed", connection=tx) as batch,
        ):
            for fate in fates:
                app.enqueue("member", {"fate": fate}, batch=batch, connection=tx)
        made[batch.id] = fates
    return made


def expected(fates: list[str]) -> str:
    if not fates or "dies" not in fates:
        return "ready"
    return "failed" if set(fates) == {"dies"} else "partial"


def everything(app: Mulligan) -> Iterator[Batch]:
    page = app.batches.list(limit=500)
    while page:
        yield from page
        page = app.batches.list(limit=500, before=page[-1].id)


def under_kills(
    app: Mulligan, start: Start, workers: list[Worker], rng: Random, kills: int, patience: float
) -> None:
    """Workers are killed and replaced, runners too, until every batch has its outcome."""
    ends = time.monotonic() + patience
    while not all(batch.outcome for batch in everything(app)):
        assert time.monotonic() < ends, [batch for batch in everything(app) if not batch.outcome][
            :3
        ]
        if kills:
            kills -= 1
            place = rng.randrange(len(workers))
            runners = workers[place].runners()
            if runners and rng.random() < 0.5:
                os.kill(rng.choice(runners), signal.SIGKILL)
            else:
                workers[place].kill()
                workers[place] = start()
        time.sleep(0.2)  # the pace of the kills


def settled(app: Mulligan, batch: Batch) -> None:
    """Assert that the shown counts match the members and each generation completed once."""
    members = Counter(job.state.value for job in app.jobs.list(f"batch:{batch.id}", limit=1000))
    shown = {
        name: getattr(batch.counts, name)
        for name in ("queued", "running", "parked", "succeeded", "dead")
    }
    assert {name: count for name, count in shown.items() if count} == dict(members)
    names = [event.type.removeprefix("batch.") for event in app.batches.history(batch.id)]
    outcomes = [name for name in names if name in {"ready", "partial", "failed"}]
    assert len(outcomes) == batch.generation
    assert names.count("sealed") == 1


def prove(app: Mulligan, start: Start, count: int, most: int, kills: int, patience: float) -> None:
    rng = Random(7)
    app.open()
    workers = [start(), start()]
    made = campaigns(app, count, most, rng)
    under_kills(app, start, workers, rng, kills, patience)
    first = {batch.id: batch for batch in everything(app)}
    assert {batch_id: str(batch.state) for batch_id, batch in first.items()} == {
        batch_id: expected(fates) for batch_id, fates in made.items()
    }
    for batch in first.values():
        settled(app, batch)
        assert batch.counts.total == len(made[batch.id]) + made[batch.id].count("splits")
    broken = [batch.id for batch in first.values() if batch.state != "ready"]
    for batch_id in broken:
        app.batches.retry_failed(batch_id, reason="seen to")
    under_kills(app, start, workers, rng, kills, patience)
    for batch in everything(app):
        settled(app, batch)
        assert batch.state == "ready"
        names = [event.type for event in app.batches.history(batch.id)]
        assert names.count("batch.recovered") == (batch.id in broken)
    wanted = len(made) + len(broken)
    until(
        lambda: app.jobs.count("kind:completed state:succeeded") == wanted,
        patience,
        "each outcome has its job",
    )
    assert app.jobs.count("kind:completed") == wanted


@pytest.mark.any_store
@pytest.mark.timeout(120)
def test_batches_end_once_each_while_workers_are_killed(app: Mulligan, start: Start) -> None:
    prove(app, start, count=10, most=6, kills=1, patience=50)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_batches_end_once_each_while_workers_are_killed(
    app: Mulligan, start: Start
) -> None:
    prove(app, start, count=200, most=50, kills=12, patience=400)
