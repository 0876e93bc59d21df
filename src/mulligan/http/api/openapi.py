"""Every answer by its shape. A test holds each answer it gets against these, field by field."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NotRequired, Union, get_args, get_origin, get_type_hints

from fastapi import FastAPI
from typing_extensions import TypedDict

from mulligan.access.keys import Key
from mulligan.alerts.service import AlertRule, AlertStatus
from mulligan.batches.service import Batch, MemberFailures
from mulligan.core.event import Event
from mulligan.core.job import AttemptRow, Job
from mulligan.failures.backtest import VerdictChange
from mulligan.failures.service import FailureGroup
from mulligan.guards.dependencies import Dependency
from mulligan.guards.gates import KindStatus, Queue
from mulligan.http.api.auth import Needs
from mulligan.http.api.serialize import NAMES, NOT_OF_ATTEMPTS, shown_of
from mulligan.insight.service import Insight
from mulligan.jobs.explain import Fact, Sentence
from mulligan.notifications.deliveries import Delivery
from mulligan.notifications.subscriptions import Subscription
from mulligan.operations.request import OperationPreview
from mulligan.operations.request import PastRetries as GroupChance
from mulligan.operations.service import Item, Operation
from mulligan.retries.preview import Try
from mulligan.schedules.service import Schedule

# What an answer looks like, for the OpenAPI document: read from the very types that are answered.

_CALLED: Mapping[type, str] = {GroupChance: "GroupChance"}  # there are two
_made: Any = TypedDict  # its names and fields are computed here, which no type checker follows


def model(name: str, /, **said: Any) -> Any:
    """An object with these fields."""
    return _made(name, said)


def many(of: Any) -> Any:
    """A list of these."""
    return list[of]


@cache
def model_of(kind: type) -> Any:
    """A value of ours as `plain` writes it."""
    found = {NAMES.get(name, name): written(_hint(kind, name)) for name in shown_of(kind)}
    return _made(_CALLED.get(kind, kind.__name__), found)


def varied(
    made: Any,
    name: str,
    *,
    without: Iterable[str] = (),
    maybe: Iterable[str] = (),
    more: Mapping[str, Any] | None = None,
) -> Any:
    """The same with other fields; `maybe`: not in every answer."""
    left, rare = set(without), set(maybe)
    said = {
        field: hint
        for field, hint in {**made.__annotations__, **(more or {})}.items()
        if field not in left
    }
    return _made(
        name, {field: NotRequired[hint] if field in rare else hint for field, hint in said.items()}
    )


def _hint(kind: type, name: str) -> Any:
    found = getattr(kind, name, None)
    return (
        get_type_hints(found.fget)["return"]
        if isinstance(found, property)
        else get_type_hints(kind)[name]
    )


def written(hint: Any) -> Any:
    """A type as JSON has its values."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return Union[tuple(written(one) for one in inner)]  # noqa: UP007 - its parts are computed
    if origin is not None and issubclass(origin, Mapping):
        return dict[str, written(inner[1])]  # type: ignore[misc]
    if origin is not None and issubclass(origin, Sequence | set | frozenset):
        return list[written(inner[0])]  # type: ignore[misc]
    if isinstance(hint, type) and shown_of(hint):
        return model_of(hint)
    return hint


# Every answer by its shape. A test holds each answer it gets against these, field by field.

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
PREVIEW = varied(model_of(OperationPreview), "OperationPreview")
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
CHANGED = varied(model_of(VerdictChange), "ChangedVerdict", more={"times": int, "sample": str})
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


# The OpenAPI document: what FastAPI sees in the routes, and what it cannot see.

PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "retryable"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "one sentence for people"},
        "code": {"type": "string", "description": "stable, for programs"},
        "retryable": {
            "type": "boolean",
            "description": "is it worth to send the same again, later?",
        },
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"where": {"type": "string"}, "what": {"type": "string"}},
            },
        },
    },
}
ONCE = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "asked again under the same name within a day, it gets the same answer and is not done again",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}
NOT_ONCE = ("/keys",)
PROBLEMS = {"$ref": "#/components/responses/Problem"}


def describe(api: FastAPI) -> None:
    """Every refusal is a problem, and every POST may name itself."""
    plain = api.openapi

    def document() -> dict[str, Any]:
        if api.openapi_schema is None:
            _complete(
                plain(),
                {
                    (route.path_format, verb): route
                    for route in api.state.calls
                    for verb in route.methods
                },
            )
        return api.openapi_schema or {}

    api.openapi = document  # type: ignore[method-assign]


def _complete(found: dict[str, Any], calls: Mapping[tuple[str, str], Any]) -> None:
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = PROBLEM
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    components["responses"] = {
        "Problem": {"description": "it was refused, or could not be done", "content": content}
    }
    for path, verbs in found["paths"].items():
        for verb, operation in verbs.items():
            operation["responses"].pop("422", None)
            operation.update(_said_of(needs_of(calls[path, verb.upper()].endpoint)))
            operation["responses"] |= {
                str(status): PROBLEMS for status in refusals(path, verb, operation)
            }
            if _once(path, verb):
                operation.setdefault("parameters", []).append(ONCE)


def needs_of(endpoint: Any) -> Needs | None:
    """What a route asks of a key; None: it needs none."""
    for hint in get_type_hints(endpoint, include_extras=True).values():
        for one in getattr(hint, "__metadata__", ()):
            if isinstance(needs := getattr(one, "dependency", None), Needs):
                return needs
    return None


def _said_of(needs: Needs | None) -> dict[str, Any]:
    return (
        {}
        if needs is None
        else {"x-key": {"role": needs.role.value, "scope": "*" if needs.everything else "any"}}
    )


def refusals(path: str, verb: str, operation: Mapping[str, Any]) -> list[int]:
    """How a call may be refused follows from what it takes."""
    if "security" not in operation:
        return [503] if path != "/livez" else []
    found = [401, 403, 422, 429, 503]
    if "{" in path or "batch_id" in str(operation.get("requestBody", "")):
        found.append(404)
    if "requestBody" in operation:
        found += [400, 413, 415]
    if verb != "get":
        found.append(409)
    return sorted(found)


def _once(path: str, verb: str) -> bool:
    return verb in {"post", "patch"} and path not in NOT_ONCE
