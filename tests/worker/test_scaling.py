"""The scaling signal: workers wanted for the due jobs, by pure rules and from a database."""

from __future__ import annotations

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.job import Gate, Limit, WorkerRow
from mulligan.guards.queries import LaneDepthRow, RunningGroup
from mulligan.worker.scaling import Load, compute_scale, queue_names, read_load
from support.app_tools import count_events
from support.builders import NOW

EMPTY = Load(NOW, [], [], {}, {}, [], {}, [])


def due(jobs, kind="render", queue="default", uses="", later=0):
    return LaneDepthRow(f"{queue}|{kind}|{uses}|0", NOW - SECOND, jobs, later)


def running(jobs, kind="render", queue="default"):
    return RunningGroup("w1", queue, kind, jobs, NOW - SECOND)


def worker(concurrency=10, queues="[]", **changes):
    row = WorkerRow(
        id="w1",
        host="h",
        pid=1,
        boot_id="b",
        lease=0,
        started_at=0,
        renewed_at=NOW,
        renewed_mono=0,
        closed_at=None,
        close_reason="",
        lock_path="",
        lock_dev=0,
        lock_ino=0,
        kinds="[]",
        queues=queues,
        concurrency=concurrency,
        release="",
        draining=False,
    )
    return row._replace(**changes)


def gate(scope, key):
    return Gate(scope, key, NOW - SECOND, None, "", "")


def scale(load, *queues, target=30.0, slots=None):
    return compute_scale(load, queues, target, slots)


def test_nothing_to_do_wants_no_worker():
    found = scale(EMPTY)
    assert (found.workers, found.slots, found.ready, found.unmeasured) == (0, 0, 0, ())


def test_the_work_of_due_jobs_is_divided_by_the_wait_that_is_wanted():
    load = EMPTY._replace(depths=[due(600)], durations={"render": 2.0}, workers=[worker(8)])
    found = scale(load)
    assert (found.ready, found.seconds_of_work) == (600, 1200.0)
    assert (found.slots, found.workers, found.slots_per_worker) == (40, 5, 8.0)
    assert scale(load, target=60.0).slots == 20
    assert scale(load, slots=40).workers == 1


def test_a_job_longer_than_the_wait_needs_one_slot_and_not_more():
    load = EMPTY._replace(depths=[due(7)], durations={"render": 600.0})
    assert scale(load).slots == 7


def test_a_steady_load_keeps_the_slots_that_are_in_use():
    load = EMPTY._replace(running=[running(60)], durations={"render": 600.0})
    assert scale(load).slots == 60
    load = EMPTY._replace(running=[running(8)], depths=[due(800)], durations={"render": 0.1})
    assert scale(load).slots == 8  # they start the backlog of 80 s within 10 s


def test_held_and_scheduled_jobs_do_not_count():
    durations = {"render": 30.0, "mail": 30.0}
    depths = [due(5, later=1000), due(100, uses="gateway"), due(200, "mail"), due(9, queue="bulk")]
    gates = [gate("dependency", "gateway"), gate("kind", "mail"), gate("queue", "bulk")]
    found = scale(EMPTY._replace(depths=depths, durations=durations, gates=gates))
    assert (found.slots, found.ready, found.held, found.scheduled) == (5, 5, 309, 1000)


@pytest.mark.parametrize(
    ("key", "uses"), [(("queue", "default"), ""), (("dependency", "gateway"), "gateway")]
)
def test_jobs_that_a_limit_keeps_from_starting_do_not_count(key, uses):
    load = EMPTY._replace(depths=[due(1000, uses=uses)], durations={"render": 30.0})
    limited = load._replace(limits={key: Limit(concurrency=6)}, limited={key: 2})
    assert scale(limited._replace(running=[running(2)])).slots == 5  # 4 free, half of 2 in use
    paced = load._replace(limits={key: Limit(rate=0.5)})
    assert scale(paced).slots == 15


def test_only_the_chosen_queues_count():
    depths = [due(3), due(5, queue="bulk"), due(7, queue="mail")]
    load = EMPTY._replace(depths=depths, durations={"render": 30.0}, running=[running(1)])
    assert scale(load, "default").ready == 3
    assert scale(load, "bulk", "mail").slots == 12
    assert scale(load).ready == 15
    assert queue_names(load) == ["bulk", "default", "mail"]


def test_jobs_of_mulligan_itself_do_not_count():
    load = EMPTY._replace(depths=[due(50, "mulligan.deliver", "mulligan.deliveries")])
    assert scale(load).slots == 0
    assert queue_names(load) == []


def test_a_kind_that_was_not_measured_counts_as_the_average_one_and_is_named():
    load = EMPTY._replace(depths=[due(30, "new")], durations={"a": 2.0, "b": 4.0})
    found = scale(load)
    assert (found.slots, found.unmeasured) == (3, ("new",))
    assert scale(load._replace(durations={})).slots == 1


def test_slots_are_those_of_live_workers_that_take_the_queue():
    workers = [worker(4, '["bulk"]'), worker(20), worker(2, draining=True)]
    load = EMPTY._replace(depths=[due(40)], durations={"render": 30.0}, workers=workers)
    found = scale(load, "default")
    assert (found.slots_per_worker, found.live_workers, found.workers) == (20.0, 1, 2)
    assert scale(load, "bulk").slots_per_worker == 12.0
    assert scale(load._replace(workers=[])).workers == 4


def test_durations_limits_and_depths_are_read_from_the_database(app, render):
    app.queue("render", concurrency=50)
    for clip in range(3):
        render.enqueue(clip=clip)
    app.run_inline()
    count_events(app)
    for clip in range(40):
        render.enqueue(clip=clip)
    render.options(delay=60).enqueue(clip=99)
    with app.store.read() as tx:
        load = read_load(tx)
    found = compute_scale(load, ["default"])
    assert (found.ready, found.scheduled, found.running, found.unmeasured) == (40, 1, 0, ())
    assert "render" in load.durations
    app.dependencies.open("gateway", reason="down")
    with app.store.read() as tx:
        found = compute_scale(read_load(tx))
    assert (found.ready, found.held, found.workers) == (0, 40, 0)
