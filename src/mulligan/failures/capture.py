"""Capture a live exception as safe facts. Never raises.

Exceptions may contain anything: a `str` that raises, a text of 20 MB, a cause that is its own
cause. Everything is bounded and redacted here, once, before it is classified or stored.
"""

from __future__ import annotations

import linecache
import re
import sysconfig
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NamedTuple

from mulligan.core.attempt import Failure
from mulligan.core.errors import Fail
from mulligan.core.format import TEXT_LIMIT, safe_text
from mulligan.failures.adapters import exception_shape, read_exception
from mulligan.failures.classify import classify_facts
from mulligan.failures.facts import SOURCE_MARK, TRACE_MESSAGE_LIMIT, Facts
from mulligan.failures.fingerprint import explain_fingerprint
from mulligan.failures.hints import Hint, hint_from_text
from mulligan.failures.matcher import Rulebook
from mulligan.failures.ranking import find_rule
from mulligan.failures.redact import scrub
from mulligan.failures.rules import Rule

# --- Tracebacks: file, line and function, the job's own lines of code, and no values ---

MAX_FRAMES = 30
MAX_SOURCE_LINE = 200  # characters
MAX_JOB_FRAMES = 8

_STDLIB_PATHS = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_STDLIB = tuple(f"{path}/" for path in _STDLIB_PATHS if not path.endswith("-packages"))
# Job queues whose workers call the job: their frames are not the job's.
_HOST_QUEUES = frozenset({"billiard", "celery", "dramatiq", "rq"})
_MULLIGAN = f"{Path(__file__).parents[1]}/"
_SAMPLES = (f"{_MULLIGAN}cli/demo_jobs.py", f"{_MULLIGAN}apps/")  # jobs that Mulligan ships


class _CodeLocation(NamedTuple):
    """Description of a code object, as traces show it."""

    code: CodeType
    file: str
    function: str
    name: str  # module:function
    package: str  # top-level package
    is_internal: bool  # of Python, Mulligan or another job queue, so never a frame of the job
    is_installed: bool  # in site-packages: a library, or the app itself


# Keyed by the id of the code object, because comparing code objects compares their constants. The
# entry holds a reference to the object, so that its id cannot be reused.
_locations: dict[int, _CodeLocation] = {}
_MAX_LOCATIONS = 4096


def _add_location(code: CodeType, module: object) -> _CodeLocation:
    if len(_locations) >= _MAX_LOCATIONS:
        _locations.clear()
    location = _describe_code(code, module)
    _locations[id(code)] = location
    return location


def _describe_code(code: CodeType, module: object) -> _CodeLocation:
    path = code.co_filename
    is_installed = "/site-packages/" in path or "/dist-packages/" in path
    is_stdlib = not is_installed and path.startswith(_STDLIB)
    is_engine = path.startswith((_MULLIGAN, "<frozen ")) and not path.startswith(_SAMPLES)
    module_name = module if type(module) is str else "?"
    package = module_name.partition(".")[0]
    is_host = is_installed and package in _HOST_QUEUES
    return _CodeLocation(
        code=code,
        file=f"  {safe_text(path, 500)}:",
        function=f" in {safe_text(code.co_name, 300)}",
        name=safe_text(f"{module_name}:{code.co_qualname}", 300),
        package=package,
        is_internal=is_stdlib or is_host or is_engine,
        is_installed=is_installed,
    )


class TracebackSummary(NamedTuple):
    """Text lines of a traceback, and which of its frames belong to the job."""

    lines: list[str]
    job_frames: list[str]  # `module:function`, innermost last
    home_package: str  # top-level package of the job


# Summaries by code location and line of every frame: many jobs fail at the same place. As above,
# each entry references its code objects.
_summaries: dict[tuple[str | int, ...], tuple[TracebackSummary, list[CodeType]]] = {}
_MAX_SUMMARIES = 1024


