"""JSON schemas of all API responses, and the OpenAPI document.

The schemas are derived from the types that the engine returns. Tests compare every response they
receive with its schema.
"""

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
from mulligan.core.attempt_log import LogLine, LogOfAttempt
from mulligan.core.event import Event
from mulligan.core.job import AttemptRow, Job
from mulligan.failures.backtest import VerdictChange
from mulligan.failures.group_reader import FailureGroup
from mulligan.guards.gate_status import Dependency, KindStatus, Queue
from mulligan.http.api.auth import KeyRequirement
from mulligan.http.api.responses import JSON_NAMES, PRIVATE_ATTEMPT_FIELDS, json_fields
from mulligan.insight.service import Insight
from mulligan.jobs.explain import Fact, Sentence
from mulligan.notifications.deliveries import Delivery
from mulligan.notifications.subscriptions import Subscription
from mulligan.operations.request import OperationPreview, PastRetries
from mulligan.operations.service import Item, Operation
from mulligan.releases.service import Release, ReleaseComparison
from mulligan.retries.preview import PlannedAttempt
from mulligan.schedules.service import Schedule
from mulligan.steps.view import JobStep
from mulligan.worker.scaling import Scale

# --- Schema builders ---

_SCHEMA_NAMES: Mapping[type, str] = {PastRetries: "GroupChance"}
_typed_dict: Any = TypedDict  # called with computed fields, which type checkers do not support


def object_schema(name: str, /, **fields: Any) -> Any:
    """Return the schema of an object with these fields."""
    return _typed_dict(name, fields)


def list_of(schema: Any) -> Any:
    """Return the schema of a list."""
    return list[schema]


@cache
def schema_of(kind: type) -> Any:
    """Return the schema of a type as `to_json` converts it."""
    fields = {
        JSON_NAMES.get(name, name): json_type(_hint(kind, name)) for name in json_fields(kind)
    }
    return _typed_dict(_SCHEMA_NAMES.get(kind, kind.__name__), fields)


def variant(
    schema: Any,
    name: str,
    *,
    without: Iterable[str] = (),
    optional: Iterable[str] = (),
    more: Mapping[str, Any] | None = None,
) -> Any:
    """Return a copy of a schema without some fields, with more fields, or with optional ones."""
    fields = {**schema.__annotations__, **(more or {})}
    for field in without:
        del fields[field]
    for field in optional:
        fields[field] = NotRequired[fields[field]]
    return _typed_dict(name, fields)


def _hint(kind: type, name: str) -> Any:
    attribute = getattr(kind, name, None)
    if isinstance(attribute, property):
        return get_type_hints(attribute.fget)["return"]
    return get_type_hints(kind)[name]


