"""Types of `app.aio`. Written by docs/generate.py from the services. Do not edit."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from mulligan.access.keys import Key, KeyList, NewKey, StatusGrant
from mulligan.alerts.service import AlertList, AlertRule, RuleList
from mulligan.batches.service import Batch, JobViews, MemberFailures, Results, RetriedMembers
from mulligan.core.attempt_log import LogOfAttempt
from mulligan.core.errors import Duration, DurationOrTime
from mulligan.core.event import Event, EventList
from mulligan.core.job import Job
from mulligan.failures.group_reader import FailureGroup
from mulligan.failures.rules import Rule
from mulligan.failures.service import GroupList
from mulligan.guards.gate_status import Dependency, DependencyList, KindList, KindStatus, Queue, QueueList
from mulligan.jobs import repair
from mulligan.jobs.explain import Explanation
from mulligan.jobs.search import CappedCount, JobList
from mulligan.jobs.service import AttemptList, Overrides, TitleList
from mulligan.notifications.channels import Channel
from mulligan.notifications.deliveries import Delivery, DeliveryList
from mulligan.notifications.subscriptions import Subscription, SubscriptionList
from mulligan.operations.request import OperationPreview
from mulligan.operations.service import Items, Operation, OperationList, Steps
from mulligan.releases.service import Release, ReleaseComparison
from mulligan.retries.policy import Policy
from mulligan.retries.service import Backtest, NamedKind, PolicyExplanation
from mulligan.schedules.service import Schedule, ScheduleList, Times
from mulligan.steps.view import StepList
from typing import Any, Literal, TypeVar, overload

class AsyncJobs:
    """`app.aio.jobs`: the methods of `Jobs`, awaitable."""
    async def get(self, job_id: str, *, owner: str | None=None) -> Job:
        """Return one job. With `owner`, another owner's job counts as missing."""
    async def titles(self, jobs: Sequence[Job]) -> TitleList:
        """Return what people call each job: its kind's title, or else its first arguments."""
    async def resolve(self, prefix: str) -> str:
        """Return the full id that begins with `prefix`, or ends with it: "…h8n2vg" or "h8n2vg"."""
    async def list(self, filter: str='', *, limit: int=50, before: str | None=None, owner: str | None=None, private: bool=True) -> JobList:
        """Return jobs that match a filter, newest first. At most 50,000 jobs are searched."""
    async def count(self, filter: str='', *, cap: int=..., owner: str | None=None, private: bool=True) -> CappedCount:
        """Count jobs that match a filter. Counting stops at `cap` or after 50,000 searched jobs."""
    async def explain(self, job_id: str, *, private: bool=False) -> Explanation:
        """Explain a job: its story, why it is where it is, its policy, and possible actions."""
    async def history(self, job_id: str) -> EventList:
        """Return every stored event of a job, oldest first."""
    async def attempts(self, job_id: str) -> AttemptList:
        """Return every finished attempt, oldest first, with both parts of its failure."""
    async def steps(self, job_id: str) -> StepList:
        """Return the steps of a job in the order in which they ended. Values are private."""
    async def log(self, job_id: str, attempt: int | None=None) -> LogOfAttempt:
        """Return the last log records and the stacks of a failed attempt. For operators."""
    async def wait(self, job_id: str, timeout: Duration | None=None) -> Job:
        """Wait until a job has ended (succeeded, dead, cancelled) or is parked, and return it."""
    async def value(self, job: Job) -> Any:
        """Return the result of a job as its handler's annotation says: `job.value()`."""
    async def retry(self, job_id: str, *, reason: str='', overrides: Overrides | None=None, from_step: str | None=None, at: DurationOrTime | None=None, owner: str | None=None) -> Job:
        """Start a new generation of a dead, parked or cancelled job."""
    async def preview_retry(self, job_id: str, *, overrides: Overrides | None=None, from_step: str | None=None, at: DurationOrTime | None=None, owner: str | None=None) -> repair.RetryPreview:
        """Return what `retry` would change and everything that would refuse it, without writing."""
    async def cancel(self, job_id: str, *, reason: str='', owner: str | None=None) -> Job:
        """Cancel a queued or parked job at once; ask a running job to stop."""
    async def tell(self, job_id: str, name: str, value: Any=None, *, actor: str='', reason: str='', owner: str | None=None) -> Job:
        """Answer what a job waits for (`ctx.wait`), or will wait for. The first answer counts."""
    async def find_by_key(self, key: str, *, owner: str | None=None) -> str:
        """Return the id of the only unfinished job with this unique key."""
    async def release(self, job_id: str, *, choice: str | None=None, value: Any=None, reason: str='', owner: str | None=None) -> Job:
        """Queue a parked job again, with one of the choices it offers."""
    async def undo(self, job_id: str, *, reason: str='', owner: str | None=None) -> Job:
        """Undo the finished steps of a dead, cancelled or parked job, which then ends again."""
    async def discard(self, job_id: str, *, reason: str, owner: str | None=None) -> Job:
        """Cancel a dead or parked job that will not be repaired. A reason is required."""
    async def undiscard(self, job_id: str, *, reason: str='', owner: str | None=None) -> Job:
        """Undo a discard: the job is dead or parked again, as it was. It does not run."""
    async def rerun(self, job_id: str, *, reason: str='', owner: str | None=None) -> Job:
        """Enqueue a copy of a succeeded job and return it. The job and its result stay."""

