"""Play many scripts (`make simulate SEEDS=2000`), or replay one that failed.

python -m simulation run --seeds 2000 --first 1 --stores sqlite,postgres
python -m simulation play '[["enqueue",0,0,0,0],…]'
"""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from simulation.play import read_script, write_script
from simulation.runs import Failure, find_failure, script_of, shorten, stores

console = Console(stderr=True)
STORES = ("sqlite", "postgres")


@click.group()
def main() -> None:
    """Play random scripts of jobs, workers and faults on real stores under a virtual clock."""


def _names(_: object, __: object, value: str) -> list[str]:
    names = value.split(",")
    if not names or not set(names) <= set(STORES):
        raise click.BadParameter(f"one of {', '.join(STORES)}, or both")
    return names


on = click.option(
    "--stores",
    "names",
    default="sqlite",
    callback=_names,
    help="sqlite, postgres, or sqlite,postgres.",
)


@main.command()
@click.option("--seeds", default=2000, help="How many scripts.")
@click.option("--first", default=1, help="The number of the first.")
@on
def run(seeds: int, first: int, names: list[str]) -> None:
    """Play many scripts. With both stores, play each on both and compare."""
    with stores(names) as homes, _bar() as bar:
        task = bar.add_task(" and ".join(names), total=seeds, steps=0)
        steps = 0
        for seed in range(first, first + seeds):
            script = script_of(seed)
            found = find_failure(homes, script)
            if found is not None:
                bar.stop()
                _print_failure(seed, shorten(homes, script, found), names)
                sys.exit(1)
            steps += len(script)
            bar.update(task, advance=1, steps=steps)
    click.echo(
        f"{seeds} seeds ({first} to {first + seeds - 1}), {steps} steps, on {' and '.join(names)}: all invariants hold"
    )


@main.command()
@click.argument("script")
@on
def play(script: str, names: list[str]) -> None:
    """Play one script, given as text or as a seed."""
    steps = script_of(int(script)) if script.isdecimal() else read_script(script)
    with stores(names) as homes:
        found = find_failure(homes, steps)
    if found is None:
        click.echo(f"{len(steps)} steps: all invariants hold")
        return
    click.echo(found.trace)
    sys.exit(1)


def _bar() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[steps]} steps"),
    )
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)


def _print_failure(seed: int, found: Failure, names: list[str]) -> None:
    click.echo(
        f"seed {seed} breaks {found.why}\n\n{found.trace}\n{len(found.script)} steps are enough. To replay:\n"
    )
    click.echo(f"  make simulate STORES={','.join(names)} PLAY='{write_script(found.script)}'")


if __name__ == "__main__":
    main()
