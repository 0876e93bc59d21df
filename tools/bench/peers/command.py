"""python -m bench peers [case …] [--only NAME …] [--rounds 3] [--scale 1]: ours and the others, by turns.

python -m bench peers                              everything; an hour or two
python -m bench peers drain retry enqueue          these cases
python -m bench peers drain --only mulligan pgqueuer limits
python -m bench peers --report [FILE …]            tables and pictures of docs/performance.md from a run's results
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from bench import world
from bench.peers import pages, results, run, tables
from bench.peers.contenders import choose_contenders
from bench.peers.results import Measurement
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

console = Console(width=None if sys.stdout.isatty() else 160)


def main(words: list[str]) -> None:
    args = _arguments(words)
    if args.report is not None:
        pages.write(results.read(*(args.report or [newest()])))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    plan = _planned(args)
    kept = run.open_result_file(plan)
    _carry_out(plan, kept)
    tables.show(console, results.read(kept.path))
    console.print(f"kept in {kept.path.relative_to(world.ROOT)}")


def newest() -> Path:
    return max(run.RESULTS.glob("peers-*.jsonl"))


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m bench peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "cases", nargs="*", metavar="case", help="how its name begins; default: all"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="a system, a store, limits"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how many jobs; 0.05 tries the harness"
    )
    parser.add_argument(
        "--report",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="measure nothing; default: the newest run; of several the last with a case",
    )
    return parser.parse_args(words)


def _planned(args: argparse.Namespace) -> run.Plan:
    cases = run.select_cases(args.cases)
    with console.status("making environments and trying everybody") as status:
        able, unable = run.available(
            choose_contenders(args.only), lambda name: status.update(f"trying {name}")
        )
    for name, why in unable.items():
        console.print(f"[yellow]left out: {name}[/]: {why}", highlight=False)
    if (load := os.getloadavg()[0]) > (cores := os.cpu_count() or 1) / 2:
        console.print(
            f"[yellow]the machine is busy[/] (load {load:.1f} on {cores} cores): believe no figure"
        )
    return run.Plan(cases, able, args.rounds, args.scale, unable)


def _carry_out(plan: run.Plan, kept: run.ResultFile) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=plan.measurements())

        def done(measured: Measurement) -> None:
            kept.keep(measured)
            progress.console.print(tables.line(measured), highlight=False)
            progress.advance(task)

        run.run_plan(plan, done, lambda what: progress.update(task, description=what))
