"""Policies: what follows a failure, which rules judge it and how often they did, and what would follow another one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import Request, Response

from mulligan.access.keys import Role
from mulligan.core.attempt import RETRYABLE, Cls
from mulligan.core.errors import MulliganError, NotFound, Refused
from mulligan.core.format import duration
from mulligan.core.job import Micros
from mulligan.failures.builtin import RULES
from mulligan.failures.rule_sources import book_of, configured_rules
from mulligan.failures.rules import NAMES, NUMBERS, Rule
from mulligan.http.dashboard.charts import Delay, curve
from mulligan.http.dashboard.renderer import Renderer
from mulligan.http.dashboard.view_models import Badge, at_moment
from mulligan.http.services import CallerServices
from mulligan.jobs.sentences import MEANS
from mulligan.manifest.declared import stored_kinds
from mulligan.manifest.specs import OURS
from mulligan.retries.preview import ClassOutlook, Try
from mulligan.retries.service import (
    MOST_TEXT,
    Hits,
    PolicyExplanation,
    WhatIf,
    judged_by,
    rule_hits,
    what_if,
)
from mulligan.storage.history_queries import HitRow, JudgedRow

# Rules as the screens list them: what each asks for, what it says, and how many failures it has judged.

AGAIN, NEVER, SHADOW = (
    Badge("↻", "retried", "good"),
    Badge("✕", "not retried", "bad"),
    Badge("◌", "in shadow", "calm"),
)
MADE_BY_US = {
    "handler.declared": "a handler returned or raised Fail(…) with a code of its own",
    "unknown": "nothing that any rule knows",
}
DIED = ("die",)
TRIED = ("retry", "lose", "hold")


class RuleCount(NamedTuple):
    """Of one rule."""

    hits: int
    again: int
    died: int
    last: int


def rule_rows(desk: CallerServices, kind: str, hits: Hits) -> list[dict[str, Any]]:
    """Those of people in the order in which they are asked, then what else has judged something."""
    counts = _counts(hits.rows)
    own = _own(desk, kind)
    rows = [_row(place, rule, "yours", counts, hits, kind) for place, rule in enumerate(own, 1)]
    known = {rule.id for rule in own}
    others = sorted(
        (name for name in counts if name not in known), key=lambda name: -counts[name].hits
    )
    return [*rows, *(_other(name, counts, hits, kind) for name in others)]


def rule_page(desk: CallerServices, name: str, hits: Hits) -> dict[str, Any]:
    counts = _counts(hits.rows)
    own = {rule.id: rule for rule in _own(desk, "")}
    rule = own.get(name) or _builtin().get(name)
    if rule is None and name not in counts and name not in MADE_BY_US:
        message = f"no rule {name!r:.80} has judged anything lately, and no table has it"
        raise NotFound(message)
    row = (
        _other(name, counts, hits, "")
        if rule is None
        else _row(0, rule, _whose(name, own), counts, hits, "")
    )
    plain = (
        []
        if rule is None
        else [(key, str(value)) for key, value in rule.to_plain().items() if key != "id"]
    )
    return {
        "row": row,
        "plain": plain,
        "shadows": [one for one in shadow_rows(hits) if one["rule"] == name],
    }


def _whose(name: str, own: Mapping[str, Rule]) -> str:
    return "yours" if name in own else "built in"


def _own(desk: CallerServices, kind: str) -> list[Rule]:
    """Of a kind and its app; of all kinds, each once."""
    with desk.store.read() as unit:
        kinds = stored_kinds(unit)
    chosen = (
        [kinds[kind]]
        if kind in kinds
        else [spec for name, spec in kinds.items() if not name.startswith(OURS)]
    )
    found: dict[str, Rule] = {}
    for spec in chosen:
        for rule in book_of(spec.rules).rules:
            found.setdefault(rule.id, rule)
    for rule in configured_rules(desk.settings):
        found.setdefault(rule.id, rule)
    return list(found.values())


@cache
def _builtin() -> dict[str, Rule]:
    return {rule.id: rule for rule in RULES}


def _counts(rows: Iterable[HitRow]) -> dict[str, RuleCount]:
    counts: dict[str, RuleCount] = defaultdict(lambda: RuleCount(0, 0, 0, 0))
    for row in rows:
        for name in filter(None, (row.rule, row.would_rule)):
            was = counts[name]
            again, died = row.n * (row.verb in TRIED), row.n * (row.verb in DIED)
            counts[name] = RuleCount(
                was.hits + row.n, was.again + again, was.died + died, max(was.last, row.last)
            )
    return dict(counts)


def _row(
    place: int, rule: Rule, whose: str, counts: Mapping[str, RuleCount], hits: Hits, kind: str
) -> dict[str, Any]:
    badge = SHADOW if rule.shadow else AGAIN if rule.retryable else NEVER
    said = {
        "place": place,
        "id": rule.id,
        "asks": _asks(rule),
        "code": rule.code,
        "cls": str(rule.cls),
    }
    terms = ", ".join(f"{name} {value}" for name, value in rule.terms().items())
    return {
        **said,
        "badge": badge,
        "whose": whose,
        "terms": terms,
        **_rule_counts(rule.id, counts, hits, kind),
    }


def _other(name: str, counts: Mapping[str, RuleCount], hits: Hits, kind: str) -> dict[str, Any]:
    known = _builtin().get(name)
    if known is not None:
        return _row(0, known, "built in", counts, hits, kind)
    codes = sorted({row.code for row in hits.rows if row.rule == name and row.code})
    classes = sorted({row.cls for row in hits.rows if row.rule == name and row.cls})
    asks = MADE_BY_US.get(name, "an end that Mulligan saw itself")
    badge = AGAIN if {Cls(cls) for cls in classes} & RETRYABLE else NEVER
    said = {
        "place": 0,
        "id": name,
        "asks": asks,
        "code": ", ".join(codes[:3]),
        "cls": ", ".join(classes),
    }
    return {
        **said,
        "badge": badge,
        "whose": "built in",
        "terms": "",
        **_rule_counts(name, counts, hits, kind),
    }


def _rule_counts(
    name: str, counts: Mapping[str, RuleCount], hits: Hits, kind: str
) -> dict[str, Any]:
    count = counts.get(name, RuleCount(0, 0, 0, 0))
    link = f"/policies/rules/{quote(name, safe='')}" + (f"?kind={quote(kind)}" if kind else "")
    last = at_moment(count.last, hits.now) if count.last else None
    return {
        "hits": count.hits,
        "again": count.again,
        "died": count.died,
        "last": last,
        "link": link,
    }


def _asks(rule: Rule) -> str:
    """Its conditions in short."""
    said = rule.to_plain()
    parts = [
        f"{name.replace('_', ' ')} {_listed(said[name])}"
        for name in (*NAMES, *NUMBERS)
        if name in said
    ]
    if "message" in said:
        parts.append(f"says {_listed(said['message'])}")
    return "; ".join(parts)


def _listed(value: Any) -> str:
    values = value if isinstance(value, list | tuple) else [value]
    more = f" … and {len(values) - 3} more" if len(values) > 3 else ""
    return " or ".join(str(one) for one in values[:3]) + more


# -- shadow -----------------------------------------------------------------------------------------
def shadow_rows(hits: Hits) -> list[dict[str, Any]]:
    """What rules and policies in shadow would have changed."""
    return [*_shadow_rules(hits.rows), *_shadow_policies(hits.rows)]


def _shadow_rules(rows: Iterable[HitRow]) -> Iterable[dict[str, Any]]:
    found: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in rows:
        if row.would_rule:
            was, would = f"{row.code} ({row.cls})", f"{row.would_code} ({row.would_cls})"
            found[row.would_rule, was, would] += row.n
    for (rule, was, would), n in sorted(found.items(), key=lambda one: -one[1]):
        yield {
            "rule": rule,
            "what": f"rule {rule}",
            "was": was,
            "would": would,
            "n": n,
            "same": was == would,
        }


def _shadow_policies(rows: Iterable[HitRow]) -> Iterable[dict[str, Any]]:
    found: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        if row.would_verb:
            found[row.verb, row.would_verb] += row.n
    for (was, would), n in sorted(found.items(), key=lambda one: -one[1]):
        yield {
            "rule": "",
            "what": "the policy in shadow",
            "was": was,
            "would": would,
            "n": n,
            "same": was == would,
        }


# Policies: what follows a failure, which rules judge it and how often they did, and what would follow another one.

NUMBER_FIELDS = ("http_status", "exit_code", "signal", "errno")
TEXTS = ("exception_type", "provider_code", "program")
EMPTY: Mapping[str, Any] = {"text": "", **dict.fromkeys((*TEXTS, *NUMBER_FIELDS), "")}
LONGEST_NUMBER = 6
VERBS = {
    "retry": "tried again",
    "die": "given up",
    "hold": "not charged, held",
    "lose": "lost, tried again",
}


class PolicyScreens:
    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def show(self, request: Request, kind: str = "") -> Response:
        found = await self._house.ask(request, lambda desk: _picture(desk, kind), shared=True)
        return self._house.page(
            request, "policies.html", "policies", asked=EMPTY, verdict=None, wrong="", **found
        )

    async def what_if(self, request: Request) -> Response:
        """A form that changes nothing; what was pasted is nobody else's business, so it is not in the address."""

        def work(desk: CallerServices, said: dict[str, str]) -> dict[str, Any]:
            asked = {name: said.get(name, "") for name in EMPTY}
            picture = _picture(desk, said.get("kind", ""))
            try:
                found = what_if(
                    desk.store, desk.settings, picture["kind"], asked["text"], _given(asked)
                )
            except MulliganError as refused:
                return {**picture, "asked": asked, "verdict": None, "wrong": str(refused)}
            return {**picture, "asked": asked, "verdict": _verdict(found), "wrong": ""}

        found = await self._house.act(request, work, Role.VIEWER, shared=True)
        return self._house.page(request, "policies.html", "policies", still=True, **found)

    async def rule(self, request: Request, rule: str, kind: str = "") -> Response:
        """One rule, and the newest failures it has judged."""

        def look(desk: CallerServices) -> dict[str, Any]:
            hits = rule_hits(desk.store, kind=kind or None)
            page = rule_page(desk, rule, hits)
            rows = judged_by(desk.store, rule, kind=kind or None)
            return {**page, "kind": kind, "rows": [_judged(row, hits.now) for row in rows]}

        return self._house.page(
            request, "rule.html", "policies", **await self._house.ask(request, look, shared=True)
        )