class AsyncQueues:
    """`app.aio.queues`: the methods of `Queues`, awaitable."""
    async def list(self) -> QueueList:
        """Return every queue that a job, a kind, a declaration or an operator names."""
    async def get(self, name: str) -> Queue:
        """Return a queue; raise NotFound if nothing names it."""
    async def pause(self, name: str, *, until: DurationOrTime | None=None, reason: str='') -> Queue:
        """Start no more jobs of a queue; running jobs continue."""
    async def resume(self, name: str, *, reason: str='') -> Queue:
        """End a pause. A queue that is not paused is not changed."""
    async def set(self, name: str, *, concurrency: int | None=..., rate: float | str | None=..., until: DurationOrTime | None=..., reason: str='') -> Queue:
        """Set fleet-wide limits that win over the declared ones."""
    async def clear(self, name: str, *, reason: str='') -> Queue:
        """Return to the limits that the code declares."""

class AsyncBatches:
    """`app.aio.batches`: the methods of `Batches`, awaitable."""
    async def get(self, batch_id: str, *, owner: str | None=None) -> Batch:
        """Return one batch. With `owner`, another owner's batch counts as missing."""
    async def list(self, *, state: str | None=None, owner: str | None=None, limit: int=50, before: str | None=None) -> Sequence[Batch]:
        """Return batches, newest first. `before` is the id of the previous page's last batch."""
    async def resolve(self, prefix: str) -> str:
        """Return the full id that begins with `prefix`."""
    async def members(self, batch_id: str, filter: str='', *, limit: int=50, before: str | None=None) -> Sequence[Job]:
        """Return the batch's jobs, newest first. `filter` works as in `jobs.list`."""
    async def wait(self, batch_id: str, timeout: Duration | None=None) -> Batch:
        """Wait until a batch has its outcome or has expired, and return it."""
    async def jobs(self, batch_id: str) -> JobViews:
        """Return all members in the order of enqueue."""
    async def results(self, batch_id: str, *, default: Any=...) -> Results:
        """Return the result of every member in the order of enqueue, as JSON."""
    async def failures(self, batch_id: str) -> Sequence[MemberFailures]:
        """Return dead members by code, most frequent first."""
    async def history(self, batch_id: str) -> Sequence[Event]:
        """Return the events of the batch itself, oldest first."""
    async def seal(self, batch_id: str, *, connection: Any=None, reason: str='') -> Batch:
        """Accept no more members. In a caller's transaction, completion follows its commit."""
    async def retry_failed(self, batch_id: str, *, reason: str='') -> RetriedMembers:
        """Retry all dead members in one transaction; the batch gets a new outcome after them."""
    async def cancel(self, batch_id: str, *, reason: str='') -> Batch:
        """Accept no more members, cancel waiting members and ask running ones to stop."""

