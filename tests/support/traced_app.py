"""An app whose spans are written to a file, one JSON object per line."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from mulligan import Mulligan, Policy

NO_RETRIES = Policy(max_retries=0, max_losses=0)


class FileExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ["WITNESS"]).open("a", encoding="utf-8") as file:
            file.writelines(
                json.dumps(json.loads(span.to_json())).replace("\n", "") + "\n" for span in spans
            )
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
trace.set_tracer_provider(provider)
app = Mulligan()


@app.job(policy=NO_RETRIES)
def dies() -> None:
    os._exit(7)


@app.job(policy=NO_RETRIES, timeout=0.5)
def ignores_its_limit() -> None:
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(3600)


@app.job(policy=NO_RETRIES, memory_limit=150_000_000)
def grows() -> None:
    held: list[bytearray] = []
    while True:
        held.append(bytearray(10_000_000))
        time.sleep(0.05)
