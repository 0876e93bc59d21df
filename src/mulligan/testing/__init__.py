"""For those who test their jobs: a store of its own for each test, time that can be moved, outcomes on demand.

`drain` runs jobs inline, in the process of the test. Inline keeps: claims and fences, payloads checked before the run,
classification, policies, backoffs and counters, unique keys, checkpoints, deadlines of jobs that wait, holds, events
and history, all written by the code that a worker uses. Inline does not keep: time limits and memory limits (a handler
that hangs, hangs the test), survival of a handler that kills its process and who is to blame for it, `isolate=True`,
anything about jobs that run side by side, shutdown. For those start a real worker: `worker(app, "jobs:app")`.
"""

from mulligan.testing.asserts import assert_enqueued, assert_state, assert_will_retry, refute_enqueued
from mulligan.testing.clock import advance, now
from mulligan.testing.draining import Drained, StillBusy, drain, drain_async
from mulligan.testing.forcing import Force, Returns, force
from mulligan.testing.helper import Helper
from mulligan.testing.places import environ, temporary
from mulligan.testing.workers import RealWorker, worker

__all__ = [
    "Drained",
    "Force",
    "Helper",
    "RealWorker",
    "Returns",
    "StillBusy",
    "advance",
    "assert_enqueued",
    "assert_state",
    "assert_will_retry",
    "drain",
    "drain_async",
    "environ",
    "force",
    "now",
    "refute_enqueued",
    "temporary",
    "worker",
]
