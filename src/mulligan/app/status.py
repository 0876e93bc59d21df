"""The state of the whole system at one time: is anything broken, since when, and what waits for it?

The overview of the dashboard and `mulligan status` show it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from mulligan.alerts.measures import (
    StatCount,
    histogram_quantile,
    read_counts,
    read_histograms,
)
from mulligan.core.durations import Micros, to_datetime
from mulligan.core.format import format_actor, one_line
from mulligan.core.job import COUNT_CAP, Lane, State
from mulligan.core.statistics import FAILED_OUTCOMES
from mulligan.events.queries import MINUTE, StatQueries
from mulligan.failures.groups import GroupState
from mulligan.guards.gate_status import Dependency, KindStatus, Queue, list_impaired
from mulligan.guards.lanes import is_closed
from mulligan.guards.queries import GuardQueries, RunningGroup
from mulligan.jobs.queries import SearchQueries
from mulligan.storage.base import Transaction
from mulligan.worker.service import WorkerStatus, worker_statuses

if TYPE_CHECKING:
    from mulligan.alerts.service import AlertStatus
    from mulligan.app.services import StoreServices
    from mulligan.failures.group_reader import FailureGroup
    from mulligan.operations.service import Operation

UNHANDLED_STATES = {GroupState.NEW, GroupState.OPEN, GroupState.REGRESSED}
MAX_GROUPS = 5
MAX_ALERTS = 2
RELEASE_WORSE = "release_worse"  # the alert
MAX_RUNNING_GROUPS = 500
MAX_LANES = 2_000
RECENT = 5  # minutes over which rates are measured
MIN_HISTORY = 10  # minutes that must be known before a rate is called usual
MAX_COUNTED = 99  # causes that the menu counts
MAX_TEXT = 200  # characters of a foreign text in a sentence


class SystemStatus(NamedTuple):
    """Everything that is not as it should be, and how much there is to do."""

    now: Micros
    counts: dict[str, int]  # jobs by state, up to 10,000 each
    retrying: int
    held: int
    queues: list[Queue]
    held_kinds: list[KindStatus]
    impaired: list[Dependency]
    workers: list[WorkerStatus]
    groups: list[FailureGroup]  # that nobody has muted or resolved
    operations: list[Operation]  # under way
    alerts: list[AlertStatus]  # firing and not silenced, the most urgent first
    running: list[RunningGroup]  # what holds the places, the largest groups first
    next_retry: datetime | None
    deaths: Rate
    successes: Rate

    @property
    def live_workers(self) -> list[WorkerStatus]:
        return [worker for worker in self.workers if worker.is_live]

    @property
    def places(self) -> int:
        """How many jobs can run at the same time."""
        return sum(worker.row.concurrency for worker in self.live_workers)

    @property
    def taken_places(self) -> int:
        """How many of the places run a job. Jobs that a worker has claimed ahead do not count."""
        return sum(min(worker.running, worker.row.concurrency) for worker in self.live_workers)

    @property
    def ready(self) -> int:
        return sum(queue.ready for queue in self.queues)

    @property
    def oldest(self) -> datetime | None:
        """The due time of the job that has waited longest."""
        times = [queue.oldest for queue in self.queues if queue.oldest is not None]
        return min(times, default=None)

    @property
    def paused_queues(self) -> list[Queue]:
        return [queue for queue in self.queues if queue.paused]


class Rate(NamedTuple):
    """Jobs per minute in the last five minutes, and before them."""

    current: float
    usual: float | None  # of the hour before; None: fewer than ten minutes are known

    @property
    def ratio(self) -> float | None:
        """How many times the usual rate this is, or None if nothing is usual."""
        return self.current / self.usual if self.usual else None


class StatusProblem(NamedTuple):
    """One thing that needs a person."""

    what: str  # workers, dependency, kind, queue, alert or cause
    name: str
    text: str
    since: datetime | None
    command: tuple[str, ...]  # shows more, or repairs it: `mulligan …`
    cause: str = ""  # fingerprint, if it is a cause or a kind that is held for one


def read_status(services: StoreServices, owner: str | None = None) -> SystemStatus:
    """Read the state of the system at about the same time."""
    groups = services.failures.groups(owner=owner, limit=MAX_GROUPS * 4)
    groups_to_handle = [group for group in groups if _needs_attention(group)]
    operations = services.operations.list(owner=owner, limit=20)
    alerts = [alert for alert in services.alerts.list() if _is_urgent(alert)]
    alerts.sort(key=_alert_rank)
    with services.store.read() as tx:
        search = SearchQueries(tx)
        retrying = search.count_jobs_bounded({"phase": "backing_off"}, COUNT_CAP)
        held = search.count_jobs_bounded({"phase": "held"}, COUNT_CAP)
        rates = _read_rates(tx)
        return SystemStatus(
            now=tx.now(),
            counts=dict(search.count_jobs_by_state(COUNT_CAP)),
            retrying=retrying.jobs,
            held=held.jobs,
            queues=services.queues.list(),
            held_kinds=[kind for kind in services.kinds.list() if kind.held],
            impaired=list_impaired(tx),
            workers=worker_statuses(tx),
            groups=groups_to_handle[:MAX_GROUPS],
            operations=[operation for operation in operations if operation.under_way],
            alerts=alerts,
            running=GuardQueries(tx).list_running_groups(MAX_RUNNING_GROUPS),
            next_retry=_find_next_retry(tx),
            deaths=rates[State.DEAD],
            successes=rates[State.SUCCEEDED],
        )


def _alert_rank(alert: AlertStatus) -> tuple[bool, bool]:
    """Rank alerts: a release that fails more explains many of the others."""
    return alert.rule != RELEASE_WORSE, alert.severity != "page"


def _find_next_retry(tx: Transaction) -> datetime | None:
    """Return when the next job that waits before a retry is due."""
    now = tx.now()
    due_times = []
    for row in GuardQueries(tx).count_waiting_by_lane(now, 1, MAX_LANES):
        if row.first > now and Lane.parse(row.lane).retry:
            due_times.append(row.first)
    return to_datetime(min(due_times)) if due_times else None


def _read_rates(tx: Transaction) -> dict[State, Rate]:
    """Return how many jobs die and succeed per minute."""
    now = tx.now()
    newest = now // MINUTE
    start = newest - RECENT
    recent: Counter[str] = Counter()
    before: Counter[str] = Counter()
    first = newest
    for row in StatQueries(tx).list_stats(["finished"], (start - 60) * MINUTE):
        first = min(first, row.minute)
        state = json.loads(row.labels)["state"]
        if row.minute >= start:
            recent[state] += row.n
        else:
            before[state] += row.n
    recent_minutes = (now - start * MINUTE) / MINUTE
    minutes_before = start - first
    rates = {}
    for ended in (State.DEAD, State.SUCCEEDED):
        usual = None
        if minutes_before >= MIN_HISTORY:
            usual = before[ended] / minutes_before
        rates[ended] = Rate(recent[ended] / recent_minutes, usual)
    return rates


# --- Flow through queues and kinds ---


class Quantiles(NamedTuple):
    """Seconds within which half and 95 % of the values are."""

    half: float
    most: float


class Flow(NamedTuple):
    """Jobs and attempts that went through a queue or kind."""

    enqueued: float = 0.0  # per minute, of the last five
    ended: float = 0.0
    attempts: int = 0  # of the last hour, as is the rest
    failed: int = 0  # attempts
    wait: Quantiles | None = None  # from due to start
    run: Quantiles | None = None


FlowKey = tuple[str, str]  # label ("queue" or "kind") and its value
NO_FLOW = Flow()


def read_flows(tx: Transaction) -> dict[FlowKey, Flow]:
    """Return the flow of each queue and kind that had any within an hour."""
    now = tx.now()
    start = (now // MINUTE - RECENT) * MINUTE
    minutes = (now - start) / MINUTE
    recent = read_counts(StatQueries(tx).sum_stats(["enqueued", "ends"], start))
    hour = read_counts(StatQueries(tx).sum_stats(["attempts", "wait", "run"], now - 60 * MINUTE))
    flows: dict[FlowKey, Flow] = {}
    hour_failed = [count for count in hour if _has_failed(count)]
    for label in ("queue", "kind"):
        sums = _sum_counts(recent, label)
        attempts = _sum_counts(hour, label)
        failed = _sum_counts(hour_failed, label)
        waits = _quantiles(hour, "wait", label)
        runs = _quantiles(hour, "run", label)
        values = {value for _, value in (*sums, *attempts)}
        for value in values:
            flows[label, value] = Flow(
                enqueued=sums["enqueued", value] / minutes,
                ended=sums["ends", value] / minutes,
                attempts=attempts["attempts", value],
                failed=failed["attempts", value],
                wait=waits.get(value),
                run=runs.get(value),
            )
    return flows


def _has_failed(count: StatCount) -> bool:
    return count.labels.get("outcome") in FAILED_OUTCOMES


def _sum_counts(counts: Iterable[StatCount], label: str) -> Counter[tuple[str, str]]:
    """Add up counters by their name and the value of a label."""
    sums: Counter[tuple[str, str]] = Counter()
    for count in counts:
        sums[count.name, count.labels.get(label, "")] += count.n
    return sums


def _quantiles(counts: Iterable[StatCount], name: str, label: str) -> dict[str, Quantiles]:
    """Return the quantiles of a histogram by the value of a label."""
    quantiles = {}
    for value, histogram in read_histograms(counts, name, label).items():
        half = histogram_quantile(histogram, 0.5)
        quantiles[value] = Quantiles(half, histogram_quantile(histogram))
    return quantiles


def read_depths(tx: Transaction, current: Mapping[str, int], minutes: int) -> dict[str, list[int]]:
    """Return how many jobs each queue had at the end of each of the last minutes, oldest first.

    The line begins with the first minute that was counted. `current` are the jobs of each queue
    that wait or run now; earlier numbers follow from what was enqueued and what ended since.
    """
    newest = tx.now() // MINUTE
    first = newest - minutes + 1
    gains: defaultdict[str, Counter[int]] = defaultdict(Counter)
    rows = StatQueries(tx).list_stats(["enqueued", "manual", "ends"], first * MINUTE)
    if rows:
        first = rows[0].minute
    for row in rows:
        queue = json.loads(row.labels).get("queue", "")
        gain = -row.n if row.name == "ends" else row.n
        gains[queue][row.minute] += gain
    depths = {}
    for queue, jobs in current.items():
        depth = jobs
        line = []
        for minute in range(newest, first - 1, -1):
            line.append(max(0, depth))
            depth -= gains[queue][minute]
        depths[queue] = line[::-1]
    return depths


# --- What needs a person ---


def count_attention(services: StoreServices, owner: str | None = None) -> dict[str, int]:
    """Count what needs attention, by screen of the dashboard. `owner`: only its own things."""
    groups = services.failures.groups(owner=owner, limit=MAX_COUNTED)
    operations = services.operations.list(owner=owner, limit=20)
    open_groups = [group for group in groups if group.held or _needs_attention(group)]
    running = [operation for operation in operations if operation.under_way]
    counts = {"failures": len(open_groups), "operations": len(running)}
    if owner is None:
        with services.store.read() as tx:
            now = tx.now()
            closed = [gate for gate in GuardQueries(tx).list_gates() if is_closed(gate, now)]
        dependencies = [gate for gate in closed if gate.scope == "dependency"]
        alerts = [alert for alert in services.alerts.list() if _is_urgent(alert)]
        counts["dependencies"] = len(dependencies)
        counts["queues"] = sum(gate.scope in {"queue", "kind"} for gate in closed)
        counts["alerts"] = len(alerts)
    return counts


def _needs_attention(group: FailureGroup) -> bool:
    """True for dead jobs that nobody has muted or resolved. Held kinds are problems themselves."""
    return group.count > 0 and group.state in UNHANDLED_STATES


def _is_urgent(alert: AlertStatus) -> bool:
    return alert.state == "firing" and alert.silenced_until is None


def find_problems(status: SystemStatus) -> Iterator[StatusProblem]:
    """Yield what is broken, the worst first."""
    if not status.live_workers:
        waiting = status.counts[State.QUEUED]
        text = "No worker is live"
        if waiting:
            text = f"{text}: {describe_waiting(waiting)}"
        yield StatusProblem("workers", "", text, None, ("workers", "list"))
    for dependency in status.impaired:
        if dependency.state == "open":
            text = f"{dependency.key} is down: {describe_waiting(dependency.held)} for it"
            yield StatusProblem(
                "dependency", dependency.key, text, dependency.since, ("deps", "list")
            )
    for kind in status.held_kinds:
        reason = one_line(kind.reason or kind.message, MAX_TEXT)
        text = f"Kind {kind.name} is held, {describe_waiting(kind.held_jobs)}: {reason}"
        command = ("kinds", "release", kind.name)
        yield StatusProblem("kind", kind.name, text, kind.since, command, kind.fingerprint)
    for queue in status.paused_queues:
        text = (
            f"Queue {queue.name} was paused by {format_actor(queue.actor)}: "
            f"{describe_waiting(queue.held_jobs)}"
        )
        yield StatusProblem("queue", queue.name, text, None, ("queues", "resume", queue.name))
    yield from _alert_problems(status.alerts)
    for group in status.groups:
        yield _cause_problem(group)


def _alert_problems(alerts: Sequence[AlertStatus]) -> Iterator[StatusProblem]:
    for alert in alerts[:MAX_ALERTS]:
        command = _alert_command(alert)
        yield StatusProblem("alert", alert.rule, alert.summary, alert.since, command)
    more = len(alerts) - MAX_ALERTS
    if more > 0:
        noun = "alerts" if more > 1 else "alert"
        yield StatusProblem("alert", "", f"{more} more {noun}", None, ("alerts", "list"))


def _alert_command(alert: AlertStatus) -> tuple[str, ...]:
    """Return the command that repairs what the alert is about, or shows it."""
    evidence = alert.evidence
    if alert.rule == RELEASE_WORSE and not alert.action:
        return ("releases", "hold", str(evidence["release"]), "--kind", str(evidence["kind"]))
    if alert.rule == RELEASE_WORSE:
        return ("releases", "list")
    if alert.key and "code" in evidence:  # the alert is about one failure group
        return ("failures", "show", alert.key)
    return ("alerts", "list")


def _cause_problem(group: FailureGroup) -> StatusProblem:
    or_more = "+" if group.capped else ""
    noun = "job" if group.count == 1 else "jobs"
    cause = " · ".join(filter(None, (group.title, group.subject)))
    text = f"{group.count:,}{or_more} dead {noun}: {one_line(cause, MAX_TEXT)}"
    if group.state is GroupState.REGRESSED:
        text = f"Regressed after its repair. {text}"
    command = ("failures", "show", group.fingerprint)
    name = group.fingerprint
    return StatusProblem("cause", name, text, group.last_seen, command, name)


def describe_waiting(count: int) -> str:
    """Say how many jobs wait."""
    if count == 0:
        return "no jobs wait"
    if count == 1:
        return "1 job waits"
    if count >= COUNT_CAP:
        return f"{COUNT_CAP:,}+ jobs wait"
    return f"{count:,} jobs wait"
