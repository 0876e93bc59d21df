"""One storm, from the first worker to the verdict."""

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
from storm.crew import marked, until
from storm.faults import KINDS, Injector, possible
from storm.looking import AWAY, ask, states
from storm.plan import plan
from storm.replay import checked, keep, told, written
from storm.world import World, world

from mulligan.doctor.verify.records import Clients

SETTLE = 150.0  # seconds until everything has come to an end, once nothing is broken any more
RECOVER = 30.0  # seconds until a fresh job is done
LEAVE = 30.0
BEGIN = 300.0
BACKLOG = 100
LET_GO = 10.0  # between two looks of somebody who lets go what a guard holds
CLOCKED = (
    "S10",
    "S13",
    "S14",
)  # compare times with each other: where the clock was stepped they prove nothing


@dataclass
class Wanted:
    """What somebody asked for."""

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
    say: Callable[[str], None] = print


@dataclass
class Verdict:
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
    def good(self) -> bool:
        return not self.violations


def storm(wanted: Wanted) -> Verdict:
    with world(wanted.store, wanted.seed, wanted.folder) as place:
        wanted.say(
            f"storm on {wanted.store}, seed {wanted.seed}, {wanted.seconds:g} s, folder {place.folder}"
        )
        verdict = Verdict(
            wanted.store,
            wanted.seed,
            wanted.seconds,
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        verdict.folder = str(place.folder)
        _begin(place, wanted)
        injector = _rage(place, wanted, verdict)
        _calm(place, wanted, verdict)
        _judge(place, verdict, injector)
        if wanted.keep or not verdict.good:
            keep(place)
        (place.folder / "verdict.json").write_text(json.dumps(asdict(verdict), indent=1))
    return verdict


def _begin(place: World, wanted: Wanted) -> None:
    for number in range(wanted.workers):
        place.hire_worker(number)
    place.hire_web()
    if not until(lambda: _known(place), BEGIN):
        raise RuntimeError(f"no worker began; see {place.logs}")
    for number in range(wanted.clients):
        place.hire_client(number, wanted.pace)


def _known(place: World) -> bool:
    try:
        return bool(ask(place.url, "SELECT 1 FROM {p}worker WHERE closed_at IS NULL"))
    except AWAY:
        return False


def _rage(place: World, wanted: Wanted, verdict: Verdict) -> Injector:
    injector = Injector(place)
    todo = plan(wanted.seed, wanted.seconds, possible(place, wanted.faults), wanted.every)
    began = told = time.monotonic()
    Thread(target=_let_go, args=(place,), daemon=True).start()
    while (now := time.monotonic() - began) < wanted.seconds:
        while todo and todo[0].at <= now:
            fault = todo.pop(0)
            injector.make(fault.kind, fault.seed)
        if time.monotonic() - told > 2:
            told = time.monotonic()
            _tell(place, wanted, injector, f"{now:5.0f}/{wanted.seconds:g} s")
        time.sleep(0.05)
    for client in place.crew.named("client"):
        client.wanted = False
    (place.folder / "stop").touch()
    injector.wait(60)
    verdict.faults = dict(sorted(injector.made.items()))
    verdict.skipped = {name: why for name, why in place.skipped.items() if _concerns(place, name)}
    return injector


def _let_go(place: World) -> None:
    """Else all jobs of a kind would wait in line from its fifth death on."""
    while not (place.folder / "stop").exists():
        time.sleep(LET_GO)
        with suppress(Exception):  # whatever is broken just now
            _released(place)


def _concerns(place: World, name: str) -> bool:
    return name not in KINDS or place.store_name in KINDS[name].stores


def _tell(place: World, wanted: Wanted, injector: Injector, when: str) -> None:
    try:
        counts = states(place.url)
    except AWAY:
        counts = {}
    waiting = counts.get("queued", 0) + counts.get("running", 0)
    _pace(place, waiting)
    over = sum(counts.values()) - waiting
    now = ", ".join(sorted(injector.now.values())) or "-"
    wanted.say(
        f"{when}  ended {over:6d}  waiting {waiting:4d}  faults {sum(injector.made.values()):4d}  now: {now}"
    )


def _pace(place: World, waiting: int) -> None:
    """Clients that are quicker than the workers of a small machine would only make the end late."""
    calm = place.folder / "calm"
    if waiting > BACKLOG:
        calm.touch()
    elif waiting < BACKLOG / 2:
        calm.unlink(missing_ok=True)


def _calm(place: World, wanted: Wanted, verdict: Verdict) -> None:
    """Nothing is broken any more: does a fresh job run, and does all that was asked for come to an end?"""
    began = time.monotonic()
    verdict.figures["slowed down by"] = slowness()
    place.crew.stop("client", LEAVE)
    healed = time.monotonic()
    app = place.open_app()
    try:
        with Clients(place.folder / "clients.jsonl", "storm").call(
            "enqueue", kind="plain", payload={"n": 1}
        ) as call:
            fresh = app.enqueue("plain", {"n": 1}, priority=-9)
            call.ok(fresh)
        bound = RECOVER * verdict.figures["slowed down by"]
        if not until(lambda: _state(place, fresh.id) == "succeeded", bound):
            verdict.violations.append(
                f"a fresh job is not done {bound:.0f} s after the last fault: {fresh.id}"
            )
        verdict.figures["recovered after s"] = round(time.monotonic() - healed, 1)
    finally:
        app.close()
    last = ask(place.url, "SELECT max(created_at) FROM {p}job")[0][0]
    wanted.say("calm: waiting until everything has come to an end")
    if not _all_over(place, last, SETTLE * slowness()):
        verdict.violations += [
            f"neither ended nor parked: {row}" for row in _open(place, last)[:20]
        ]
    verdict.figures["settled after s"] = round(time.monotonic() - began, 1)


def slowness() -> float:
    """Bounds are of a machine with a core for who wants one; on one that is busier everything takes longer."""
    return round(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / 2), 1)


