"""Run all cases with alternating contenders and save each measurement at once."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers import environments, servers
from bench.peers.cases import CASES, Case
from bench.peers.contenders import Contender
from bench.peers.results import Measurement
from bench.peers.sandbox import RUN_ENVIRON, Sandbox

RESULTS = Path(__file__).parent.parent / "results"
PARALLEL = 6


class Plan(NamedTuple):
    """Cases, contenders and rounds of a run."""

    cases: list[Case]
    contenders: list[Contender]
    rounds: int
    scale: float
    left_out: dict[str, str]  # contender -> why it was left out

    def turns(self) -> Iterator[tuple[Case, int, list[Contender], bool]]:
        """Yield (case, round, contenders, in parallel).

        A round covers all cases, because some targets compare two cases and the speed of a machine
        changes over time.
        """
        for number in range(self.rounds):
            for case in self.cases:
                if number < case.rounds:
                    yield case, number, _rotate(self._by_turns(case), number), False
        for case in self.cases:
            if case.once:
                yield case, 0, [one for one in self._contenders_of(case) if not one.ours], True

    def _contenders_of(self, case: Case) -> list[Contender]:
        return [one for one in self.contenders if _applies(case, one)]

    def _by_turns(self, case: Case) -> list[Contender]:
        return [one for one in self._contenders_of(case) if one.ours or not case.once]

    def measurements(self) -> int:
        return sum(len(contenders) for _, _, contenders, _ in self.turns())


def _applies(case: Case, contender: Contender) -> bool:
    if case.ours_only and not contender.ours:
        return False
    return contender.store in case.stores and (case.limits or not contender.limit)


def _rotate(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """Rotate the contenders, so that each round begins with another one."""
    first = number % max(1, len(contenders))
    return [*contenders[first:], *contenders[:first]]


class ResultFile:
    """Result file of a run: a header line, then a line per measurement."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write({"run": describe_run(plan)})

    def add(self, measured: Measurement) -> None:
        self._write({**measured._asdict(), "load": os.getloadavg()[0]})

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def open_result_file(plan: Plan) -> ResultFile:
    name = datetime.now(UTC).strftime("peers-%Y%m%d-%H%M%S.jsonl")
    return ResultFile(RESULTS / name, plan)


def available(
    contenders: Sequence[Contender], report: Callable[[str], None]
) -> tuple[list[Contender], dict[str, str]]:
    """Return the contenders that run here, and why the others do not."""
    able, unable = [], {}
    for contender in contenders:
        report(contender.name)
        try:
            environments.python(contender.environment)
            with Sandbox(contender, "trial"):
                able.append(contender)
        except Exception as error:  # noqa: BLE001 - reported; the others continue
            unable[contender.name] = f"{type(error).__name__}: {error}"
    return able, unable


def run_plan(plan: Plan, done: Callable[[Measurement], None], begun: Callable[[str], None]) -> None:
    for case, number, contenders, parallel in plan.turns():
        if not parallel:
            for contender in contenders:
                begun(f"{case.name}: {contender.name}, round {number + 1}")
                done(_measure_case(case, contender, number, plan.scale))
            continue
        begun(f"{case.name}: the others, in parallel")
        with ThreadPoolExecutor(PARALLEL) as pool:
            for measured in pool.map(
                lambda one, case=case: _measure_case(case, one, 0, plan.scale), contenders
            ):
                done(measured)


def _measure_case(case: Case, contender: Contender, number: int, scale: float) -> Measurement:
    try:
        return Measurement(case.name, contender.name, number, case.measure(contender, scale), None)
    except Exception as error:  # noqa: BLE001 - one measurement that fails does not end the run
        return Measurement(
            case.name, contender.name, number, None, f"{type(error).__name__}: {error}"[:1000]
        )


# --- Header ---
def describe_run(plan: Plan) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": plan.rounds,
        "scale": plan.scale,
        "left out": plan.left_out,
        "environ": dict(RUN_ENVIRON),
        "machine": machine(),
        "servers": servers.describe_servers({one.store for one in plan.contenders}),
        "rows": _rows(plan.contenders),
        "contenders": {
            one.name: {
                "store": one.store,
                "settings": one.settings,
                "jobs": one.jobs,
                "versions": environments.versions(one.environment),
            }
            for one in plan.contenders
        },
    }


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "memory, GB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "fdatasync of 8 kB, ms": measure_fdatasync(),
    }


def measure_fdatasync() -> float:
    """Return the median milliseconds of an fdatasync of 8 kB."""
    times = []
    with tempfile.NamedTemporaryFile(prefix="mulligan-bench-") as file:
        for _ in range(50):
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * 8192, 0)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1000)
    return sorted(times)[25]


def _rows(contenders: Sequence[Contender]) -> dict[str, dict[str, float]]:
    """Return the row widths of Mulligan and of the baselines."""
    found = {}
    for one in contenders:
        if one.limit:
            with Sandbox(one, "about") as place:
                found[one.name] = place.ask("about")
    return found


def select_cases(names: Sequence[str]) -> list[Case]:
    """Return the cases whose name begins with one of these; all if there are none."""
    return [
        case
        for name, case in CASES.items()
        if not names or any(name.startswith(prefix) for prefix in names)
    ]
