"""Measure the cost of an idle worker and of an import."""

from __future__ import annotations

import os
import statistics
import subprocess
import time

from bench.peers import environments
from bench.peers.contenders import Contender
from bench.peers.sandbox import Sandbox, until
from bench.world import cpu_seconds, process_tree, pss_megabytes

SECONDS = 10.0


def idle(contender: Contender, scale: float) -> dict[str, float | str]:
    """Measure CPU and memory of an idle worker, after a few jobs have loaded all modules."""
    del scale
    with Sandbox(contender, "idle") as place:
        worker = place.work()
        place.ask("fill", task="noop", n=5)
        until(lambda: place.count("done") >= 5, 60, f"five jobs done ({place.log()})")
        time.sleep(4)  # let the start-up finish
        pids = process_tree(worker.pid)
        began, used = time.monotonic(), cpu_seconds(pids)
        time.sleep(SECONDS)
        share = (cpu_seconds(pids) - used) / (time.monotonic() - began)
        return {"CPU, %": share * 100, "PSS, MB": pss_megabytes(pids), "processes": len(pids)}


def measure_import(contender: Contender, scale: float) -> dict[str, float | str]:
    """Measure the milliseconds of an import, beyond the start of an empty interpreter."""
    del scale
    python = str(environments.python(contender.environment))
    waits: dict[str, list[float]] = {"pass": [], contender.imports: []}
    works: dict[str, list[float]] = {"pass": [], contender.imports: []}
    for statement in [*waits] * 5:
        began, used = time.perf_counter(), os.times()
        subprocess.run([python, "-c", statement], check=True, env=environments.clean(), timeout=60)
        waits[statement].append(time.perf_counter() - began)
        works[statement].append(_children(os.times()) - _children(used))
    return {"ms": _difference(waits), "CPU, ms": _difference(works)}


def _children(used: os.times_result) -> float:
    return used.children_user + used.children_system


def _difference(found: dict[str, list[float]]) -> float:
    nothing, something = (statistics.median(times) for times in found.values())
    return (something - nothing) * 1000
