"""The policies screen: retry policies, classification rules, shadow results and what-if."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import Request, Response

from mulligan.access.keys import Role
from mulligan.core.attempt import RETRYABLE, Cls
from mulligan.core.durations import Micros
from mulligan.core.errors import MulliganError, NotFound, Refused
from mulligan.core.format import as_sentence, format_duration, format_size, one_line
from mulligan.failures.builtin import RULES
from mulligan.failures.queries import ClassifiedAttemptRow, RuleHitRow
from mulligan.failures.rule_sources import load_configured_rules, load_rulebook
from mulligan.failures.rules import NAME_CONDITIONS, NUMBER_CONDITIONS, Rule
from mulligan.http.dashboard.charts import Curve, Delay, delay_curve
from mulligan.http.dashboard.renderer import MenuEntry, Renderer, form_route, screen
from mulligan.http.dashboard.view_models import Badge, time_label
from mulligan.http.services import VisitorServices
from mulligan.jobs.sentences import CLASS_MEANINGS
from mulligan.manifest.declared import load_kinds
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.retries.backoff import Backoff
from mulligan.retries.policy import Then
from mulligan.retries.preview import ClassPreview, PlannedAttempt
from mulligan.retries.service import (
    MAX_TEXT_CHARS,
    FailureSimulation,
    PolicyExplanation,
    RuleHits,
    count_rule_hits,
    list_attempts_by_rule,
    simulate_failure,
)

# --- Rules ---

RETRIED = Badge("rotate-cw", "retried", "good")
NOT_RETRIED = Badge("x", "not retried", "bad")
SHADOW = Badge("circle-dashed", "in shadow", "calm")
INTERNAL_RULES = {
    "handler.declared": "the handler returned or raised Fail(…) with its own code",
    "unknown": "no rule matches",
}
SHOWN_APART = ("id", "code", "cls")  # fields of a rule that its page shows elsewhere
DEATH_VERBS = frozenset({"die"})
RETRY_VERBS = frozenset({"retry", "lose", "hold"})


class RuleCount(NamedTuple):
    """How often a rule matched, and what followed."""

    hits: int = 0
    retried: int = 0
    died: int = 0
    last: Micros = 0

    def add(self, row: RuleHitRow) -> RuleCount:
        """Return the count with the attempts of a row added."""
        retried = row.n if row.verb in RETRY_VERBS else 0
        died = row.n if row.verb in DEATH_VERBS else 0
        return RuleCount(
            self.hits + row.n, self.retried + retried, self.died + died, max(self.last, row.last)
        )


class RuleTable(NamedTuple):
    """The hits of all rules, and how often each matched."""

    hits: RuleHits
    kind: str
    counts: Mapping[str, RuleCount]


def rule_table(hits: RuleHits, kind: str) -> RuleTable:
    """Count the hits of each rule. `kind` is the kind that the screen shows, or empty."""
    return RuleTable(hits, kind, _count_hits(hits.rows))


def rule_rows(services: VisitorServices, table: RuleTable) -> list[dict[str, Any]]:
    """Return custom rules in the order in which they apply, then other rules that matched."""
    custom = _custom_rules(services, table.kind)
    rows = [_rule_row(position, rule, "custom", table) for position, rule in enumerate(custom, 1)]
    custom_ids = {rule.id for rule in custom}
    others = [name for name in table.counts if name not in custom_ids]
    others.sort(key=lambda name: -table.counts[name].hits)
    return [*rows, *(_other_row(name, table) for name in others)]


def rule_page(services: VisitorServices, name: str, table: RuleTable) -> dict[str, Any]:
    """Build the context of the page of one rule."""
    custom = {rule.id: rule for rule in _custom_rules(services, "")}
    rule = custom.get(name) or _builtin_rules().get(name)
    if rule is None and name not in table.counts and name not in INTERNAL_RULES:
        message = f"no rule {name!r:.80}: it is in no table and has matched nothing recently"
        raise NotFound(message)
    shadows = [row for row in shadow_rows(table.hits) if row["rule"] == name]
    if rule is None:
        return {"row": _other_row(name, table), "definition": [], "shadows": shadows}
    origin = "custom" if name in custom else "built in"
    definition = [
        _named_setting(key, getattr(rule, key)) for key in rule.to_dict() if key not in SHOWN_APART
    ]
    row = _rule_row(0, rule, origin, table)
    return {"row": row, "definition": definition, "shadows": shadows}


def _custom_rules(services: VisitorServices, kind: str) -> list[Rule]:
    """Return the rules of a kind and its app; without a kind those of all kinds, each once."""
    with services.store.read() as tx:
        kinds = load_kinds(tx)
    if kind in kinds:
        specs = [kinds[kind]]
    else:
        specs = [spec for name, spec in kinds.items() if not name.startswith(SYSTEM_PREFIX)]
    rules: dict[str, Rule] = {}
    for spec in specs:
        for rule in load_rulebook(spec.rules).rules:
            rules.setdefault(rule.id, rule)
    for rule in load_configured_rules(services.settings):
        rules.setdefault(rule.id, rule)
    return list(rules.values())


@cache
def _builtin_rules() -> dict[str, Rule]:
    return {rule.id: rule for rule in RULES}


def _count_hits(rows: Iterable[RuleHitRow]) -> dict[str, RuleCount]:
    counts: dict[str, RuleCount] = {}
    for row in rows:
        for name in filter(None, (row.rule, row.would_rule)):
            counts[name] = counts.get(name, RuleCount()).add(row)
    return counts


def _rule_row(position: int, rule: Rule, origin: str, table: RuleTable) -> dict[str, Any]:
    return {
        "position": position,
        "id": rule.id,
        "conditions": _conditions(rule),
        "code": rule.code,
        "cls": str(rule.cls),
        "badge": _rule_badge(rule),
        "origin": origin,
        "terms": ", ".join(
            " ".join(_named_setting(name, getattr(rule, name))) for name in rule.terms
        ),
        **_hit_columns(rule.id, table),
    }


def _rule_badge(rule: Rule) -> Badge:
    if rule.shadow:
        return SHADOW
    return RETRIED if rule.retryable else NOT_RETRIED


def _other_row(name: str, table: RuleTable) -> dict[str, Any]:
    builtin = _builtin_rules().get(name)
    if builtin is not None:
        return _rule_row(0, builtin, "built in", table)
    rows = [row for row in table.hits.rows if row.rule == name]
    codes = sorted({row.code for row in rows if row.code})
    classes = sorted({row.cls for row in rows if row.cls})
    is_retryable = bool({Cls(cls) for cls in classes} & RETRYABLE)
    return {
        "position": 0,
        "id": name,
        "conditions": INTERNAL_RULES.get(name, "detected by Mulligan itself"),
        "code": ", ".join(codes[:3]),
        "cls": ", ".join(classes),
        "badge": RETRIED if is_retryable else NOT_RETRIED,
        "origin": "built in",
        "terms": "",
        **_hit_columns(name, table),
    }


def _hit_columns(name: str, table: RuleTable) -> dict[str, Any]:
    count = table.counts.get(name, RuleCount())
    last = time_label(count.last, table.hits.now) if count.last else None
    query = f"?kind={quote(table.kind)}" if table.kind else ""
    return {
        "hits": count.hits,
        "retried": count.retried,
        "died": count.died,
        "last": last,
        "link": f"/policies/rules/{quote(name, safe='')}{query}",
    }


def _conditions(rule: Rule) -> str:
    """Summarise the conditions of a rule."""
    definition = rule.to_dict()
    parts = []
    for name in (*NAME_CONDITIONS, *NUMBER_CONDITIONS, "message"):
        if name in definition:
            label = name.replace("_", " ")
            parts.append(f"{label} {_alternatives(definition[name])}")
    return "; ".join(parts)


def _alternatives(value: Any) -> str:
    values = value if isinstance(value, list | tuple) else [value]
    text = " or ".join(str(one) for one in values[:3])
    if len(values) > 3:
        text += f" … and {len(values) - 3} more"
    return text


# --- Shadow rules and policies ---


def shadow_rows(hits: RuleHits) -> list[dict[str, Any]]:
    """Return what rules and policies in shadow would have changed."""
    return [*_shadow_rule_rows(hits.rows), *_shadow_policy_rows(hits.rows)]


def _shadow_rule_rows(rows: Iterable[RuleHitRow]) -> Iterator[dict[str, Any]]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        if row.would_rule:
            was = f"{row.code} ({row.cls})"
            would = f"{row.would_code} ({row.would_cls})"
            counts[row.would_rule, was, would] += row.n
    for (rule, was, would), count in counts.most_common():
        yield _shadow_row(rule, f"rule {rule}", was, would, count)


def _shadow_policy_rows(rows: Iterable[RuleHitRow]) -> Iterator[dict[str, Any]]:
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.would_verb:
            counts[row.verb, row.would_verb] += row.n
    for (was, would), count in counts.most_common():
        yield _shadow_row("", "shadow policy", was, would, count)


def _shadow_row(rule: str, name: str, was: str, would: str, count: int) -> dict[str, Any]:
    return {
        "rule": rule,
        "name": name,
        "was": was,
        "would": would,
        "count": count,
        "same": was == would,
    }


# --- Screens ---

NUMBER_FIELDS = ("http_status", "exit_code", "signal", "errno")
TEXT_FIELDS = ("exception_type", "provider_code", "program")
EMPTY_FORM: Mapping[str, str] = {"text": "", **dict.fromkeys((*TEXT_FIELDS, *NUMBER_FIELDS), "")}
MAX_DIGITS = 6
VERB_LABELS = {
    "retry": "retried",
    "die": "dead",
    "hold": "held, not counted",
    "lose": "lost, retried",
}


class PolicyScreens:
    """The policies screen, its what-if form, and the page of one rule."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen(
        "/policies", MenuEntry("More", 6, "policies", "Policies", "sliders-horizontal", shared=True)
    )
    @screen("/policies/what-if")
    async def show(self, request: Request, kind: str = "") -> Response:
        values = await self._renderer.read(
            request, lambda services: _load(services, kind), shared=True
        )
        return self._renderer.page(
            request,
            "policies.html",
            "policies",
            form=EMPTY_FORM,
            shell_command=_shell_command(EMPTY_FORM, kind),
            result=None,
            error="",
            **values,
        )

    @form_route("/policies/what-if")
    async def what_if(self, request: Request) -> Response:
        """Classify a pasted error. It is a POST, so that the error is not part of the address."""

        def work(services: VisitorServices, fields: dict[str, str]) -> dict[str, Any]:
            form = {name: fields.get(name, "") for name in EMPTY_FORM}
            kind = fields.get("kind", "")
            command = _shell_command(form, kind)
            page = {**_load(services, kind), "form": form, "shell_command": command}
            try:
                facts = _parse_facts(form)
                found = simulate_failure(
                    services.store, services.settings, page["kind"], form["text"], facts
                )
            except MulliganError as refused:
                return {**page, "result": None, "error": str(refused)}
            return {**page, "result": _simulation(found), "error": ""}

        values = await self._renderer.submit(request, work, Role.VIEWER, shared=True)
        return self._renderer.page(request, "policies.html", "policies", still=True, **values)

    @screen("/policies/rules/{rule:path}")
    async def rule(self, request: Request, rule: str, kind: str = "") -> Response:
        """Show one rule with the newest failures that it matched."""

        def load(services: VisitorServices) -> dict[str, Any]:
            hits = count_rule_hits(services.store, kind=kind or None)
            page = rule_page(services, rule, rule_table(hits, ""))
            rows = list_attempts_by_rule(services.store, rule, kind=kind or None)
            return {**page, "kind": kind, "rows": [_attempt_row(row, hits.now) for row in rows]}

        values = await self._renderer.read(request, load, shared=True)
        return self._renderer.page(request, "rule.html", "policies", **values)


