"""Record, classify, group and repair the failures of a Celery app.

    attach(celery_app, app)                                      # only records
    attach(celery_app, app, mode="decide", only=["billing.*"])   # decides about retries too

Call it where both apps are defined, so that Celery's workers and `mulligan worker` import it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from mulligan.app.mulligan import Mulligan
from mulligan.core.durations import SECOND, Micros, to_micros
from mulligan.core.errors import Duration
from mulligan.failures.rules import Rule
from mulligan.integrations.bridge.bridge import (
    DEFAULT_SILENT_AFTER,
    DEFAULT_WAIT,
    MARK,
    WATCH,
    Bridge,
    check_seconds,
    find_bridge,
    make_scope,
)
from mulligan.integrations.bridge.decider import HostOrder
from mulligan.integrations.bridge.report import RunEnd
from mulligan.retries.policy import Policy

if TYPE_CHECKING:
    from celery import Celery

AUTORETRY_RUN = "_orig_run"  # where Celery keeps the function of a task with autoretry_for
DECIDED = "mulligan_decided"  # attribute of a request whose end is recorded
OWN_TASKS = "celery."  # prefix of Celery's built-in tasks
# Options of a task that are sent again. A chord and its group are not: the group has counted them.
SENT_OPTIONS = (
    "root_id",
    "parent_id",
    "shadow",
    "chain",
    "link",
    "link_error",
    "soft_time_limit",
    "time_limit",
    "reply_to",
    "ignore_result",
)


def attach(  # noqa: PLR0913 - public API: one keyword per option
    host_app: Celery,
    app: Mulligan,
    *,
    mode: str = WATCH,
    only: str | Sequence[str] = ("*",),
    uses: str | Sequence[str] | None = None,
    policy: Policy | None = None,
    rules: Rule | Sequence[Rule] = (),
    silent_after: Duration = DEFAULT_SILENT_AFTER,
    wait: Duration = DEFAULT_WAIT,
) -> None:
    """Make each task that fails a job of kind `celery:TASK`.

    - `mode`: "watch" changes nothing in Celery; with "decide" Mulligan decides about retries.
    - `only`: patterns of task names. Of several calls the newest that covers a task counts.
    - `uses`, `policy`, `rules`: as in `@app.job`.
    - `silent_after`: a task that Celery runs is dead if its end is not known after so long.
    - `wait`: how long a task may be kept by Mulligan; then Celery goes on without it.
    """
    scope = make_scope(mode, only, uses, policy, rules)
    bridge, is_new = find_bridge(CeleryHost(host_app), host_app, app)
    bridge.courier.wait = check_seconds("wait", wait)
    bridge.silent_after = check_seconds("silent_after", silent_after)
    bridge.add_scope(scope)
    if is_new:
        _connect(bridge, host_app)


class CeleryHost:
    """Celery as a host queue."""

    name = "celery"

    def __init__(self, host_app: Celery) -> None:
        self._app = host_app

    def task_names(self) -> Iterable[str]:
        self._app.loader.import_default_modules()
        return [name for name in self._app.tasks if not name.startswith(OWN_TASKS)]

    def send(self, payload: Mapping[str, Any], generation: int) -> None:
        stored = from_json(payload["options"])
        options = {name: value for name, value in stored.items() if value is not None}
        headers = {**(options.pop("headers", None) or {}), MARK: generation}
        arguments = from_json(payload["args"]), from_json(payload["kwargs"])
        task_id = payload["task_id"]
        self._app.send_task(
            payload["task"], *arguments, task_id=task_id, headers=headers, **options
        )


def to_json(value: Any) -> Any:
    """Return JSON of what Celery's own JSON can encode: also datetimes, UUIDs and decimals."""
    from kombu.utils import json as kombu_json  # noqa: PLC0415 - only apps with Celery have it

    return json.loads(kombu_json.dumps(value))


