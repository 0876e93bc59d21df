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
        started_at = time.monotonic()
        cpu_before = cpu_seconds(pids)
        time.sleep(SECONDS)
        cpu_used = cpu_seconds(pids) - cpu_before
        share = cpu_used / (time.monotonic() - started_at)
        return {"CPU, %": share * 100, "PSS, MB": pss_megabytes(pids), "processes": len(pids)}


def measure_import(contender: Contender, scale: float) -> dict[str, float | str]:
    """Measure the milliseconds of an import, beyond the start of an empty interpreter."""
    del scale
    python = str(environments.python(contender.environment))
    seconds: dict[str, list[float]] = {"pass": [], contender.imports: []}
    cpu_times: dict[str, list[float]] = {"pass": [], contender.imports: []}
    for statement in [*seconds] * 5:
        started_at = time.perf_counter()
        cpu_before = _children_cpu()
        subprocess.run([python, "-c", statement], check=True, env=environments.clean(), timeout=60)
        seconds[statement].append(time.perf_counter() - started_at)
        cpu_times[statement].append(_children_cpu() - cpu_before)
    return {"ms": _extra_ms(seconds), "CPU, ms": _extra_ms(cpu_times)}


def _children_cpu() -> float:
    used = os.times()
    return used.children_user + used.children_system


def _extra_ms(found: dict[str, list[float]]) -> float:
    """Return by how many milliseconds the second statement takes longer than the first."""
    nothing, something = (statistics.median(times) for times in found.values())
    return (something - nothing) * 1000
