"""`app.policy`: which policy holds for a kind, who says each part of it, and when its attempts would come."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, NamedTuple

from mulligan.config import Settings
from mulligan.core.attempt import Cls
from mulligan.engine.backtest import Backtest, backtested
from mulligan.engine.declared import stored_kinds, stored_queues
from mulligan.engine.enqueue import policy_text
from mulligan.engine.kind import Kind
from mulligan.engine.kinds import OURS, KindSpec, QueueSpec, Registry, checked_name
from mulligan.engine.layers import Layers
from mulligan.engine.rules import book_of
from mulligan.errors import Moment, NotFound
from mulligan.policy.backoff import Exponential, Fixed, Table
from mulligan.policy.outlook import DELAYS, ClassOutlook, Origin, harmless, outlook
from mulligan.policy.retry import EffectivePolicy, Policy, Scope, Then, as_ladder
from mulligan.policy.rule import Rule
from mulligan.store.base import Store

WEEK = timedelta(days=7)
SYSTEM = ""  # the name under which the system layer alone is explained


class Setting(NamedTuple):
    """One field of an effective policy, the scope that says it, and where exactly."""

    name: str
    value: Any
    scope: Scope
    origin: str  # "kind render", "queue media", "environment MULLIGAN_RETRY__MAX_RETRIES", "default" …


@dataclass(frozen=True, slots=True)
class PolicyExplanation:
    """The effective policy of a kind. `classes` holds every class, those that are retried first.

    `rules`: those of its failure rules that change more than a name, such as a limit or a backoff for their code.
    """

    kind: str
    queue: str
    fields: tuple[Setting, ...]
    classes: tuple[ClassOutlook, ...]
    rules: tuple[Rule, ...] = ()

    def field(self, name: str) -> Setting:
        return next(field for field in self.fields if field.name == name)

    def of_class(self, cls: Cls | str) -> ClassOutlook:
        return next(one for one in self.classes if one.cls == cls)

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "kind": self.kind,
            "queue": self.queue,
            "fields": [{**field._asdict(), "value": _plain(field.value)} for field in self.fields],
            "classes": [_plain_class(one) for one in self.classes],
            "rules": [_plain_rule(rule) for rule in self.rules],
        }


def _plain_class(one: ClassOutlook) -> dict[str, Any]:
    record = {field.name: _plain(getattr(one, field.name)) for field in fields(one)}
    record["calendar"] = [found._asdict() for found in one.calendar]
    return {"class": record.pop("cls"), **record}


def _plain_rule(rule: Rule) -> dict[str, Any]:
    steps = {"then": [_plain(step) for step in as_ladder(rule.then)]} if rule.then else {}
    return rule.to_plain() | steps


def _plain(value: Any) -> Any:
    if isinstance(value, Table | Exponential | Fixed):
        return Policy(backoff=value).to_plain()["backoff"]
    if isinstance(value, Then):
        said = value.to_plain()
        return said | {"settings": harmless(value.settings)} if value.settings else said
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


class Policies:
    """What holds, from the app's own declarations and the stored manifests of others."""

    def __init__(
        self, store: Callable[[], Store], settings: Callable[[], Settings], registry: Registry | None = None
    ) -> None:
        self._open = store
        self._settings = settings
        self._registry = registry or Registry()

    def kinds(self) -> list[str]:
        """Every kind that can be explained."""
        return sorted(name for name in self._declared()[0] if not name.startswith(OURS))

    def explain(
        self,
        kind: str | Kind[Any, Any],
        *,
        queue: str | None = None,
        policy: Policy | None = None,
        max_retries: int | None = None,
    ) -> PolicyExplanation:
        """Of a kind; with what `options()` would say, of such a job."""
        kinds, queues = self._declared()
        name = kind.name if isinstance(kind, Kind) else str(kind)
        if name not in kinds:
            raise NotFound(_unknown(name, kinds))
        layers = Layers(self._settings().retry, kinds, queues)
        where = checked_name("queue", queue or kinds[name].queue)
        effective = layers.for_kind(name, queue=where, policy=policy_text(policy), max_retries=max_retries)
        found = explained(name, where, effective, self._settings())
        return replace(found, rules=tuple(rule for rule in self._rules(name, kinds[name]) if rule.terms()))

    def _rules(self, name: str, spec: KindSpec) -> Iterable[Rule]:
        """Its own, then its app's: in the order in which they are asked."""
        handler = self._registry.handlers.get(name)
        books = [book_of(spec.rules)] if handler is None else handler.books()
        return [rule for book in books for rule in book.rules]

    def system(self) -> PolicyExplanation:
        """What holds where nobody says anything."""
        effective = Layers(self._settings().retry, {}).for_kind(SYSTEM)
        return explained(SYSTEM, "", effective, self._settings())

    def backtest(self, rules: Iterable[Rule] = (), *, since: Moment = WEEK, kind: str | None = None) -> Backtest:
        """What these rules, asked before all others, would have done with the failures that are stored.

        Without rules: what today's tables would do. Reads at most the newest 50,000 attempts and writes nothing.
        """
        return backtested(self._open(), tuple(rules), since, kind)

    def _declared(self) -> tuple[Mapping[str, KindSpec], Mapping[str, QueueSpec]]:
        """What is declared here holds here; of other apps what their manifests say."""
        with self._open().read() as unit:
            kinds, queues = stored_kinds(unit), stored_queues(unit, unit.now())
        own = {name: handler.spec for name, handler in self._registry.handlers.items()}
        return {**kinds, **own}, {**queues, **self._registry.queues}


