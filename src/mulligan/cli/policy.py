"""`mulligan policy …`: what holds when a job fails. From the stored manifests, without the app."""

from __future__ import annotations

import click

from mulligan.cli import complete
from mulligan.cli import options as shared
from mulligan.cli.backtesting import backtest
from mulligan.cli.database import existing, say, settings_with
from mulligan.cli.family import Family
from mulligan.cli.policy_table import show_all, show_one
from mulligan.cli.testing_rules import test
from mulligan.engine.policies import Policies


@click.group(cls=Family)
def policy() -> None:
    """What holds when a job fails, who says so, and when it is tried again."""


@policy.command()
@click.argument("kind", required=False, shell_complete=complete.kinds)
@shared.database
@shared.output
def show(kind: str | None, database: str | None, output: str | None) -> None:
    """The effective policy of a kind with its calendar of attempts; without KIND a line for each."""
    settings = settings_with(database)
    with existing(settings) as store:
        book = Policies(lambda: store, lambda: settings)
        if kind is None:
            show_all([book.system(), *(book.explain(name) for name in book.kinds())], output)
        else:
            show_one(book.explain(kind), output)
    say("the system layer is as the settings say here; a worker with other settings has another")


policy.add_command(test)
policy.add_command(backtest)
