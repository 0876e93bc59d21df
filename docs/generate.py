"""Write the parts of the docs that come from the code: `python docs/generate.py`.

`PAGES` lists whole pages; `PARTS` lists sections between two marks, such as the state diagram in
ARCHITECTURE.md. `tests/docs/test_generated.py` fails when one of them is stale.
"""

from __future__ import annotations

import errno
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mulligan.config import Section, Settings
from mulligan.core import errors, lifecycle
from mulligan.core.attempt import RETRYABLE, Cls, Failure
from mulligan.core.format import format_duration
from mulligan.core.settings import ENV_PREFIX
from mulligan.failures import codes
from mulligan.failures import codes as ends
from mulligan.failures.builtin import PROCESS_FAILED, RULES, UNKNOWN, WEAKEST
from mulligan.failures.rules import Rule

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "mulligan"
NOTICE = "<!-- Printed from the code by docs/generate.py. Do not edit. -->"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Format a Markdown table."""
    cells = [list(head), *([_cell(value) for value in row] for row in rows)]
    rule = ["---"] * len(cells[0])
    return "\n".join("| " + " | ".join(row) + " |" for row in (cells[0], rule, *cells[1:]))


def _cell(value: str) -> str:
    return value.replace("|", "\\|")


# --- Settings ---
# Descriptions of settings whose field has none.
MEANING = {
    "database_url": "`sqlite:///path`, `sqlite+stdlib:///path` or `postgresql://…`",
    "schema_name": "the PostgreSQL schema that holds all tables; SQLite ignores it",
    "release": "name of the deployed version; stored with the manifest and the worker",
    "retry.enabled": "`false`: no failure is retried, regardless of policies",
    "retry.only": "only these classes may be retried: `timeout,rate_limited`; unset: all retryable ones",
    "retry.max_retries": "retries per generation: 3 means at most 4 failed attempts",
    "retry.factor": "factor between two delays",
    "retry.jitter": "spread of a delay: `full` 0 to 100 %, `equal` 50 to 100 %, a number ± that share",
    "retry.max_snoozes": "how often a job may snooze; unset: no limit",
    "worker.concurrency": "jobs that one worker runs at the same time",
    "worker.runners": "runner processes that share these slots; use more than one for several cores",
    "retention.succeeded": "seconds a succeeded job is kept, with its attempts; a kind may override it",
    "retention.dead": "seconds a dead job is kept",
    "retention.cancelled": "seconds a cancelled job is kept",
    "retention.events": "seconds events are kept, also those of existing jobs",
    "retention.workers": "seconds the row of a stopped worker is kept",
    "limits.payload": "maximum size of a payload in bytes of JSON; more is refused at enqueue",
    "limits.result": "maximum size of a result in bytes of JSON; more ends the job with `RESULT_TOO_LARGE`",
    "web.host": "address of dashboard and API; beyond loopback only if a key exists",
    "mail.port": "port of the mail server",
    "mail.username": "name to log in to the mail server with; unset: no login",
    "web.port": "port of dashboard and API; 0: any free one",
}
SECTIONS = {
    "": "The database and the app",
    "retry": "Retries: defaults for jobs and kinds without their own policy",
    "retry.classes.transient": "Retries of one class",
    "worker": "One worker: a supervisor and its runners",
    "retention": "Retention",
    "guards": "When a kind is held because its jobs die of one cause",
    "limits": "Limits",
    "web": "Dashboard and API",
    "web.brand": "Your name and colours on status pages",
    "mail": "Mail server",
    "notify": "Notifications",
    "alerts": "Alerts",
    "log": "Log lines",
    "trace": "Traces",
}


SETTINGS = """\
{notice}

# Settings

Order: defaults, then the app's code, then `mulligan.toml`, then the environment, then flags; the later one wins.
An unknown name is refused with the nearest valid one. `mulligan doctor` prints every value and where it came from.
[Configure](../operate/configure.md) explains which process reads what.