class AsyncDependencies:
    """`app.aio.dependencies`: the methods of `Dependencies`, awaitable."""
    async def list(self) -> DependencyList:
        """Return every dependency that a kind, a job, a declaration, a guard or an operator names."""
    async def get(self, key: str) -> Dependency:
        """Return a dependency; raise NotFound if nothing names it."""
    async def open(self, key: str, *, until: DurationOrTime | None=None, reason: str='') -> Dependency:
        """Hold the jobs of a dependency until then or until it is closed; no probe runs meanwhile."""
    async def close(self, key: str, *, until: DurationOrTime | None=None, reason: str='') -> Dependency:
        """Start the jobs of a dependency again, on a ramp."""
    async def probe(self, key: str, *, reason: str='') -> Dependency:
        """Probe an open dependency now instead of at the scheduled time."""
    async def set(self, key: str, *, concurrency: int | None=..., rate: float | str | None=..., until: DurationOrTime | None=..., reason: str='') -> Dependency:
        """Set fleet-wide limits that win over the declared ones."""
    async def clear(self, key: str, *, reason: str='') -> Dependency:
        """Return to the limits that the code declares."""

class AsyncKinds:
    """`app.aio.kinds`: the methods of `Kinds`, awaitable."""
    async def list(self) -> KindList:
        """Return every kind that a waiting job, an app or an operator names, held kinds first."""
    async def get(self, name: str) -> KindStatus:
        """Return a kind; raise NotFound if nothing names it."""
    async def hold(self, name: str, *, until: DurationOrTime | None=None, reason: str='') -> KindStatus:
        """Start no more jobs of a kind until then or until it is released."""
    async def release(self, name: str, *, reason: str='') -> KindStatus:
        """End a hold and forget the counted deaths. A kind that is not held is not changed."""
    async def try_one(self, name: str, *, reason: str='') -> KindStatus:
        """Let one waiting job of a held kind run; the others still wait."""

class AsyncFailures:
    """`app.aio.failures`: the methods of `Failures`, awaitable."""
    async def groups(self, filter: str='', *, owner: str | None=None, limit: int=100, before: str | None=None, private: bool=True, history: bool=False) -> GroupList:
        """List the groups with the newest deaths, those that need attention first."""
    async def get(self, fingerprint: str, *, owner: str | None=None, private: bool=False, sample: str | None=None) -> FailureGroup:
        """Return one group."""
    async def complete_fingerprint(self, prefix: str, *, owner: str | None=None) -> str:
        """Return the fingerprint that begins with `prefix`."""
    async def mute(self, fingerprint: str, *, until: DurationOrTime | None=None, reason: str='', owner: str | None=None) -> FailureGroup:
        """Hide a known cause until `until`; without it, until `unmute`."""
    async def unmute(self, fingerprint: str, *, reason: str='', owner: str | None=None) -> FailureGroup:
        """End a mute. A group that is not muted stays as it is."""
    async def resolve(self, fingerprint: str, *, in_release: str='', note: str='', owner: str | None=None) -> FailureGroup:
        """Record that the cause is fixed. If a job dies of it later, the group has regressed."""
    async def reopen(self, fingerprint: str, *, reason: str='', owner: str | None=None) -> FailureGroup:
        """Set a muted or resolved group back to open."""
    async def assign(self, fingerprint: str, person: str, *, reason: str='', owner: str | None=None) -> FailureGroup:
        """Name the person who works on a cause; "" for nobody. Its other marks stay."""

class AsyncEvents:
    """`app.aio.events`: the methods of `Events`, awaitable."""
    def follow(self, filter: str='', *, after: int | None=None, heartbeat: float | None=None) -> AsyncIterator[Event]:
        """Yield events as they happen, in order, for a page or program that shows them."""
    async def list(self, *, actor: str | None=None, since: DurationOrTime | None=None, until: DurationOrTime | None=None, type: str | Sequence[str]=(), job: str | None=None, owner: str | None=None, limit: int=50, before: int | None=None) -> EventList:
        """List manual actions, newest first, each with actor, time, reason, before and after."""

class AsyncKeys:
    """`app.aio.keys`: the methods of `Keys`, awaitable."""
    async def list(self) -> KeyList:
        """List all keys, oldest first, including revoked and expired ones."""
    async def get(self, key: str) -> Key:
        """Return one key by its id. Raises `NotFound`."""
    async def authenticate(self, text: str) -> Key | None:
        """Return the key with this text; None if it is unknown, revoked or expired."""
    async def record_use(self, key: Key) -> None:
        """Record that a key was used now, at most once a minute."""
    async def create(self, scope: str, role: str, *, name: str='', expires: DurationOrTime | None=None, reason: str='') -> NewKey:
        """Create a key. Only this call returns its text."""
    async def revoke(self, key: str, *, reason: str='') -> Key:
        """Revoke a key at once. A revoked key stays as it is."""

