"""`mulligan queues …`, `mulligan kinds …`, `mulligan deps …`: what may start, and how fast.

A paused queue, a held kind and an open dependency start no jobs. Queues and dependencies also have
limits that an operator can change. `GateScope` adds the commands; each scope has its own words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import click

from mulligan.app.services import StoreServices
from mulligan.cli import CommandGroup
from mulligan.cli import completion as complete
from mulligan.cli import options as shared
from mulligan.cli.database import command_line, open_services, print_hint, print_notice
from mulligan.cli.output import (
    format_optional,
    is_json,
    json_value,
    print_record,
    print_rows,
    time_left,
    time_since,
)
from mulligan.core.errors import NotFound
from mulligan.core.format import format_rate
from mulligan.core.job import COUNT_CAP
from mulligan.guards.gate_status import Dependency, KindStatus, Queue
from mulligan.guards.operator_limits import UNCHANGED
from mulligan.manifest.specs import check_name

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", Queue, KindStatus, Dependency)

# --- Limits ---


def limit_options(command: F) -> F:
    """Add the options of `queues set` and `deps set`."""
    return shared.add_options(
        command,
        shared.output_option,
        shared.database_option,
        shared.reason_option,
        shared.duration_option,
        click.option("--clear", is_flag=True, help="Return to the limits declared in code."),
        click.option(
            "--rate",
            metavar="N/s|N/m|N/h|none",
            help="Starts per second, minute or hour, fleet-wide.",
        ),
        click.option(
            "--concurrency", metavar="N|none", help="Jobs that run at the same time, fleet-wide."
        ),
    )


def parse_limits(
    concurrency: str | None, rate: str | None, until: float | None, *, clear: bool
) -> dict[str, Any]:
    """Return the limits to set. UNCHANGED leaves a limit as it is, None removes it."""
    if clear and (concurrency or rate or until):
        message = "--clear cannot be combined with --concurrency, --rate or --for"
        raise click.UsageError(message)
    return {
        "concurrency": _parse_concurrency(concurrency),
        "rate": _parse_limit(rate),
        "until": UNCHANGED if until is None else until,
    }


def _parse_limit(text: str | None) -> Any:
    if text is None:
        return UNCHANGED
    return None if text == "none" else text


def _parse_concurrency(text: str | None) -> Any:
    limit = _parse_limit(text)
    if not isinstance(limit, str):
        return limit
    if not limit.isdecimal():
        message = f"--concurrency must be a whole number or none, not {text!r}"
        raise click.BadParameter(message)
    return int(limit)


# --- Formatting ---


def format_count(count: int) -> str:
    """Format a count of jobs, which stops at a cap."""
    return f"{COUNT_CAP}+" if count >= COUNT_CAP else str(count)


def _format_reason(reason: str, actor: str) -> str:
    return f"{reason} ({actor})" if reason else actor


def _format_ago(at: datetime) -> str:
    return f"{time_since(at)} ago"


# --- Commands of a scope ---

Option = Callable[[Any], Any]
Method = Callable[[StoreServices], Callable[..., Any]]  # a method of the service
Hint = Callable[[str, float | None], None]
_new_option = click.option(
    "--new", is_flag=True, help="Accept a name that no job or declaration uses yet."
)


@dataclass(frozen=True)
class GateScope(Generic[S]):
    """The commands of queues, kinds or dependencies."""

    group: click.Group
    argument: Option
    columns: tuple[str, ...]
    get: Callable[[StoreServices], Callable[[str], S]]
    cells: Callable[[S], dict[str, Any]]  # of a table

    def record(self, status: S, output: str | None) -> dict[str, Any]:
        """Return a status as JSON values, or as the cells of a table."""
        if is_json(output):
            return {name: json_value(value) for name, value in asdict(status).items()}
        return self.cells(status)

    def print(self, status: S, output: str | None) -> None:
        print_record(self.record(status, output), self.columns, output)

    def add_list(
        self, help_: str, statuses: Callable[[StoreServices], list[S]], empty: str
    ) -> None:
        """Add the command that lists all statuses."""

        def command(database: str | None, output: str | None) -> None:
            with open_services(database) as services:
                found = statuses(services)
            records = [self.record(status, output) for status in found]
            print_rows(records, self.columns, output, empty=empty, truncate="reason")

        self._add("list", help_, command, shared.database_option, shared.output_option)

    def add_action(
        self,
        verb: str,
        help_: str,
        method: Method,
        options: tuple[Option, ...],
        hint: Hint | None = None,
    ) -> None:
        """Add a command that changes a gate. `hint` gets the name and the value of --for."""

        def command(
            name: str,
            database: str | None,
            output: str | None,
            *,
            new: bool | None = None,
            **options: Any,
        ) -> None:
            with open_services(database) as services:
                self._check_name(services, name, new=new)
                self.print(method(services)(name, **options), output)
            if hint is not None:
                hint(name, options.get("until"))

        options = (self.argument, *options, shared.database_option, shared.output_option)
        self._add(verb, help_, command, *options)

    def add_set(self, set_: Method, clear_: Method, *options: Option) -> None:
        """Add the command that sets or clears limits."""

        def command(
            name: str,
            reason: str,
            database: str | None,
            output: str | None,
            *,
            clear: bool,
            new: bool | None = None,
            **limits: Any,
        ) -> None:
            changes = parse_limits(**limits, clear=clear)
            with open_services(database) as services:
                self._check_name(services, name, new=new)
                if clear:
                    self.print(clear_(services)(name, reason=reason), output)
                    return
                self.print(set_(services)(name, **changes, reason=reason), output)
            command_to_clear = command_line(str(self.group.name), "set", name, "--clear")
            print_hint(command_to_clear, "return to the declared limits")

        self._add("set", SET_HELP, command, self.argument, *options, limit_options)

    def _check_name(self, services: StoreServices, name: str, *, new: bool | None) -> None:
        """Refuse an unknown name unless --new is set: a typo would silently hold nothing.

        `new` is None for commands without that option.
        """
        if new:
            return
        check_name("name", name)
        try:
            self.get(services)(name)
        except NotFound as error:
            hint = "" if new is None else " If the name is new, add --new."
            raise NotFound(f"{error}{hint}") from None

    def _add(self, verb: str, help_: str, command: Callable[..., None], *options: Option) -> None:
        self.group.command(verb, help=help_)(shared.add_options(command, *reversed(options)))


SET_HELP = "Set limits that override the declared ones until they expire or are cleared."


def _undo_hint(group: str, verb: str) -> Hint:
    """Return a function that suggests the command that opens the gate again."""

    def hint(name: str, until: float | None) -> None:
        effect = "resume it" if until is None else "resume it sooner"
        print_hint(command_line(group, verb, name), effect)

    return hint


# --- mulligan queues ---

QUEUE_COLUMNS = (
    "name",
    "status",
    "ready",
    "held",
    "later",
    "running",
    "oldest",
    "concurrency",
    "rate",
    "fair",
    "reason",
)


@click.group(cls=CommandGroup)
def queues() -> None:
    """List, pause and resume queues; set their limits."""


def _queue_status(queue: Queue) -> str:
    if queue.paused_until is not None:
        return f"paused, resumes in {time_left(queue.paused_until)}"
    if queue.paused:
        return "paused"
    return "limits set" if queue.set_by_hand else "running"


def _queue_cells(queue: Queue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "status": _queue_status(queue),
        "ready": format_count(queue.ready),
        "held": format_count(queue.held_jobs),
        "later": format_count(queue.later),
        "running": queue.running,
        "oldest": format_optional(time_since, queue.oldest),
        "concurrency": queue.concurrency,
        "rate": format_optional(format_rate, queue.rate),
        "fair": "yes" if queue.fair else "",
        "reason": _format_reason(queue.reason, queue.actor),
    }


_queues = GateScope(
    queues,
    click.argument("name", shell_complete=complete.complete_queues),
    QUEUE_COLUMNS,
    lambda services: services.queues.get,
    _queue_cells,
)
_queues.add_list(
    "List all queues that are declared, in use or changed by an operator.",
    lambda services: services.queues.list(),
    "No queues yet. They appear with the first worker or job.",
)
_queues.add_action(
    "pause",
    "Start no more jobs of a queue. Running jobs continue.",
    lambda services: services.queues.pause,
    (shared.duration_option, shared.reason_option, _new_option),
    hint=_undo_hint("queues", "resume"),
)
_queues.add_action(
    "resume",
    "Resume a paused queue.",
    lambda services: services.queues.resume,
    (shared.reason_option,),
)
_queues.add_set(
    lambda services: services.queues.set,
    lambda services: services.queues.clear,
    _new_option,
)


# --- mulligan kinds ---

KIND_COLUMNS = ("name", "status", "ready", "held", "later", "since", "job", "reason")


@click.group(cls=CommandGroup)
def kinds() -> None:
    """List, hold and release kinds."""


def _kind_status(kind: KindStatus) -> str:
    if kind.until is not None:
        return f"held, released in {time_left(kind.until)}"
    if kind.trial:
        return f"held, trial {kind.trial_result}"
    return "held" if kind.held else "running"


def _kind_cells(kind: KindStatus) -> dict[str, Any]:
    return {
        "name": kind.name,
        "status": _kind_status(kind),
        "ready": format_count(kind.ready),
        "held": format_count(kind.held_jobs),
        "later": format_count(kind.later),
        "since": format_optional(_format_ago, kind.since),
        "job": kind.job,
        "reason": _format_reason(kind.reason, kind.actor),
    }


_kinds = GateScope(
    kinds,
    click.argument("name", shell_complete=complete.complete_kinds),
    KIND_COLUMNS,
    lambda services: services.kinds.get,
    _kind_cells,
)


@kinds.command("list")
@click.option("--held", is_flag=True, help="Only held kinds.")
@shared.database_option
@shared.output_option
def list_kinds(database: str | None, output: str | None, *, held: bool) -> None:
    """List all kinds that are declared, in use or changed by an operator, held ones first."""
    with open_services(database) as services:
        found = [kind for kind in services.kinds.list() if kind.held or not held]
    empty = "No kinds yet. They appear with the first worker or job."
    if held:
        empty = "No kind is held."
    records = [_kinds.record(kind, output) for kind in found]
    print_rows(records, KIND_COLUMNS, output, empty=empty, truncate="reason")


def _hint_dead_jobs(name: str, until: float | None) -> None:
    del until
    command = command_line("jobs", "list", f"kind:{name}", "state:dead")
    print_hint(command, "list the jobs that died before it was held")


def _hint_trial(name: str, until: float | None) -> None:
    del until
    print_hint(command_line("kinds", "list", "--held"), "see how the job went")
    print_hint(command_line("kinds", "release", name), "if it succeeded, let the others run")


_kinds.add_action(
    "hold",
    "Start no more jobs of a kind. Running jobs continue.",
    lambda services: services.kinds.hold,
    (shared.duration_option, shared.reason_option, _new_option),
    hint=_undo_hint("kinds", "release"),
)
_kinds.add_action(
    "try",
    "Let one waiting job of a held kind run.",
    lambda services: services.kinds.try_one,
    (shared.reason_option,),
    hint=_hint_trial,
)
_kinds.add_action(
    "release",
    "Start the jobs of a held kind again.",
    lambda services: services.kinds.release,
    (shared.reason_option,),
    hint=_hint_dead_jobs,
)


# --- mulligan deps ---

DEPENDENCY_COLUMNS = (
    "name",
    "status",
    "held",
    "running",
    "failed",
    "concurrency",
    "rate",
    "retries",
    "mode",
    "reason",
)
NO_DEPENDENCIES = (
    'No dependencies yet. Declare one with @app.job(uses="gateway") and start a worker.'
)


@click.group(cls=CommandGroup)
def deps() -> None:
    """List, open, close and probe dependencies; set their limits.

    `deps open` opens the circuit breaker: the dependency is down, and jobs that use it are held, or
    fail at once in mode fail_fast. `deps close` closes the breaker: the dependency is up again.
    """


def _dependency_cells(dependency: Dependency) -> dict[str, Any]:
    failed = f"{dependency.failed} of {dependency.calls}" if dependency.calls else ""
    return {
        "name": dependency.key,
        "status": dependency_status(dependency),
        "held": format_count(dependency.held),
        "running": dependency.running,
        "failed": failed,
        "concurrency": _format_concurrency(dependency),
        "rate": format_optional(format_rate, dependency.rate),
        "retries": format_optional(_format_tokens, dependency.tokens),
        "mode": dependency.mode,
        "reason": _format_reason(dependency.reason, dependency.actor),
    }


def _format_tokens(tokens: float) -> str:
    return f"{max(0.0, tokens):.0f}"


def _format_concurrency(dependency: Dependency) -> Any:
    limit = dependency.concurrency
    return f"{limit} (reduced)" if dependency.reduced else limit


def dependency_status(dependency: Dependency) -> str:
    """Return the state, since when, and what happens next."""
    if dependency.state == "open":
        elapsed = "" if dependency.since is None else f" for {time_since(dependency.since)}"
        return f"down{elapsed}{_next_step(dependency)}"
    status = "up"
    if dependency.state == "ramping":
        status = f"recovering at {format_rate(dependency.rate or 0.0)}"
    if dependency.until is not None:
        status += f", kept up for {time_left(dependency.until)}"
    if dependency.set_by_hand:
        status += ", limits set"
    return status


def _next_step(dependency: Dependency) -> str:
    if dependency.probing:
        return ", probe running"
    if dependency.probe_at is not None:
        return f", next probe in {time_left(dependency.probe_at)}"
    if dependency.until is not None:
        return f", up again in {time_left(dependency.until)}"
    return ""


_deps = GateScope(
    deps,
    click.argument("name", metavar="KEY", shell_complete=complete.complete_dependencies),
    DEPENDENCY_COLUMNS,
    lambda services: services.dependencies.get,
    _dependency_cells,
)
_deps.add_list(
    "List all dependencies that are declared, in use or changed by an operator.",
    lambda services: services.dependencies.list(),
    NO_DEPENDENCIES,
)
_deps.add_action(
    "open",
    "Open the breaker: hold jobs that use it (fail_fast: fail them). Running jobs continue.\n\n"
    "It is not probed until it is closed or --for ends.",
    lambda services: services.dependencies.open,
    (shared.duration_option, shared.reason_option, _new_option),
    hint=_undo_hint("deps", "close"),
)
_deps.add_action(
    "close",
    "Close the breaker: start held jobs, slowly at first and faster while they succeed.",
    lambda services: services.dependencies.close,
    (
        click.option(
            "--for",
            "until",
            type=shared.DurationParam(),
            help="Do not open it automatically for this time: 30, 5m, 2h, 1d.",
        ),
        shared.reason_option,
    ),
)


def _explain_probe(name: str, until: float | None) -> None:
    del name, until
    print_notice("A worker will probe it shortly. Three successful probes close it.")


_deps.add_action(
    "probe",
    "Check now whether it works again, with its probe function or with one of its jobs.",
    lambda services: services.dependencies.probe,
    (shared.reason_option,),
    hint=_explain_probe,
)
_deps.add_set(
    lambda services: services.dependencies.set,
    lambda services: services.dependencies.clear,
    _new_option,
)