`MULLIGAN_CONFIG` names another file than `./mulligan.toml`. Durations are seconds, or texts such as `30s`, `5m`,
`2h` and `90d`; at most 10 years.

```toml
# mulligan.toml
database_url = "sqlite:///mulligan.db"

[worker]
concurrency = 20

[retry]
base_delay = 5
```

{sections}
"""


def settings_page() -> str:
    parts = []
    for section, title in SECTIONS.items():
        rows = [
            _setting(name, value)
            for name, value in Settings().values()
            if _section(name) == section
        ]
        parts += [
            f"## {title}",
            *PREFACE.get(section, ()),
            table(("setting", "default", "allowed", "environment", "meaning"), rows),
        ]
    return SETTINGS.format(notice=NOTICE, sections="\n\n".join(parts))


ONE_CLASS = """\
For `CLASS` write `transient`, `timeout`, `rate_limited`, `resource` or `unknown`; other classes are never retried.
A kind's own numbers for a class override these; `retry.enabled` and `retry.only` override everything."""
PREFACE = {"retry.classes.transient": (ONE_CLASS,)}


def _section(name: str) -> str:
    return name.rpartition(".")[0]


def _setting(name: str, value: Any) -> list[str]:
    shown = "" if value in ("", None) else f"`{_format_value(value)}`"
    if _section(name) == "retention":
        shown += f" ({format_duration(value)})"
    environment = ENV_PREFIX + name.upper().replace(".", "__").replace("__TRANSIENT__", "__CLASS__")
    return [
        f"`{name.replace('.transient.', '.CLASS.')}`",
        shown,
        _allowed(name),
        f"`{environment}`",
        setting_meaning(name),
    ]


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def setting_meaning(name: str) -> str:
    """Return the description of a setting. Raise LookupError if it has none."""
    meaning = MEANING.get(name) or _field(name).description
    if not meaning:
        message = f"{name}: add a description in config.py or in MEANING of docs/generate.py"
        raise LookupError(message)
    return meaning if _used(name) else f"{meaning}. **Nothing reads it yet.**"


def _used(name: str) -> bool:
    """True if any code reads the setting."""
    field = name.rpartition(".")[2]
    access = re.compile(rf'\.{field}\b|"{field}"')
    return any(access.search(text) for text in _source("config.py"))


@cache
def _source(*excluded: str) -> list[str]:
    return [
        path.read_text(encoding="utf-8")
        for path in SOURCE.rglob("*.py")
        if path.name not in excluded
    ]


def _field(name: str) -> Any:
    model: type[Section] = Settings
    *above, last = name.split(".")
    for part in above:
        found: Any = model.model_fields[part].annotation
        model = found
    return model.model_fields[last]


def _allowed(name: str) -> str:
    field = _field(name)
    if field.annotation is bool:
        return "`true`, `false`"
    arms = typing.get_args(field.annotation)
    return (
        " or ".join(filter(None, (_arm(arm) for arm in arms))) if arms else _bounds(field.metadata)
    )


def _arm(arm: Any) -> str:
    """Describe the allowed values of one member of a union."""
    if typing.get_origin(arm) is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(arm))
    return _bounds(
        part
        for field_info in getattr(arm, "__metadata__", ())
        for part in getattr(field_info, "metadata", ())
    )


def _bounds(metadata: Iterable[Any]) -> str:
    found = {
        key: getattr(part, key)
        for part in metadata
        for key in ("ge", "gt", "le", "pattern")
        if hasattr(part, key)
    }
    if "pattern" in found:
        return f"`{found['pattern']}`"
    most = found.get("le", LONGEST)
    if "gt" in found:
        least = f"above {_format_value(found['gt'])}"
        return least if most == LONGEST else f"{least}, to {most:,.0f}"
    if "ge" in found:
        least = _format_value(found["ge"])
        return f"from {least}" if most == LONGEST else f"{least}–{most:,.0f}"
    return ""