class AsyncAlerts:
    """`app.aio.alerts`: the methods of `Alerts`, awaitable."""
    async def list(self, *, all: bool=False) -> AlertList:
        """List firing alerts, then pending ones; with `all`, also resolved ones."""
    async def rules(self) -> RuleList:
        """List all effective rules."""
    async def silence(self, name: str, until: DurationOrTime, *, reason: str='') -> AlertRule:
        """Silence a rule: no events and no actions. If its condition still holds then, it fires."""
    async def unsilence(self, name: str, *, reason: str='') -> AlertRule:
        """End the silence of a rule, if there is one."""

class AsyncOperations:
    """`app.aio.operations`: the methods of `Operations`, awaitable."""
    @overload
    async def start(self, action: str, filter: str, *, dry_run: Literal[False]=False, steps: Steps | None=None, rate: float | str | None=None, stop_if: float=0.1, reason: str='', overrides: Mapping[str, Any] | None=None, from_step: str | None=None, queue: str | None=None, choice: str | None=None, key: str | None=None, owner: str | None=None) -> Operation:
        ...
    @overload
    async def start(self, action: str, filter: str, *, dry_run: Literal[True], steps: Steps | None=None, rate: float | str | None=None, stop_if: float=0.1, reason: str='', overrides: Mapping[str, Any] | None=None, from_step: str | None=None, queue: str | None=None, choice: str | None=None, key: str | None=None, owner: str | None=None) -> OperationPreview:
        ...
    async def get(self, operation: str, *, owner: str | None=None) -> Operation:
        """Return one operation. With `owner`, an operation of another scope counts as missing."""
    async def list(self, *, owner: str | None=None, limit: int=50, before: str | None=None) -> OperationList:
        """Return operations, newest first. `before` is the id of the previous page's last one."""
    async def items(self, operation: str, outcome: str | None=None, *, owner: str | None=None, limit: int=1000, after: int=0) -> Items:
        """Return the jobs of an operation in the order in which they are sent."""
    async def resolve(self, prefix: str, *, owner: str | None=None) -> str:
        """Return the full id that begins with `prefix`."""
    async def pause(self, operation: str, *, reason: str='', owner: str | None=None) -> Operation:
        """Send no more jobs for now. Jobs that were sent are not affected."""
    async def resume(self, operation: str, *, reason: str='', owner: str | None=None) -> Operation:
        """Continue a paused operation."""
    async def abort(self, operation: str, *, reason: str='', owner: str | None=None) -> Operation:
        """End an operation. Jobs that were not sent stay untouched; the others are not affected."""

class AsyncReleases:
    """`app.aio.releases`: the methods of `Releases`, awaitable."""
    async def list(self, *, limit: int=50) -> list[Release]:
        """List the releases, the newest first."""
    async def get(self, name: str) -> Release:
        """Return one release."""
    async def find_previous(self, name: str) -> str:
        """Return the release that was first seen before another one."""
    async def compare(self, before: str, after: str, *, kind: str | None=None) -> ReleaseComparison:
        """Compare the failures of two releases, kind by kind and cause by cause."""
    async def hold(self, name: str, *, kind: str | None=None, until: DurationOrTime | None=None, reason: str='') -> Release:
        """Let workers of a release claim no more jobs. Running jobs continue."""
    async def unhold(self, name: str, *, kind: str | None=None, reason: str='') -> Release:
        """End the hold of a release, or of one of its kinds."""

class AsyncPolicies:
    """`app.aio.policy`: the methods of `Policies`, awaitable."""
    async def kinds(self) -> list[str]:
        """Return the names of all kinds that can be explained."""
    async def explain(self, kind: str | NamedKind, *, queue: str | None=None, policy: Policy | None=None, max_retries: int | None=None) -> PolicyExplanation:
        """Explain the policy of a kind, or of a job that is enqueued with these options."""
    async def system(self) -> PolicyExplanation:
        """Explain the system defaults, which apply where no other scope sets a value."""
    async def backtest(self, rules: Iterable[Rule]=(), *, since: DurationOrTime=..., kind: str | None=None) -> Backtest:
        """Classify stored failures again, with these rules before all others."""

