"""python -m storm.points --store sqlite|postgres: fall at every point around every commit, one after the other.

A life of clients and workers is led in a forked process. The first time it only writes down which commits there are.
Then once for each: kill -9, or the connection lost, before and after it. Each time somebody else comes, puts in order
what is left, and the checker judges. Any of it that the fall did not reach is not counted.
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
from pathlib import Path
from random import Random
from typing import NamedTuple

from storm.life import Life, recover
from storm.pointed import AFTER, BEFORE, EXIT, LOSE, fall, install
from storm.world import FAST, ROOT, postgres

from mulligan.config import Settings, read_settings
from mulligan.doctor.verify.checker import verify
from mulligan.storage import open_store

RESULTS = ROOT / "storm" / "results"
LONGEST = 120  # seconds


class Point(NamedTuple):
    name: str
    side: str
    nth: int
    action: str

    def __str__(self) -> str:
        return f"{self.name} {self.side} #{self.nth} {self.action}"


class Place:
    """A fresh store for every point, copied from one that has its tables."""

    def __init__(self, store: str, folder: Path) -> None:
        self.folder = folder
        self.server = postgres.PostgresServer(None) if store == "postgres" else None
        self.template = (
            self.server.create_database() if self.server else f"sqlite:///{folder}/template.db"
        )
        _in_a_fork(lambda: _prepare(self.template))

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


def settings_of(url: str, folder: Path) -> Settings:
    environ = {
        **FAST,
        "MULLIGAN_DATABASE_URL": url,
        "MULLIGAN_WORKER__STATE_DIR": str(folder / "state"),
    }
    return read_settings(environ=environ, file=folder / "none.toml")


def _in_a_fork(work: Callable[[], None]) -> int:
    """Its exit status as `os.waitpid` tells it; what takes too long is killed."""
    child = os.fork()
    if child == 0:
        signal.alarm(LONGEST)
        logging.disable()  # what is told of jobs that fail is told a thousand times
        try:
            work()
        except BaseException:  # noqa: BLE001 - a fork has no other way out
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


# -- what there is -------------------------------------------------------------------------------
def enumerated(place: Place, seed: int) -> list[Point]:
    with place.fresh(0) as (url, folder):
        log = folder / "met"

        def lived() -> None:
            met: list[str] = []
            install(lambda name, side: met.append(name) if side == BEFORE else None)
            Life(settings_of(url, folder), folder, seed).lead()
            log.write_text("\n".join(met))

        if _in_a_fork(lived) != 0:
            raise RuntimeError("a life without a fall does not come to its end")
        counts = Counter(log.read_text().split("\n"))
    return [
        Point(name, side, nth, action)
        for name, count in sorted(counts.items())
        for nth in range(1, count + 1)
        for side in (BEFORE, AFTER)
        for action in (EXIT, LOSE)
    ]


def chosen(points: list[Point], most: int, seed: int) -> list[Point]:
    """Every point at its first and its last time; of the others as many as there is room for."""
    last = {(p.name, p.side, p.action): p.nth for p in points}
    first = [p for p in points if p.nth == 1 or p.nth == last[p.name, p.side, p.action]]
    rest = [p for p in points if p not in set(first)]
    Random(seed).shuffle(rest)
    return (first + rest)[:most]


# -- one of them ---------------------------------------------------------------------------------
def fallen(place: Place, number: int, point: Point, seed: int) -> tuple[bool, list[str]]:
    """Whether the point was reached, and what is wrong afterwards."""
    with place.fresh(number) as (url, folder):
        reached = folder / "reached"
        settings = settings_of(url, folder)

        def lived() -> None:
            install(_once_at(point, reached))
            Life(settings, folder, seed).lead()

        status = _in_a_fork(lived)
        wrong = [] if status in (0, signal.SIGKILL) else [f"the life ended with status {status}"]
        if _in_a_fork(lambda: recover(settings, folder)) != 0:
            wrong.append("whoever came afterwards could not put it in order")
        wrong += _judged(url, folder, settings)
        if wrong:
            shutil.copytree(folder, place.folder / f"kept-{number}", dirs_exist_ok=True)
        return reached.exists(), wrong


def _once_at(point: Point, reached: Path) -> Callable[[str, str], None]:
    left = point.nth

    def judge(name: str, side: str) -> None:
        nonlocal left
        if (name, side) == (point.name, point.side):
            left -= 1
            if left == 0:
                reached.touch()
                fall(point.action)

    return judge


def _judged(url: str, folder: Path, settings: Settings) -> list[str]:
    said = folder / "said.json"

    def look() -> None:
        files = {"clients": [folder / "clients.jsonl"], "witness": [folder / "witness.jsonl"]}
        found = {name: [path for path in paths if path.exists()] for name, paths in files.items()}
        report = verify(url, **found, settled=True, slack=0.0, settings=settings)
        said.write_text(
            json.dumps([f"{one.invariant} {one.subject}: {one.what}" for one in report.violations])
        )

    if _in_a_fork(look) != 0:
        return ["the checker could not look"]
    return list(json.loads(said.read_text()))


# -- all of them ---------------------------------------------------------------------------------
def main() -> int:
    args = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="mulligan-points-"))
    place = Place(args.store, folder)
    try:
        todo = [
            p
            for p in chosen(enumerated(place, args.seed), args.most, args.seed)
            if args.only in str(p)
        ]
        print(
            f"{args.store}, seed {args.seed}: {len(todo)} points of {len({p.name for p in todo})} transactions"
        )
        reached, bad = _all(place, todo, args.seed)
    finally:
        place.close()
    _keep(args, reached, bad)
    print(
        f"{args.store}, seed {args.seed}: {sum(reached.values())} points reached, {len(bad)} with a violation"
    )
    if not bad:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if bad else 0


def _all(place: Place, todo: list[Point], seed: int) -> tuple[Counter[str], list[str]]:
    reached: Counter[str] = Counter()
    bad: list[str] = []
    told = time.monotonic()
    for number, point in enumerate(todo, 1):
        met, wrong = fallen(place, number, point, seed)
        reached[point.name] += met
        if wrong:
            bad.append(f"{point}: {wrong[:3]}")
            print(f"VIOLATION  {point}: {wrong[:3]} (kept-{number} in {place.folder})", flush=True)
        if time.monotonic() - told > 5:
            told = time.monotonic()
            print(
                f"{number:5d}/{len(todo)}  reached {sum(reached.values())}  bad {len(bad)}  now: {point}",
                flush=True,
            )
    return reached, bad


def _keep(args: argparse.Namespace, reached: Counter[str], bad: list[str]) -> None:
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
    parser.add_argument("--only", default="", help="points whose name has this in it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
