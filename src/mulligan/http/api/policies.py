"""`/policies` and `/insight`: what follows a failure, what would follow it, and what that came to. For all owners."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.failures.capture import classify, made_of
from mulligan.failures.rule_sources import configured_rules
from mulligan.failures.rules import Rule
from mulligan.http.api.actions import Back, Text, acted, back, known_kind, when
from mulligan.http.api.auth import Caller, OperatorOfAll, ViewerOfAll
from mulligan.http.api.idempotency import Answer, once
from mulligan.http.api.openapi import BACKTEST, INSIGHT, POLICIES, POLICY, VERDICT, answers
from mulligan.http.api.requests import RequestBody, body_of, takes
from mulligan.http.api.serialize import Plain, plain
from mulligan.insight.service import insight
from mulligan.manifest.declared import stored_rules
from mulligan.retries.service import Backtest, PolicyExplanation

router = APIRouter(tags=["policies"])

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
Number = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class ErrorRequest(RequestBody):
    text: Annotated[str, Field(max_length=100_000)] = Field(
        "", description="the error as it was printed"
    )
    exception_type: Text | None = Field(None, description="openai.RateLimitError")
    http_status: Number | None = None
    exit_code: Number | None = Field(None, description="of a program; -9 and 137 are signal 9")
    signal: Number | None = None
    errno: Number | None = None
    provider_code: Text | None = Field(None, description="SlowDown, insufficient_quota")
    program: Text | None = Field(None, description="ffmpeg")
    kind: Text | None = Field(None, description="with the rules of this kind and its app")


class BacktestRequest(RequestBody):
    rules: Annotated[list[dict[str, Any]], Field(max_length=100)] = Field(
        default_factory=list, description="as in mulligan.toml; none: what today's tables would do"
    )
    since: float | Text = Field(
        WEEK, description="seconds back from now, or a moment with its zone"
    )
    kind: Text | None = None


ErrorBody = Annotated[ErrorRequest, body_of(ErrorRequest)]
BacktestBody = Annotated[BacktestRequest, body_of(BacktestRequest)]
Name = Annotated[str | None, Query(max_length=200)]
Retries = Annotated[int | None, Query(ge=0, le=1_000_000)]


@router.get("/policies", **answers(POLICIES))
async def list_policies(caller: ViewerOfAll) -> Plain:
    """Which kinds have one, and what holds where nobody says anything."""

    def look() -> Plain:
        policies = caller.desk.policies
        return {"kinds": policies.kinds(), "system": _shown(policies.system())}

    return await caller.room.ask(look)


@router.get("/policies/{kind}", **answers(POLICY))
async def get_policy(
    caller: ViewerOfAll, kind: str, queue: Name = None, max_retries: Retries = None
) -> Plain:
    """Every part of it with who says it, and when attempts would come; as for a job with this queue and limit."""

    def look() -> PolicyExplanation:
        return caller.desk.policies.explain(kind, queue=queue, max_retries=max_retries)

    return _shown(await caller.room.ask(look))


@router.post("/policies/test", **answers(VERDICT), openapi_extra=takes(ErrorRequest, required=True))
async def try_error(request: Request, caller: ViewerOfAll, said: ErrorBody) -> Response:
    """What would be made of this error: code, class, whether it would be tried again, and the rule that decides."""
    return await acted(request, caller, lambda: _verdict(caller, said))


@router.post("/policies/backtest", **answers(BACKTEST), openapi_extra=takes(BacktestRequest))
async def backtest_rules(request: Request, caller: OperatorOfAll, said: BacktestBody) -> Response:
    """What these rules, asked before all others, would have done with the failures that are stored."""

    def work(_: object) -> Answer:
        rules = [Rule.from_plain(one, "the body") for one in said.rules]
        since = when("since", said.since)
        return Answer(
            200, _tried(caller.desk.policies.backtest(rules, since=since or 0, kind=said.kind))
        )

    return await once(request, caller, work, long=True)


@router.get("/insight", **answers(INSIGHT))
async def get_insight(
    caller: ViewerOfAll, since: Back = "7d", kind: Name = None, queue: Name = None
) -> Plain:
    """What the jobs since then came to: what retries are worth, what failures cost, what that advises."""
    span = back("since", since)
    found = await caller.room.ask_long(
        lambda: insight(caller.room.store(), caller.room.settings, span or WEEK, kind, queue)
    )
    return dict(plain(found))


def _shown(found: PolicyExplanation) -> Plain:
    return dict(plain(found.to_plain()))


def _verdict(caller: Caller, said: ErrorRequest) -> Plain:
    rules = _rules(caller, said.kind)
    given = said.model_dump(exclude={"text", "kind"})
    failure = classify(said.text, **given, rules=rules)
    return {
        "code": failure.code,
        "class": str(failure.cls),
        "retryable": failure.retryable,
        "rule": failure.rule,
        "retry_after": failure.retry_after,
        "public": failure.public,
        "evidence": dict(failure.evidence),
        "group": failure.fingerprint,
        "group_of": made_of(said.text, given, rules),
        "judged": dict(failure.judged),
    }


def _rules(caller: Caller, kind: str | None) -> list[Rule]:
    if kind is None:
        return configured_rules(caller.room.settings)
    with caller.room.store().read() as unit:
        return stored_rules(unit, known_kind(caller, kind))


def _tried(found: Backtest) -> Plain:
    report = found.report
    changes = [
        {**change._asdict(), "times": times, "sample": report.samples.get(change, "")}
        for change, times in report.changes.most_common()
    ]
    told = {name: getattr(report, name) for name in COUNTS}
    return {**told, "partial": found.partial, "text": list(found.text), "changes": changes}
