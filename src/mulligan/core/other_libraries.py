"""Advice for attributes that other libraries have and Mulligan has not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DECORATE = "Decorate a function: @app.job"
_WORKER = "Start a worker on the command line: mulligan worker module:app"
_SCHEDULE = 'Declare a schedule: app.schedule("nightly", "0 3 * * *", kind)'
_BY_NAME = 'Enqueue by name: app.enqueue("kind", {"argument": …})'
_WAIT = "Wait for the result: job.wait(timeout=10).result"
_STATE = "Read the state: job.refresh().state"
_MEMBER = "Enqueue a member: your_function.options(batch=batch).enqueue(…)"

APP = {
    **dict.fromkeys(("task", "shared_task", "register"), _DECORATE),
    **dict.fromkeys(("run", "start", "worker", "worker_main", "run_worker", "work"), _WORKER),
    **dict.fromkeys(("periodic", "periodic_task", "cron", "add_periodic_task"), _SCHEDULE),
    **dict.fromkeys(("send_task", "send", "defer", "configure_task", "delay"), _BY_NAME),
    **dict.fromkeys(("conf", "config", "config_from_object"), "Read the settings: app.settings"),
    **dict.fromkeys(("group", "chord", "chain"), 'Create a batch: app.batch("name")'),
}
JOB = {
    **dict.fromkeys(("get", "get_result", "join", "return_value"), _WAIT),
    **dict.fromkeys(("ready", "successful", "failed", "done", "status", "get_status"), _STATE),
    **dict.fromkeys(("revoke", "delete", "abort"), "Cancel it: job.cancel()"),
    **dict.fromkeys(("args", "kwargs"), "Read the arguments: job.payload"),
    **dict.fromkeys(("traceback", "exc_info"), "Read its failure: job.error"),
}
BATCH = {
    **dict.fromkeys(("add", "append", "enqueue", "add_job", "add_jobs"), _MEMBER),
    **dict.fromkeys(("close", "commit", "finish"), "Accept no more members: batch.seal()"),
    **dict.fromkeys(("get", "join"), "Wait for the outcome: batch.wait(), then batch.results()"),
}
CONTEXT = {
    "retry": "Return or raise Retry(after=60)",
    "request": "Read the job: ctx.job",
    "logger": "Log with ctx.log",
    "update_state": 'Report progress: ctx.progress(0.5, "half way")',
    "abort": 'Return or raise Fail("CODE", final=True)',
    "payload": "Read it with ctx.job.payload, or take its fields as parameters",
}


def refuse_attribute(thing: object, name: str, advice: Mapping[str, str]) -> Any:
    """Raise the AttributeError for a missing attribute, with advice if another library has it."""
    if name in advice:
        message = f"a {type(thing).__name__} has no attribute {name!r}. {advice[name]}"
        # `obj=None`: Python would add the most similar name, such as retry for ready.
        raise AttributeError(message, name=name, obj=None)
    return object.__getattribute__(thing, name)