def from_json(value: Any) -> Any:
    """Return what `to_json` was called with."""
    from kombu.utils import json as kombu_json  # noqa: PLC0415 - only apps with Celery have it

    return kombu_json.loads(json.dumps(value))


class CeleryListener:
    """Turns Celery's signals into reports. Never raises: Celery must not notice it."""

    def __init__(self, bridge: Bridge, host_app: Celery) -> None:
        self._bridge = bridge
        self._app = host_app

    def on_failure(self, sender: Any, task_id: str, exception: BaseException, **facts: Any) -> None:
        """Report that Celery gave up a task."""
        if not self._is_ours(sender):
            return
        # The main process reports lost workers and hard time limits; the request is not there.
        request = sender.request if sender.request.id == task_id else None
        run = CeleryRun(sender, task_id, request, facts["args"], facts["kwargs"])
        self._send(run, RunEnd.FAILED, exception)

    def on_retry(self, sender: Any, request: Any, reason: Any, **_: Any) -> None:
        """Report a failure after which Celery runs the task again."""
        if not self._is_ours(sender):
            return
        error = reason.exc or RuntimeError("the task asked for a retry")
        run = CeleryRun(sender, request.id, request, request.args, request.kwargs)
        self._send(run, RunEnd.RETRYING, error, retry_time(reason.when))

    def on_success(self, sender: Any, **_: Any) -> None:
        """Report a success of a task that has failed before. All others leave no trace."""
        if not self._is_ours(sender):
            return
        if self._bridge.decides(sender.name):
            self._bridge.succeeded(sender.name)
        request = sender.request
        if request.retries or read_mark(request) is not None:
            self._send(CeleryRun(sender, request.id, request), RunEnd.SUCCEEDED)

    def on_init(self, **_: Any) -> None:
        """Let Mulligan decide about the tasks in question, before the worker prepares them."""
        for name, task in self._app.tasks.items():
            if not name.startswith(OWN_TASKS) and self._bridge.decides(name):
                TaskGuard.install(task, self._bridge)

    def on_start(self, **_: Any) -> None:
        """Deliver what an earlier process has left."""
        self._bridge.courier.start()

    def _is_ours(self, task: Any) -> bool:
        """True if a signal is about an attached task, and its end is not recorded yet."""
        if task.app is not self._app or self._bridge.scope_of(task.name) is None:
            return False
        return not getattr(task.request, DECIDED, False)

    def _send(
        self,
        run: CeleryRun,
        end: RunEnd,
        error: BaseException | None = None,
        retry_at: Micros | None = None,
    ) -> None:
        request = run.request
        self._bridge.publish(
            run.task.name,
            run.id,
            end,
            error=error,
            payload=None if error is None else run.describe(),
            retry_at=retry_at,
            max_retries=run.task.max_retries,
            run=None if request is None else request.retries,
            generation=read_mark(request),
            worker="" if request is None else request.hostname or "",
        )


