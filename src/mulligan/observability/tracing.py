"""OpenTelemetry spans for inserts and attempts. All names are in this file: the conventions change.

OpenTelemetry is used only if the application has imported it and set a provider; otherwise the cost
is one look-up in `sys.modules`. Spans follow the messaging conventions: `send QUEUE` (producer)
around an insert, `process QUEUE` (consumer) around an attempt. An attempt starts a new trace with a
link to the enqueuing one, since hours may lie between them; `trace.parenting = "child"` makes it a
child instead.
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
from mulligan.core.attempt import Ended, Failure, Lease, Outcome
from mulligan.core.durations import Micros
from mulligan.core.job import NewJob
from mulligan.core.tracing import (
    NO_SPAN,
    OPENTELEMETRY,
    OnAttemptEnd,
    Tracer,
    current_attempt,
    trace_environment,
    trace_id,
    trace_text,
)

log = logging.getLogger("mulligan.trace")

_NO_PROVIDER = frozenset({"ProxyTracerProvider", "NoOpTracerProvider"})


class OtelTracer(Tracer):
    """Tracer that records OpenTelemetry spans."""

    def __init__(self, settings: TraceSection) -> None:
        self._enabled = settings.enabled
        self._child = settings.parenting == "child"

    def trace_insert(self, new: Sequence[NewJob]) -> AbstractContextManager[Sequence[NewJob]]:
        api = sys.modules.get(OPENTELEMETRY) if self._enabled else None
        if api is None or not new:
            return nullcontext(new)
        return self._insert_span(api, new)

    @contextmanager
    def _insert_span(self, api: Any, new: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
        with ExitStack() as stack:
            if _is_recorded(api):
                self._start_span(
                    stack,
                    api,
                    f"send {_common_queue(job.queue for job in new)}",
                    "PRODUCER",
                    _insert_attributes(new),
                )
            trace = _current_trace(api)
            if trace is not None:
                new = [job._replace(trace=job.trace or trace) for job in new]
            yield new

    def trace_attempt(self, lease: Lease) -> AbstractContextManager[OnAttemptEnd]:
        api = sys.modules.get(OPENTELEMETRY) if self._enabled else None
        if api is None or not _is_recorded(api):
            return NO_SPAN
        return self._attempt_span(api, lease)

    @contextmanager
    def _attempt_span(self, api: Any, lease: Lease) -> Iterator[OnAttemptEnd]:
        with ExitStack() as stack:
            options = self._parent_options(api, lease.trace)
            span = self._start_span(
                stack,
                api,
                f"process {lease.queue}",
                "CONSUMER",
                _attempt_attributes(lease),
                **options,
            )
            if span is None:
                yield _ignore_outcome
            else:
                yield partial(_record_outcome, api, span)

    def trace_killed(self, lease: Lease, failure: Failure, ended_at: Micros) -> None:
        api = sys.modules.get(OPENTELEMETRY) if self._enabled else None
        if api is None or not _is_recorded(api):
            return
        try:
            span = api.get_tracer("mulligan", __version__).start_span(
                f"process {lease.queue}",
                kind=api.SpanKind.CONSUMER,
                attributes=_attempt_attributes(lease),
                start_time=lease.started_at * 1000,
                **self._parent_options(api, lease.trace),
            )
            _record_outcome(api, span, Outcome(Ended.LOST, failure=failure))
            span.end(end_time=max(ended_at, lease.started_at) * 1000)
        except Exception:
            log.exception("cannot record the span of a killed attempt")

    def environment(self, lease: Lease) -> dict[str, str]:
        api = sys.modules.get(OPENTELEMETRY) if self._enabled else None
        current = None if api is None else _current_trace(api)
        return trace_environment(current or lease.trace)

    def _parent_options(self, api: Any, trace: str | None) -> dict[str, Any]:
        """Return span options that link to the enqueuing trace or make it the parent."""
        from opentelemetry.context import Context  # noqa: PLC0415 - the application has imported it

        parent = _parse_trace(api, trace)
        if parent is None:
            return {"context": Context()}
        if self._child:
            return {"context": api.set_span_in_context(api.NonRecordingSpan(parent), Context())}
        return {"context": Context(), "links": [api.Link(parent)]}

    def _start_span(
        self,
        stack: ExitStack,
        api: Any,
        name: str,
        kind: str,
        attributes: Mapping[str, Any],
        **more: Any,
    ) -> Any:
        """Start a span that is current until the stack ends. Return None if that fails."""
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
            log.exception("cannot start span %r", name)
            return None


def current_trace_ids() -> dict[str, str]:
    """Return trace ids for log lines: of the current span, and of the enqueuing trace."""
    api = sys.modules.get(OPENTELEMETRY)
    found: dict[str, str] = {}
    if api is not None:
        span = api.get_current_span().get_span_context()
        if span.is_valid:
            found = {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    lease = current_attempt()
    if lease is not None and lease.trace and trace_id(lease.trace) != found.get("trace_id"):
        found["enqueued_trace_id"] = trace_id(lease.trace)
    return found


def _is_recorded(api: Any) -> bool:
    return type(api.get_tracer_provider()).__name__ not in _NO_PROVIDER


def _current_trace(api: Any) -> str | None:
    span = api.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"
    return trace_text(parent, span.trace_state.to_header())


def _parse_trace(api: Any, trace: str | None) -> Any:
    if not trace:
        return None
    parent, _, state = trace.partition(" ")
    _, trace_part, span_part, flags = parent.split("-")
    trace_state = api.TraceState.from_header([state]) if state else None
    return api.SpanContext(
        int(trace_part, 16),
        int(span_part, 16),
        is_remote=True,
        trace_flags=api.TraceFlags(int(flags, 16)),
        trace_state=trace_state,
    )


def _common_queue(queues: Any) -> str:
    """Return the queue of all jobs, or `(several)`."""
    found = set(queues)
    return str(found.pop()) if len(found) == 1 else "(several)"


def _insert_attributes(new: Sequence[NewJob]) -> dict[str, Any]:
    common = _common_attributes("send", "send", _common_queue(job.queue for job in new))
    if len(new) == 1:
        return {**common, "messaging.message.id": new[0].id, "mulligan.job.kind": new[0].kind}
    return {**common, "messaging.batch.message_count": len(new)}


def _attempt_attributes(lease: Lease) -> dict[str, Any]:
    return {
        **_common_attributes("process", "process", lease.queue),
        "messaging.message.id": lease.id,
        "messaging.message.conversation_id": lease.batch_id or lease.id,
        "messaging.consumer.group.name": lease.queue,
        "messaging.client.id": lease.worker,
        "mulligan.job.kind": lease.kind,
        "mulligan.job.attempt": lease.attempt,
        "mulligan.job.token": lease.token,
    }


def _common_attributes(operation: str, name: str, queue: str) -> dict[str, Any]:
    return {
        "messaging.system": "mulligan",
        "messaging.operation.type": operation,
        "messaging.operation.name": name,
        "messaging.destination.name": queue,
    }


def _ignore_outcome(outcome: Outcome | None) -> None:
    del outcome


def _record_outcome(api: Any, span: Any, outcome: Outcome | None) -> None:
    """Record how the attempt ended. Only the public part of a failure: spans leave this system."""
    if outcome is None:
        span.set_attribute("mulligan.outcome", "stopped")
        return
    span.set_attribute("mulligan.outcome", outcome.ended.value)
    failure = outcome.failure
    if failure is not None:
        span.set_attribute("error.type", failure.code)
        span.set_status(api.Status(api.StatusCode.ERROR, failure.public))