def _load(services: VisitorServices, kind: str) -> dict[str, Any]:
    policies = services.policy
    explanation = policies.explain(kind) if kind else policies.system()
    hits = count_rule_hits(services.store, kind=kind or None)
    return {
        "kind": kind,
        "kinds": policies.kinds(),
        **_policy(explanation),
        "rules": rule_rows(services, rule_table(hits, kind)),
        "shadows": shadow_rows(hits),
        "hit_total": _hit_total(hits),
    }


def _hit_total(hits: RuleHits) -> str:
    total = f"{sum(row.n for row in hits.rows):,} failures"
    if hits.partial:
        return f"{total} of the newest 20,000 attempts"
    return f"{total} in 7 days"


def _policy(explanation: PolicyExplanation) -> dict[str, Any]:
    fields = [
        (*_named_setting(field.name, field.value), field.origin) for field in explanation.fields
    ]
    return {
        "queue": explanation.queue,
        "fields": fields,
        "classes": _class_cards(explanation.classes),
    }


DURATIONS = ("max_age", "timeout")  # settings in seconds
SIZES = ("memory_limit",)  # settings in bytes


def _named_setting(name: str, value: Any) -> tuple[str, str]:
    """Return a setting of a policy or a rule for people: ("max age", "2 d")."""
    return name.replace("_", " "), _format_setting(name, value)


