"""Run a fault storm: python -m storm --store sqlite|postgres [--minutes 30] [--seed N]."""

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

from storm import database_faults, machine_faults, process_faults, tenant_faults  # noqa: F401 - importing registers the faults
from storm.faults import FAULTS
from storm.replay import format_violations, verify_folder
from storm.run import StormOptions, Verdict, print_verdict, storm

RESULTS = Path(__file__).parent / "results" / "storms.jsonl"


def main() -> int:
    args = _arguments()
    # Exit through the context managers, so that no process stays behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if args.replay:
        return _replay(args.replay)
    seed = args.seed if args.seed is not None else secrets.randbelow(2**31)
    only = set(args.faults.split(",")) if args.faults else None
    if only and (unknown := only - FAULTS.keys()):
        sys.exit(
            f"unknown faults: {', '.join(sorted(unknown))}. Known: {', '.join(sorted(FAULTS))}"
        )
    verdicts = [
        _run(store, seed, only, args)
        for store in ([args.store] if args.store else ["sqlite", "postgres"])
    ]
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _run(store: str, seed: int, only: set[str] | None, args: argparse.Namespace) -> Verdict:
    options = StormOptions(
        store,
        seed,
        args.minutes * 60,
        only,
        args.every,
        args.workers,
        args.clients,
        keep=args.keep,
        report=partial(print, flush=True),
    )
    verdict = storm(options)
    print_verdict(verdict)
    if args.record:
        _record(verdict)
    if verdict.passed and not args.keep:
        shutil.rmtree(verdict.folder, ignore_errors=True)
    return verdict


def _replay(folder: Path) -> int:
    report = verify_folder(folder)
    for line in format_violations(report):
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
        "--store", choices=["sqlite", "postgres"], help="default: both, one after the other"
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, help="default: a random one, printed at the start")
    parser.add_argument("--faults", help="inject only these (comma-separated)")
    parser.add_argument("--every", type=float, default=3.0, help="mean seconds between two faults")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument(
        "--replay", type=Path, metavar="FOLDER", help="verify the folder of an earlier storm again"
    )
    parser.add_argument(
        "--record", action="store_true", help="add the verdict to tools/storm/results, for the docs"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder of a run that passed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
