"""The command line. Data goes to stdout, messages to stderr; exit codes are in `EXIT_CODES`.

A command's module is imported when the command is run, so that `mulligan --help` is quick.
"""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from mulligan._version import __version__
from mulligan.core import errors
from mulligan.core.settings import variable_name

# --- Exit codes ---

EXIT_CODES = {
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
EXIT_NOT_SUCCEEDED = 6
EXIT_INVARIANT_BROKEN = 7
EXIT_NOT_HEALTHY = 8
EXIT_INTERRUPTED = 130
EXIT_CODE_MEANINGS = {
    0: "success",
    1: "an error",
    2: "invalid command, option, value or setting",
    3: "not found",
    4: "the database denied access",
    5: "refused: the state of the job, batch or dependency does not allow it",
    6: "a watched job did not succeed, a batch is not ready, or an operation stopped",
    7: "`doctor --verify` found a broken invariant",
    8: "`status` found something that needs attention",
    130: "interrupted (Ctrl-C)",
}
FILTER_NAMES = ("state", "phase", "kind", "queue", "owner", "code", "class", "group", "since")
DATABASE_DRIVERS = frozenset({"apsw", "psycopg", "sqlite3"})
ACCESS_DENIED_SQLSTATES = frozenset({"28000", "28P01", "42501"})


def exit_code_for(error: errors.MulliganError) -> int:
    """Return the exit code of the error's class, or of its nearest base class in `EXIT_CODES`."""
    classes: list[type] = type(error).mro()
    return next(EXIT_CODES[cls] for cls in classes if cls in EXIT_CODES)


# --- Command groups ---


class CommandGroup(click.Group):
    """A group that lists commands in source order and suggests the nearest name for a wrong one."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click API
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = str(args[0])
        is_option = name.startswith("-")
        if not is_option and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            elsewhere = COMMANDS_ELSEWHERE.get(name) if ctx.parent is None else None
            if elsewhere:
                ctx.fail(f"No such command {name!r}. Write: mulligan {elsewhere}")
            ctx.fail(unknown_name_message("command", name, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


# What other programs call our commands.
COMMANDS_ELSEWHERE = {
    **dict.fromkeys(("run", "start", "work", "consume", "beat", "scheduler"), "worker APP"),
    **dict.fromkeys(("serve", "server", "dashboard", "ui", "flower"), "web"),
    **dict.fromkeys(("list", "ls"), "jobs list"),
    **{name: f"jobs {name} ID" for name in ("show", "explain", "watch", "retry", "cancel")},
    **dict.fromkeys(("upgrade", "upgradedb"), "migrate"),
    "version": "--version",
}
# What other programs call our options, and the option to write.
OPTIONS_ELSEWHERE = {
    "-c": "--concurrency",
    "-Q": "--queues",
    "-l": "--log-level",
    "-v": "--version",
    "-V": "--version",
    "-p": "--port",
    "-d": "--database",
}


def unknown_name_message(what: str, name: str, known: list[str]) -> str:
    """Describe an unknown name, with the nearest known name or, if none is near, all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"Available: {', '.join(known)}."
    return f"No such {what} {name!r}. {hint}"


class LazyCommand(NamedTuple):
    """Where a top-level command is defined, and its line in `mulligan --help`."""

    location: str  # module:attribute
    summary: str


COMMANDS = {
    "demo": LazyCommand(
        "mulligan.cli.demo:demo",
        "Run a demo with sample jobs and the dashboard.",
    ),
    "init": LazyCommand("mulligan.cli.admin:init", "Write a first jobs.py and mulligan.toml."),
    "up": LazyCommand("mulligan.cli.worker:up", "Run a worker and the dashboard together."),
    "worker": LazyCommand("mulligan.cli.worker:worker", "Run the jobs of an app."),
    "web": LazyCommand("mulligan.cli.worker:web", "Serve the dashboard and the HTTP API."),
    "migrate": LazyCommand("mulligan.cli.admin:migrate", "Bring the database schema up to date."),
    "backup": LazyCommand("mulligan.cli.admin:backup", "Copy a live SQLite database to a file."),
    "restored": LazyCommand(
        "mulligan.cli.admin:restored",
        "Run once after restoring a backup, before workers start.",
    ),
    "doctor": LazyCommand(
        "mulligan.cli.doctor:doctor",
        "Show every setting and its origin, and check for problems.",
    ),
    "status": LazyCommand(
        "mulligan.cli.status:status",
        "Show what is broken and what waits, on one screen.",
    ),
    "top": LazyCommand("mulligan.cli.status:top", "Show the running jobs, the longest first."),
    "open": LazyCommand("mulligan.cli.status:open_page", "Open the page of a job in the browser."),
    "enqueue": LazyCommand("mulligan.cli.enqueue:enqueue", "Enqueue a job by kind."),
    "jobs": LazyCommand(
        "mulligan.cli.jobs:jobs",
        "List, show, explain, watch, export and repair jobs.",
    ),
    "batches": LazyCommand(
        "mulligan.cli.batches:batches",
        "List, show, seal, retry and cancel batches of jobs.",
    ),
    "failures": LazyCommand(
        "mulligan.cli.failures:failures",
        "List dead jobs by cause; retry, mute or resolve a cause.",
    ),
    "ops": LazyCommand(
        "mulligan.cli.ops:ops",
        "Start, watch, pause and abort operations on many jobs.",
    ),
    "queues": LazyCommand(
        "mulligan.cli.gates:queues",
        "List, pause and resume queues; set their limits.",
    ),
    "deps": LazyCommand(
        "mulligan.cli.gates:deps",
        "List, open, close and probe dependencies; set their limits.",
    ),
    "kinds": LazyCommand("mulligan.cli.gates:kinds", "List, hold and release kinds."),
    "releases": LazyCommand(
        "mulligan.cli.releases:releases",
        "List and compare releases; hold one that fails more.",
    ),
    "alerts": LazyCommand(
        "mulligan.cli.monitoring:alerts",
        "List active alerts and alert rules; silence a rule.",
    ),
    "policy": LazyCommand(
        "mulligan.cli.policy:policy",
        "Show retry policies, test classification, backtest rules.",
    ),
    "import": LazyCommand(
        "mulligan.cli.imports:import_schedules",
        "Print schedules of Celery beat, APScheduler or RQ as declarations.",
    ),
    "schedules": LazyCommand(
        "mulligan.cli.schedules:schedules",
        "List, preview, pause, resume and run schedules.",
    ),
    "insight": LazyCommand(
        "mulligan.cli.monitoring:insight",
        "Report how well retries work and what failures cost.",
    ),
    "notify": LazyCommand(
        "mulligan.cli.notify:notify",
        "Manage subscriptions and list notification deliveries.",
    ),
    "metrics": LazyCommand(
        "mulligan.cli.monitoring:metrics",
        "Print Prometheus metrics, alert rules or a Grafana dashboard.",
    ),
    "workers": LazyCommand(
        "mulligan.cli.workers:workers",
        "List and drain workers; check that one is alive.",
    ),
    "keys": LazyCommand("mulligan.cli.admin:keys", "Create, list and revoke HTTP API keys."),
    "audit": LazyCommand("mulligan.cli.events:list_events", "Show who did what, and why."),
    "events": LazyCommand(
        "mulligan.cli.events:events",
        "Show who did what, and follow events as they happen.",
    ),
    "completion": LazyCommand(
        "mulligan.cli.completion:completion",
        "Print a shell completion script.",
    ),
}


class LazyGroup(CommandGroup):
    """The top-level group. Imports the module of a command only when that command is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click API
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click API
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].location.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click API
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])


# --- The program ---


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--app", metavar="APP", help="Use the database that this app names in its code.")
@click.version_option(__version__, prog_name="mulligan")
@click.pass_context
def cli(ctx: click.Context, app: str | None) -> None:
    """Durable Python jobs that recover from failure.

    APP is module:attribute, for example jobs:app. Commands without APP need only the database:
    --database, else MULLIGAN_DATABASE_URL, else mulligan.toml, else the database of --app, else
    sqlite:///mulligan.db.
    """
    if app is not None:
        ctx.with_resource(_database_of_app(app))


@contextmanager
def _database_of_app(app: str) -> Iterator[None]:
    """Name the database of an app in the environment, where every command reads it."""
    from mulligan.cli.app_facts import load_app_facts

    settings = load_app_facts(app, {}).settings
    names = {"database_url": settings.database_url, "schema_name": settings.schema_name}
    before = {variable_name(name): os.environ.get(variable_name(name)) for name in names}
    os.environ.update({variable_name(name): value for name, value in names.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code. Report errors on stderr in one line."""
    try:
        result: Any = cli.main(arguments, prog_name="mulligan", standalone_mode=False)
    except click.NoSuchOption as error:
        message = f"{error.message}{_option_hint(error) or _filter_hint(error)}"
        nearest = difflib.get_close_matches(error.option_name, error.possibilities or (), n=1)
        hinted = click.NoSuchOption(error.option_name, message, nearest, error.ctx)
        hinted.show()
        return hinted.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except errors.MulliganError as error:
        return report_error(error)
    except Exception as error:
        if not _comes_from_driver(error):
            raise
        if _was_interrupted(error):
            return EXIT_INTERRUPTED
        return _report_driver_error(error)
    return result if isinstance(result, int) else 0


def _option_hint(error: click.NoSuchOption) -> str:
    """Say what to write instead of an option that another program has."""
    if error.ctx is None:
        return ""
    command = error.ctx.command
    if error.option_name == "-A":
        return " The app is an argument: mulligan worker module:app"
    if command.name == "enqueue":
        return f" Arguments of the job are written {error.option_name.lstrip('-')}=VALUE."
    name = OPTIONS_ELSEWHERE.get(error.option_name, "")
    has_it = any(name in param.opts for param in command.params)
    return f" Write {name}." if has_it else ""


def _filter_hint(error: click.NoSuchOption) -> str:
    """Say how to write a filter, if the unknown option looks like one: `--state dead`."""
    takes_filter = error.ctx is not None and any(
        "FILTER" in (getattr(param, "metavar", None) or "") for param in error.ctx.command.params
    )
    near = difflib.get_close_matches(error.option_name.lstrip("-"), FILTER_NAMES, n=1)
    if error.possibilities or not takes_filter or not near:
        return ""
    return f" Filters are written without dashes: {near[0]}:VALUE."


def report_error(error: errors.MulliganError) -> int:
    """Print the error as one line on stderr, without secrets. Return its exit code."""
    from mulligan.failures.redact import remove_secrets

    text = " ".join(str(error).split())
    click.echo(f"mulligan: {remove_secrets(text)} [{error.code}]", err=True)
    return exit_code_for(error)


def _comes_from_driver(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in DATABASE_DRIVERS


def _was_interrupted(error: BaseException | None) -> bool:
    """Return True if Ctrl-C caused the error.

    After Ctrl-C in the middle of a statement a driver may fail to clean up and raise its own error.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _report_driver_error(error: Exception) -> int:
    """Report a driver error that storage did not translate."""
    message = f"the database refused: {type(error).__name__}: {error}"
    if getattr(error, "sqlstate", None) in ACCESS_DENIED_SQLSTATES:
        return report_error(errors.AccessDenied(message))
    return report_error(errors.StoreUnavailable(message))
