"""The cases of trouble: processes are killed under their jobs, and one job kills whoever runs it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any

from bench.peers.contenders import Contender
from bench.peers.place import Failed, Place, until

Figures = dict[str, float | str]
JOBS = 10
PATIENCE = 120.0  # seconds: who has not recovered by then is said not to
WINDOW = 60.0  # of the restart loop
STILL = 4.0  # seconds without anything to do: it will not come to more


def crash(contender: Contender, scale: float, *, everything: bool, fast: bool) -> Figures:
    """Ten jobs of five seconds; one second in, kill -9 of whoever runs them, or of everything; whoever died is
    started again at once. Seconds from the kill until all ten are done.
    """
    del scale
    with Place(contender, "crash", fast=fast, concurrency=contender.crash_concurrency) as place:
        place.ask("fill", task="sleeper", n=JOBS)
        worker = place.work()
        until(lambda: len(place.seen("start")) >= JOBS, 40, f"ten jobs at work ({place.log()})")
        time.sleep(max(0.0, place.seen("start")[-1].at + 1 - time.monotonic()))
        began = time.monotonic()
        _kill(place, worker, everything=everything)
        while _ended(place) < JOBS and time.monotonic() < began + PATIENCE:
            worker = _again(place, worker)
            time.sleep(0.05)
        return _told(place, began)


def _kill(place: Place, worker: Any, *, everything: bool) -> None:
    if everything:
        place.kill(worker)
        return
    for pid in {start.pid for start in place.seen("start")}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _again(place: Place, worker: Any) -> Any:
    """A worker that has ended is started again, as whoever keeps services alive would."""
    if worker.poll() is None:
        return worker
    place.kill(worker)
    return place.work()


def _ended(place: Place) -> int:
    return len({end.job for end in place.seen("end")})


def _told(place: Place, began: float) -> Figures:
    ends = place.seen("end")
    if _ended(place) < JOBS:
        return {"seconds": PATIENCE, "done": _ended(place), "books": place.ask("books")}
    took = max(end.at for end in ends) - began
    with suppress(Failed):  # some books are closed late; what counts is what ran
        until(lambda: not _pending(place), 10, "the books are closed", every=0.1)
    return {
        "seconds": took,
        "done": _ended(place),
        "starts": len(place.seen("start")),
        "books": place.ask("books"),
    }


def _pending(place: Place) -> int:
    try:
        return int(place.ask("pending"))
    except Failed:
        return 0


def poison(contender: Contender, scale: float, *, task: str, fast: bool) -> Figures:
    """One job that kills its process (or the whole worker) and ten innocent ones, concurrency four, and whoever keeps
    services alive starts the worker again each time. How often did it run, and are the others done?
    """
    del scale
    with Place(contender, "poison", fast=fast, concurrency=contender.poison_concurrency) as place:
        place.ask("fill", task=task, n=1)
        place.ask("fill", task="innocent", n=JOBS)
        worker, restarts = place.work(), 0
        until(
            lambda: place.seen("start") or place.seen("poison"),
            60,
            f"something at work ({place.log()})",
        )
        began = quiet = time.monotonic()
        while time.monotonic() < began + WINDOW and time.monotonic() < quiet + STILL:
            time.sleep(0.2)
            again = _again(place, worker)
            restarts += again is not worker
            if again is not worker or _pending(place):
                quiet = time.monotonic()
            worker = again
        return {
            "starts": len(place.seen("poison")),
            "innocent done": _ended(place),
            "innocent runs": len(place.seen("start")),
            "restarts": restarts,
            "books": place.ask("books"),
        }
