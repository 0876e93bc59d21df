"""Crash cases: processes are killed during their jobs, or a job kills its own process."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any

from bench.peers.contenders import Contender
from bench.peers.sandbox import MeasurementFailed, Sandbox, until

Figures = dict[str, float | str]
JOBS = 10
RECOVERY_TIMEOUT = 120.0  # seconds after which a system counts as not recovered
WINDOW = 60.0  # seconds of the restart loop
QUIET_AFTER = 4.0  # seconds without work after which the case ends


def crash(contender: Contender, scale: float, *, everything: bool, fast: bool) -> Figures:
    """Kill the processes that run ten 5-second jobs, or everything; measure until all are done.

    The kill comes one second after the start. Workers that exited are restarted at once.
    """
    del scale
    with Sandbox(contender, "crash", fast=fast, concurrency=contender.crash_concurrency) as place:
        place.ask("fill", task="sleeper", n=JOBS)
        worker = place.work()
        until(lambda: len(place.events("start")) >= JOBS, 40, f"ten jobs at work ({place.log()})")
        time.sleep(max(0.0, place.events("start")[-1].at + 1 - time.monotonic()))
        began = time.monotonic()
        _kill(place, worker, everything=everything)
        while _count_ended(place) < JOBS and time.monotonic() < began + RECOVERY_TIMEOUT:
            worker = _restart_if_exited(place, worker)
            time.sleep(0.05)
        return _result(place, began)


def _kill(place: Sandbox, worker: Any, *, everything: bool) -> None:
    if everything:
        place.kill(worker)
        return
    for pid in {start.pid for start in place.events("start")}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _restart_if_exited(place: Sandbox, worker: Any) -> Any:
    """Restart a worker that has exited, as a service manager would."""
    if worker.poll() is None:
        return worker
    place.kill(worker)
    return place.work()


def _count_ended(place: Sandbox) -> int:
    return len({end.job for end in place.events("end")})


def _result(place: Sandbox, began: float) -> Figures:
    ends = place.events("end")
    if _count_ended(place) < JOBS:
        return {
            "seconds": RECOVERY_TIMEOUT,
            "done": _count_ended(place),
            "books": place.ask("summary"),
        }
    took = max(end.at for end in ends) - began
    with suppress(MeasurementFailed):  # some systems record endings late; what counts is what ran
        until(lambda: not _pending(place), 10, "no pending jobs", every=0.1)
    return {
        "seconds": took,
        "done": _count_ended(place),
        "starts": len(place.events("start")),
        "books": place.ask("summary"),
    }


def _pending(place: Sandbox) -> int:
    try:
        return int(place.ask("pending"))
    except MeasurementFailed:
        return 0


def poison(contender: Contender, scale: float, *, task: str, fast: bool) -> Figures:
    """Run a job that kills its process or worker next to ten innocent ones, with restarts.

    Return how often it started and how many of the others finished.
    """
    del scale
    with Sandbox(contender, "poison", fast=fast, concurrency=contender.poison_concurrency) as place:
        place.ask("fill", task=task, n=1)
        place.ask("fill", task="innocent", n=JOBS)
        worker, restarts = place.work(), 0
        until(
            lambda: place.events("start") or place.events("poison"),
            60,
            f"something at work ({place.log()})",
        )
        began = quiet = time.monotonic()
        while time.monotonic() < began + WINDOW and time.monotonic() < quiet + QUIET_AFTER:
            time.sleep(0.2)
            again = _restart_if_exited(place, worker)
            restarts += again is not worker
            if again is not worker or _pending(place):
                quiet = time.monotonic()
            worker = again
        return {
            "starts": len(place.events("poison")),
            "innocent done": _count_ended(place),
            "innocent runs": len(place.events("start")),
            "restarts": restarts,
            "books": place.ask("summary"),
        }
