"""`mulligan metrics`: the numbers as Prometheus reads them, and the files that make use of them."""

from __future__ import annotations

from importlib.resources import files

import click

from mulligan.cli import options as shared

FILES = {"rules": "alerts.yml", "dashboard": "dashboard.json"}
RUNBOOK = "runbook_url: docs/"


@click.command()
@click.argument("what", type=click.Choice(["now", *FILES]), default="now")
@click.option("--docs", help="Address of the documentation, put before the runbook links of the rules.")
@shared.database
def metrics(what: str, docs: str | None, database: str | None) -> None:
    """Print the metrics of this database, the alert rules for Prometheus, or the dashboard for Grafana.

    WHAT is now (the default), rules or dashboard.
    """
    if what in FILES:
        click.echo(_file(FILES[what], docs), nl=False)
        return
    from mulligan.cli.database import existing, settings_with
    from mulligan.observe.exporter import fresh

    with existing(settings_with(database)) as store:
        click.echo(fresh(store), nl=False)


def _file(name: str, docs: str | None) -> str:
    text = files("mulligan.observe").joinpath("rules", name).read_text(encoding="utf-8")
    return text if docs is None else text.replace(RUNBOOK, f"runbook_url: {docs.rstrip('/')}/")
