"""OpenTelemetry: which span is what, and its names, in this one file, for the conventions it follows still move.

Nothing is imported here before the application has done so itself, and without its own provider nothing is recorded:
who traces nothing pays for a look into `sys.modules`. Spans follow the messaging conventions: `send QUEUE` (producer)
around an insert, `process QUEUE` (consumer) around an attempt. An attempt begins a trace of its own with a link to
whoever enqueued it, since hours may lie between the two; `trace.parenting = "child"` makes it part of theirs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

from mulligan._version import __version__
from mulligan.config import TraceSection
from mulligan.core.attempt import Lease, Outcome
from mulligan.core.job import NewJob
from mulligan.core.tracing import (
    UNTRACED,
    Ended,
    Tracer,
    attempt_now,
    environment_of,
    trace_id,
    trace_text,
)

log = logging.getLogger("mulligan.trace")

_API = "opentelemetry.trace"
_NOBODY = frozenset({"ProxyTracerProvider", "NoOpTracerProvider"})


class OtelTracer(Tracer):
    def __init__(self, settings: TraceSection) -> None:
        self._enabled = settings.enabled
        self._child = settings.parenting == "child"

    def idle(self) -> bool:
        return not self._enabled or _API not in sys.modules

    def sending(self, new: Sequence[NewJob]) -> AbstractContextManager[Sequence[NewJob]]:
        api = sys.modules.get(_API) if self._enabled else None
        return nullcontext(new) if api is None or not new else self._sending(api, new)

    @contextmanager
    def _sending(self, api: Any, new: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
        with ExitStack() as stack:
            if _recorded(api):
                self._enter(
                    stack, api, f"send {_one(job.queue for job in new)}", "PRODUCER", _sent(new)
                )
            trace = _current(api)
            yield new if trace is None else [job._replace(trace=job.trace or trace) for job in new]

    def attempt(self, lease: Lease) -> AbstractContextManager[Ended]:
        api = sys.modules.get(_API) if self._enabled else None
        if api is None or not _recorded(api):
            return UNTRACED
        return self._attempt(api, lease)

    @contextmanager
    def _attempt(self, api: Any, lease: Lease) -> Iterator[Ended]:
        with ExitStack() as stack:
            begins = self._beginning(api, lease.trace)
            span = self._enter(
                stack, api, f"process {lease.queue}", "CONSUMER", _attempted(lease), **begins
            )
            yield _untold if span is None else partial(_told, api, span)

    def environment(self, lease: Lease) -> dict[str, str]:
        api = sys.modules.get(_API) if self._enabled else None
        current = None if api is None else _current(api)
        return environment_of(current or lease.trace)

    def _beginning(self, api: Any, trace: str | None) -> dict[str, Any]:
        """A trace of its own that knows where it comes from, or a part of that one."""
        from opentelemetry.context import Context  # noqa: PLC0415 - it is there: the application has imported it

        far = _remote(api, trace)
        if far is None:
            return {"context": Context()}
        if self._child:
            return {"context": api.set_span_in_context(api.NonRecordingSpan(far), Context())}
        return {"context": Context(), "links": [api.Link(far)]}

    def _enter(
        self,
        stack: ExitStack,
        api: Any,
        name: str,
        kind: str,
        attributes: Mapping[str, Any],
        **more: Any,
    ) -> Any:
        """The span, current until the stack ends; None: it could not be begun, which is no reason to fail."""
        try:
            tracer = api.get_tracer("mulligan", __version__)
            return stack.enter_context(
                tracer.start_as_current_span(
                    name,
                    kind=getattr(api.SpanKind, kind),
                    attributes=attributes,
                    record_exception=False,
                    set_status_on_exception=False,
                    **more,
                )
            )
        except Exception:
            log.exception("no span for %r", name)
            return None


def ids_now() -> dict[str, str]:
    """For log lines: of the span that is current here, and of whoever enqueued the job that runs here."""
    api = sys.modules.get(_API)
    found: dict[str, str] = {}
    if api is not None:
        span = api.get_current_span().get_span_context()
        if span.is_valid:
            found = {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    lease = attempt_now()
    if lease is not None and lease.trace and trace_id(lease.trace) != found.get("trace_id"):
        found["enqueued_trace_id"] = trace_id(lease.trace)
    return found


def _recorded(api: Any) -> bool:
    return type(api.get_tracer_provider()).__name__ not in _NOBODY


def _current(api: Any) -> str | None:
    span = api.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"
    return trace_text(parent, span.trace_state.to_header())


def _remote(api: Any, trace: str | None) -> Any:
    if not trace:
        return None
    parent, _, state = trace.partition(" ")
    _, of, span, flags = parent.split("-")
    return api.SpanContext(
        int(of, 16),
        int(span, 16),
        is_remote=True,
        trace_flags=api.TraceFlags(int(flags, 16)),
        trace_state=api.TraceState.from_header([state]) if state else None,
    )


def _one(queues: Any) -> str:
    """Their common queue, or what stands for several."""
    found = set(queues)
    return str(found.pop()) if len(found) == 1 else "(several)"


def _sent(new: Sequence[NewJob]) -> dict[str, Any]:
    said = _common("send", "send", _one(job.queue for job in new))
    if len(new) == 1:
        return {**said, "messaging.message.id": new[0].id, "mulligan.core.job.kind": new[0].kind}
    return {**said, "messaging.batch.message_count": len(new)}


def _attempted(lease: Lease) -> dict[str, Any]:
    return {
        **_common("process", "process", lease.queue),
        "messaging.message.id": lease.id,
        "messaging.message.conversation_id": lease.batch_id or lease.id,
        "messaging.consumer.group.name": lease.queue,
        "messaging.client.id": lease.worker,
        "mulligan.core.job.kind": lease.kind,
        "mulligan.core.job.attempt": lease.attempt,
        "mulligan.core.job.token": lease.token,
    }


def _common(operation: str, name: str, queue: str) -> dict[str, Any]:
    return {
        "messaging.system": "mulligan",
        "messaging.operation.type": operation,
        "messaging.operation.name": name,
        "messaging.destination.name": queue,
    }


def _untold(outcome: Outcome | None) -> None:
    del outcome


def _told(api: Any, span: Any, outcome: Outcome | None) -> None:
    """Only the public half: spans leave the house."""
    span.set_attribute("mulligan.outcome", "stopped" if outcome is None else outcome.ended.value)
    failure = None if outcome is None else outcome.failure
    if failure is not None:
        span.set_attribute("error.type", failure.code)
        span.set_status(api.Status(api.StatusCode.ERROR, failure.public))
