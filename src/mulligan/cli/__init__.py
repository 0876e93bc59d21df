"""The command line. Data goes to stdout, talk to stderr; exit codes are in `EXIT`.

A command's module is imported when the command is run, so that `mulligan --help` is quick.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import click

from mulligan._version import __version__
from mulligan.core import errors

# Groups of commands: a wrong name gets the nearest right one, and help keeps the order of the source.


class Family(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = str(args[0])
        if (
            self.get_command(ctx, name) is None
            and not name.startswith("-")
            and not ctx.resilient_parsing
        ):
            ctx.fail(no_such("command", name, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


def no_such(what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known)}."
    return f"No such {what} {name!r}. {hint}"


# The command line. Data goes to stdout, talk to stderr; exit codes are in `EXIT`.

EXIT = {
    errors.AccessDenied: 4,
    errors.NotFound: 3,
    errors.IllegalMove: 5,
    errors.KeyMismatch: 5,
    errors.UniqueMismatch: 5,
    errors.UniqueTaken: 5,
    errors.RetryRefused: 5,
    errors.RetryLimited: 5,
    errors.DependencyOpen: 5,
    errors.DeadlineFirst: 5,
    errors.ConfigError: 2,
    errors.Refused: 2,
    errors.MulliganError: 1,
}
FAILED = 6
BROKEN = 7
INTERRUPTED = 130
MEANINGS = {
    0: "done",
    1: "an error",
    2: "the call was wrong: a name, a value, a setting",
    3: "not found",
    4: "the database does not let us in",
    5: "the state of the job, batch or dependency, or somebody else, is in the way",
    6: "the watched job, or one of them, did not succeed; the batch is not ready; the operation has stopped by itself",
    7: "`doctor --verify`: a promise is broken",
    130: "interrupted",
}
DRIVERS = frozenset({"apsw", "psycopg", "psycopg_pool", "sqlite3"})
NO_ACCESS = frozenset({"28000", "28P01", "42501"})  # SQLSTATE

COMMANDS = {
    "demo": (
        "mulligan.cli.demo:demo",
        "A running Mulligan with something to look at; prints its address.",
    ),
    "init": ("mulligan.cli.admin:init", "Write a first jobs.py and mulligan.toml."),
    "up": ("mulligan.cli.worker:up", "A worker and the page, together."),
    "worker": ("mulligan.cli.worker:worker", "Run the jobs of an app."),
    "web": ("mulligan.cli.worker:web", "Serve the page."),
    "migrate": ("mulligan.cli.admin:migrate", "Bring the database's schema up to date."),
    "backup": ("mulligan.cli.admin:backup", "Copy a live SQLite database to a file."),
    "restored": ("mulligan.cli.admin:restored", "Once after a restore, before workers start."),
    "doctor": ("mulligan.cli.doctor:doctor", "Every setting with its origin, and what is wrong."),
    "enqueue": ("mulligan.cli.enqueue:enqueue", "Enqueue a job by the name of its kind."),
    "jobs": ("mulligan.cli.jobs:jobs", "List, show, explain, watch, export and repair jobs."),
    "batches": (
        "mulligan.cli.batches:batches",
        "Batches of jobs: list, show, seal, retry what failed, cancel.",
    ),
    "failures": (
        "mulligan.cli.failures:failures",
        "Dead jobs by cause: list, show, retry, mute, resolve.",
    ),
    "ops": (
        "mulligan.cli.ops:ops",
        "One careful action on many jobs: start, show, items, pause, resume, abort.",
    ),
    "queues": (
        "mulligan.cli.gates:queues",
        "List queues, pause and resume them, set their limits.",
    ),
    "deps": (
        "mulligan.cli.gates:deps",
        "What jobs use: list it, hold it, let it go, look now, set limits.",
    ),
    "kinds": ("mulligan.cli.gates:kinds", "List kinds; hold one, or release one that is held."),
    "alerts": (
        "mulligan.cli.monitoring:alerts",
        "What is worth attention now, by which rules; silence one.",
    ),
    "policy": (
        "mulligan.cli.policy:policy",
        "What holds when a job fails, who says so, and when it is tried again.",
    ),
    "schedules": (
        "mulligan.cli.schedules:schedules",
        "List schedules, see when they run, run one now.",
    ),
    "insight": (
        "mulligan.cli.monitoring:insight",
        "What retries are worth, what failures cost, what that advises.",
    ),
    "notify": (
        "mulligan.cli.notify:notify",
        "Who is told of what, to where, and what became of each message.",
    ),
    "metrics": (
        "mulligan.cli.monitoring:metrics",
        "Numbers for Prometheus, alert rules, a dashboard for Grafana.",
    ),
    "workers": (
        "mulligan.cli.workers:workers",
        "List workers, let one drain, check that one lives.",
    ),
    "keys": (
        "mulligan.cli.admin:keys",
        "Who may ask over HTTP: make a key, list them, revoke one.",
    ),
    "events": ("mulligan.cli.events:events", "What happened, and what happens."),
    "completion": (
        "mulligan.cli.completion:completion",
        "Print a script that completes commands in your shell.",
    ),
}


class LazyGroup(Family):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - same
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - same
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mulligan")
def cli() -> None:
    """Durable Python jobs, built for the moment they fail.

    APP is module:attribute, for example jobs:app. Commands without it work on the database alone:
    --database, else MULLIGAN_DATABASE_URL, else mulligan.toml, else sqlite:///mulligan.db.
    """


def exit_code(error: errors.MulliganError) -> int:
    kinds: list[type] = type(error).mro()
    return next(EXIT[kind] for kind in kinds if kind in EXIT)


def complain(error: errors.MulliganError) -> int:
    """One line on stderr; its exit code."""
    from mulligan.failures.redact import without_secrets

    click.echo(
        f"mulligan: {without_secrets(' '.join(str(error).split()))} [{error.code}]", err=True
    )
    return exit_code(error)


def main(arguments: list[str] | None = None) -> int:
    try:
        result: Any = cli.main(arguments, prog_name="mulligan", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except errors.MulliganError as error:
        return complain(error)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in DRIVERS:
            raise
        return INTERRUPTED if _interrupted(error) else _refused(error)
    return result if isinstance(result, int) else 0


def _interrupted(error: BaseException | None) -> bool:
    """Ctrl-C in the middle of a statement: what the driver says while it cleans up is not what happened."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _refused(error: Exception) -> int:
    """What the database's driver says, and no store has put in words of ours."""
    denied = getattr(error, "sqlstate", None) in NO_ACCESS
    message = f"the database refused: {type(error).__name__}: {error}"
    return complain(errors.AccessDenied(message) if denied else errors.StoreUnavailable(message))