LONGEST = 10 * 365 * 86_400  # seconds; the page states it once


# --- Codes ---
CLASSES = {
    Cls.TRANSIENT: "it will probably work later",
    Cls.TIMEOUT: "it took too long",
    Cls.RATE_LIMITED: "a service asked us to slow down",
    Cls.RESOURCE: "memory, disk or another resource was short",
    Cls.QUOTA: "a quota is used up",
    Cls.AUTH: "credentials were not accepted",
    Cls.INVALID_INPUT: "the input is invalid",
    Cls.PERMANENT: "a retry will fail the same way",
    Cls.CANCELLED: "it was cancelled",
    Cls.UNKNOWN: "no rule says what it is",
}

# (the failure, when it happens, what it counts as)
ENDS: tuple[tuple[Failure, str, str], ...] = (
    (ends.timed_out(300), "an attempt ran longer than its `timeout`", "failure"),
    (ends.stalled(120), "an attempt made no progress for as long as its `stall`", "failure"),
    (ends.memory_limit_exceeded(1, 2), "an attempt used more than its `memory_limit`", "failure"),
    (ends.process_died(signal=9), "the runner process died during the attempt", "loss"),
    (
        ends.process_died(signal=9, oom=True),
        "the runner process died, and the kernel counted an out-of-memory kill",
        "loss",
    ),
    (ends.worker_lost("w"), "the worker died or its lease expired", "loss"),
    (ends.unknown_kind("k"), "no worker has had the kind for `worker.unknown_kind_after`", "end"),
    (ends.deadline_passed(), "the job's `deadline` has passed", "end"),
    (
        ends.payload_refused(""),
        "the stored payload does not fit the handler's annotations",
        "failure",
    ),
    (ends.result_refused("RESULT_NOT_JSON", ""), "the result cannot be written as JSON", "failure"),
    (
        ends.result_refused("RESULT_TOO_LARGE", ""),
        "the result is larger than `limits.result`",
        "failure",
    ),
    (ends.bad_outcome(""), "the handler returned or raised an invalid outcome", "failure"),
    (
        ends.hold_unknown_dependency("d", ""),
        "`Hold` names a dependency that the job does not use",
        "failure",
    ),
    (
        ends.dependency_unavailable("d", ""),
        'a dependency of `mode="fail_fast"` is down; the job was not started',
        "end",
    ),
    (ends.retry_refused(""), "the kind's `can_retry` refused a manual retry", "end"),
    (ends.snooze_limit(1), "more snoozes than `max_snoozes`", "end"),
    (ends.retry_requested(""), "the handler returned `Retry`", "failure"),
    (
        ends.outcome_refused(""),
        "the database refused to store the ending; this is stored instead",
        "failure",
    ),
    (
        ends.step_in_doubt("charge"),
        'a step with `doubt="park"` was called, and the process died before its result was recorded',
        "parked",
    ),
    (ends.unreported(), "an attempt failed without a reason; should not happen", "failure"),
)


CODES = """\
{notice}

# Failure codes and rules

A failure gets a *code* (stable, for programs), a *class* (decides whether to retry) and the id of the *rule* that
classified it. See [How a failure becomes a decision](../explain/failures.md).

## Which classes are retried?

{classes}

## Endings without an exception

Mulligan detects or causes these itself. A *loss* counts against `max_losses`, a
*failure* against `max_retries`, an *end* is final at once.

{ends}

## Classification of exceptions

Provider codes come first, then exception types, then numbers (HTTP and gRPC status, SQLSTATE, errno,
exit code, signal), then text. For each of these the deepest matching exception of the cause chain decides.

The [runbook](../operate/runbook.md) has the sentence that an owner reads for each code, and what to do. Codes that
match nothing (–) are set by Mulligan or by `Fail`. *…*: there are more, and
`mulligan policy test TEXT` asks all of them; *phrases*: in the text of the error.

{rows}

`Fail("CODE")` with a code of this page gets the class of that code (of the first row that has it) and the rule
`handler.declared`. Your own code gets class `unknown`.

## Exceptions of Mulligan

```text
{tree}
```

{exceptions}
"""


