"""Policies: what follows a failure, which rules judge it and how often they did, and what would follow another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request, Response

from mulligan.engine.hits import Hits, judged_by, rule_hits
from mulligan.engine.keys import Role
from mulligan.engine.policies import PolicyExplanation
from mulligan.engine.whatif import MOST_TEXT, WhatIf, what_if
from mulligan.errors import MulliganError, Refused
from mulligan.job import Micros
from mulligan.policy.outlook import ClassOutlook, Try
from mulligan.policy.phrase import duration
from mulligan.policy.sentences import MEANS
from mulligan.store.hindsight import JudgedRow
from mulligan.web.charts import Delay, curve
from mulligan.web.desk import Visited
from mulligan.web.house import House
from mulligan.web.present import at_moment
from mulligan.web.rules import rule_page, rule_rows, shadow_rows

NUMBERS = ("http_status", "exit_code", "signal", "errno")
TEXTS = ("exception_type", "provider_code", "program")
EMPTY: Mapping[str, Any] = {"text": "", **dict.fromkeys((*TEXTS, *NUMBERS), "")}
LONGEST_NUMBER = 6
VERBS = {"retry": "tried again", "die": "given up", "hold": "not charged, held", "lose": "lost, tried again"}


class PolicyScreens:
    def __init__(self, house: House) -> None:
        self._house = house

    async def show(self, request: Request, kind: str = "") -> Response:
        found = await self._house.ask(request, lambda desk: _picture(desk, kind), shared=True)
        return self._house.page(request, "policies.html", "policies", asked=EMPTY, verdict=None, wrong="", **found)

    async def what_if(self, request: Request) -> Response:
        """A form that changes nothing; what was pasted is nobody else's business, so it is not in the address."""

        def work(desk: Visited, said: dict[str, str]) -> dict[str, Any]:
            asked = {name: said.get(name, "") for name in EMPTY}
            picture = _picture(desk, said.get("kind", ""))
            try:
                found = what_if(desk.store, desk.settings, picture["kind"], asked["text"], _given(asked))
            except MulliganError as refused:
                return {**picture, "asked": asked, "verdict": None, "wrong": str(refused)}
            return {**picture, "asked": asked, "verdict": _verdict(found), "wrong": ""}

        found = await self._house.act(request, work, Role.VIEWER, shared=True)
        return self._house.page(request, "policies.html", "policies", still=True, **found)

    async def rule(self, request: Request, rule: str, kind: str = "") -> Response:
        """One rule, and the newest failures it has judged."""

        def look(desk: Visited) -> dict[str, Any]:
            hits = rule_hits(desk.store, kind=kind or None)
            page = rule_page(desk, rule, hits)
            rows = judged_by(desk.store, rule, kind=kind or None)
            return {**page, "kind": kind, "rows": [_judged(row, hits.now) for row in rows]}

        return self._house.page(request, "rule.html", "policies", **await self._house.ask(request, look, shared=True))


def _picture(desk: Visited, kind: str) -> dict[str, Any]:
    explained = desk.policies.explain(kind) if kind else desk.policies.system()
    hits = rule_hits(desk.store, kind=kind or None)
    return {
        "kind": kind,
        "kinds": desk.policies.kinds(),
        **_policy(explained),
        "rules": rule_rows(desk, kind, hits),
        "shadows": shadow_rows(hits),
        "judged": _counted(hits),
    }


def _counted(hits: Hits) -> str:
    total = f"{sum(row.n for row in hits.rows):,} failures"
    return f"{total}, of the newest 20,000 attempts" if hits.partial else f"{total} in 7 days"


def _policy(found: PolicyExplanation) -> dict[str, Any]:
    return {
        "queue": found.queue,
        "fields": [
            (field.name, "–" if field.value is None else str(field.value), field.origin) for field in found.fields
        ],
        "classes": [_class(one) for one in found.classes],
    }


def _class(one: ClassOutlook) -> dict[str, Any]:
    tries = one.calendar[1:]
    return {
        "cls": one.cls.value,
        "means": MEANS.get(one.cls, ""),
        "retried": one.retried,
        "why": one.why,
        "from": one.limit_origin,
        "backoff": one.backoff_origin,
        "curve": _curve(tries),
        "waits": _waits(tries),
        "gives_up": duration(tries[-1].at_latest) if tries else "",
    }


def _curve(tries: Sequence[Try]) -> Any:
    said = [
        f"retry {place}: after {duration(one.wait)}, drawn from {duration(one.earliest)} to {duration(one.latest)}"
        for place, one in enumerate(tries, 1)
    ]
    return curve([Delay(one.earliest, one.wait, one.latest) for one in tries], said) if tries else None


def _waits(tries: Sequence[Try]) -> str:
    return ", ".join(duration(found.wait) for found in tries[:8]) + (" …" if len(tries) > 8 else "")


# -- what if ----------------------------------------------------------------------------------------
def _given(asked: Mapping[str, str]) -> dict[str, Any]:
    numbers = {name: _number(name, asked[name]) for name in NUMBERS if asked[name]}
    given = {**{name: asked[name] for name in TEXTS if asked[name]}, **numbers}
    if not given and not asked["text"]:
        message = "say something of the error: its text, its type, a status or an exit code"
        raise Refused(message)
    if len(asked["text"]) > MOST_TEXT:
        message = f"the text has {len(asked['text']):,} characters; {MOST_TEXT:,} are enough for any rule"
        raise Refused(message)
    return given


def _number(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= LONGEST_NUMBER):
        message = f"{name.replace('_', ' ')}: {text!r:.40} is no whole number"
        raise Refused(message)
    return int(text)


def _verdict(found: WhatIf) -> dict[str, Any]:
    failure, tries = found.failure, found.fate.tries[1:]
    return {
        "code": failure.code,
        "cls": failure.cls.value,
        "means": MEANS.get(failure.cls, ""),
        "rule": failure.rule,
        "retried": found.fate.retried,
        "public": failure.public,
        "hint": "" if failure.retry_after is None else duration(failure.retry_after),
        "group": failure.fingerprint if found.known else "",
        "evidence": [(name, str(value)) for name, value in failure.evidence.items()],
        "also": ", ".join(failure.judged.get("also", ())),
        "would": found.would,
        "tries": [_try(one) for one in tries],
        "curve": _curve(tries),
        "end": found.fate.end or "and so on",
    }


def _try(one: Try) -> dict[str, Any]:
    between = "" if one.earliest == one.latest else f"{duration(one.earliest)} to {duration(one.latest)}"
    return {"attempt": one.attempt, "wait": duration(one.wait), "between": between, "at": duration(one.at_latest)}


def _judged(row: JudgedRow, now: Micros) -> dict[str, Any]:
    return {
        "job": row.job_id,
        "kind": row.kind,
        "attempt": row.attempt,
        "code": row.code or "",
        "cls": row.cls or "",
        "came_to": VERBS.get(row.verb, row.verb),
        "at": at_moment(row.ended_at, now),
        "public": row.public or "",
    }
