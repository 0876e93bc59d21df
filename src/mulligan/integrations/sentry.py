"""Report deaths of jobs to Sentry: one event per death, grouped as Mulligan groups failures.

    sentry_sdk.init(dsn="https://…")
    attach(app)

A reaction (`@app.on`) sends the events, so a death is reported however it happened: also a time
limit, a killed process, a lost worker or a deadline, which no exception handler can see.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

from mulligan.app.mulligan import Mulligan
from mulligan.config import Settings
from mulligan.core.attempt import Alarm
from mulligan.core.event import Event, EventType
from mulligan.core.extras import check_extra
from mulligan.core.job import AttemptRow
from mulligan.failures.groups import TraceFrame, parse_trace
from mulligan.failures.queries import parse_parts
from mulligan.notifications.message import link_to_event

KIND = "report_to_sentry"
FLUSH_TIMEOUT = 10.0  # seconds that a report may take
LEVELS: Mapping[Any, str] = {Alarm.PAGE: "fatal"}


def attach(app: Mulligan, *, filter: str = "", name: str = KIND) -> None:  # noqa: A002 - as in app.on
    """Send one Sentry event for each death of a job, unless its rule has `alarm="none"`.

    Call `sentry_sdk.init()` in the module of the app. `filter`: as in `@app.on`, for example
    "kind:charge". `name`: the kind of the jobs that send the events.
    """
    check_extra("sentry", "mulligan.integrations.sentry")
    from sentry_sdk.integrations.logging import ignore_logger  # noqa: PLC0415 - an extra

    ignore_logger("mulligan.jobs")  # with run_inline its lines about failures would be events too

    async def report(event: Event) -> None:
        await asyncio.to_thread(report_death, app, event)

    app.on(EventType.JOB_DIED, filter=filter, name=name)(report)


def report_death(app: Mulligan, event: Event) -> None:
    """Send the Sentry event of one death. Returns when it is sent."""
    import sentry_sdk  # noqa: PLC0415 - an extra

    if event.data.get("alarm") == Alarm.NONE:
        return
    if not sentry_sdk.is_initialized():
        message = "sentry_sdk.init() was not called in this process. Call it next to attach(app)."
        raise RuntimeError(message)
    attempt = _find_attempt(app, event)
    body: Any = build_event(event, attempt, app.settings)
    with sentry_sdk.new_scope() as scope:
        scope.clear()  # of what another job on this thread has set
        scope.capture_event(body)
    sentry_sdk.flush(FLUSH_TIMEOUT)


def _find_attempt(app: Mulligan, event: Event) -> AttemptRow | None:
    """Return the attempt in which the job died; None if it died while it waited."""
    for attempt in app.jobs.attempts(event.job_id or ""):
        if attempt.token == event.token:
            return attempt
    return None


def build_event(event: Event, attempt: AttemptRow | None, settings: Settings) -> dict[str, Any]:
    """Return the Sentry event of one death. Private texts are as stored: without secrets.

    The id depends on the death alone, so that Sentry drops what a repeated report sends again.
    """
    data = event.data
    private: Mapping[str, Any] = {} if attempt is None else parse_parts(attempt).private
    release = settings.release
    if attempt is not None and attempt.release:
        release = attempt.release
    body: dict[str, Any] = {
        "event_id": hashlib.sha256(f"{event.job_id}/{event.id}".encode()).hexdigest()[:32],
        "timestamp": event.time,
        "level": LEVELS.get(data.get("alarm"), "error"),
        "platform": "python",
        "logger": "mulligan.jobs",
        "transaction": data.get("kind"),
        "fingerprint": [str(data.get("group") or data.get("code"))],
        "tags": _tags(event),
        "contexts": {"job": _job_context(event, private, settings)},
    }
    if release:
        body["release"] = release
    if event.owner:
        body["user"] = {"id": event.owner}
    if private.get("exception"):
        body["exception"] = {"values": [_exception(private)]}
    else:
        body["message"] = f"{data.get('code')}: {data.get('message')}"
    return body


def _tags(event: Event) -> dict[str, str]:
    names = ("code", "class", "kind", "queue", "rule")
    return {name: str(event.data[name]) for name in names if event.data.get(name)}


def _job_context(event: Event, private: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    context = {
        "id": event.job_id,
        "attempt": event.attempt,
        "batch": event.batch_id,
        "link": link_to_event(event, settings),
        "runbook": event.data.get("runbook"),
        "reason": event.data.get("reason"),
        "message": event.data.get("message"),
        "detail": private.get("detail"),
        "stderr": private.get("stderr"),
    }
    return {name: value for name, value in context.items() if value}


def _exception(private: Mapping[str, Any]) -> dict[str, Any]:
    """Return the exception of a failure as Sentry shows it."""
    name = str(private["exception"])
    module, _, class_name = name.rpartition(".")
    frames = [
        _frame(part)
        for part in parse_trace(str(private.get("trace") or "").split("\n"))
        if isinstance(part, TraceFrame)
    ]
    exception: dict[str, Any] = {
        "type": class_name,
        "value": str(private.get("message") or ""),
        "mechanism": {"type": "mulligan", "handled": False},
    }
    if module:
        exception["module"] = module
    if frames:
        exception["stacktrace"] = {"frames": frames}
    return exception


def _frame(frame: TraceFrame) -> dict[str, Any]:
    return {
        "filename": frame.path.rpartition("/")[2],
        "abs_path": frame.path,
        "lineno": frame.line,
        "function": frame.function,
        "context_line": frame.source,
        "in_app": not frame.is_library,
    }
