"""Measure cases and save the figures: python -m bench [case …] [--store sqlite|postgres] [--n 20000].

python -m bench peers … compares with other systems, see tools/bench/peers/command.py.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path

from bench.cases import CASES, Figures

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    if sys.argv[1:2] == ["peers"]:
        from bench.peers import command  # noqa: PLC0415 - needs more dependencies

        command.main(sys.argv[2:])
        return
    args = _arguments()
    stores = [args.store] if args.store else ["sqlite", "postgres"]
    for case in args.cases or list(CASES):
        for store in stores:
            print(f"{case} on {store} …", flush=True)
            runs = [CASES[case](store, args.n) for _ in range(args.runs)]
            figures = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            _print(figures, runs)
            _save(case, store, args.n, runs, figures)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="case")
    parser.add_argument("--store", choices=["sqlite", "postgres"])
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=1)
    return parser.parse_args()


def _print(figures: Figures, runs: list[Figures]) -> None:
    for name, value in figures.items():
        spread = (
            f"   ({min(run[name] for run in runs):,.2f} … {max(run[name] for run in runs):,.2f})"
        )
        print(f"  {name:<36}{value:>14,.2f}{spread if len(runs) > 1 else ''}", flush=True)


def _save(case: str, store: str, n: int, runs: list[Figures], figures: Figures) -> None:
    """Append the figures to results.jsonl."""
    RESULTS.mkdir(exist_ok=True)
    line = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "case": case,
        "store": store,
        "n": n,
        "python": platform.python_version(),
        "median": figures,
        "runs": runs,
    }
    with (RESULTS / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
