"""Record, classify, group and repair the failures of RQ's jobs.

    attach(Worker, app)                                        # only records
    attach(Worker, app, mode="decide", only=["billing.*"])     # decides about retries too

`Worker` is the class that your workers use. Call it in the module that you pass to `rq worker -c`,
and in the module of the app, so that `mulligan worker` can enqueue jobs again.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

from mulligan.app.mulligan import Mulligan
from mulligan.core.durations import SECOND, to_micros
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
    storable_arguments,
)
from mulligan.integrations.bridge.report import RunEnd
from mulligan.retries.policy import Policy

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger("mulligan.bridge")

RUNS = "mulligan_runs"  # in the meta data of a job: its earlier runs that failed


class WorkHorseLost(Exception):
    """The process that ran a job of RQ was killed."""


def attach(  # noqa: PLR0913 - public API: one keyword per option
    host_app: type[Any],
    app: Mulligan,
    connection: Redis,
    *,
    mode: str = WATCH,
    only: str | Sequence[str] = ("*",),
    uses: str | Sequence[str] | None = None,
    policy: Policy | None = None,
    rules: Rule | Sequence[Rule] = (),
    silent_after: Duration = DEFAULT_SILENT_AFTER,
    wait: Duration = DEFAULT_WAIT,
) -> None:
    """Make each job of RQ that fails a job of kind `rq:FUNCTION`.

    - `host_app`: the class of your workers, such as `rq.Worker`.
    - `connection`: the Redis in which jobs are enqueued again.
    - `mode`: "watch" changes nothing; with "decide" Mulligan decides about retries.
    - `only`: patterns of function names. Of several calls the newest that covers one counts.
    - `uses`, `policy`, `rules`: as in `@app.job`.
    - `silent_after`: a job that RQ runs is dead if its end is not known after so long.
    - `wait`: how long a job may be kept by Mulligan; then RQ goes on without it.
    """
    scope = make_scope(mode, only, uses, policy, rules)
    bridge, is_new = find_bridge(RqHost(connection), host_app, app)
    bridge.courier.wait = check_seconds("wait", wait)
    bridge.silent_after = check_seconds("silent_after", silent_after)
    bridge.add_scope(scope)
    if is_new:
        _wrap(host_app, bridge)


class RqHost:
    """RQ as a host queue."""

    name = "rq"

    def __init__(self, connection: Redis) -> None:
        self._connection = connection

    def task_names(self) -> Iterable[str]:
        """Return the functions of all failed jobs: RQ has no list of functions."""
        from redis.exceptions import RedisError  # noqa: PLC0415 - only apps with RQ have it

        try:
            return self._failed_functions()
        except RedisError as error:  # a worker has other jobs too
            log.warning("the functions of RQ's failed jobs are unknown: %s", error)
            return ()

    def _failed_functions(self) -> Iterable[str]:
        from rq import Queue  # noqa: PLC0415 - only apps with RQ have it

        names: set[str] = set()
        for queue in Queue.all(connection=self._connection):
            registry = queue.failed_job_registry
            jobs = (queue.fetch_job(job_id) for job_id in registry.get_job_ids())
            names.update(function_name(job) for job in jobs if job is not None)
        return names

    def send(self, payload: Mapping[str, Any], generation: int) -> None:
        """Requeue the job as Redis has it, or enqueue it anew if Redis has dropped it."""
        from rq import Queue  # noqa: PLC0415 - only apps with RQ have it
        from rq.exceptions import NoSuchJobError  # noqa: PLC0415
        from rq.job import Job  # noqa: PLC0415

        options = payload["options"]
        try:
            job = Job.fetch(payload["task_id"], connection=self._connection)
        except NoSuchJobError:
            queue = Queue(options["queue"], connection=self._connection)
            queue.enqueue_call(
                payload["task"],
                args=tuple(payload["args"]),
                kwargs=payload["kwargs"],
                timeout=options.get("timeout"),
                job_id=payload["task_id"],
                meta={**options.get("meta", {}), MARK: generation},
            )
            return
        if job.get_meta().get(MARK) == generation and not job.is_failed:
            return  # it was sent, and the record of that was lost
        job.meta[MARK] = generation
        job.save_meta()  # type: ignore[no-untyped-call]
        job.requeue()


class RqListener:
    """Turns the ends of RQ's jobs into reports. Never raises: RQ must not notice it."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    def on_failure(self, worker: Any, job: Any, text: str) -> None:
        """Report or decide a failure, before RQ does what its `Retry` says."""
        task = function_name(job)
        if self._bridge.scope_of(task) is None:
            return
        # RQ calls this where it handles the exception; the parent of a killed process has none.
        error = sys.exception() or WorkHorseLost(text[-500:])
        facts = {
            "error": error,
            "payload": describe_job(job),
            "run": count_runs(job),
            "generation": job.meta.get(MARK),
            "worker": worker.name,
        }
        if self._bridge.decides(task) and self._decide(job, facts):
            return
        end, retry_at = RunEnd.FAILED, None
        if job.should_retry:
            end = RunEnd.RETRYING
            retry_at = to_micros(datetime.now(UTC)) + round(job.get_retry_interval() * SECOND)
        retries = job.retries_left or 0
        self._bridge.publish(task, job.id, end, retry_at=retry_at, max_retries=retries, **facts)

    def _decide(self, job: Any, facts: Mapping[str, Any]) -> bool:
        """Let Mulligan decide. True: RQ will do what it decided."""
        order = self._bridge.decide(function_name(job), job.id, **facts)
        if order is None:
            return False
        job.meta[RUNS] = facts["run"] + 1
        if order.retry_in is None:
            job.retries_left = 0
        else:
            job.retries_left = 1
            job.retry_intervals = [round(order.retry_in)]
        return True

    def on_success(self, worker: Any, job: Any) -> None:
        """Report a success of a job that may have failed before."""
        task = function_name(job)
        if self._bridge.scope_of(task) is None:
            return
        if self._bridge.decides(task):
            self._bridge.succeeded(task)
        if job.retries_left is None and not job.meta.keys() & {MARK, RUNS}:
            return
        self._bridge.publish(
            task,
            job.id,
            RunEnd.SUCCEEDED,
            run=count_runs(job),
            generation=job.meta.get(MARK),
            worker=worker.name,
        )