class TaskGuard:
    """Runs a task, and does with its failures what Mulligan decides.

    Without a decision the task behaves as if it was not attached.
    """

    def __init__(self, task: Any, bridge: Bridge) -> None:
        self._task = task
        self._bridge = bridge
        self._original = getattr(task, AUTORETRY_RUN, task.run)

    @classmethod
    def install(cls, task: Any, bridge: Bridge) -> None:
        """Wrap the function of a task, below Celery's wrapper for `autoretry_for`."""
        if isinstance(getattr(task.run, "guard", None), cls):
            return
        guard = cls(task, bridge)
        outer = task.run
        if hasattr(task, AUTORETRY_RUN):
            setattr(task, AUTORETRY_RUN, guard.run)
        else:
            outer = guard.run

        @wraps(guard._original)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return outer(*args, **kwargs)
            except GivenUp as end:
                raise end.error from end.error.__cause__

        run.guard = guard  # type: ignore[attr-defined]
        task.run = run

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task, unless a gate is closed, and obey the decision about a failure."""
        from celery.exceptions import Ignore, Reject, Retry  # noqa: PLC0415 - as above

        request = self._task.request
        if request.called_directly:
            return self._original(*args, **kwargs)
        wait = self._bridge.postpone(self._task.name)
        if wait > 0:
            raise self._retry(request, wait, None)
        try:
            return self._original(*args, **kwargs)
        except (Ignore, Reject, Retry):
            raise
        except Exception as error:
            order = self._decide(request, error)
            if order is None:
                raise
            if order.retry_in is not None:
                raise self._retry(request, order.retry_in, error) from error
            setattr(request, DECIDED, True)
            raise GivenUp(error) from error

    def _decide(self, request: Any, error: Exception) -> HostOrder | None:
        run = CeleryRun(self._task, request.id, request, request.args, request.kwargs)
        return self._bridge.decide(
            self._task.name,
            request.id,
            error=error,
            payload=run.describe(),
            run=request.retries,
            generation=read_mark(request),
            worker=request.hostname or "",
        )

    def _retry(self, request: Any, wait: float, error: Exception | None) -> Exception:
        """Send the task again through Celery. Return the exception to raise."""
        setattr(request, DECIDED, True)
        try:
            retry: Exception = self._task.retry(
                exc=error, countdown=wait, max_retries=request.retries + 1, throw=False
            )
        finally:
            vars(self._task).pop("override_max_retries", None)  # it would outlast this run
        return retry


class GivenUp(BaseException):
    """Carries the error of a task that is not retried past Celery's `autoretry_for`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class CeleryRun(NamedTuple):
    """A run of a task. `request` is None where Celery does not pass it."""

    task: Any
    id: str
    request: Any
    args: Any = ()
    kwargs: Any = None

    def describe(self) -> dict[str, Any]:
        """Return what is needed to send the task again."""
        try:
            return {
                "args": to_json(list(self.args or ())),
                "kwargs": to_json(dict(self.kwargs or {})),
                "options": to_json(self._options()),
            }
        except Exception as error:  # noqa: BLE001 - an argument may be any object
            return {"unsendable": f"they are not JSON: {type(error).__name__}"}

    def _options(self) -> dict[str, Any]:
        if self.request is None:
            return {}
        sent = self.request.as_execution_options()
        options = {name: sent.get(name) for name in SENT_OPTIONS if sent.get(name) is not None}
        options |= read_route(self.request.delivery_info or {})
        headers = dict(self.request.headers or {})
        headers.pop(MARK, None)
        if headers:
            options["headers"] = headers
        return options


def read_route(delivery: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a task was delivered, as options of a send."""
    route = {}
    if delivery.get("routing_key"):
        if delivery.get("exchange"):
            route = {"exchange": delivery["exchange"], "routing_key": delivery["routing_key"]}
        else:
            route = {"queue": delivery["routing_key"]}
    if delivery.get("priority") is not None:
        route["priority"] = delivery["priority"]
    return route


def read_mark(request: Any) -> int | None:
    """Return the generation that the task was sent for; None if Mulligan did not send it."""
    mark = None if request is None else (request.headers or {}).get(MARK)
    return mark if isinstance(mark, int) else None


def retry_time(when: Any) -> Micros | None:
    """Return when Celery runs a task again: it knows a number of seconds or a time."""
    if isinstance(when, datetime):
        return to_micros(when if when.tzinfo else when.replace(tzinfo=UTC))
    if isinstance(when, int | float):
        return to_micros(datetime.now(UTC)) + round(when * SECOND)
    return None


def _connect(bridge: Bridge, host_app: Celery) -> None:
    from celery import signals  # noqa: PLC0415 - only apps with Celery have it

    listener = CeleryListener(bridge, host_app)
    signals.task_failure.connect(listener.on_failure, weak=False)
    signals.task_retry.connect(listener.on_retry, weak=False)
    signals.task_success.connect(listener.on_success, weak=False)
    signals.worker_init.connect(listener.on_init, weak=False)
    signals.worker_ready.connect(listener.on_start, weak=False)
