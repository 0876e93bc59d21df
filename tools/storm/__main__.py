"""python -m storm --store sqlite|postgres [--minutes 30] [--seed N] [--faults a,b]: a storm, and its verdict."""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import signal
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from storm import on_database, on_machine, on_processes  # noqa: F401 - each fault enters itself in the list
from storm.faults import KINDS
from storm.replay import judged_again, told
from storm.run import Verdict, Wanted, main_print, storm

RESULTS = Path(__file__).parent / "results" / "storms.jsonl"


def main() -> int:
    args = _arguments()
    signal.signal(
        signal.SIGTERM, lambda number, _: sys.exit(128 + number)
    )  # whoever ends us: nothing is left behind
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if args.replay:
        return _again(args.replay)
    seed = args.seed if args.seed is not None else secrets.randbelow(2**31)
    only = set(args.faults.split(",")) if args.faults else None
    if only and (unknown := only - KINDS.keys()):
        sys.exit(
            f"no such faults: {', '.join(sorted(unknown))}; there are: {', '.join(sorted(KINDS))}"
        )
    verdicts = [
        _run(store, seed, only, args)
        for store in ([args.store] if args.store else ["sqlite", "postgres"])
    ]
    return 0 if all(verdict.good for verdict in verdicts) else 1


def _run(store: str, seed: int, only: set[str] | None, args: argparse.Namespace) -> Verdict:
    say = partial(print, flush=True)
    crew = (args.every, args.workers, args.clients)
    verdict = storm(Wanted(store, seed, args.minutes * 60, only, *crew, keep=args.keep, say=say))
    main_print(verdict)
    if args.record:
        _record(verdict)
    if verdict.good and not args.keep:
        shutil.rmtree(verdict.folder, ignore_errors=True)
    return verdict


def _again(folder: Path) -> int:
    report = judged_again(folder)
    for line in told(report):
        print(f"VIOLATION  {line}")
    print(f"{folder}: {'no violation' if report.ok else f'{report.counts.total()} violations'}")
    return 0 if report.ok else 1


def _record(verdict: Verdict) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(verdict) | {"folder": ""}) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m storm", description=__doc__)
    parser.add_argument(
        "--store", choices=["sqlite", "postgres"], help="default: one after the other"
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, help="default: a new one, printed")
    parser.add_argument("--faults", help="only these, with commas between them")
    parser.add_argument(
        "--every", type=float, default=3.0, help="seconds between two faults, on average"
    )
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument(
        "--replay", type=Path, metavar="FOLDER", help="judge again what a storm left behind"
    )
    parser.add_argument(
        "--record", action="store_true", help="add the verdict to tools/storm/results, for the docs"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder of a good run too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