def summarise_traceback(
    traceback: TracebackType | None, home_package: str = ""
) -> TracebackSummary:
    """Summarise a traceback. Return the same object for the same frames while it is cached.

    The outermost frame that is neither Python's nor Mulligan's belongs to the job. So does its
    package, wherever it is installed. For a cause, pass that package as `home_package`.
    """
    key: list[str | int] = [home_package]
    step = traceback
    while step is not None:
        key += (id(step.tb_frame.f_code), step.tb_lineno)
        step = step.tb_next
    cached = _summaries.get(tuple(key))
    if cached is not None:
        return cached[0]
    return _add_summary(traceback, home_package, tuple(key))


def _add_summary(
    traceback: TracebackType | None, home_package: str, key: tuple[str | int, ...]
) -> TracebackSummary:
    steps: list[TracebackType] = []
    while traceback is not None:
        steps.append(traceback)
        traceback = traceback.tb_next
    summary = _summarise(steps[-MAX_FRAMES:], home_package)
    if len(steps) <= MAX_FRAMES:
        if len(_summaries) >= _MAX_SUMMARIES:
            _summaries.clear()
        _summaries[key] = summary, [step.tb_frame.f_code for step in steps]
    return summary


def _summarise(steps: list[TracebackType], home_package: str) -> TracebackSummary:
    lines: list[str] = []
    job_frames: list[str] = []
    for step in steps:
        frame = step.tb_frame
        code = frame.f_code
        location = _locations.get(id(code))
        if location is None:
            location = _add_location(code, frame.f_globals.get("__name__"))
        lines.append(f"{location.file}{step.tb_lineno}{location.function}")
        if location.is_internal:
            continue
        home_package = home_package or location.package
        belongs_to_job = not location.is_installed or location.package == home_package
        if belongs_to_job:
            lines += _source_line(code.co_filename, step.tb_lineno, frame.f_globals)
        is_recursion = bool(job_frames) and job_frames[-1] == location.name
        if belongs_to_job and not is_recursion:
            job_frames.append(location.name)
    return TracebackSummary(lines, job_frames[-MAX_JOB_FRAMES:], home_package)


def _source_line(path: str, number: int, module_globals: dict[str, Any]) -> list[str]:
    """Return the line of code of a frame, as a trace shows it, if its file can be read."""
    try:
        source = linecache.getline(path, number, module_globals).strip()
    except Exception:  # noqa: BLE001 - a module may have a loader that raises anything
        return []
    return [f"{SOURCE_MARK}{scrub(safe_text(source, MAX_SOURCE_LINE))}"] if source else []


# --- Exceptions ---

MAX_CHAIN_LENGTH = 16
MAX_LEAVES = 16  # of an exception group
MAX_TRACE_LENGTH = TEXT_LIMIT
_UNREADABLE = "an exception without a readable text"
_AWS_MESSAGE = re.compile(r"An error occurred \((\w{1,100})\) when calling the \w{1,100} operation")


def capture(exc: BaseException, now: float | None = None) -> Facts:
    """Return the facts about `exc`, its causes and its leaves. `now`: seconds since the epoch."""
    try:
        if now is None:
            now = time.time()
        return _capture(exc, now)
    except BaseException:  # noqa: BLE001 - foreign code runs in `str`, properties and metaclasses
        return Facts(exception_types=exception_shape(type(exc)).names, message=_UNREADABLE)


def exception_text(exc: BaseException) -> str:
    """Return `str(exc)` as an exact str: a subclass of str could misreport its length."""
    try:
        return str.__str__(str(exc))
    except BaseException:  # noqa: BLE001 - foreign code runs in `str`
        return _UNREADABLE


class _Link:
    """One exception of a cause chain, with what was read from it."""

    message = ""
    lines: Sequence[str] = ()
    frames: Sequence[str] = ()

    def __init__(self, exc: BaseException, now: float, *, implied: bool) -> None:
        self.exc = exc
        self.implied = implied
        self.shape = exception_shape(type(exc))
        self.details = read_exception(exc, self.shape, now)


