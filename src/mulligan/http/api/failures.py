"""`/failures`, `/policies`, `/insight`: failure groups, classification, policies, statistics."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.core.errors import NotFound
from mulligan.failures.capture import classify, explain_group
from mulligan.failures.group_reader import FailureGroup
from mulligan.failures.rule_sources import load_configured_rules
from mulligan.failures.rules import Rule
from mulligan.failures.service import Failures, GroupList
from mulligan.http.api.actions import (
    WITH_ZONE,
    CursorParam,
    FilterParam,
    ReasonBody,
    ReasonRequest,
    ShortLimitParam,
    SinceParam,
    Text,
    UntilBody,
    UntilRequest,
    check_kind,
    parse_since,
    parse_time,
    run_action,
)
from mulligan.http.api.auth import Caller, Operator, OperatorOfAll, Viewer, ViewerOfAll
from mulligan.http.api.openapi import (
    BACKTEST,
    CLASSIFICATION,
    FAILURE,
    FAILURES,
    INSIGHT,
    POLICIES,
    POLICY,
    responses,
)
from mulligan.http.api.requests import (
    RequestBody,
    decode_cursor,
    describe_body,
    encode_cursor,
    json_body,
    run_once,
)
from mulligan.http.api.responses import ApiResponse, JsonAnswer, JsonObject, to_json
from mulligan.insight.service import load_insight
from mulligan.retries.service import Backtest, PolicyExplanation, load_declared_rules

# --- Failure groups: dead jobs with the same cause ---

router = APIRouter(prefix="/failures", tags=["failures"])

HistoryParam = Annotated[bool, Query(description="also causes without a dead job")]


class ResolveRequest(ReasonRequest):
    """Body of `POST /failures/{fingerprint}/resolve`."""

    in_release: Text = Field("", description='the release that has the fix, or "next"')


class AssignRequest(ReasonRequest):
    """Body of `POST /failures/{fingerprint}/assign`."""

    person: Text = Field("", description="who works on it; empty: nobody")


AssignBody = Annotated[AssignRequest, json_body(AssignRequest)]
ResolveBody = Annotated[ResolveRequest, json_body(ResolveRequest)]

_FINGERPRINT = re.compile(r"[\x21-\x7e]{1,200}")


@router.get("", **responses(FAILURES))
async def list_failures(
    caller: Viewer,
    filter: FilterParam = "",  # noqa: A002 - as in the URL
    limit: ShortLimitParam = 100,
    cursor: CursorParam = None,
    *,
    history: HistoryParam = False,
) -> Response:
    """List the most recent failure groups; new, open and regressed ones first.

    `history`: also causes without a dead job, such as recovered ones. `more`: there are other
    groups.
    """
    cursor_scope = f"failures {history} {filter}"
    before = decode_cursor(caller, cursor_scope, cursor)

    def load() -> GroupList:
        return caller.services.failures.groups(
            filter,
            owner=caller.owner,
            limit=limit,
            before=before,
            private=caller.private,
            history=history,
        )

    found = await caller.run(load)
    next_cursor = encode_cursor(caller, cursor_scope, found.cursor)
    return ApiResponse(
        {"failures": [_to_json(group) for group in found], "next": next_cursor, "more": found.more}
    )


@router.get("/{fingerprint}", **responses(FAILURE))
async def get_failure(caller: Viewer, fingerprint: str) -> JsonObject:
    """Get one group with a sample. Only operators see the private part of the sample."""

    def load() -> FailureGroup:
        return caller.services.failures.get(
            _check_fingerprint(fingerprint), owner=caller.owner, private=caller.private
        )

    return _to_json(await caller.run(load))


@router.post("/{fingerprint}/mute", **responses(FAILURE), openapi_extra=describe_body(UntilRequest))
async def mute_failure(
    request: Request, caller: Operator, fingerprint: str, body: UntilBody
) -> Response:
    """Mute the alerts and notifications of a group."""
    until = parse_time("until", body.until)
    return await _run_group_action(
        request,
        caller,
        fingerprint,
        lambda failures, name: failures.mute(
            name, until=until, reason=body.reason, owner=caller.owner
        ),
    )


@router.post(
    "/{fingerprint}/unmute", **responses(FAILURE), openapi_extra=describe_body(ReasonRequest)
)
async def unmute_failure(
    request: Request, caller: Operator, fingerprint: str, body: ReasonBody
) -> Response:
    """End the mute of a group."""
    return await _run_group_action(
        request,
        caller,
        fingerprint,
        lambda failures, name: failures.unmute(name, reason=body.reason, owner=caller.owner),
    )


@router.post(
    "/{fingerprint}/resolve", **responses(FAILURE), openapi_extra=describe_body(ResolveRequest)
)
async def resolve_failure(
    request: Request, caller: Operator, fingerprint: str, body: ResolveBody
) -> Response:
    """Mark the cause as fixed. A later death of the same cause is a regression.

    With `in_release`, deaths under older releases are none.
    """
    return await _run_group_action(
        request,
        caller,
        fingerprint,
        lambda failures, name: failures.resolve(
            name, in_release=body.in_release, note=body.reason, owner=caller.owner
        ),
    )


@router.post(
    "/{fingerprint}/reopen", **responses(FAILURE), openapi_extra=describe_body(ReasonRequest)
)
async def reopen_failure(
    request: Request, caller: Operator, fingerprint: str, body: ReasonBody
) -> Response:
    """Reopen a resolved or muted group."""
    return await _run_group_action(
        request,
        caller,
        fingerprint,
        lambda failures, name: failures.reopen(name, reason=body.reason, owner=caller.owner),
    )


@router.post(
    "/{fingerprint}/assign", **responses(FAILURE), openapi_extra=describe_body(AssignRequest)
)
async def assign_failure(
    request: Request, caller: Operator, fingerprint: str, body: AssignBody
) -> Response:
    """Name the person who works on a group."""
    return await _run_group_action(
        request,
        caller,
        fingerprint,
        lambda failures, name: failures.assign(
            name, body.person, reason=body.reason, owner=caller.owner
        ),
    )


async def _run_group_action(
    request: Request,
    caller: Caller,
    fingerprint: str,
    action: Callable[[Failures, str], FailureGroup],
) -> Response:
    def work() -> JsonObject:
        return _to_json(action(caller.services.failures, _check_fingerprint(fingerprint)))

    return await run_action(request, caller, work)


def _to_json(group: FailureGroup) -> JsonObject:
    return dict(to_json(group))


def _check_fingerprint(fingerprint: str) -> str:
    if _FINGERPRINT.fullmatch(fingerprint) is None:
        message = f"no failure group {fingerprint!r:.80}"
        raise NotFound(message)
    return fingerprint


# --- Policies, classification and statistics ---

policy_router = APIRouter(tags=["policies"])

WEEK = 7 * 86_400
COUNTS = (
    "jobs",
    "failures",
    "changed",
    "unreadable",
    "attempts",
    "saved",
    "saved_cost",
    "rescued",
    "lost",
    "tried",
)
SmallInt = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class ErrorRequest(RequestBody):
    """Body of `POST /policies/test`: an error to classify."""

    text: Annotated[str, Field(max_length=100_000)] = Field(
        "", description="the error as it was printed"
    )
    exception_type: Text | None = Field(None, description="openai.RateLimitError")
    http_status: SmallInt | None = None
    exit_code: SmallInt | None = Field(
        None, description="exit status of a program; -9 and 137 mean signal 9"
    )
    signal: SmallInt | None = None
    errno: SmallInt | None = None
    provider_code: Text | None = Field(None, description="SlowDown, insufficient_quota")
    program: Text | None = Field(None, description="ffmpeg")
    kind: Text | None = Field(None, description="use the rules of this kind and its app")


class BacktestRequest(RequestBody):
    """Body of `POST /policies/backtest`."""

    rules: Annotated[list[dict[str, Any]], Field(max_length=100)] = Field(
        default_factory=list, description="as in mulligan.toml; empty: only today's rules"
    )
    since: float | Text = Field(WEEK, description=f"seconds back from now, or {WITH_ZONE}")
    kind: Text | None = None


ErrorBody = Annotated[ErrorRequest, json_body(ErrorRequest)]
BacktestBody = Annotated[BacktestRequest, json_body(BacktestRequest)]
NameParam = Annotated[str | None, Query(max_length=200)]
MaxRetriesParam = Annotated[int | None, Query(ge=0, le=1_000_000)]


@policy_router.get("/policies", **responses(POLICIES))
async def list_policies(caller: ViewerOfAll) -> JsonObject:
    """List the kinds, with the policy of kinds that have none of their own."""

    def load() -> JsonObject:
        policies = caller.services.policy
        return {"kinds": policies.kinds(), "system": _policy_to_json(policies.system())}

    return await caller.run(load)


@policy_router.get("/policies/{kind}", **responses(POLICY))
async def get_policy(
    caller: ViewerOfAll, kind: str, queue: NameParam = None, max_retries: MaxRetriesParam = None
) -> JsonObject:
    """Explain the policy of a kind: every setting with its origin, and the retry schedule.

    `queue` and `max_retries` apply as they would for a job enqueued with them.
    """

    def load() -> PolicyExplanation:
        return caller.services.policy.explain(kind, queue=queue, max_retries=max_retries)

    return _policy_to_json(await caller.run(load))


@policy_router.post(
    "/policies/test",
    **responses(CLASSIFICATION),
    openapi_extra=describe_body(ErrorRequest, required=True),
)
async def classify_error(request: Request, caller: ViewerOfAll, body: ErrorBody) -> Response:
    """Classify an error: code, class, retryable or not, and the rule that decided."""
    return await run_action(request, caller, lambda: _classify(caller, body))


@policy_router.post(
    "/policies/backtest", **responses(BACKTEST), openapi_extra=describe_body(BacktestRequest)
)
async def backtest_rules(request: Request, caller: OperatorOfAll, body: BacktestBody) -> Response:
    """Run rules over stored failures and report what they would have changed."""

    def work(_: object) -> JsonAnswer:
        rules = [Rule.from_dict(rule, "the body") for rule in body.rules]
        since = parse_time("since", body.since)
        result = caller.services.policy.backtest(rules, since=since or 0, kind=body.kind)
        return JsonAnswer(200, _backtest_to_json(result))

    return await run_once(request, caller, work, slow=True)


@policy_router.get("/insight", **responses(INSIGHT))
async def get_insight(
    caller: ViewerOfAll, since: SinceParam = "7d", kind: NameParam = None, queue: NameParam = None
) -> JsonObject:
    """Compute statistics of jobs and retries: success rates, cost, advice."""
    span = parse_since("since", since)
    found = await caller.run_slow(
        lambda: load_insight(
            caller.context.store(), caller.context.settings, span or WEEK, kind, queue
        )
    )
    return dict(to_json(found))


def _policy_to_json(found: PolicyExplanation) -> JsonObject:
    return dict(to_json(found.to_dict()))


def _classify(caller: Caller, body: ErrorRequest) -> JsonObject:
    rules = _rules(caller, body.kind)
    facts = body.model_dump(exclude={"text", "kind"})
    failure = classify(body.text, **facts, rules=rules)
    return {
        "code": failure.code,
        "class": str(failure.cls),
        "retryable": failure.retryable,
        "rule": failure.rule,
        "retry_after": failure.retry_after,
        "public": failure.public,
        "evidence": dict(failure.evidence),
        "group": failure.fingerprint,
        "group_of": explain_group(body.text, facts, rules),
        "judged": dict(failure.judged),
    }


def _rules(caller: Caller, kind: str | None) -> list[Rule]:
    if kind is None:
        return load_configured_rules(caller.context.settings)
    with caller.context.store().read() as tx:
        return load_declared_rules(tx, check_kind(caller, kind))


def _backtest_to_json(found: Backtest) -> JsonObject:
    report = found.report
    changes = [
        {**change._asdict(), "times": times, "sample": report.samples.get(change, "")}
        for change, times in report.changes.most_common()
    ]
    counts = {name: getattr(report, name) for name in COUNTS}
    return {**counts, "partial": found.partial, "text": list(found.text), "changes": changes}