class AsyncSchedules:
    """`app.aio.schedules`: the methods of `Schedules`, awaitable."""
    async def list(self) -> ScheduleList:
        """Return every active schedule, by name."""
    async def get(self, name: str) -> Schedule:
        """Return one schedule."""
    async def pause(self, name: str, *, until: DurationOrTime | None=None, reason: str='') -> Schedule:
        """Give slots no jobs until a time or until it is resumed."""
    async def resume(self, name: str, *, reason: str='') -> Schedule:
        """Continue from now; slots that passed meanwhile get no job."""
    async def next(self, name: str, n: int=5) -> Times:
        """Return the next slots, in the schedule's zone."""
    async def run(self, name: str, *, reason: str='') -> Job:
        """Enqueue one job of this schedule now, in addition to its slots."""

class AsyncStatusLinks:
    """`app.aio.status`: the methods of `StatusLinks`, awaitable."""
    async def link(self, of: Job | Batch, *, retry: bool=True, expires: DurationOrTime | None=None) -> str:
        """Return a link to the status page of a job or batch."""
    async def verify(self, text: str) -> StatusGrant:
        """Return what a link gives access to. Raises `NotFound` if it is invalid or expired."""

class AsyncSubscriptions:
    """`app.aio.subscriptions`: the methods of `Subscriptions`, awaitable."""
    async def list(self, *, owner: str | None=None) -> SubscriptionList:
        """List all subscriptions, or those of one owner."""
    async def get(self, subscription: str, *, owner: str | None=None) -> Subscription:
        """Return one subscription. Raises `NotFound`."""
    async def resolve(self, prefix: str) -> str:
        """Return the only id that starts with `prefix`, or `prefix` if there is none."""
    async def add(self, on: str | Sequence[str], to: Channel, *, owner: str | None=None, batch: Any=None, name: str='', form: str | None=None, filter: str='', reason: str='') -> Subscription:
        """Store a subscription that any worker can deliver."""
    async def remove(self, subscription: str, *, owner: str | None=None, reason: str='') -> None:
        """Remove a stored subscription. Its waiting deliveries are cancelled."""
    async def enable(self, subscription: str, *, owner: str | None=None, reason: str='') -> Subscription:
        """Enable a subscription. It gets the events from now on."""
    async def disable(self, subscription: str, *, owner: str | None=None, reason: str='') -> Subscription:
        """Disable a subscription. Its waiting deliveries are cancelled."""
    async def rotate(self, subscription: str, *, owner: str | None=None, reason: str='') -> Subscription:
        """Give a stored webhook a new secret, which only this call returns."""
    async def test(self, subscription: str, *, owner: str | None=None) -> Delivery:
        """Send a test message through the normal delivery path."""

class AsyncDeliveries:
    """`app.aio.deliveries`: the methods of `Deliveries`, awaitable."""
    async def list(self, *, subscription: str | None=None, owner: str | None=None, state: str | None=None, limit: int=50, before: str | None=None) -> DeliveryList:
        """List deliveries, newest first."""
    async def get(self, delivery: str, *, owner: str | None=None) -> Delivery:
        """Return one delivery. Raises `NotFound`."""
    async def retry(self, delivery: str, *, owner: str | None=None, reason: str='') -> Delivery:
        """Send a message again, with the same id for the receiver."""

T = TypeVar("T")
async def run_on_thread(method: Callable[..., T], *args: Any, **options: Any) -> T: ...

class AsyncServices:
    def __init__(self, services: Any) -> None: ...
    jobs: AsyncJobs
    queues: AsyncQueues
    batches: AsyncBatches
    dependencies: AsyncDependencies
    kinds: AsyncKinds
    failures: AsyncFailures
    events: AsyncEvents
    keys: AsyncKeys
    alerts: AsyncAlerts
    operations: AsyncOperations
    releases: AsyncReleases
    policy: AsyncPolicies
    schedules: AsyncSchedules
    status: AsyncStatusLinks
    subscriptions: AsyncSubscriptions
    deliveries: AsyncDeliveries