def _capture(exc: BaseException, now: float) -> Facts:
    chain = _read_chain(exc, now)
    home_package = ""
    scrubbed: dict[str, str] = {}  # wrappers often repeat the text of what they wrap
    for link in chain:
        link.message = _message(link, scrubbed)
        link.lines, link.frames, home_package = summarise_traceback(
            get_traceback(link.exc), home_package
        )
    causes: tuple[Facts, ...] = ()
    if len(chain) > 1:
        causes = tuple([_facts(link, leaves=_leaves(link.exc, now)) for link in chain[1:]])
    hint = _find_hint(chain, scrubbed, now)
    return _facts(chain[0], _trace(chain), _stderr(chain), _leaves(exc, now), causes, hint)


def _find_hint(chain: list[_Link], texts: dict[str, str], now: float) -> Hint | None:
    """Return the hint of the nearest exception that has one. Texts are the last resort."""
    for link in chain:
        if link.details.hint:
            return link.details.hint
    for text in texts.values():
        if hint := hint_from_text(text, now):
            return hint
    return None


def _read_chain(exc: BaseException, now: float) -> list[_Link]:
    """Return the exception and its causes, nearest first; bounded, each exception once.

    An exception held in an attribute was put there on purpose, like one named with
    `raise … from`. One that was merely being handled is implied, and so are its causes.
    """
    visited: set[int] = set()
    links: list[_Link] = []
    pending: list[tuple[BaseException, bool]] = [(exc, False)]
    while pending and len(links) < MAX_CHAIN_LENGTH:
        current, implied = pending.pop()
        if id(current) in visited:
            continue
        visited.add(id(current))
        link = _Link(current, now, implied=implied)
        links.append(link)
        pending += _causes(current, implied=implied)
        if link.details.nested:
            pending += [(inner, implied) for inner in reversed(link.details.nested)]
    return links


def _causes(exc: BaseException, *, implied: bool) -> Sequence[tuple[BaseException, bool]]:
    cause = get_cause(exc)
    if cause is not None:
        return ((cause, implied),)
    context = get_context(exc)
    if context is None or is_context_suppressed(exc):
        return ()
    return ((context, True),)


# Read the interpreter's fields even if the class defines properties with these names.
get_cause = BaseException.__dict__["__cause__"].__get__
get_context = BaseException.__dict__["__context__"].__get__
is_context_suppressed = BaseException.__dict__["__suppress_context__"].__get__
get_traceback = BaseException.__dict__["__traceback__"].__get__


def _facts(
    link: _Link,
    trace: str = "",
    stderr: str = "",
    leaves: Any = (),
    causes: Any = (),
    hint: Hint | None = None,
) -> Facts:
    details = link.details
    retry_after, source = hint or details.hint or (None, "")
    return Facts(  # positional, in the order of `Facts`: keyword arguments take three times as long
        link.shape.names,
        link.message,
        trace,
        stderr,
        details.provider_codes,
        details.http_status,
        details.grpc_status,
        details.sqlstate,
        details.errno,
        details.exit_code,
        details.signal,
        details.timed_out,
        details.program,
        (),
        retry_after,
        source,
        "",
        "",
        "",
        "",
        tuple(link.frames),
        causes,
        leaves,
        link.implied,
    )


def _message(link: _Link, scrubbed: dict[str, str]) -> str:
    """Return the text of an exception, with the service's message if the library omits it."""
    text = exception_text(link.exc)
    details = link.details
    if link.shape.family == "aws" and not details.codes:
        match = _AWS_MESSAGE.search(text[:2000])
        if match:
            details.codes.append(match[1])
    if details.service_message and details.service_message not in text:
        text = f"{text}\n{details.service_message}" if text else details.service_message
    if text not in scrubbed:
        scrubbed[text] = scrub(text)
    return scrubbed[text]


