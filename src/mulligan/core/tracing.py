"""Trace context of jobs, the interface of a tracer, and the attempt that runs in this context.

A job carries the W3C trace context of its enqueue as one text: `traceparent`, and after a space
`tracestate` if there is one. A malformed context is dropped: it must never make a job fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context as ContextVars
from contextvars import ContextVar
from typing import Any

from mulligan.core.attempt import Failure, Lease, Outcome
from mulligan.core.durations import Micros
from mulligan.core.job import NewJob

_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]*)?"
)
_TRACESTATE = re.compile(r"[ -~]{1,512}")
_MAX_TRACEPARENT = 1024  # characters

# Traces are recorded only in processes that have imported this module.
OPENTELEMETRY = "opentelemetry.trace"
OnAttemptEnd = Callable[[Outcome | None], None]


def trace_text(traceparent: Any, tracestate: Any = None) -> str | None:
    """Build the text that a job carries. Return None if there is no valid traceparent."""
    if not isinstance(traceparent, str) or len(traceparent) > _MAX_TRACEPARENT:
        return None
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None:
        return None
    version, trace, span, flags, extension = match.groups()
    if version == "00" and extension:  # only later versions may append fields
        return None
    parent = f"00-{trace}-{span}-{flags}"
    state = tracestate.strip() if isinstance(tracestate, str) else ""
    return f"{parent} {state}" if _TRACESTATE.fullmatch(state) else parent


def trace_id(trace: str | None) -> str:
    """Return the trace id of a job's trace context, or "" if it has none."""
    return trace[3:35] if trace else ""


class Tracer:
    """Interface of a tracer. This base class records nothing and passes the context on."""

    def trace_insert(self, new: Sequence[NewJob]) -> AbstractContextManager[Sequence[NewJob]]:
        """Trace an insert. The context manager returns the jobs to insert."""
        return nullcontext(new)

    def trace_attempt(self, lease: Lease) -> AbstractContextManager[OnAttemptEnd]:
        """Trace the handler's call. The context manager returns a callback for the outcome."""
        del lease
        return NO_SPAN

    def trace_killed(self, lease: Lease, failure: Failure, ended_at: Micros) -> None:
        """Record an attempt whose process was killed, and could record nothing itself."""

    def environment(self, lease: Lease) -> dict[str, str]:
        """Return the trace variables for programs that the handler starts."""
        return trace_environment(lease.trace)


NO_SPAN: AbstractContextManager[OnAttemptEnd] = nullcontext(lambda _: None)
NO_TRACER = Tracer()


def trace_environment(trace: str | None) -> dict[str, str]:
    """Return a job's trace context as environment variables."""
    if not trace:
        return {}
    parent, _, state = trace.partition(" ")
    variables = {"TRACEPARENT": parent}
    if state:
        variables["TRACESTATE"] = state
    return variables


# --- The attempt that runs in this context: log records, programs and spans belong to it ---

_CURRENT: ContextVar[Lease | None] = ContextVar("mulligan_attempt", default=None)

current_attempt = _CURRENT.get
# `begin_attempt` returns the token for `end_attempt`. A context manager would cost each job more.
begin_attempt = _CURRENT.set
end_attempt = _CURRENT.reset


def attempt_in(context: ContextVars) -> Lease | None:
    """Return the attempt that runs in another context."""
    return context.get(_CURRENT)
