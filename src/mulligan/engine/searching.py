"""Words in quotes: which failure groups, ids and unique keys they name. Never payloads, and never a whole table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mulligan.engine.filters import Filter
from mulligan.engine.indexing import by_index
from mulligan.engine.kinds import KindSpec
from mulligan.job import AttemptRow, JobRow
from mulligan.store.base import Unit
from mulligan.store.matching import Where

GROUPS_READ = 500  # the newest
MOST_FOUND = 200


def resolved(
    unit: Unit,
    where: Filter,
    owner: str | None = None,
    kinds: Mapping[str, KindSpec] = MappingProxyType({}),
    *,
    private: bool = True,
) -> Where:
    """The filter with what its words name in their place. For an owner only their own jobs speak, in public.

    `kinds`: what is known of kinds beyond the stored manifests. `private`: are both halves searched?
    """
    meant = dict(by_index(unit, where, kinds))
    words = meant.pop("words", None)
    return meant if words is None else _named(unit, meant, words, owner, private=private)


def _named(unit: Unit, rest: Filter, words: Sequence[str], owner: str | None, *, private: bool) -> Where:
    groups = _groups(unit, words, owner, private=private)
    ids = _ids(unit, words[0]) if len(words) == 1 else []
    if groups and not ids and "group" not in rest:
        rest["group"] = tuple(groups)
    else:
        rest["near"] = (*(f"id:{one}" for one in ids), *(f"group:{one}" for one in groups))
    return rest


def _ids(unit: Unit, word: str) -> list[str]:
    """Jobs whose id or unique key begins so."""
    return list(dict.fromkeys([*unit.find(word, MOST_FOUND), *unit.find_keys(word, MOST_FOUND)]))


def _groups(unit: Unit, words: Sequence[str], owner: str | None, *, private: bool) -> list[str]:
    """Groups whose newest member says all of them: in its name, code or message, of either half."""
    wanted = [word.casefold() for word in words]
    of: dict[str, str] = {} if owner is None else {"owner": owner}
    samples = unit.group_samples([name for name, _ in unit.group_names(owner, GROUPS_READ)], of)
    ids = [row.id for row in samples.values()]
    attempts = unit.latest_attempts(ids) if owner is None and private else {}
    said = {name: _text(name, row, attempts.get(row.id)) for name, row in samples.items()}
    return [name for name, text in said.items() if all(word in text for word in wanted)][:MOST_FOUND]


def _text(name: str, row: JobRow, attempt: AttemptRow | None) -> str:
    error = json.loads(row.error or "{}")
    parts = [name, str(error.get("code", "")), str(error.get("message", ""))]
    if attempt is not None and attempt.verb == "die":
        private = json.loads(attempt.private or "{}")
        parts += [value for key, value in private.items() if isinstance(value, str) and key in SEARCHED]
    return "\n".join(parts).casefold()


SEARCHED = frozenset({"message", "stderr", "detail"})  # of the private half: what was said, not where
