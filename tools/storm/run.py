"""Run one storm: start the processes, inject faults, wait for recovery, verify the result."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

from storm import counting
from storm.faults import FAULTS, Injector, possible_faults
from storm.plan import plan
from storm.processes import pids_with_environment, wait_until
from storm.queries import DATABASE_ERRORS, count_states, query
from storm.replay import format_violations, save_database, verify_database, write_report
from storm.world import World, world

from mulligan.doctor.verify.records import Clients

SETTLE_TIMEOUT = 150.0  # longest gap without an ending after the last fault
RECOVERY_TIMEOUT = 30.0  # seconds until a new job must have run
STOP_TIMEOUT = 30.0
START_TIMEOUT = 300.0
BACKLOG = 100
RELEASE_INTERVAL = 10.0  # seconds between two releases of the kinds that a guard holds
COMPARE_TIMES = ("S10", "S13", "S14")  # invariants that compare times: a stepped clock breaks them


@dataclass
class StormOptions:
    """Options of one storm."""

    store: str
    seed: int
    seconds: float
    faults: set[str] | None = None
    every: float = 3.0
    workers: int = 3
    clients: int = 3
    pace: float = 0.25
    folder: Path | None = None
    keep: bool = False
    report: Callable[[str], None] = print


@dataclass
class Verdict:
    """Result of one storm."""

    store: str
    seed: int
    seconds: float
    at: str
    faults: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    folder: str = ""

    @property
    def passed(self) -> bool:
        return not self.violations


def storm(options: StormOptions) -> Verdict:
    """Run a storm and return its verdict. The folder stays if it failed or `keep` is set."""
    with world(options.store, options.seed, options.folder) as place:
        options.report(
            f"storm on {options.store}, seed {options.seed}, {options.seconds:g} s, folder {place.folder}"
        )
        verdict = Verdict(
            options.store,
            options.seed,
            options.seconds,
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        verdict.folder = str(place.folder)
        _start_processes(place, options)
        injector = _inject_faults(place, options, verdict)
        _wait_for_recovery(place, options, verdict)
        _verify(place, verdict, injector)
        if options.keep or not verdict.passed:
            save_database(place)
        (place.folder / "verdict.json").write_text(json.dumps(asdict(verdict), indent=1))
    return verdict


def _start_processes(place: World, options: StormOptions) -> None:
    for number in range(options.workers):
        place.start_worker(number)
    place.start_web()
    if not wait_until(lambda: _worker_registered(place), START_TIMEOUT):
        raise RuntimeError(f"no worker started; see {place.logs}")
    for number in range(options.clients):
        place.start_client(number, options.pace)


def _worker_registered(place: World) -> bool:
    try:
        return bool(query(place.url, "SELECT 1 FROM {p}worker WHERE closed_at IS NULL"))
    except DATABASE_ERRORS:
        return False


def _inject_faults(place: World, options: StormOptions, verdict: Verdict) -> Injector:
    injector = Injector(place)
    todo = plan(
        options.seed, options.seconds, possible_faults(place, options.faults), options.every
    )
    began = printed_at = time.monotonic()
    Thread(target=_release_held_kinds_regularly, args=(place,), daemon=True).start()
    while (now := time.monotonic() - began) < options.seconds:
        while todo and todo[0].at <= now:
            fault = todo.pop(0)
            injector.inject(fault.kind, fault.seed)
        if time.monotonic() - printed_at > 2:
            printed_at = time.monotonic()
            _print_progress(place, options, injector, f"{now:5.0f}/{options.seconds:g} s")
        time.sleep(0.05)
    for client in place.processes.with_prefix("client"):
        client.restarts = False
    (place.folder / "stop").touch()
    injector.wait(60)
    verdict.faults = dict(sorted(injector.counts.items()))
    verdict.skipped = {name: why for name, why in place.skipped.items() if _applies_to(place, name)}
    return injector


def _release_held_kinds_regularly(place: World) -> None:
    """Release held kinds during the storm, as an operator would.

    Otherwise all jobs of a kind would wait from its fifth death on.
    """
    while not (place.folder / "stop").exists():
        time.sleep(RELEASE_INTERVAL)
        with suppress(Exception):  # the database may be down just now
            _release_held_kinds(place)


def _applies_to(place: World, name: str) -> bool:
    """True if the storm's database has this fault."""
    return name not in FAULTS or place.store_name in FAULTS[name].stores


def _print_progress(place: World, options: StormOptions, injector: Injector, when: str) -> None:
    try:
        counts = count_states(place.url)
    except DATABASE_ERRORS:
        counts = {}
    waiting = counts.get("queued", 0) + counts.get("running", 0)
    _throttle_clients(place, waiting)
    over = sum(counts.values()) - waiting
    now = ", ".join(sorted(injector.active.values())) or "-"
    options.report(
        f"{when}  ended {over:6d}  waiting {waiting:4d}  faults {sum(injector.counts.values()):4d}  now: {now}"
    )


def _throttle_clients(place: World, waiting: int) -> None:
    """Slow the clients down while the backlog is long, so that a small machine can finish."""
    calm = place.folder / "calm"
    if waiting > BACKLOG:
        calm.touch()
    elif waiting < BACKLOG / 2:
        calm.unlink(missing_ok=True)


