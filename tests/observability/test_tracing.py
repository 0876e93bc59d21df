"""W3C trace context from whoever enqueues to the attempt, with the real SDK."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mulligan import Context, Fail
from mulligan.core.tracing import trace_text
from mulligan.observability.logs import AttemptFilter, JsonFormatter
from support.store import sql

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def exported() -> InMemorySpanExporter:
    """The process has one provider for good."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exported):
    exported.clear()
    yield lambda: {span.name: span for span in exported.get_finished_spans()}
    exported.clear()


def kept(app) -> list[str | None]:
    return [row[0] for row in sql(app.store, "SELECT trace FROM {p}job ORDER BY id")]


def test_an_attempt_is_a_trace_of_its_own_with_a_link_to_who_enqueued_it(app, spans):
    @app.job(name="draw", queue="art")
    def draw() -> None: ...

    with trace.get_tracer("web").start_as_current_span("GET /draw") as request:
        job = draw.enqueue()
    app.run_inline()
    sent, done = spans()["send art"], spans()["process art"]
    assert sent.parent.span_id == request.get_span_context().span_id
    assert (sent.kind, done.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert done.parent is None
    assert done.context.trace_id != sent.context.trace_id
    assert [link.context.span_id for link in done.links] == [sent.context.span_id]
    assert done.attributes["messaging.system"] == "mulligan"
    assert done.attributes["messaging.destination.name"] == "art"
    assert done.attributes["messaging.message.id"] == job.id
    assert done.attributes["mulligan.job.attempt"] == 1
    assert done.attributes["mulligan.outcome"] == "returned"


def test_as_a_child_it_is_part_of_the_enqueuers_trace(make_app, spans):
    app = make_app(trace__parenting="child")

    @app.job(name="draw", queue="art")
    async def draw() -> None: ...

    with trace.get_tracer("web").start_as_current_span("GET /draw"):
        draw.enqueue()
    app.run_inline()
    sent, done = spans()["send art"], spans()["process art"]
    assert (done.context.trace_id, done.parent.span_id) == (
        sent.context.trace_id,
        sent.context.span_id,
    )


@pytest.mark.security("S44")
def test_a_failure_is_an_error_with_its_code_and_only_its_public_half(app, spans):
    @app.job(name="check", queue="art")
    def check() -> Fail:
        return Fail("BAD_FILE", "internals", public="This file could not be read.", final=True)

    check.enqueue()
    app.run_inline()
    done = spans()["process art"]
    assert (done.status.status_code, done.status.description) == (
        StatusCode.ERROR,
        "This file could not be read.",
    )
    assert done.attributes["error.type"] == "BAD_FILE"
    assert "internals" not in done.to_json()


def test_a_header_can_be_given_and_programs_and_log_lines_know_the_trace(app, spans):
    lines: list[dict[str, str]] = []

    @app.job(name="draw", queue="art")
    def draw(ctx: Context) -> str:
        record = logging.makeLogRecord({"msg": "hello"})
        AttemptFilter().filter(record)
        lines.append(json.loads(JsonFormatter().format(record)))
        return ctx.run(["sh", "-c", "echo $TRACEPARENT"]).strip()

    job = draw.options(traceparent=PARENT, tracestate="vendor=1").enqueue()
    assert kept(app) == [f"{PARENT} vendor=1"]
    app.run_inline()
    done = spans()["process art"]
    trace_id = f"{done.context.trace_id:032x}"
    assert job.refresh().result.startswith(f"00-{trace_id}-{done.context.span_id:016x}-")
    assert lines[0]["trace_id"] == trace_id
    assert lines[0]["enqueued_trace_id"] == "0af7651916cd43dd8448eb211c80319c"


def test_many_jobs_are_one_span_and_switched_off_there_is_none(make_app, spans):
    app = make_app()

    @app.job(name="draw", queue="art")
    def draw(n: int) -> None: ...

    draw.enqueue_many({"n": n} for n in range(3))
    assert spans()["send art"].attributes["messaging.batch.message_count"] == 3
    assert len(set(kept(app))) == 1
    off = make_app(trace__enabled="false")
    before = len(spans())
    off.enqueue("draw", {"n": 4})
    assert len(spans()) == before
    assert kept(app)[-1] is None


@pytest.mark.parametrize(
    "given",
    [
        "",
        "00",
        "x" * 100_000,
        PARENT.upper(),
        f"{PARENT}\r\nX-Forged: 1",
        f"{PARENT}-more",
        PARENT.replace("00-", "ff-", 1),
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        7,
        None,
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\x00",
    ],
    ids=range(12),
)
def test_a_hostile_traceparent_is_left_aside(given):
    assert trace_text(given, "a=1") is None


def test_a_later_version_and_a_bad_tracestate_keep_what_can_be_followed():
    assert trace_text(f"cc{PARENT[2:]}-what-the-future-brings") == PARENT
    assert trace_text(PARENT, "a=1\r\nX: 1") == PARENT
    assert trace_text(PARENT, "a" * 600) == PARENT


def test_without_opentelemetry_nothing_of_it_is_imported(tmp_path):
    code = (
        "import sys; from mulligan import Mulligan; app = Mulligan('sqlite:///x.db')\n"
        "@app.job\ndef one(): pass\n"
        "one.enqueue(); app.run_inline()\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