def function_name(job: Any) -> str:
    """Return the function of a job; a placeholder if its data cannot be read."""
    try:
        return str(job.func_name)
    except Exception:  # noqa: BLE001 - a pickle may raise anything
        return "unreadable"


def count_runs(job: Any) -> int:
    """Return a number that grows with each run of a job: RQ only counts down its retries."""
    return int(job.meta.get(RUNS, -(job.retries_left or 0)))


def describe_job(job: Any) -> dict[str, Any]:
    """Return what is needed to enqueue a job again if Redis has dropped it."""
    options = {"queue": job.origin, "timeout": job.timeout}
    try:
        arguments = list(job.args), dict(job.kwargs)
    except Exception as error:  # noqa: BLE001 - a pickle may raise anything
        return {"unsendable": f"they cannot be read: {type(error).__name__}"}
    return storable_arguments(*arguments, options)


def _wrap(worker_class: type[Any], bridge: Bridge) -> None:
    listener = RqListener(bridge)

    def call_before(name: str, report: Callable[..., None]) -> None:
        original = getattr(worker_class, name)

        @wraps(original)
        def method(worker: Any, job: Any, *args: Any, **kwargs: Any) -> Any:
            report(worker, job, *args, **kwargs)
            return original(worker, job, *args, **kwargs)

        setattr(worker_class, name, method)

    def failed(worker: Any, job: Any, *_: Any, exc_string: str = "", **__: Any) -> None:
        bridge.quietly(lambda: listener.on_failure(worker, job, exc_string))

    def ended(worker: Any, job: Any, *_: Any, **__: Any) -> None:
        bridge.quietly(lambda: listener.on_success(worker, job))

    call_before("handle_job_failure", failed)
    call_before("handle_job_success", ended)
    original_work = worker_class.work

    @wraps(original_work)
    def work(worker: Any, *args: Any, **kwargs: Any) -> Any:
        bridge.courier.start()  # the process of a job ends before it could deliver
        return original_work(worker, *args, **kwargs)

    worker_class.work = work