def _wait_for_recovery(place: World, options: StormOptions, verdict: Verdict) -> None:
    """Stop the clients; check that a new job runs and that every job ends."""
    began = time.monotonic()
    verdict.figures["slowed down by"] = load_factor()
    place.processes.stop("client", STOP_TIMEOUT)
    healed = time.monotonic()
    app = place.open_app()
    try:
        with Clients(place.folder / "clients.jsonl", "storm").call(
            "enqueue", kind="plain", payload={"n": 1}
        ) as call:
            fresh = app.enqueue("plain", {"n": 1}, priority=-9)
            call.ok(fresh)
        bound = RECOVERY_TIMEOUT * verdict.figures["slowed down by"]
        if not wait_until(lambda: _state(place, fresh.id) == "succeeded", bound):
            verdict.violations.append(
                f"a new job did not run within {bound:.0f} s after the last fault: {fresh.id}"
            )
        verdict.figures["recovered after s"] = round(time.monotonic() - healed, 1)
    finally:
        app.close()
    last = query(place.url, "SELECT max(created_at) FROM {p}job")[0][0]
    options.report("faults are over: waiting until every job has ended")
    if not _wait_for_endings(place, last, SETTLE_TIMEOUT * load_factor()):
        verdict.violations += [
            f"neither ended nor parked: {row}" for row in _unfinished_jobs(place, last)[:20]
        ]
    verdict.figures["settled after s"] = round(time.monotonic() - began, 1)


def load_factor() -> float:
    """Return the factor by which time limits grow on a busy machine (1.0 if idle)."""
    return round(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / 2), 1)


def _wait_for_endings(place: World, last: int, patience: float) -> bool:
    """Wait until all jobs have ended. False: none ended for `patience` seconds and some remain."""
    left, since = _unfinished_jobs(place, last), time.monotonic()
    while left and time.monotonic() - since < patience:
        time.sleep(0.5)
        _release_held_kinds(place)
        now = _unfinished_jobs(place, last)
        if len(now) < len(left):
            left, since = now, time.monotonic()
    return not left


def _release_held_kinds(place: World) -> bool:
    """Release every kind that a guard holds, as an operator would."""
    held = query(place.url, "SELECT key FROM {p}gate WHERE scope = 'kind'")
    app = place.open_app()
    try:
        for (kind,) in held:
            app.kinds.release(kind, reason="the storm is over")
    finally:
        app.close()
    return True


def _state(place: World, job: str) -> str:
    return str(query(place.url, "SELECT state FROM {p}job WHERE id = :id", {"id": job})[0][0])


def _unfinished_jobs(place: World, last: int) -> list[Any]:
    text = "SELECT id, kind, state, attempt, losses, failures FROM {p}job WHERE state IN ('queued', 'running')"
    return query(place.url, f"{text} AND created_at <= :last ORDER BY id", {"last": last})


def _verify(place: World, verdict: Verdict, injector: Injector) -> None:
    wait_until(lambda: all(worker.is_ready for worker in place.workers), RECOVERY_TIMEOUT)
    codes = place.processes.stop("worker", STOP_TIMEOUT)
    verdict.violations += [
        f"{name} did not exit cleanly: {code}" for name, code in codes.items() if code != 0
    ]
    place.processes.stop("web", STOP_TIMEOUT)
    verdict.violations += place.processes.unexpected_exits()
    verdict.violations += [f"a fault could not be injected: {what}" for what in injector.broken]
    wait_until(lambda: not pids_with_environment(f"STORM_FOLDER={place.folder}"), 5)
    verdict.violations += [
        f"a process was left running: {pid}"
        for pid in pids_with_environment(f"STORM_FOLDER={place.folder}")
    ]
    _check(place, verdict)
    points = place.folder / "points.jsonl"
    if points.exists():
        met = Counter(json.loads(line)["point"] for line in points.read_text().splitlines())
        verdict.figures |= {"commits fallen at": met.total(), "of transactions": len(met)}
    facts = counting.collect_facts(place.url, place.folder)
    verdict.figures.update(counting.summary(facts))
    verdict.violations += counting.violations(facts)
    verdict.violations += _unexpected_errors(place.folder)
    if not place.is_postgres:
        whole = query(place.url, "PRAGMA integrity_check")[0][0]
        verdict.violations += [] if whole == "ok" else [f"integrity_check: {whole}"]


def _check(place: World, verdict: Verdict) -> None:
    report = verify_database(place.url, place.folder)
    write_report(report, place.folder)
    verdict.figures |= {
        "calls": report.calls,
        "witness lines": report.lines,
        "invariants checked": len(report.checked),
    }
    lines = format_violations(report)
    excused = []
    if "host_clock" in verdict.faults:
        excused = [line for line in lines if _compares_times(line)]
    verdict.figures["told by a stepped clock"] = len(excused)
    verdict.violations += [line for line in lines if line not in excused]


def _compares_times(line: str) -> bool:
    """True if the violation compares times, which a stepped clock makes meaningless."""
    return line.split(maxsplit=1)[0] in COMPARE_TIMES or (
        line.startswith("S7 ") and " checkpoint " in line
    )


def _unexpected_errors(folder: Path) -> list[str]:
    path = folder / "surprises.jsonl"
    if not path.exists():
        return []
    errors = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        errors.append(f"unexpected client error: {record['client']}: {record['trace'][-600:]}")
    return errors


def print_verdict(verdict: Verdict, out: Any = sys.stdout) -> None:
    width = max(map(len, [*verdict.faults, *verdict.skipped, "fault"]))
    print(f"\n{'fault':<{width}}  count", file=out)
    for name, count in verdict.faults.items():
        print(f"{name:<{width}}  {count:5d}", file=out)
    for name, why in verdict.skipped.items():
        print(f"{name:<{width}}      -  {why}", file=out)
    figures = [f"{name} {value}" for name, value in verdict.figures.items()]
    print(f"\n{', '.join(figures)}", file=out)
    for line in verdict.violations[:50]:
        print(f"VIOLATION  {line}", file=out)
    result = "no violation"
    if not verdict.passed:
        result = f"{len(verdict.violations)} violations, kept in {verdict.folder}"
    print(f"{verdict.store}, seed {verdict.seed}: {result}", file=out)