def _leaves(group: BaseException, now: float) -> tuple[Facts, ...]:
    """Return the facts of the exceptions inside an exception group, breadth first and bounded."""
    if not issubclass(type(group), BaseExceptionGroup):
        return ()
    leaves: list[Facts] = []
    scrubbed: dict[str, str] = {}
    pending: deque[BaseException] = deque([group])
    visited = 0
    while pending and len(leaves) < MAX_LEAVES and visited < 8 * MAX_LEAVES:
        visited += 1
        exc = pending.popleft()
        if issubclass(type(exc), BaseExceptionGroup):
            pending.extend(BaseExceptionGroup.__dict__["exceptions"].__get__(exc)[:MAX_LEAVES])
        else:
            chain = _read_chain(exc, now)
            for link in chain:
                link.message = _message(link, scrubbed)
            first, *others = chain
            causes = tuple([_facts(link) for link in others])
            leaves.append(_facts(first, causes=causes))
    return tuple(leaves)


def _stderr(chain: list[_Link]) -> str:
    for link in chain:
        if link.details.stderr:
            return scrub(link.details.stderr)
    return ""


def _trace(chain: list[_Link]) -> str:
    """Return the trace of the exception, then those of its causes."""
    lines: list[str] = []
    for link in chain:
        prefix = "caused by " if lines else ""
        name = link.shape.names[0]
        message = link.message[:TRACE_MESSAGE_LIMIT]
        # Fail("CODE", "…") is a statement of the handler: its text says it all.
        is_statement = type(link.exc) is Fail and message
        lines.append(f"{prefix}{message}" if is_statement else f"{prefix}{name}: {message}")
        lines += link.lines
    text = "\n".join(lines)
    return text if len(text) <= MAX_TRACE_LENGTH else safe_text(text, MAX_TRACE_LENGTH)


# --- Classify a text or an exception without running a job ---


def classify(  # noqa: PLR0913 - one argument for each fact
    text_or_exception: str | BaseException = "",
    *,
    exception_type: str | None = None,
    http_status: int | None = None,
    exit_code: int | None = None,
    signal: int | None = None,
    errno: int | None = None,
    provider_code: str | None = None,
    program: str | None = None,
    rules: Iterable[Rule] = (),
) -> Failure:
    """Return the failure that this error would be. Nothing is stored.

    Useful fields: `code`, `cls`, `retryable`, `rule`, `retry_after`, `public`. The keyword
    arguments override what the text or the exception says.
    """
    overrides = {
        "exception_type": exception_type,
        "http_status": http_status,
        "exit_code": exit_code,
        "signal": signal,
        "errno": errno,
        "provider_code": provider_code,
        "program": program,
    }
    return classify_facts(_build_facts(text_or_exception, overrides), _rulebooks(rules))


def explain_group(
    error: str | BaseException, overrides: Mapping[str, Any], rules: Iterable[Rule] = ()
) -> dict[str, Any]:
    """Return what the fingerprint of this error is computed from. Arguments as for `classify`."""
    facts = _build_facts(error, overrides)
    books = _rulebooks(rules)
    failure = classify_facts(facts, books)
    return explain_fingerprint(facts, failure.code, failure.cls, find_rule(facts, books).link)


def _rulebooks(rules: Iterable[Rule]) -> list[Rulebook]:
    custom = tuple(rules)
    return [Rulebook(custom)] if custom else []


def _build_facts(error: str | BaseException, overrides: Mapping[str, Any]) -> Facts:
    values = {name: value for name, value in overrides.items() if value is not None}
    for name in ("exception_type", "provider_code"):
        if name in values:
            values[f"{name}s"] = (str(values.pop(name)),)
    return _facts_of_error(error)._replace(**values)


def _facts_of_error(error: str | BaseException) -> Facts:
    if isinstance(error, BaseException):
        return capture(error)
    text = scrub(str(error))
    hint = hint_from_text(text, time.time())
    if hint is None:
        return Facts(message=text)
    return Facts(message=text, retry_after=hint.seconds, retry_after_source=hint.source)