def _format_setting(name: str, value: Any) -> str:
    if value is None or value in ("", ()):
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Backoff):
        return value.describe()
    if isinstance(value, Then):
        parts = (_named_setting(*item) for item in value.to_dict().items())
        return ", ".join(" ".join(part) for part in parts)
    if isinstance(value, list | tuple):
        separator = "; then " if name == "then" else ", "
        return separator.join(_format_setting("", one) for one in value)
    if name in DURATIONS:
        return format_duration(value)
    if name in SIZES:
        return format_size(value)
    return str(value)


def _class_cards(previews: Iterable[ClassPreview]) -> list[dict[str, Any]]:
    """Return a card for each different policy, with the classes that it applies to."""
    cards: dict[tuple[Any, ...], dict[str, Any]] = {}
    for preview in previews:
        card = _class_card(preview)
        # The dots of a curve name the delays: equal cards have equal curves.
        same = cards.setdefault(tuple(card.values()), {**card, "classes": []})
        same["classes"].append((preview.cls.value, CLASS_MEANINGS.get(preview.cls, "")))
    return list(cards.values())


def _class_card(preview: ClassPreview) -> dict[str, Any]:
    retries = preview.calendar[1:]
    why = preview.why
    if preview.cls not in RETRYABLE:
        why = "a retry does not fix these failures"
    return {
        "retried": preview.retried,
        "why": as_sentence(why[:1].upper() + why[1:]),
        "limit_origin": preview.limit_origin,
        "backoff_origin": preview.backoff_origin,
        "curve": _curve(retries),
        "delays": _delays(retries),
        "longest": format_duration(retries[-1].at_latest) if retries else "",
    }


