"""Rules that an app adds to the built-in table: from `mulligan.toml`, code and rule packs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mulligan.config import Settings
from mulligan.core.errors import ConfigError
from mulligan.failures.matcher import EMPTY_RULEBOOK, Rulebook
from mulligan.failures.rules import Rule, format_validation_error
from mulligan.retries.policy import Policy

PACKS = Path(__file__).parent / "packs"


@dataclass(frozen=True, slots=True)
class Pack:
    """Ready-made rules and a policy that fits them."""

    name: str
    policy: Policy
    rules: tuple[Rule, ...]


class Rules:
    """`app.rules`: the rules of the app, in order.

    Those of `mulligan.toml` come first, so that they win over rules in code.
    """

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._added: list[Rule] = []
        self.version = 0  # grows with every added rule

    def add(self, *rules: Any) -> None:
        """Add rules, in order. Every id may be used once."""
        for rule in rules:
            if not isinstance(rule, Rule):
                message = f"app.rules.add takes Rule(...), not {rule!r:.80}"
                raise ConfigError(message)
            if rule.id in {known.id for known in self}:
                message = f"rule {rule.id!r} already exists. Use another id."
                raise ConfigError(message)
            self._added.append(rule)
            self.version += 1
            vars(self).pop("rulebook", None)

    def use(self, name: str) -> Pack:
        """Add all rules of a pack. Return the pack, so that its policy can be used too."""
        found = pack(name)
        self.add(*found.rules)
        return found

    def all(self) -> tuple[Rule, ...]:
        """Return all rules, in order."""
        return (*load_configured_rules(self._settings()), *self._added)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self.all())

    @cached_property
    def rulebook(self) -> Rulebook:
        """All rules, indexed. Computed again after a rule is added."""
        return Rulebook(self.all())


def load_configured_rules(settings: Settings) -> list[Rule]:
    """Return the rules of `mulligan.toml`, then those of the packs that it names."""
    rules = [Rule.from_dict(data, "mulligan.toml") for data in settings.rules]
    for name in settings.packs:
        rules += pack(name).rules
    if duplicate := _find_duplicate(rules):
        sources = "mulligan.toml and its packs"
        message = f"rule {duplicate!r} is defined twice in {sources}. Rename one of them."
        raise ConfigError(message)
    return rules


def _find_duplicate(rules: Iterable[Rule]) -> str:
    """Return an id that two rules share, or ""."""
    counts = Counter(rule.id for rule in rules)
    return next((name for name, count in counts.items() if count > 1), "")


def validate_kind_rules(kind: str, rules: Any) -> tuple[Rule, ...]:
    """Validate the `rules=` of a kind: one rule or several."""
    validated = (rules,) if isinstance(rules, Rule) else tuple(rules)
    for rule in validated:
        if not isinstance(rule, Rule):
            message = f"kind {kind!r}: rules takes Rule(...), not {rule!r:.80}"
            raise ConfigError(message)
    if duplicate := _find_duplicate(validated):
        message = f"kind {kind!r}: rule {duplicate!r} is defined twice. Rename one of them."
        raise ConfigError(message)
    return validated


def rules_to_dicts(rules: Iterable[Rule]) -> tuple[dict[str, Any], ...]:
    """Return rules as JSON, for the manifest."""
    return tuple(rule.to_dict() for rule in rules)


def load_rulebook(rules: Sequence[Mapping[str, Any]]) -> Rulebook:
    """Load rules from a manifest. Skip those that a newer version wrote and this one rejects."""
    if not rules:
        return EMPTY_RULEBOOK
    loaded: list[Rule] = []
    for data in rules:
        try:
            loaded.append(Rule.from_dict(data, "the manifest"))
        except ConfigError:
            continue
    return Rulebook(loaded)


# --- Packs ---


def list_packs() -> list[str]:
    """Return the names of the packs that come with Mulligan."""
    files = [item.name for item in PACKS.iterdir()]
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def pack(name: str) -> Pack:
    """Load a pack by its name, or from a TOML file by its path."""
    import tomllib  # noqa: PLC0415 - few apps use a pack

    path = Path(name)
    file = path if name.endswith(".toml") else PACKS / f"{name}.toml"
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        message = (
            f"unknown rule pack {name!r}."
            f" Use one of {', '.join(list_packs())}, or the path of a .toml file."
        )
        raise ConfigError(message) from None
    except OSError as error:
        message = f"cannot read rule pack {name!r}: {error.strerror}"
        raise ConfigError(message) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"rule pack {name!r}: not valid TOML: {error}"
        raise ConfigError(message) from error
    return _parse_pack(path.stem, data)


def _parse_pack(name: str, data: Mapping[str, Any]) -> Pack:
    label = f"rule pack {name!r}"
    unknown = sorted(data.keys() - {"about", "policy", "rules"})
    if unknown:
        message = f"{label}: unknown key {unknown[0]!r}. Use about, policy and rules."
        raise ConfigError(message)
    policy_data = data.get("policy", {})
    rules_data = data.get("rules", [])
    is_list = isinstance(rules_data, list) and all(isinstance(rule, dict) for rule in rules_data)
    if not isinstance(policy_data, dict) or not is_list:
        message = f"{label}: policy must be a table, [policy], and rules must be tables, [[rules]]"
        raise ConfigError(message)
    try:
        policy = Policy.from_dict(policy_data)
    except ValueError as error:
        message = f"{label}: policy: {format_validation_error(error)}"
        raise ConfigError(message) from error
    rules = tuple(Rule.from_dict(rule, f"pack {name!r}") for rule in rules_data)
    if duplicate := _find_duplicate(rules):
        message = f"{label}: rule {duplicate!r} is defined twice. Rename one of them."
        raise ConfigError(message)
    return Pack(name, policy, rules)
