"""The rules an app adds: from `mulligan.toml`, from code, from ready packs. Asked before the built-in table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mulligan.config import Settings
from mulligan.core.errors import ConfigError
from mulligan.failures.matcher import EMPTY, Rulebook
from mulligan.failures.rules import Rule, wrong_in
from mulligan.retries.policy import Policy

PACKS = Path(__file__).parent / "packs"


@dataclass(frozen=True, slots=True)
class Pack:
    """Ready rules and the policy that goes with them, under one name."""

    name: str
    policy: Policy
    rules: tuple[Rule, ...]


class Rules:
    """`app.rules`: in order, those of `mulligan.toml` first, so that whoever runs the app has the last word."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._added: list[Rule] = []
        self._book: tuple[int, Rulebook] | None = None

    def add(self, *rules: Any) -> None:
        """Add rules, in order; an id stands for one rule only."""
        for rule in rules:
            if not isinstance(rule, Rule):
                message = f"app.rules.add takes Rule(...), not {rule!r:.80}"
                raise ConfigError(message)
            if rule.id in {known.id for known in self}:
                message = f"rule {rule.id!r} is there already; give one of them another id"
                raise ConfigError(message)
            self._added.append(rule)

    def use(self, name: str) -> Pack:
        """Add all rules of a ready pack, and hand it over for its policy."""
        found = pack(name)
        self.add(*found.rules)
        return found

    def all(self) -> tuple[Rule, ...]:
        return (*configured_rules(self._settings()), *self._added)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self.all())

    @property
    def book(self) -> Rulebook:
        """All of them, ready to be asked."""
        if self._book is None or self._book[0] != len(self._added):
            self._book = (len(self._added), Rulebook(self.all()))
        return self._book[1]


def configured_rules(settings: Settings) -> list[Rule]:
    """Those of `mulligan.toml`, and of the packs it names."""
    found = [Rule.from_plain(said, "mulligan.toml") for said in settings.rules]
    found += [rule for name in settings.packs for rule in pack(name).rules]
    if twin := _twin(found):
        message = f"rule {twin!r} is there twice in mulligan.toml and its packs; give one of them another id"
        raise ConfigError(message)
    return found


def _twin(rules: Iterable[Rule]) -> str:
    """An id that stands for two rules; empty if there is none."""
    return next(
        (name for name, times in Counter(rule.id for rule in rules).items() if times > 1), ""
    )


def kind_rules(kind: str, rules: Any) -> tuple[Rule, ...]:
    """The `rules=` of a kind."""
    given = (rules,) if isinstance(rules, Rule) else tuple(rules)
    for rule in given:
        if not isinstance(rule, Rule):
            message = f"kind {kind!r}: rules takes Rule(...), not {rule!r:.80}"
            raise ConfigError(message)
    if twin := _twin(given):
        message = f"kind {kind!r}: rule {twin!r} is there twice; give one of them another id"
        raise ConfigError(message)
    return given


def as_plain(rules: Iterable[Rule]) -> tuple[dict[str, Any], ...]:
    return tuple(rule.to_plain() for rule in rules)


def book_of(rules: Sequence[Mapping[str, Any]]) -> Rulebook:
    """From a manifest; a rule that a newer version wrote and we cannot read is left aside."""
    if not rules:
        return EMPTY
    found: list[Rule] = []
    for said in rules:
        try:
            found.append(Rule.from_plain(said, "the manifest"))
        except ConfigError:
            continue
    return Rulebook(found)


def pack_names() -> list[str]:
    return sorted(
        item.name.removesuffix(".toml") for item in PACKS.iterdir() if item.name.endswith(".toml")
    )


def pack(name: str) -> Pack:
    """A ready pack by its name, or one of your own by the path of its TOML file."""
    import tomllib  # noqa: PLC0415 - few apps name one

    path = Path(name)
    where = path if name.endswith(".toml") else PACKS / f"{name}.toml"
    try:
        said = tomllib.loads(where.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        message = f"no rule pack {name!r}; there are {', '.join(pack_names())}, or give the path of a .toml file"
        raise ConfigError(message) from None
    except OSError as error:
        message = f"rule pack {name!r} cannot be read: {error.strerror}"
        raise ConfigError(message) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"rule pack {name!r}: not valid TOML: {error}"
        raise ConfigError(message) from error
    return _pack(path.stem, said)


def _pack(name: str, said: Mapping[str, Any]) -> Pack:
    if unknown := sorted(said.keys() - {"about", "policy", "rules"}):
        message = (
            f"rule pack {name!r}: unknown part {unknown[0]!r}; it may have about, policy and rules"
        )
        raise ConfigError(message)
    policy, rules = said.get("policy", {}), said.get("rules", [])
    if (
        not isinstance(policy, dict)
        or not isinstance(rules, list)
        or not all(isinstance(rule, dict) for rule in rules)
    ):
        message = (
            f"rule pack {name!r}: policy is one table, [policy], and rules are tables, [[rules]]"
        )
        raise ConfigError(message)
    try:
        own = Policy.from_plain(policy)
    except ValueError as error:
        message = f"rule pack {name!r}: policy: {wrong_in(error)}"
        raise ConfigError(message) from error
    found = tuple(Rule.from_plain(rule, f"pack {name!r}") for rule in rules)
    if twin := _twin(found):
        message = f"rule pack {name!r}: rule {twin!r} is there twice; give one of them another id"
        raise ConfigError(message)
    return Pack(name, own, found)