class AsyncPolicies:
    """The same, awaitable: each call on a thread."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    async def kinds(self) -> list[str]:
        return await asyncio.to_thread(self._policies.kinds)

    async def backtest(self, rules: Iterable[Rule] = (), **said: Any) -> Backtest:
        return await asyncio.to_thread(self._policies.backtest, rules, **said)

    async def explain(self, kind: str | Kind[Any, Any], **said: Any) -> PolicyExplanation:
        return await asyncio.to_thread(self._policies.explain, kind, **said)

    async def system(self) -> PolicyExplanation:
        return await asyncio.to_thread(self._policies.system)


def _unknown(kind: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(kind, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known kinds: {', '.join(sorted(known)) or 'none yet'}"
    return f"no kind {kind!r} in this app or a stored manifest; {hint}"


def explained(kind: str, queue: str, policy: EffectivePolicy, settings: Settings) -> PolicyExplanation:
    origin = _origins(kind, queue, settings)
    outlooks = [outlook(policy, cls, origin) for cls in Cls]
    return PolicyExplanation(
        kind=kind,
        queue=queue,
        fields=tuple(_fields(policy, origin)),
        classes=tuple(sorted(outlooks, key=lambda one: not one.retried)),
    )


def _origins(kind: str, queue: str, settings: Settings) -> Origin:
    names = {"kind": f"kind {kind}", "queue": f"queue {queue}", "job": "job"}

    def origin(scope: Scope, asked: Sequence[str]) -> str:
        """Of the system all that somebody has set; else that it is the default."""
        found = [settings.origin_of(name) for name in asked]
        set_by = ", ".join(dict.fromkeys(one for one in found if one != "default"))
        return names.get(scope) or set_by or "default"

    return origin


def _fields(policy: EffectivePolicy, origin: Origin) -> Iterator[Setting]:
    yield Setting("enabled", policy.enabled, "system", origin("system", ["retry.enabled"]))
    only = None if policy.only is None else tuple(sorted(policy.only))
    yield Setting("only", only, "system", origin("system", ["retry.only"]))
    for name in ("max_retries", "max_losses", "max_snoozes", "max_age", "retry_unknown", "backoff", "then"):
        scope: Scope = getattr(policy, f"{name}_from")
        asked = [f"retry.{part}" for part in (DELAYS if name == "backoff" else (name,))]
        yield Setting(name, getattr(policy, name), scope, origin(scope, asked))