def _all_over(place: World, last: int, patience: float) -> bool:
    """False: for so long there was nobody who came to an end, and some have not."""
    left, since = _open(place, last), time.monotonic()
    while left and time.monotonic() - since < patience:
        time.sleep(0.5)
        _released(place)
        now = _open(place, last)
        if len(now) < len(left):
            left, since = now, time.monotonic()
    return not left


def _released(place: World) -> bool:
    """A kind of which too many died of one cause waits for a person: here is one."""
    held = ask(place.url, "SELECT key FROM {p}gate WHERE scope = 'kind'")
    app = place.open_app()
    try:
        for (kind,) in held:
            app.kinds.release(kind, reason="the storm is over")
    finally:
        app.close()
    return True


def _state(place: World, job: str) -> str:
    return str(ask(place.url, "SELECT state FROM {p}job WHERE id = :id", {"id": job})[0][0])


def _open(place: World, last: int) -> list[Any]:
    text = "SELECT id, kind, state, attempt, losses, failures FROM {p}job WHERE state IN ('queued', 'running')"
    return ask(place.url, f"{text} AND created_at <= :last ORDER BY id", {"last": last})


def _judge(place: World, verdict: Verdict, injector: Injector) -> None:
    until(lambda: all(worker.settled for worker in place.workers), RECOVER)
    codes = place.crew.stop("worker", LEAVE)
    verdict.violations += [
        f"{name} did not leave in order: {code}" for name, code in codes.items() if code != 0
    ]
    place.crew.stop("web", LEAVE)
    verdict.violations += place.crew.fell()
    verdict.violations += [f"a fault could not be made: {what}" for what in injector.broken]
    until(lambda: not marked(f"STORM_FOLDER={place.folder}"), 5)
    verdict.violations += [
        f"a process is left behind: {pid}" for pid in marked(f"STORM_FOLDER={place.folder}")
    ]
    _check(place, verdict)
    points = place.folder / "points.jsonl"
    if points.exists():
        met = Counter(json.loads(line)["point"] for line in points.read_text().splitlines())
        verdict.figures |= {"commits fallen at": met.total(), "of transactions": len(met)}
    facts = counting.gathered(place.url, place.folder)
    verdict.figures.update(counting.summary(facts))
    verdict.violations += counting.violations(facts)
    verdict.violations += _surprises(place.folder)
    if not place.is_postgres:
        whole = ask(place.url, "PRAGMA integrity_check")[0][0]
        verdict.violations += [] if whole == "ok" else [f"integrity_check: {whole}"]


def _check(place: World, verdict: Verdict) -> None:
    report = checked(place.url, place.folder)
    written(report, place.folder)
    verdict.figures |= {
        "calls": report.calls,
        "witness lines": report.lines,
        "invariants checked": len(report.checked),
    }
    lines = told(report)
    of_clock = (
        [line for line in lines if _compares_times(line)] if "host_clock" in verdict.faults else []
    )
    verdict.figures["told by a stepped clock"] = len(of_clock)
    verdict.violations += [line for line in lines if line not in of_clock]


def _compares_times(line: str) -> bool:
    return line.split(maxsplit=1)[0] in CLOCKED or (line.startswith("S7 ") and " was kept " in line)


def _surprises(folder: Path) -> list[str]:
    path = folder / "surprises.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        f"not an answer of ours: {json.loads(line)['client']}: {json.loads(line)['trace'][-600:]}"
        for line in lines
    ]


def main_print(verdict: Verdict, out: Any = sys.stdout) -> None:
    width = max(map(len, [*verdict.faults, *verdict.skipped, "fault"]))
    print(f"\n{'fault':<{width}}  count", file=out)
    for name, count in verdict.faults.items():
        print(f"{name:<{width}}  {count:5d}", file=out)
    for name, why in verdict.skipped.items():
        print(f"{name:<{width}}      -  {why}", file=out)
    print(f"\n{', '.join(f'{name} {value}' for name, value in verdict.figures.items())}", file=out)
    for line in verdict.violations[:50]:
        print(f"VIOLATION  {line}", file=out)
    said = (
        "no violation"
        if verdict.good
        else f"{len(verdict.violations)} violations, kept in {verdict.folder}"
    )
    print(f"{verdict.store}, seed {verdict.seed}: {said}", file=out)
