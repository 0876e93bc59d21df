"""Search for jobs by anything a person types or pastes: an id, a name, a word, a filter.

Each part that is no filter is replaced by the filter that it most likely means.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import NamedTuple

from mulligan.app.services import StoreServices
from mulligan.core.errors import NotFound, Refused
from mulligan.core.ids import CUT_MARK, LENGTH, SHORT_LENGTH
from mulligan.core.job import State
from mulligan.jobs.filter import FIELDS, PHASES, is_argument_path, parse_filter
from mulligan.jobs.queries import JobQueries
from mulligan.manifest.declared import load_kinds

UNINDEXED_PERIOD = "7d"
_ID = re.compile(rf"{CUT_MARK}?[0-9a-z]{{{SHORT_LENGTH},{LENGTH}}}")
_GROUP = re.compile(r"v2-[0-9a-f]{4,}")
_CODE = re.compile(r"[A-Z][A-Z0-9_]{2,}")


class Interpretation(NamedTuple):
    """Meaning of a search: one job, or a filter."""

    filter: str
    job_id: str = ""


def interpret_search(
    services: StoreServices, text: str, owner: str | None = None
) -> Interpretation:
    """Return what a person most likely looks for. A valid filter stays as it is."""
    text = text.strip()
    if _ID.fullmatch(text):
        job_id = _find_job(services, text, owner)
        if job_id:
            return Interpretation("", job_id)
    if _is_filter(text):
        return Interpretation(text)
    try:
        parts = shlex.split(text)
    except ValueError:  # a quote without its end
        parts = text.replace('"', " ").replace("'", " ").split()
    meant = [part if _is_filter(part) else _interpret(services, part, owner) for part in parts]
    return Interpretation(" ".join(meant))


# --- Completion ---

MAX_COMPLETIONS = 8
COMPLETED_BY_VALUE = ("kind", "queue", "owner", "state")  # also without the field's name
MAX_GROUPS = 100  # whose codes are proposed


class Completion(NamedTuple):
    """A way to continue a search: the whole text of the box, and what it is."""

    text: str
    label: str
    what: str  # field, kind, queue, code, owner, state, phase


def complete_search(
    services: StoreServices, text: str, owner: str | None = None
) -> list[Completion]:
    """Return how the last word of a search can continue: a field, or a value of its field."""
    before, _, word = text.rpartition(" ")
    name, colon, start = word.partition(":")
    fields: tuple[str, ...] = (name,)
    if not colon:
        fields = _fields_of_value(word)
        start = word
    found = []
    for field in fields:
        for value in _matching(_field_values(services, field, start, owner), start):
            completed = f"{before} {field}:{shlex.quote(value)} "
            found.append(Completion(completed.lstrip(), value, field))
    if not colon:
        for field in FIELDS:
            if field.startswith(word):
                completed = f"{before} {field}:"
                found.append(Completion(completed.lstrip(), f"{field}:", "field"))
    return found[:MAX_COMPLETIONS]


def _fields_of_value(word: str) -> tuple[str, ...]:
    """Return the fields whose values a word may begin. Codes are read only for capital letters."""
    if not word:
        return ()
    return ("code", *COMPLETED_BY_VALUE) if word.isupper() else COMPLETED_BY_VALUE


def _matching(values: Iterable[str], text: str) -> list[str]:
    """Return the values that contain a text, those that begin with it first."""
    lowered = text.lower()
    beginning = []
    containing = []
    for value in values:
        if value.lower().startswith(lowered):
            beginning.append(value)
        elif lowered in value.lower():
            containing.append(value)
    return beginning + containing


def _field_values(
    services: StoreServices, field: str, start: str, owner: str | None
) -> Iterable[str]:
    """Return known values of a field. Owners are read by their beginning, as there may be many."""
    match field:
        case "state":
            return [state.value for state in State]
        case "phase":
            return PHASES
        case "kind":
            return [kind.name for kind in services.kinds.list()]
        case "queue":
            return [queue.name for queue in services.queues.list()]
        case "code":
            groups = services.failures.groups(owner=owner, limit=MAX_GROUPS)
            return sorted({group.code for group in groups if group.code})
        case "owner" if owner is None:
            with services.store.read() as tx:
                return JobQueries(tx).list_owners(start, MAX_COMPLETIONS)
    return ()


def _is_filter(text: str) -> bool:
    try:
        parse_filter(text)
    except Refused:
        return False
    return True


def _find_job(services: StoreServices, text: str, owner: str | None) -> str:
    try:
        job_id = services.jobs.resolve(text)
        return services.jobs.get(job_id, owner=owner).id
    except (NotFound, Refused):
        return ""


def _interpret(services: StoreServices, part: str, owner: str | None) -> str:
    """Return the filter for one word, or for a word and its value: `customer:23`."""
    name, _, value = part.partition(":")
    if name in FIELDS:
        return part  # a wrong value: the filter's error says what to write
    is_address = value.startswith("//")
    if value and not is_address and is_argument_path(name):
        return _argument_filter(services, name, value)
    if _GROUP.fullmatch(part):
        return f"group:{part}"
    if part in {kind.name for kind in services.kinds.list()}:
        return f"kind:{part}"
    if part in {queue.name for queue in services.queues.list()}:
        return f"queue:{part}"
    if _CODE.fullmatch(part):
        return f"code:{part}"
    if _is_owner(services, part, owner):
        return f"owner:{shlex.quote(part)}"
    return _quote(part)


def _quote(words: str) -> str:
    without_quotes = words.replace('"', "")
    return f'"{without_quotes}"'


def _argument_filter(services: StoreServices, path: str, value: str) -> str:
    """Return the filter for an argument. One without an index needs a kind and a period."""
    term = f"arg.{path}:{shlex.quote(value)}"
    with services.store.read() as tx:
        kinds = load_kinds(tx)
    argument = path.partition(".")[0]
    having = []
    for kind in kinds.values():
        if argument in kind.schema.get("properties", {}):
            having.append(kind)
    if not having:
        return _quote(f"{path}:{value}")
    if any(path in kind.index for kind in having):
        return term
    names = ",".join(sorted(kind.name for kind in having))
    return f"kind:{names} since:{UNINDEXED_PERIOD} {term}"


def _is_owner(services: StoreServices, name: str, owner: str | None) -> bool:
    term = f"owner:{shlex.quote(name)}"
    return _is_filter(term) and bool(services.jobs.list(term, limit=1, owner=owner))
