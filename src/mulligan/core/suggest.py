"""Advice in errors and warnings about calls: the nearest valid name, the line of the caller."""

from __future__ import annotations

import difflib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from mulligan.core.errors import UnknownOption

P = ParamSpec("P")
R = TypeVar("R")

PACKAGE = str(Path(__file__).parent.parent)
# What other libraries call our options.
SYNONYMS = {
    "actor_name": "name",
    "broker": "url",
    "broker_url": "url",
    "database_url": "url",
    "dsn": "url",
    "countdown": "delay",
    "eta": "delay",
    "exception_type": "type",
    "expires": "deadline",
    "job_id": "unique",
    "queue_name": "queue",
    "queueing_lock": "unique",
    "soft_time_limit": "timeout",
    "task_id": "unique",
    "task_name": "name",
    "time_limit": "timeout",
    "ttl": "deadline",
}


# The fields of `EnqueueOptions`.
ENQUEUE_OPTIONS = frozenset(
    (
        "queue",
        "delay",
        "priority",
        "owner",
        "unique",
        "batch",
        "must_have",
        "max_retries",
        "policy",
        "timeout",
        "deadline",
        "connection",
        "traceparent",
        "tracestate",
    )
)
# What to write instead of an option that has no counterpart with another name.
ADVICE = {
    ("Unique()", "key"): "Pass a key of one job with options(unique=…)",
    ("schedule()", "every"): 'Write cron with six fields: "*/10 * * * * *" is every 10 seconds',
    ("schedule()", "interval"): 'Write cron with six fields: "*/10 * * * * *" is every 10 seconds',
    ("options()", "run_at"): "Pass the time as delay=",
    ("list()", "state"): 'Write a filter: list("state:dead kind:render")',
    ("list()", "kind"): 'Write a filter: list("state:dead kind:render")',
    ("list()", "queue"): 'Write a filter: list("queue:mail")',
}


def find_enqueue_option(name: str) -> str:
    """Return the option of `options(…)` that a name means; empty if it means none."""
    option = SYNONYMS.get(name, name)
    return option if option in ENQUEUE_OPTIONS else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean x?" with the most similar known name; empty if none is similar."""
    known = sorted(known)
    synonym = SYNONYMS.get(name)
    similar = [synonym] if synonym in known else difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {similar[0]}?" if similar else ""


def name_unknown_options(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function: an unknown keyword raises UnknownOption with the nearest name."""
    names = list(inspect.signature(function).parameters)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            unknown = [name for name in kwargs if name not in names]
            if not unknown:
                raise
        name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
        known = [one for one in names if one != "self"]
        raise UnknownOption(describe_unknown(f"{name}()", unknown[0], known))

    return call


def describe_unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return that `what` has no such option, with the nearest one or all of them."""
    known = [*known]
    if advice := ADVICE.get((what, name)):
        return f"{what} has no option {name!r}. {advice}"
    return f"{what} has no option {name!r}.{did_you_mean(name, known) or _list_of(known)}"


def _list_of(known: Iterable[str]) -> str:
    return f" It has {', '.join(known)}."


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn about a line of the caller's code: the first frame that is outside of this package."""
    level = 1
    frame = sys._getframe()  # noqa: SLF001 - as `warnings` itself finds the caller
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