def _curve(retries: Sequence[PlannedAttempt]) -> Curve | None:
    if not retries:
        return None
    labels = []
    for number, retry in enumerate(retries, 1):
        delay = f"{format_duration(retry.earliest)} to {format_duration(retry.latest)}"
        labels.append(f"retry {number}: after {format_duration(retry.wait)} ({delay})")
    delays = [Delay(retry.earliest, retry.wait, retry.latest) for retry in retries]
    return delay_curve(delays, labels)


def _delays(retries: Sequence[PlannedAttempt]) -> str:
    text = ", ".join(format_duration(retry.wait) for retry in retries[:8])
    return f"{text} …" if len(retries) > 8 else text


# --- What-if ---


MAX_SHELL_TEXT = 200
EXAMPLE = "connection reset by peer"


def _shell_command(form: Mapping[str, str], kind: str) -> str:
    """Return the command that classifies the same error text in a shell."""
    text = one_line(form["text"], MAX_SHELL_TEXT) or EXAMPLE
    command = f"mulligan policy test {shlex.quote(text)}"
    return f"{command} --kind {shlex.quote(kind)}" if kind else command


def _parse_facts(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the form that describe the error. At least one is required."""
    facts: dict[str, Any] = {name: form[name] for name in TEXT_FIELDS if form[name]}
    for name in NUMBER_FIELDS:
        if form[name]:
            facts[name] = _parse_number(name, form[name])
    if not facts and not form["text"]:
        message = "describe the error: its text, its type, a status or an exit code"
        raise Refused(message)
    if len(form["text"]) > MAX_TEXT_CHARS:
        message = (
            f"the text has {len(form['text']):,} characters; the maximum is {MAX_TEXT_CHARS:,}"
        )
        raise Refused(message)
    return facts


def _parse_number(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= MAX_DIGITS):
        message = f"{name.replace('_', ' ')}: {text!r:.40} is not a whole number"
        raise Refused(message)
    return int(text)


def _simulation(found: FailureSimulation) -> dict[str, Any]:
    failure = found.failure
    retries = found.retries.attempts[1:]
    retry_after = ""
    if failure.retry_after is not None:
        retry_after = format_duration(failure.retry_after)
    group = failure.fingerprint if found.known_cause else ""
    return {
        "code": failure.code,
        "cls": failure.cls.value,
        "means": CLASS_MEANINGS.get(failure.cls, ""),
        "rule": failure.rule,
        "retried": found.retries.retried,
        "public": failure.public,
        "retry_after": retry_after,
        "group": group,
        "evidence": [(name, str(value)) for name, value in failure.evidence.items()],
        "also": ", ".join(failure.judged.get("also", ())),
        "shadow": found.shadow,
        "retries": [_retry(retry) for retry in retries],
        "curve": _curve(retries),
        "end": found.retries.end or "and so on",
    }


def _retry(retry: PlannedAttempt) -> dict[str, Any]:
    between = ""
    if retry.earliest != retry.latest:
        between = f"{format_duration(retry.earliest)} to {format_duration(retry.latest)}"
    return {
        "attempt": retry.attempt,
        "delay": format_duration(retry.wait),
        "between": between,
        "latest": format_duration(retry.at_latest),
    }


def _attempt_row(row: ClassifiedAttemptRow, now: Micros) -> dict[str, Any]:
    return {
        "job": row.job_id,
        "kind": row.kind,
        "attempt": row.attempt,
        "code": row.code or "",
        "cls": row.cls or "",
        "decision": VERB_LABELS.get(row.verb, row.verb),
        "at": time_label(row.ended_at, now),
        "public": row.public or "",
    }
