"""Tests of the one-line status: why, until when, and the command that ends the wait."""

from __future__ import annotations

import json

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.job import Gate, Limit
from mulligan.guards.budget import RetryBucket
from mulligan.guards.describe import GuardedDependency
from mulligan.guards.ramp import start_ramp
from mulligan.guards.state import BreakerConfig, GuardState
from mulligan.jobs.why import LimitState, WaitContext, describe_now
from support.builders import NOW, make_job_row

MINUTE = 60 * SECOND
RUN_NOW = "To run it now, with fresh counters: mulligan jobs cancel job && mulligan jobs retry job"


def gate(scope, key, until=None):
    return Gate(scope, key, NOW - MINUTE, until, "deploy", "cli:ann")


DOWN = Gate(
    "dependency",
    "s3",
    NOW - MINUTE,
    None,
    "14 of 14 calls failed within 2 s",
    "breaker",
    NOW + 12 * SECOND,
)


def limited(scope, key, *, running=2, **limit):
    return LimitState({(scope, key): Limit(**limit)}, {(scope, key): running})


@pytest.mark.parametrize(
    ("row", "context", "line"),
    [
        (
            make_job_row(),
            WaitContext(NOW, [gate("queue", "default", NOW + MINUTE)], workers=1),
            (
                "Waiting: queue default is paused since 2023-11-14 22:12:20 UTC by ann (on the command line), "
                "reason 'deploy', until 2023-11-14 22:14:20 UTC (in 1 min). Sooner: mulligan queues resume default"
            ),
        ),
        (
            make_job_row(uses="s3"),
            WaitContext(NOW, [gate("dependency", "s3", NOW + MINUTE)], workers=1),
            (
                "Waiting: dependency s3 is held since 2023-11-14 22:12:20 UTC by ann (on the command line), "
                "reason 'deploy', until 2023-11-14 22:14:20 UTC (in 1 min). Sooner: mulligan deps close s3"
            ),
        ),
        (
            make_job_row(uses="s3"),
            WaitContext(NOW, [DOWN], workers=1),
            (
                "Waiting: dependency s3 is down since 2023-11-14 22:12:20 UTC (14 of 14 calls failed within 2 s); "
                "next probe 2023-11-14 22:13:32 UTC (in 12 s). To probe it now: mulligan deps probe s3. "
                "To release all its jobs without a probe: mulligan deps close s3"
            ),
        ),
        (
            make_job_row(uses="s3"),
            WaitContext(
                NOW, [Gate("dependency", "s3", NOW - MINUTE, None, "", "cli:ann")], workers=1
            ),
            (
                "Waiting: dependency s3 is held since 2023-11-14 22:12:20 UTC by ann (on the command line), "
                "until someone closes it. Sooner: mulligan deps close s3"
            ),
        ),
        (
            make_job_row(uses="s3"),
            WaitContext(
                NOW,
                (),
                LimitState(
                    {},
                    {},
                    {
                        "s3": GuardedDependency(
                            GuardState(ramp=start_ramp(30.0, NOW)), BreakerConfig()
                        )
                    },
                ),
                1,
                3,
            ),
            (
                "Waiting: dependency s3 is recovering from an outage: 3 a second may start now, more while "
                "calls succeed. No command makes this faster."
            ),
        ),
        (
            make_job_row(uses="s3", failures=1, attempt=1),
            WaitContext(
                NOW,
                (),
                LimitState(
                    {},
                    {},
                    {
                        "s3": GuardedDependency(
                            GuardState(bucket=RetryBucket(0.3, NOW)), BreakerConfig()
                        )
                    },
                ),
                1,
                3,
            ),
            (
                "Waiting: the retry budget of dependency s3 is used up: 6 a minute may start, one more for "
                "every 10 first attempts that succeed; next retry in about 7 s. To allow more, raise budget= in app.dependency()."
            ),
        ),
        (
            make_job_row(),
            WaitContext(NOW, [gate("kind", "render")], workers=1),
            (
                "Waiting: kind render is held since 2023-11-14 22:12:20 UTC by ann (on the command line), "
                "reason 'deploy', until someone releases it. Sooner: mulligan kinds release render"
            ),
        ),
        (
            make_job_row(),
            WaitContext(NOW),
            (
                "Waiting: no live worker takes kind render from queue default. "
                "Start one: mulligan worker APP"
            ),
        ),
        (
            make_job_row(),
            WaitContext(NOW, (), limited("queue", "default", concurrency=2), 1, 3),
            (
                "Waiting: queue default runs at most 2 at a time (2 running). "
                "To raise the limit: mulligan queues set default --concurrency N --rate N/s"
            ),
        ),
        (
            make_job_row(uses="s3"),
            WaitContext(NOW, (), limited("dependency", "s3", rate=5.0), 1, 3),
            (
                "Waiting: dependency s3 starts at most 5 a second. "
                "To raise the limit: mulligan deps set s3 --concurrency N --rate N/s"
            ),
        ),
        (
            make_job_row(),
            WaitContext(NOW, workers=2, free_slots=0),
            (
                "Waiting for a free slot: 2 live workers can run it, 0 slots are free. "
                "To add capacity: mulligan worker APP"
            ),
        ),
        (
            make_job_row(run_at=NOW + MINUTE),
            WaitContext(NOW),
            f"Scheduled for 2023-11-14 22:14:20 UTC (in 1 min). {RUN_NOW}",
        ),
        (
            make_job_row(run_at=NOW + MINUTE, attempt=1, reason="retry 1 of 3 in 1 min: timeout"),
            WaitContext(NOW),
            (
                "Waiting for its next attempt (retry 1 of 3 in 1 min: timeout), due 2023-11-14 22:14:20 UTC "
                f"(in 1 min). {RUN_NOW}"
            ),
        ),
        (
            make_job_row(run_at=NOW + MINUTE, deadline_at=NOW + 2 * MINUTE),
            WaitContext(NOW),
            (
                f"Scheduled for 2023-11-14 22:14:20 UTC (in 1 min). {RUN_NOW} "
                "(Dies if it has not ended by 2023-11-14 22:15:20 UTC (in 2 min).)"
            ),
        ),
        (
            make_job_row(state="running", attempt=2, started_at=NOW - MINUTE, worker="w1"),
            WaitContext(NOW, timeout=5 * MINUTE),
            (
                "Attempt 2 has been running for 1 min on worker w1. Its time limit is 2023-11-14 22:17:20 UTC "
                "(in 4 min). To stop it: mulligan jobs cancel job"
            ),
        ),
        (
            make_job_row(
                state="running",
                attempt=2,
                started_at=NOW - MINUTE,
                worker="w1",
                cancel_reason="too dear",
            ),
            WaitContext(NOW),
            (
                "Attempt 2 has been running for 1 min on worker w1. It was asked to stop (too dear) and ends when its code has "
                "stopped."
            ),
        ),
        (
            make_job_row(state="parked", reason="who pays?", choices='["us","them"]'),
            WaitContext(NOW),
            (
                "Parked until a person decides: who pays? To continue it: "
                "mulligan jobs release job --choice us|them"
            ),
        ),
        (
            make_job_row(state="succeeded", attempt=2, generation=1, finished_at=NOW + MINUTE),
            WaitContext(NOW + 2 * MINUTE),
            (
                "Succeeded at 2023-11-14 22:14:20 UTC (1 min ago), 1 min after it was enqueued, on attempt 2. "
                "Nothing is left to do."
            ),
        ),
        (
            make_job_row(
                state="dead",
                finished_at=NOW,
                error=json.dumps({"code": "GONE", "message": "It is gone"}),
            ),
            WaitContext(NOW),
            (
                "Died at 2023-11-14 22:13:20 UTC (0 s ago) with GONE: It is gone. "
                "To retry it: mulligan jobs retry job --reason WHY"
            ),
        ),
        (
            make_job_row(state="cancelled", finished_at=NOW, reason="too dear"),
            WaitContext(NOW),
            (
                "Cancelled at 2023-11-14 22:13:20 UTC (0 s ago): too dear. To run it anyway: "
                "mulligan jobs retry job"
            ),
        ),
    ],
)
def test_one_line_says_what_a_job_waits_for_and_what_ends_the_wait(row, context, line):
    assert describe_now(row, context) == line