def codes_page() -> str:
    _check_ends()
    return CODES.format(
        notice=NOTICE,
        classes=table(("class", "retried", "means"), _classes()),
        ends=table(("code", "class", "counts as", "rule", "when"), _ends()),
        rows=table(("code", "class", "matches"), _rows()),
        tree=_tree(),
        exceptions=table(("exception", "code", "repeat the call"), _exceptions()),
    )


def _yes(*, answer: bool) -> str:
    return "yes" if answer else "no"


def _classes() -> Iterator[list[str]]:
    for cls in Cls:
        yield [f"`{cls}`", _yes(answer=cls in RETRYABLE), CLASSES[cls]]


def _ends() -> Iterator[list[str]]:
    for failure, when, counts in ENDS:
        yield [f"`{failure.code}`", f"`{failure.cls}`", counts, f"`{failure.rule}`", when]


def _check_ends() -> None:
    """Raise LookupError unless ENDS has every failure that Mulligan itself makes."""
    makers = {name for name, thing in vars(ends).items() if _makes_failures(thing)}
    documented = {
        name for name in makers if f"ends.{name}(" in Path(__file__).read_text(encoding="utf-8")
    }
    if makers - documented:
        message = f"docs/generate.py: ENDS lacks {', '.join(sorted(makers - documented))}"
        raise LookupError(message)


def _makes_failures(thing: Any) -> bool:
    return (
        inspect.isfunction(thing)
        and thing.__module__ == ends.__name__
        and not thing.__name__.startswith("_")
    )


def _rows() -> Iterator[list[str]]:
    """Yield one row per code: its class and what its rules match."""
    for code in codes.CODES.values():
        rules = [rule for rule in (*RULES, PROCESS_FAILED, UNKNOWN) if rule.code == code.name]
        matched = list(dict.fromkeys(filter(None, map(_matches, rules))))
        more = "; …" if len(matched) > MANY else ""
        yield [
            f"`{code.name}`",
            f"`{code.cls}`",
            "; ".join(matched[:MANY]) + more or "–",
        ]


MANY = 4  # rules shown per code; `mulligan policy test` asks all of them
FEW = 3  # values shown per field


def _matches(rule: Rule) -> str:
    if rule is PROCESS_FAILED:
        return "any other exit code or signal of a program"
    if rule is UNKNOWN:
        return "everything else"
    found = [f"program {_few(rule.program)}"] if rule.program else []
    found += [f"code {_few(rule.provider_code)}"] if rule.provider_code else []
    found += [_few([name.removeprefix("builtins.") for name in rule.type])] if rule.type else []
    found += [f"errno {_few([_errno(number) for number in rule.errno])}"] if rule.errno else []
    for word, name in (
        ("HTTP", "http_status"),
        ("gRPC", "grpc_status"),
        ("SQLSTATE", "sqlstate"),
        ("exit code", "exit_code"),
    ):
        if values := getattr(rule, name):
            found.append(f"{word} {', '.join(str(value) for value in values)}")
    found += [f"signal {', '.join(str(number) for number in rule.signal)}"] if rule.signal else []
    if rule.message:
        texts = "weak phrases" if rule in WEAKEST.rules else "phrases"
        found.append(texts)
    return " and ".join(found)


def _few(names: Iterable[Any]) -> str:
    shown = [f"`{name}`" for name in names]
    return ", ".join(shown[:FEW]) + ("…" if len(shown) > FEW else "")


def _errno(number: int) -> str:
    """Return the shortest name of an errno; some systems have two names for one number."""
    return min(
        (name for name in dir(errno) if getattr(errno, name) == number),
        key=lambda name: (len(name), name),
    )


