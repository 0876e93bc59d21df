"""Rules as the screens list them: what each asks for, what it says, and how many failures it has judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote

from mulligan.core.attempt import RETRYABLE, Cls
from mulligan.engine.declared import stored_kinds
from mulligan.engine.hits import Hits
from mulligan.engine.kinds import OURS
from mulligan.engine.rules import book_of, configured_rules
from mulligan.errors import NotFound
from mulligan.policy.builtin import RULES
from mulligan.policy.rule import NAMES, NUMBERS, Rule
from mulligan.store.hindsight import HitRow
from mulligan.web.desk import Visited
from mulligan.web.present import Badge, at_moment

AGAIN, NEVER, SHADOW = Badge("↻", "retried", "good"), Badge("✕", "not retried", "bad"), Badge("◌", "in shadow", "calm")
MADE_BY_US = {
    "handler.declared": "a handler returned or raised Fail(…) with a code of its own",
    "unknown": "nothing that any rule knows",
}
DIED = ("die",)
TRIED = ("retry", "lose", "hold")


class Count(NamedTuple):
    """Of one rule."""

    hits: int
    again: int
    died: int
    last: int


def rule_rows(desk: Visited, kind: str, hits: Hits) -> list[dict[str, Any]]:
    """Those of people in the order in which they are asked, then what else has judged something."""
    counts = _counts(hits.rows)
    own = _own(desk, kind)
    rows = [_row(place, rule, "yours", counts, hits, kind) for place, rule in enumerate(own, 1)]
    known = {rule.id for rule in own}
    others = sorted((name for name in counts if name not in known), key=lambda name: -counts[name].hits)
    return [*rows, *(_other(name, counts, hits, kind) for name in others)]


def rule_page(desk: Visited, name: str, hits: Hits) -> dict[str, Any]:
    counts = _counts(hits.rows)
    own = {rule.id: rule for rule in _own(desk, "")}
    rule = own.get(name) or _builtin().get(name)
    if rule is None and name not in counts and name not in MADE_BY_US:
        message = f"no rule {name!r:.80} has judged anything lately, and no table has it"
        raise NotFound(message)
    row = _other(name, counts, hits, "") if rule is None else _row(0, rule, _whose(name, own), counts, hits, "")
    plain = [] if rule is None else [(key, str(value)) for key, value in rule.to_plain().items() if key != "id"]
    return {"row": row, "plain": plain, "shadows": [one for one in shadow_rows(hits) if one["rule"] == name]}


def _whose(name: str, own: Mapping[str, Rule]) -> str:
    return "yours" if name in own else "built in"


def _own(desk: Visited, kind: str) -> list[Rule]:
    """Of a kind and its app; of all kinds, each once."""
    with desk.store.read() as unit:
        kinds = stored_kinds(unit)
    chosen = [kinds[kind]] if kind in kinds else [spec for name, spec in kinds.items() if not name.startswith(OURS)]
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


def _counts(rows: Iterable[HitRow]) -> dict[str, Count]:
    counts: dict[str, Count] = defaultdict(lambda: Count(0, 0, 0, 0))
    for row in rows:
        for name in filter(None, (row.rule, row.would_rule)):
            was = counts[name]
            again, died = row.n * (row.verb in TRIED), row.n * (row.verb in DIED)
            counts[name] = Count(was.hits + row.n, was.again + again, was.died + died, max(was.last, row.last))
    return dict(counts)


def _row(place: int, rule: Rule, whose: str, counts: Mapping[str, Count], hits: Hits, kind: str) -> dict[str, Any]:
    badge = SHADOW if rule.shadow else AGAIN if rule.retryable else NEVER
    said = {"place": place, "id": rule.id, "asks": _asks(rule), "code": rule.code, "cls": str(rule.cls)}
    terms = ", ".join(f"{name} {value}" for name, value in rule.terms().items())
    return {**said, "badge": badge, "whose": whose, "terms": terms, **_counted(rule.id, counts, hits, kind)}


def _other(name: str, counts: Mapping[str, Count], hits: Hits, kind: str) -> dict[str, Any]:
    known = _builtin().get(name)
    if known is not None:
        return _row(0, known, "built in", counts, hits, kind)
    codes = sorted({row.code for row in hits.rows if row.rule == name and row.code})
    classes = sorted({row.cls for row in hits.rows if row.rule == name and row.cls})
    asks = MADE_BY_US.get(name, "an end that Mulligan saw itself")
    badge = AGAIN if {Cls(cls) for cls in classes} & RETRYABLE else NEVER
    said = {"place": 0, "id": name, "asks": asks, "code": ", ".join(codes[:3]), "cls": ", ".join(classes)}
    return {**said, "badge": badge, "whose": "built in", "terms": "", **_counted(name, counts, hits, kind)}


def _counted(name: str, counts: Mapping[str, Count], hits: Hits, kind: str) -> dict[str, Any]:
    count = counts.get(name, Count(0, 0, 0, 0))
    link = f"/policies/rules/{quote(name, safe='')}" + (f"?kind={quote(kind)}" if kind else "")
    last = at_moment(count.last, hits.now) if count.last else None
    return {"hits": count.hits, "again": count.again, "died": count.died, "last": last, "link": link}


def _asks(rule: Rule) -> str:
    """Its conditions in short."""
    said = rule.to_plain()
    parts = [f"{name.replace('_', ' ')} {_listed(said[name])}" for name in (*NAMES, *NUMBERS) if name in said]
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
        yield {"rule": rule, "what": f"rule {rule}", "was": was, "would": would, "n": n, "same": was == would}


def _shadow_policies(rows: Iterable[HitRow]) -> Iterable[dict[str, Any]]:
    found: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        if row.would_verb:
            found[row.verb, row.would_verb] += row.n
    for (was, would), n in sorted(found.items(), key=lambda one: -one[1]):
        yield {"rule": "", "what": "the policy in shadow", "was": was, "would": would, "n": n, "same": was == would}
