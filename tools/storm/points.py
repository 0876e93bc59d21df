"""Crash before and after every commit: python -m storm.points --store sqlite|postgres.

A scenario of clients and workers runs in a forked process. The first run records its commits. Then
it runs again for each commit, and is killed or loses its connection before or after it. Each time
another worker recovers what is left, and the checker verifies the result. Points that a run does
not reach are not counted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from random import Random
from typing import NamedTuple

from storm.commit_points import AFTER, BEFORE, EXIT, LOSE, crash, install
from storm.scenario import Scenario, recover
from storm.world import FAST_SETTINGS

from mulligan.config import Settings, read_settings
from mulligan.doctor.verify.checker import verify
from mulligan.storage import open_store
from support import postgres

RESULTS = Path(__file__).parent / "results"
FORK_TIMEOUT = 120  # seconds


class Point(NamedTuple):
    """One commit of one transaction, and how to crash there."""

    name: str
    side: str
    nth: int
    action: str

    def __str__(self) -> str:
        return f"{self.name} {self.side} #{self.nth} {self.action}"


class PointDatabases:
    """Create an empty database for every point, copied from a template with tables."""

    def __init__(self, store: str, folder: Path) -> None:
        self.folder = folder
        self.server = postgres.PostgresServer(None) if store == "postgres" else None
        self.template = (
            self.server.create_database() if self.server else f"sqlite:///{folder}/template.db"
        )
        _run_in_fork(lambda: _prepare(self.template))

    @contextmanager
    def fresh(self, number: int) -> Iterator[tuple[str, Path]]:
        folder = self.folder / f"point-{number}"
        folder.mkdir()
        if self.server:
            url = self.server.create_database(self.template.rpartition("/")[2])
        else:
            url = f"sqlite:///{folder}/mulligan.db"
            shutil.copyfile(self.folder / "template.db", folder / "mulligan.db")
        yield url, folder
        if self.server:
            self.server.drop_database(url)
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        if self.server:
            self.server.close()


def _prepare(url: str) -> None:
    with closing(open_store(url)) as store:
        store.prepare()
        store.shift_clock(0)


def build_settings(url: str, folder: Path) -> Settings:
    environ = {
        **FAST_SETTINGS,
        "MULLIGAN_DATABASE_URL": url,
        "MULLIGAN_WORKER__STATE_DIR": str(folder / "state"),
    }
    return read_settings(environ=environ, file=folder / "none.toml")


def _run_in_fork(work: Callable[[], None]) -> int:
    """Run `work` in a fork. Return its wait status; SIGALRM ends it after FORK_TIMEOUT."""
    child = os.fork()
    if child == 0:
        signal.alarm(FORK_TIMEOUT)
        logging.disable()  # failing jobs would log thousands of lines
        try:
            work()
        except BaseException:  # noqa: BLE001 - the fork must not return
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


# --- Points ---
def list_points(place: PointDatabases, seed: int) -> list[Point]:
    """Run the scenario without a crash and return all points."""
    with place.fresh(0) as (url, folder):
        log = folder / "commits"

        def run() -> None:
            commits: list[str] = []
            install(lambda name, side: commits.append(name) if side == BEFORE else None)
            Scenario(build_settings(url, folder), folder, seed).run()
            log.write_text("\n".join(commits))

        if _run_in_fork(run) != 0:
            raise RuntimeError("the scenario fails without a crash")
        counts = Counter(log.read_text().split("\n"))
    points = []
    for name, count in sorted(counts.items()):
        for nth, side, action in product(range(1, count + 1), (BEFORE, AFTER), (EXIT, LOSE)):
            points.append(Point(name, side, nth, action))
    return points


def choose_points(points: list[Point], most: int, seed: int) -> list[Point]:
    """Choose the first and last occurrence of every point, then others at random up to `most`."""
    last = {(point.name, point.side, point.action): point.nth for point in points}
    ends = []
    others = []
    for point in points:
        if point.nth in {1, last[point.name, point.side, point.action]}:
            ends.append(point)
        else:
            others.append(point)
    Random(seed).shuffle(others)
    return (ends + others)[:most]


# --- One point ---
def crash_at(place: PointDatabases, number: int, point: Point, seed: int) -> tuple[bool, list[str]]:
    """Crash at a point and recover. Return whether it was reached, and the violations."""
    with place.fresh(number) as (url, folder):
        reached = folder / "reached"
        settings = build_settings(url, folder)

        def run() -> None:
            install(_crash_hook(point, reached))
            Scenario(settings, folder, seed).run()

        status = _run_in_fork(run)
        problems = []
        if status not in (0, signal.SIGKILL):
            problems.append(f"the scenario ended with status {status}")
        if _run_in_fork(lambda: recover(settings, folder)) != 0:
            problems.append("the recovery failed")
        problems += _run_checker(url, folder, settings)
        if problems:
            shutil.copytree(folder, place.folder / f"kept-{number}", dirs_exist_ok=True)
        return reached.exists(), problems


def _crash_hook(point: Point, reached: Path) -> Callable[[str, str], None]:
    left = point.nth

    def hook(name: str, side: str) -> None:
        nonlocal left
        if (name, side) == (point.name, point.side):
            left -= 1
            if left == 0:
                reached.touch()
                crash(point.action)

    return hook


def _run_checker(url: str, folder: Path, settings: Settings) -> list[str]:
    output = folder / "violations.json"

    def check() -> None:
        report = verify(
            url,
            clients=_existing(folder / "clients.jsonl"),
            witness=_existing(folder / "witness.jsonl"),
            settled=True,
            slack=0.0,
            settings=settings,
        )
        output.write_text(
            json.dumps([f"{one.invariant} {one.subject}: {one.what}" for one in report.violations])
        )

    if _run_in_fork(check) != 0:
        return ["the checker failed"]
    return list(json.loads(output.read_text()))


def _existing(path: Path) -> list[Path]:
    return [path] if path.exists() else []


# --- All points ---
def main() -> int:
    args = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="mulligan-points-"))
    place = PointDatabases(args.store, folder)
    try:
        todo = [
            p
            for p in choose_points(list_points(place, args.seed), args.most, args.seed)
            if args.only in str(p)
        ]
        print(
            f"{args.store}, seed {args.seed}: {len(todo)} points of {len({p.name for p in todo})} transactions"
        )
        reached, bad = _run_all(place, todo, args.seed)
    finally:
        place.close()
    _save_result(args, reached, bad)
    print(
        f"{args.store}, seed {args.seed}: {sum(reached.values())} points reached, {len(bad)} with a violation"
    )
    if not bad:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if bad else 0


def _run_all(place: PointDatabases, todo: list[Point], seed: int) -> tuple[Counter[str], list[str]]:
    reached: Counter[str] = Counter()
    bad: list[str] = []
    printed_at = time.monotonic()
    for number, point in enumerate(todo, 1):
        was_reached, problems = crash_at(place, number, point, seed)
        reached[point.name] += was_reached
        if problems:
            bad.append(f"{point}: {problems[:3]}")
            print(
                f"VIOLATION  {point}: {problems[:3]} (kept-{number} in {place.folder})", flush=True
            )
        if time.monotonic() - printed_at > 5:
            printed_at = time.monotonic()
            print(
                f"{number:5d}/{len(todo)}  reached {sum(reached.values())}  bad {len(bad)}  now: {point}",
                flush=True,
            )
    return reached, bad


def _save_result(args: argparse.Namespace, reached: Counter[str], bad: list[str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    line = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "store": args.store,
        "seed": args.seed,
        "reached": sum(reached.values()),
        "transactions": len(+reached),
        "bad": bad,
        "by": dict(sorted(reached.items())),
    }
    with (RESULTS / "points.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m storm.points", description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=1200)
    parser.add_argument("--only", default="", help="only points whose name contains this")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
