"""python -m bench peers [case …] [--only NAME …] [--rounds 3] [--scale 1]: compare Mulligan with others.

python -m bench peers                              everything; an hour or two
python -m bench peers drain retry enqueue          these cases
python -m bench peers drain --only mulligan pgqueuer limits
python -m bench peers mixed --seed 7 --mix other_mix.py    other failures and jobs
python -m bench peers mixed --no-fast              without Mulligan's accelerators
python -m bench peers --report [FILE …]            write docs/contributors/performance.md from results
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from bench import world
from bench.peers import pages, results, run, sandbox, tables
from bench.peers.contenders import choose_contenders
from bench.peers.results import Measurement
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

console = Console(width=None if sys.stdout.isatty() else 160)


def main(arguments: list[str]) -> None:
    args = _arguments(arguments)
    if args.report is not None:
        pages.write(results.read(*(args.report or [newest()])))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit through the context managers
    sandbox.RUN_ENVIRON.update(_run_environ(args))
    plan = _build_plan(args)
    result_file = run.open_result_file(plan)
    _run_plan(plan, result_file)
    tables.show(console, results.read(result_file.path))
    console.print(f"saved in {result_file.path.relative_to(world.ROOT)}")


def _run_environ(args: argparse.Namespace) -> dict[str, str]:
    environ = {"BENCH_SEED": str(args.seed)}
    if args.mix:
        environ["BENCH_MIX"] = str(args.mix.resolve())
    if args.no_fast:
        environ["MULLIGAN_WORKER__FAST"] = "false"
    return environ


def newest() -> Path:
    return max(run.RESULTS.glob("peers-*.jsonl"))


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m bench peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "cases", nargs="*", metavar="case", help="beginning of a case name; default: all"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="a system, a database, or limits"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="factor for the number of jobs; 0.05 tests the harness",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the mixed failures and jobs")
    parser.add_argument(
        "--mix",
        type=Path,
        metavar="FILE",
        help="a module with `fail(i, seed)` that raises the mixed failures; default: ours",
    )
    parser.add_argument(
        "--no-fast", action="store_true", help="run Mulligan with worker.fast = false"
    )
    parser.add_argument(
        "--report",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="only write the report; default: the newest run",
    )
    return parser.parse_args(arguments)


def _build_plan(args: argparse.Namespace) -> run.Plan:
    cases = run.select_cases(args.cases)
    with console.status("creating environments and trying all contenders") as status:
        able, unable = run.available(
            choose_contenders(args.only), lambda name: status.update(f"trying {name}")
        )
    for name, why in unable.items():
        console.print(f"[yellow]left out: {name}[/]: {why}", highlight=False)
    if (load := os.getloadavg()[0]) > (cores := os.cpu_count() or 1) / 2:
        console.print(
            f"[yellow]the machine is busy[/] (load {load:.1f} on {cores} cores): the figures are not reliable"
        )
    return run.Plan(cases, able, args.rounds, args.scale, unable)


def _run_plan(plan: run.Plan, result_file: run.ResultFile) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=plan.measurements())

        def done(measured: Measurement) -> None:
            result_file.add(measured)
            progress.console.print(tables.line(measured), highlight=False)
            progress.advance(task)

        run.run_plan(plan, done, lambda what: progress.update(task, description=what))
