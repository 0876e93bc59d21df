"""Every answer by its shape. A test holds each answer it gets against these, field by field."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mulligan.engine.alerts import AlertRule, AlertStatus
from mulligan.engine.batches import Batch, MemberFailures
from mulligan.engine.calendar import Schedule
from mulligan.engine.dependencies import Dependency
from mulligan.engine.explain import Fact
from mulligan.engine.failures import FailureGroup
from mulligan.engine.held import KindStatus
from mulligan.engine.insight import Insight
from mulligan.engine.keys import Key
from mulligan.engine.operations import Item, Operation
from mulligan.engine.preview import Preview
from mulligan.engine.queues import Queue
from mulligan.event import Event
from mulligan.job import AttemptRow, Job
from mulligan.notify.deliveries import Delivery
from mulligan.notify.subscriptions import Subscription
from mulligan.policy.backtest import Change
from mulligan.policy.outlook import Try
from mulligan.policy.story import Sentence
from mulligan.web.api.models import many, model, model_of, varied
from mulligan.web.api.shapes import NOT_OF_ATTEMPTS

Next = str | None

# -- jobs -------------------------------------------------------------------------------------------
JOB = model_of(Job)
JOBS = model("Jobs", jobs=many(JOB), next=Next, partial=bool)
MADE = model("MadeJobs", jobs=many(JOB))
COUNT = model("Count", count=int, capped=bool, partial=bool)
ATTEMPT = varied(
    model_of(AttemptRow),
    "Attempt",
    maybe=NOT_OF_ATTEMPTS,
    more={
        "started_at": datetime,
        "ended_at": datetime,
        "next_run_at": datetime | None,
        "evidence": dict[str, Any],
        "private": dict[str, Any],
        "judged": dict[str, Any],
    },
)
ATTEMPTS = model("Attempts", attempts=many(ATTEMPT))
EVENT = varied(model_of(Event), "Event", more={"at": datetime})
EVENTS = model("Events", events=many(EVENT))
AUDIT = model("Audit", events=many(EVENT), next=Next)
EXPLANATION = varied(
    model(
        "Explanation",
        job_id=str,
        now=str,
        story=many(model_of(Sentence)),
        text=str,
        choices=list[str],
        moves=list[str],
        facts=many(model_of(Fact)),
    ),
    "Explanation",
    maybe=("facts",),
)
REFUSAL = model("Refusal", code=str, detail=str)
RETRY_PREVIEW = model("RetryPreview", job_id=str, changes=dict[str, Any], refused=many(REFUSAL))
LINK = model("Link", link=str)

# -- many -------------------------------------------------------------------------------------------
FAILURE = model_of(FailureGroup)
FAILURES = model("Failures", failures=many(FAILURE), next=Next, more=bool)
OPERATION = model_of(Operation)
OPERATIONS = model("Operations", operations=many(OPERATION), next=Next)
ITEMS = model("Items", items=many(model_of(Item)), next=Next)
PREVIEW = varied(model_of(Preview), "OperationPreview")
BATCH = model_of(Batch)
BATCHES = model("Batches", batches=many(BATCH), next=Next)
MEMBERS = model("Members", jobs=many(JOB), next=Next, partial=bool)
BATCH_FAILURES = model("BatchFailures", failures=many(model_of(MemberFailures)))
BATCH_RETRIED = model("BatchRetried", batch=BATCH, jobs=list[str], refused=dict[str, Any])

# -- what is shared ---------------------------------------------------------------------------------
QUEUE = model_of(Queue)
QUEUES = model("Queues", queues=many(QUEUE))
KIND = model_of(KindStatus)
KINDS = model("Kinds", kinds=many(KIND))
DEPENDENCY = model_of(Dependency)
DEPENDENCIES = model("Dependencies", dependencies=many(DEPENDENCY))
WORKER = varied(
    model(
        "Worker",
        id=str,
        life=str,
        running=int,
        concurrency=int,
        kinds=list[str],
        queues=list[str],
        release=str,
        started_at=datetime,
        renewed_at=datetime,
        draining=bool,
        closed_at=datetime | None,
        host=str,
        pid=int,
    ),
    "Worker",
    maybe=("host", "pid"),
)
WORKERS = model("Workers", workers=many(WORKER))
SCHEDULE = model_of(Schedule)
SCHEDULES = model("Schedules", schedules=many(SCHEDULE))
SLOTS = model("Slots", schedule=str, next=list[datetime])
ALERTS = model("Alerts", alerts=many(model_of(AlertStatus)))
ALERT_RULE = model_of(AlertRule)
ALERT_RULES = model("AlertRules", rules=many(ALERT_RULE))
INSIGHT = model_of(Insight)

# -- policies ---------------------------------------------------------------------------------------
SETTING = model("PolicySetting", name=str, value=Any, scope=str, origin=str)
OUTLOOK = model(
    "ClassOutlook",
    retried=bool,
    why=str,
    limit=int,
    limit_from=str,
    limit_origin=str,
    backoff=dict[str, Any],
    backoff_from=str,
    backoff_origin=str,
    counts=str,
    then=list[dict[str, Any]],
    then_from=str | None,
    calendar=many(model_of(Try)),
    more=bool,
)
POLICY = model(
    "Policy",
    kind=str,
    queue=str,
    fields=many(SETTING),
    classes=many(varied(OUTLOOK, "ClassOutlook", more={"class": str})),
    rules=list[dict[str, Any]],
)
POLICIES = model("Policies", kinds=list[str], system=POLICY)
VERDICT = varied(
    model(
        "Verdict",
        code=str,
        retryable=bool,
        rule=str,
        retry_after=float | None,
        public=str,
        evidence=dict[str, Any],
        group=str,
        group_of=dict[str, Any],
        judged=dict[str, Any],
    ),
    "Verdict",
    more={"class": str},
)
CHANGED = varied(model_of(Change), "ChangedVerdict", more={"times": int, "sample": str})
BACKTEST = model(
    "Backtest",
    jobs=int,
    failures=int,
    changed=int,
    unreadable=int,
    attempts=int,
    saved=int,
    saved_cost=float,
    rescued=int,
    lost=int,
    tried=int,
    partial=bool,
    text=list[str],
    changes=many(CHANGED),
)

# -- who is told, who may ask -----------------------------------------------------------------------
WEBHOOK = varied(model_of(Subscription), "Webhook", without=("secret",))
NEW_WEBHOOK = varied(WEBHOOK, "NewWebhook", more={"secret": str | None})
WEBHOOKS = model("Webhooks", webhooks=many(WEBHOOK))
DELIVERY = model_of(Delivery)
DELIVERIES = model("Deliveries", deliveries=many(DELIVERY), next=Next)
KEY = model_of(Key)
NEW_KEY = varied(KEY, "NewKey", more={"key": str})
KEYS = model("Keys", keys=many(KEY))


def answers(shape: Any, status: int = 200, **others: Any) -> dict[str, Any]:
    """For a route: what it answers. Its answers are not checked again when they are given: tests do that."""
    found = {
        status: {"model": shape},
        **{int(name.removeprefix("or_")): {"model": one} for name, one in others.items()},
    }
    return {"status_code": status, "response_model": None, "responses": found}