def json_type(hint: Any) -> Any:
    """Convert a type hint to the type of its JSON form."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in (Union, types.UnionType):
        members = tuple(json_type(member) for member in arguments)
        return Union[members]  # noqa: UP007 - its members are computed
    if origin is not None and issubclass(origin, Mapping):
        return dict[str, json_type(arguments[1])]  # type: ignore[misc]
    if origin is not None and issubclass(origin, Sequence | set | frozenset):
        return list[json_type(arguments[0])]  # type: ignore[misc]
    if isinstance(hint, type) and json_fields(hint):
        return schema_of(hint)
    return hint


NextCursor = str | None


# --- Jobs ---
JOB = schema_of(Job)
JOBS = object_schema("Jobs", jobs=list_of(JOB), next=NextCursor, partial=bool)
ENQUEUED_JOBS = object_schema("EnqueuedJobs", jobs=list_of(JOB))
COUNT = object_schema("Count", count=int, capped=bool, partial=bool)
ATTEMPT = variant(
    schema_of(AttemptRow),
    "Attempt",
    optional=PRIVATE_ATTEMPT_FIELDS,
    more={
        "started_at": datetime,
        "ended_at": datetime,
        "next_run_at": datetime | None,
        "evidence": dict[str, Any],
        "private": dict[str, Any],
        "judged": dict[str, Any],
    },
)
LOG_LINE = variant(schema_of(LogLine), "LogLine", more={"at": datetime})
LOG = variant(schema_of(LogOfAttempt), "Log", more={"records": list_of(LOG_LINE)})
ATTEMPTS = object_schema("Attempts", attempts=list_of(ATTEMPT))
STEP = variant(
    schema_of(JobStep),
    "Step",
    optional={"value"},
    more={"started_at": datetime, "ended_at": datetime | None, "until": datetime | None},
)
STEPS = object_schema("Steps", steps=list_of(STEP))
EVENT = variant(schema_of(Event), "Event", more={"at": datetime, "seq": int})
EVENTS = object_schema("Events", events=list_of(EVENT))
AUDIT = object_schema("Audit", events=list_of(EVENT), next=NextCursor)
EXPLANATION = variant(
    object_schema(
        "Explanation",
        job_id=str,
        now=str,
        story=list_of(schema_of(Sentence)),
        text=str,
        choices=list[str],
        moves=list[str],
        facts=list_of(schema_of(Fact)),
    ),
    "Explanation",
    optional=("facts",),
)
REFUSAL = object_schema("Refusal", code=str, detail=str)
RETRY_PREVIEW = object_schema(
    "RetryPreview",
    job_id=str,
    changes=dict[str, Any],
    refused=list_of(REFUSAL),
    warnings=list[str],
)
LINK = object_schema("Link", link=str)

# --- Groups of jobs ---
FAILURE = schema_of(FailureGroup)
FAILURES = object_schema("Failures", failures=list_of(FAILURE), next=NextCursor, more=bool)
OPERATION = schema_of(Operation)
OPERATIONS = object_schema("Operations", operations=list_of(OPERATION), next=NextCursor)
ITEMS = object_schema("Items", items=list_of(schema_of(Item)), next=NextCursor)
PREVIEW = variant(schema_of(OperationPreview), "OperationPreview")
BATCH = schema_of(Batch)
BATCHES = object_schema("Batches", batches=list_of(BATCH), next=NextCursor)
MEMBERS = object_schema("Members", jobs=list_of(JOB), next=NextCursor, partial=bool)
BATCH_FAILURES = object_schema("BatchFailures", failures=list_of(schema_of(MemberFailures)))
BATCH_RETRIED = object_schema("RetriedBatch", batch=BATCH, jobs=list[str], refused=dict[str, Any])

# --- Fleet ---
QUEUE = schema_of(Queue)
QUEUES = object_schema("Queues", queues=list_of(QUEUE))
KIND = schema_of(KindStatus)
KINDS = object_schema("Kinds", kinds=list_of(KIND))
DEPENDENCY = schema_of(Dependency)
DEPENDENCIES = object_schema("Dependencies", dependencies=list_of(DEPENDENCY))
RELEASE = schema_of(Release)
RELEASES = object_schema("Releases", releases=list_of(RELEASE))
RELEASE_COMPARISON = schema_of(ReleaseComparison)
WORKER = variant(
    object_schema(
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
        memory=int,
    ),
    "Worker",
    optional=("host", "pid", "memory"),
)
WORKERS = object_schema("Workers", workers=list_of(WORKER))
SCHEDULE = schema_of(Schedule)
SCHEDULES = object_schema("Schedules", schedules=list_of(SCHEDULE))
SLOTS = object_schema("Slots", schedule=str, next=list[datetime])
ALERTS = object_schema("Alerts", alerts=list_of(schema_of(AlertStatus)))
ALERT_RULE = schema_of(AlertRule)
ALERT_RULES = object_schema("AlertRules", rules=list_of(ALERT_RULE))
INSIGHT = schema_of(Insight)
SCALE = schema_of(Scale)

# --- Policies ---
SETTING = object_schema("PolicySetting", name=str, value=Any, scope=str, origin=str)
OUTLOOK = object_schema(
    "ClassPreview",
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
    calendar=list_of(schema_of(PlannedAttempt)),
    more=bool,
)
POLICY = object_schema(
    "Policy",
    kind=str,
    queue=str,
    fields=list_of(SETTING),
    classes=list_of(variant(OUTLOOK, "ClassPreview", more={"class": str})),
    rules=list[dict[str, Any]],
)
POLICIES = object_schema("Policies", kinds=list[str], system=POLICY)
CLASSIFICATION = variant(
    object_schema(
        "Classification",
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
    "Classification",
    more={"class": str},
)
CHANGED = variant(
    schema_of(VerdictChange), "ChangedClassification", more={"times": int, "sample": str}
)
BACKTEST = object_schema(
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
    changes=list_of(CHANGED),
)

# --- Webhooks and keys ---
WEBHOOK = variant(schema_of(Subscription), "Webhook", without=("secret",))
NEW_WEBHOOK = variant(WEBHOOK, "NewWebhook", more={"secret": str | None})
WEBHOOKS = object_schema("Webhooks", webhooks=list_of(WEBHOOK))
DELIVERY = schema_of(Delivery)
DELIVERIES = object_schema("Deliveries", deliveries=list_of(DELIVERY), next=NextCursor)
KEY = schema_of(Key)
NEW_KEY = variant(KEY, "NewKey", more={"key": str})
KEYS = object_schema("Keys", keys=list_of(KEY))


def responses(schema: Any, status: int = 200, **others: Any) -> dict[str, Any]:
    """Return route options that document its responses: `or_200=` for another status.

    `response_model=None` turns off validation of responses at run time: tests do that.
    """
    documented = {status: {"model": schema}}
    for name, other in others.items():
        documented[int(name.removeprefix("or_"))] = {"model": other}
    return {"status_code": status, "response_model": None, "responses": documented}


# --- The OpenAPI document ---

PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "retryable"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "a sentence for people"},
        "code": {"type": "string", "description": "stable, for programs"},
        "retryable": {
            "type": "boolean",
            "description": "true if the same request may succeed later",
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
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "a repeated request with the same key gets the stored answer for one day",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}
NOT_IDEMPOTENT = ("/keys",)
PROBLEM_REFERENCE = {"$ref": "#/components/responses/Problem"}


def complete_openapi(api: FastAPI) -> None:
    """Add to the OpenAPI document what FastAPI cannot see: problems, keys, Idempotency-Key."""
    generate = api.openapi

    def document() -> dict[str, Any]:
        if api.openapi_schema is None:
            endpoints = {
                (route.path_format, method): route.endpoint
                for route in api.state.routes
                for method in route.methods
            }
            _complete(generate(), endpoints)
        return api.openapi_schema or {}

    api.openapi = document  # type: ignore[method-assign]


def _complete(document: dict[str, Any], endpoints: Mapping[tuple[str, str], Any]) -> None:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = PROBLEM
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    components["responses"] = {
        "Problem": {"description": "the request was refused or failed", "content": content}
    }
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            requirement = key_requirement(endpoints[path, method.upper()])
            _complete_operation(path, method, operation, requirement)


def _complete_operation(
    path: str, method: str, operation: dict[str, Any], requirement: KeyRequirement | None
) -> None:
    operation["responses"].pop("422", None)
    if requirement is not None:
        scope = "*" if requirement.all_owners else "any"
        operation["x-key"] = {"role": requirement.role.value, "scope": scope}
    for status in error_statuses(path, method, operation):
        operation["responses"][str(status)] = PROBLEM_REFERENCE
    if method in {"post", "patch"} and path not in NOT_IDEMPOTENT:
        operation.setdefault("parameters", []).append(IDEMPOTENCY_KEY)


def key_requirement(endpoint: Any) -> KeyRequirement | None:
    """Return what a route requires of a key, or None if it needs no key."""
    for hint in get_type_hints(endpoint, include_extras=True).values():
        for metadata in getattr(hint, "__metadata__", ()):
            dependency = getattr(metadata, "dependency", None)
            if isinstance(dependency, KeyRequirement):
                return dependency
    return None


def error_statuses(path: str, method: str, operation: Mapping[str, Any]) -> list[int]:
    """Return the error statuses of a call, which follow from its method and parameters."""
    if "security" not in operation:
        return [] if path == "/livez" else [503]
    statuses = [401, 403, 422, 429, 503]
    if "{" in path or "batch_id" in str(operation.get("requestBody", "")):
        statuses.append(404)
    if "requestBody" in operation:
        statuses += [400, 413, 415]
    if method != "get":
        statuses.append(409)
    return sorted(statuses)
