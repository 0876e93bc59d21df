"""One line: why, until when, and what to type to end it sooner."""

# ruff: noqa: E501 - sentences are compared as they are shown

from __future__ import annotations

import json

import pytest

from mulligan.core.job import SECOND, Gate, Limit
from mulligan.guards.budget import Bucket
from mulligan.guards.describe import GuardedDependency
from mulligan.guards.ramp import begin
from mulligan.guards.state import BreakerTerms, GuardState
from mulligan.jobs.why import JobSurroundings, Traffic, standing
from support.builders import NOW, a_row

MINUTE = 60 * SECOND
AGAIN = "Sooner, with fresh counters: mulligan jobs cancel job && mulligan jobs retry job"


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
    return Traffic({(scope, key): Limit(**limit)}, {(scope, key): running})


@pytest.mark.parametrize(
    ("row", "scene", "line"),
    [
        (
            a_row(),
            JobSurroundings(NOW, [gate("queue", "default", NOW + MINUTE)], workers=1),
            (
                "It waits because queue default is paused, since 2023-11-14 22:12:20 UTC by ann (on the command line), with the "
                "reason 'deploy', until 2023-11-14 22:14:20 UTC (in 1 min). Sooner: mulligan queues resume default"
            ),
        ),
        (
            a_row(uses="s3"),
            JobSurroundings(NOW, [gate("dependency", "s3", NOW + MINUTE)], workers=1),
            (
                "It waits because dependency s3 is held, since 2023-11-14 22:12:20 UTC by ann (on the command line), with the "
                "reason 'deploy', until 2023-11-14 22:14:20 UTC (in 1 min). Sooner: mulligan deps close s3"
            ),
        ),
        (
            a_row(uses="s3"),
            JobSurroundings(NOW, [DOWN], workers=1),
            (
                "It waits because dependency s3 is down, since 2023-11-14 22:12:20 UTC, after 14 of 14 calls failed within 2 s; "
                "next probe 2023-11-14 22:13:32 UTC (in 12 s). Look now: mulligan deps probe s3. Let all go, whatever it "
                "answers: mulligan deps close s3"
            ),
        ),
        (
            a_row(uses="s3"),
            JobSurroundings(
                NOW, [Gate("dependency", "s3", NOW - MINUTE, None, "", "cli:ann")], workers=1
            ),
            (
                "It waits because dependency s3 is held, since 2023-11-14 22:12:20 UTC by ann (on the command line), until "
                "somebody closes it. Sooner: mulligan deps close s3"
            ),
        ),
        (
            a_row(uses="s3"),
            JobSurroundings(
                NOW,
                (),
                Traffic(
                    {},
                    {},
                    {"s3": GuardedDependency(GuardState(ramp=begin(30.0, NOW)), BreakerTerms())},
                ),
                1,
                3,
            ),
            (
                "It is due and waits: dependency s3 comes back after an outage: 3 a second may start now, more while all goes "
                "well; when its turn comes cannot be said. No command does it sooner."
            ),
        ),
        (
            a_row(uses="s3", failures=1, attempt=1),
            JobSurroundings(
                NOW,
                (),
                Traffic(
                    {},
                    {},
                    {"s3": GuardedDependency(GuardState(bucket=Bucket(0.3, NOW)), BreakerTerms())},
                ),
                1,
                3,
            ),
            (
                "It is due and waits: dependency s3 bears no more retries now: 6 a minute may start, one more for every 10 "
                "first tries that succeed, the next in about 7 s. To allow more: a larger budget= in app.dependency()"
            ),
        ),
        (
            a_row(),
            JobSurroundings(NOW, [gate("kind", "render")], workers=1),
            (
                "It waits because kind render is held, since 2023-11-14 22:12:20 UTC by ann (on the command line), with the "
                "reason 'deploy', until somebody releases it. Sooner: mulligan kinds release render"
            ),
        ),
        (
            a_row(),
            JobSurroundings(NOW),
            (
                "It is due and waits: no live worker takes kind render from queue default, and so it stays until one does. "
                "Start one: mulligan worker APP"
            ),
        ),
        (
            a_row(),
            JobSurroundings(NOW, (), limited("queue", "default", concurrency=2), 1, 3),
            (
                "It is due and waits: queue default runs at most 2 at a time, 2 now; waits for one to end; when that is cannot "
                "be said. To allow more: mulligan queues set default --concurrency N --rate N/s"
            ),
        ),
        (
            a_row(uses="s3"),
            JobSurroundings(NOW, (), limited("dependency", "s3", rate=5.0), 1, 3),
            (
                "It is due and waits: dependency s3 starts at most 5 a second; waits for its turn; when that is cannot be said. "
                "To allow more: mulligan deps set s3 --concurrency N --rate N/s"
            ),
        ),
        (
            a_row(),
            JobSurroundings(NOW, workers=2, free=0),
            (
                "It is due and waits for a free place: 2 live workers take it, with 0 of their places free now. Another one "
                "makes it sooner: mulligan worker APP"
            ),
        ),
        (
            a_row(run_at=NOW + MINUTE),
            JobSurroundings(NOW),
            f"It waits for its time, 2023-11-14 22:14:20 UTC (in 1 min). {AGAIN}",
        ),
        (
            a_row(run_at=NOW + MINUTE, attempt=1, reason="retry 1 of 3 in 1 min: timeout"),
            JobSurroundings(NOW),
            (
                "It waits before its next attempt (retry 1 of 3 in 1 min: timeout), which is due at 2023-11-14 22:14:20 UTC "
                f"(in 1 min). {AGAIN}"
            ),
        ),
        (
            a_row(run_at=NOW + MINUTE, deadline_at=NOW + 2 * MINUTE),
            JobSurroundings(NOW),
            (
                f"It waits for its time, 2023-11-14 22:14:20 UTC (in 1 min). {AGAIN} "
                "(It dies if it has not ended by 2023-11-14 22:15:20 UTC (in 2 min).)"
            ),
        ),
        (
            a_row(state="running", attempt=2, started_at=NOW - MINUTE, worker="w1"),
            JobSurroundings(NOW, timeout=5 * MINUTE),
            (
                "Attempt 2 has been running for 1 min on worker w1; its time limit ends it at 2023-11-14 22:17:20 UTC "
                "(in 4 min). To stop it: mulligan jobs cancel job"
            ),
        ),
        (
            a_row(
                state="running",
                attempt=2,
                started_at=NOW - MINUTE,
                worker="w1",
                cancel_reason="too dear",
            ),
            JobSurroundings(NOW),
            (
                "Attempt 2 has been running for 1 min on worker w1. It was asked to stop (too dear) and ends when its code has "
                "stopped."
            ),
        ),
        (
            a_row(state="parked", reason="who pays?", choices='["us","them"]'),
            JobSurroundings(NOW),
            (
                "It waits for a person, for as long as nobody decides: who pays? To let it go on: "
                "mulligan jobs release job --choice us|them"
            ),
        ),
        (
            a_row(state="succeeded", attempt=2, generation=1, finished_at=NOW + MINUTE),
            JobSurroundings(NOW + 2 * MINUTE),
            (
                "It succeeded at 2023-11-14 22:14:20 UTC (1 min ago), 1 min after it was enqueued, on attempt 2. "
                "Nothing is left to do."
            ),
        ),
        (
            a_row(
                state="dead",
                finished_at=NOW,
                error=json.dumps({"code": "GONE", "message": "It is gone"}),
            ),
            JobSurroundings(NOW),
            (
                "It died at 2023-11-14 22:13:20 UTC (0 s ago) with GONE: It is gone. Nothing more happens unless somebody "
                "retries it: mulligan jobs retry job --reason WHY"
            ),
        ),
        (
            a_row(state="cancelled", finished_at=NOW, reason="too dear"),
            JobSurroundings(NOW),
            (
                "It was cancelled at 2023-11-14 22:13:20 UTC (0 s ago): too dear. To run it all the same: "
                "mulligan jobs retry job"
            ),
        ),
    ],
)
def test_where_a_job_stands(row, scene, line):
    assert standing(row, scene) == line
