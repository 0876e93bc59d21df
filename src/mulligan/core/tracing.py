"""The seam for traces: what travels with a job, and what a tracer may do around its steps. This one traces nothing.

A job carries the W3C trace context of whoever enqueued it, as one text: `traceparent`, then, after a space,
`tracestate` if there is one. What is not well-formed is left aside: a trace is never worth a job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

from mulligan.core.attempt import Lease, Outcome
from mulligan.core.job import NewJob

_PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]*)?"
)
_STATE = re.compile(r"[ -~]{1,512}")
_LONGEST = 1024  # characters of anything from outside

Ended = Callable[[Outcome | None], None]


def trace_text(traceparent: Any, tracestate: Any = None) -> str | None:
    """As a job carries it; None: there is none, or it is nothing one could follow."""
    if not isinstance(traceparent, str) or len(traceparent) > _LONGEST:
        return None
    found = _PARENT.fullmatch(traceparent.strip())
    if found is None or (found[1] == "00" and found[5]):  # only later versions may add something
        return None
    parent = f"00-{found[2]}-{found[3]}-{found[4]}"
    state = tracestate.strip() if isinstance(tracestate, str) else ""
    return f"{parent} {state}" if _STATE.fullmatch(state) else parent


def trace_id(trace: str | None) -> str:
    return trace[3:35] if trace else ""


class Tracer:
    """Nothing is traced; what a job carries is handed on."""

    def idle(self) -> bool:
        """Is there nothing to do around an insert?"""
        return True

    def sending(self, new: Sequence[NewJob]) -> AbstractContextManager[Sequence[NewJob]]:
        """Around an insert: the jobs as they should be inserted."""
        return nullcontext(new)

    def attempt(self, lease: Lease) -> AbstractContextManager[Ended]:
        """Around the handler; tell it what came of it."""
        del lease
        return UNTRACED

    def environment(self, lease: Lease) -> dict[str, str]:
        """For programs that the handler starts."""
        return environment_of(lease.trace)


UNTRACED: AbstractContextManager[Ended] = nullcontext(lambda _: None)


def environment_of(trace: str | None) -> dict[str, str]:
    if not trace:
        return {}
    parent, _, state = trace.partition(" ")
    return {"TRACEPARENT": parent, **({"TRACESTATE": state} if state else {})}


NO_TRACER = Tracer()


# Which attempt runs here: what handlers log, start and trace belongs to it, on the loop and on threads alike.

_CURRENT: ContextVar[Lease | None] = ContextVar("mulligan_attempt", default=None)

attempt_now = _CURRENT.get
begin_attempt = (
    _CURRENT.set
)  # returns what `end_attempt` is given; a context manager would cost each job a call more
end_attempt = _CURRENT.reset