def _picture(desk: CallerServices, kind: str) -> dict[str, Any]:
    explained = desk.policies.explain(kind) if kind else desk.policies.system()
    hits = rule_hits(desk.store, kind=kind or None)
    return {
        "kind": kind,
        "kinds": desk.policies.kinds(),
        **_policy(explained),
        "rules": rule_rows(desk, kind, hits),
        "shadows": shadow_rows(hits),
        "judged": _count_text(hits),
    }


def _count_text(hits: Hits) -> str:
    total = f"{sum(row.n for row in hits.rows):,} failures"
    return f"{total}, of the newest 20,000 attempts" if hits.partial else f"{total} in 7 days"


def _policy(found: PolicyExplanation) -> dict[str, Any]:
    return {
        "queue": found.queue,
        "fields": [
            (field.name, "–" if field.value is None else str(field.value), field.origin)
            for field in found.fields
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
    return (
        curve([Delay(one.earliest, one.wait, one.latest) for one in tries], said) if tries else None
    )


def _waits(tries: Sequence[Try]) -> str:
    return ", ".join(duration(found.wait) for found in tries[:8]) + (" …" if len(tries) > 8 else "")


# -- what if ----------------------------------------------------------------------------------------
def _given(asked: Mapping[str, str]) -> dict[str, Any]:
    numbers = {name: _number(name, asked[name]) for name in NUMBER_FIELDS if asked[name]}
    given = {**{name: asked[name] for name in TEXTS if asked[name]}, **numbers}
    if not given and not asked["text"]:
        message = "say something of the error: its text, its type, a status or an exit code"
        raise Refused(message)
    if len(asked["text"]) > MOST_TEXT:
        message = (
            f"the text has {len(asked['text']):,} characters; {MOST_TEXT:,} are enough for any rule"
        )
        raise Refused(message)
    return given


def _number(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= LONGEST_NUMBER):
        message = f"{name.replace('_', ' ')}: {text!r:.40} is no whole number"
        raise Refused(message)
    return int(text)


def _verdict(found: WhatIf) -> dict[str, Any]:
    failure, tries = found.failure, found.life.tries[1:]
    return {
        "code": failure.code,
        "cls": failure.cls.value,
        "means": MEANS.get(failure.cls, ""),
        "rule": failure.rule,
        "retried": found.life.retried,
        "public": failure.public,
        "hint": "" if failure.retry_after is None else duration(failure.retry_after),
        "group": failure.fingerprint if found.known else "",
        "evidence": [(name, str(value)) for name, value in failure.evidence.items()],
        "also": ", ".join(failure.judged.get("also", ())),
        "would": found.would,
        "tries": [_try(one) for one in tries],
        "curve": _curve(tries),
        "end": found.life.end or "and so on",
    }


def _try(one: Try) -> dict[str, Any]:
    between = (
        "" if one.earliest == one.latest else f"{duration(one.earliest)} to {duration(one.latest)}"
    )
    return {
        "attempt": one.attempt,
        "wait": duration(one.wait),
        "between": between,
        "at": duration(one.at_latest),
    }


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