def _tree() -> str:
    text = inspect.getdoc(errors) or ""
    return text[text.index("MulliganError") :]


def _exceptions() -> Iterator[list[str]]:
    for name, thing in vars(errors).items():
        if inspect.isclass(thing) and issubclass(thing, errors.MulliganError):
            yield [f"`{name}`", f"`{thing.code}`", "yes" if thing.retryable else ""]


# --- Events ---
def events_page() -> str:
    return _page_of("generate_events", table, "\n".join(_source("event.py")))


# --- The command line ---
def cli_page() -> str:
    return _page_of("generate_cli")


# --- Metrics ---
def metrics_page() -> str:
    return _page_of("generate_metrics", table)


def _page_of(module: str, *arguments: Any) -> str:
    sys.path.insert(0, str(Path(__file__).parent))
    return importlib.import_module(module).page(NOTICE, *arguments)  # type: ignore[no-any-return]


# --- The runbook ---
def runbook_page() -> str:
    return _page_of("generate_runbook")


# --- HTTP ---
def http_page() -> str:
    return _page_of("generate_http", table)


# --- Types of app.aio ---
def async_stub() -> str:
    return _page_of("generate_async")


# --- The five specifications ---
def seeds_page() -> str:
    return _page_of("generate_seeds")


# --- Security ---
def security_page() -> str:
    return _page_of("generate_security")


# --- The fault storm ---
def storm_page() -> str:
    return _page_of("generate_storm", table)


def diagram() -> str:
    return f"```mermaid\n{lifecycle.diagram()}\n```"


# --- All of it ---
PAGES = {
    "docs/reference/settings.md": settings_page,
    "docs/reference/codes.md": codes_page,
    "docs/reference/events.md": events_page,
    "docs/reference/cli.md": cli_page,
    "docs/reference/metrics.md": metrics_page,
    "docs/operate/runbook.md": runbook_page,
    "docs/reference/http.md": http_page,
    "docs/contributors/seeds.md": seeds_page,
    "docs/contributors/security-checks.md": security_page,
    "docs/contributors/storm.md": storm_page,
    "src/mulligan/app/aio.pyi": async_stub,
}


def invariants() -> str:
    return _page_of("generate_verify", table)


def elsewhere() -> str:
    sys.path.insert(0, str(Path(__file__).parent))
    return importlib.import_module("generate_verify").elsewhere(table)  # type: ignore[no-any-return]


def python_parts() -> dict[str, Callable[[], str]]:
    sys.path.insert(0, str(Path(__file__).parent))
    return importlib.import_module("generate_python").parts(table)  # type: ignore[no-any-return]


PARTS: dict[str, Callable[[], str]] = {
    "states": diagram,
    "invariants": invariants,
    "elsewhere": elsewhere,
    **python_parts(),
}
PAGES_WITH_PARTS = (
    "ARCHITECTURE.md",
    "docs/contributors/invariants.md",
    "docs/reference/python.md",
)


def replace_parts(text: str) -> str:
    """Return the text with every marked part replaced."""
    for name, make in PARTS.items():
        begin, end = f"<!-- {name}: printed by docs/generate.py -->", f"<!-- {name}: end -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            text = f"{before}{begin}\n\n{make()}\n\n{end}{rest.partition(end)[2]}"
    return text


def generated_files() -> dict[Path, str]:
    """Return every generated file with its current text."""
    wrapped = {ROOT / name: wrap_page(ROOT / name, make()) for name, make in PAGES.items()}
    return wrapped | {
        ROOT / name: replace_parts((ROOT / name).read_text(encoding="utf-8"))
        for name in PAGES_WITH_PARTS
    }


def wrap_page(path: Path, text: str) -> str:
    sys.path.insert(0, str(Path(__file__).parent))
    wrap = importlib.import_module("wrap")
    return wrap.wrap(text) if path in wrap.pages() else text


def main() -> None:
    for path, text in generated_files().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
