"""Options of a step: what `ctx.step` and `@app.step` accept, checked."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from mulligan.core.durations import Micros, check_duration
from mulligan.core.errors import Duration, Refused
from mulligan.core.job import is_name
from mulligan.retries.policy import Policy, encode_policy

DECLARED = "__mulligan_step__"  # attribute of a function that `@app.step` has decorated
RUN_AGAIN_IN_DOUBT = "again"
PARK_IN_DOUBT = "park"
F = TypeVar("F", bound=Callable[..., Any])


class StepOptions(NamedTuple):
    """Options of a step, checked."""

    uses: str = ""  # dependencies, sorted, comma separated
    policy: str | None = None  # JSON
    timeout: Micros | None = None
    undo: str = ""  # reference to a function
    doubt: str = RUN_AGAIN_IN_DOUBT
    done: Callable[..., Any] | None = None

    @property
    def is_marked(self) -> bool:
        """True if a mark is written before the call, so that a death leaves a doubt."""
        return self.doubt == PARK_IN_DOUBT or self.done is not None


NO_OPTIONS = StepOptions()


class DeclaredStep(NamedTuple):
    """Name and options that `@app.step` declares with a function."""

    name: str
    options: StepOptions


def check_step_options(
    fn: Callable[..., Any],
    *,
    uses: str | Sequence[str] | None = None,
    policy: Policy | None = None,
    timeout: Duration | None = None,
    undo: Callable[..., Any] | None = None,
    doubt: str | None = None,
    done: Callable[..., Any] | None = None,
) -> StepOptions:
    """Return the options of a step: those that are passed, else those declared with the function.

    Raises Refused for what no worker could obey.
    """
    declared: DeclaredStep | None = getattr(fn, DECLARED, None)
    options = NO_OPTIONS if declared is None else declared.options
    changes: dict[str, Any] = {}
    if uses is not None:
        changes["uses"] = _check_uses(uses)
    if policy is not None:
        changes["policy"] = _encode(policy)
    if timeout is not None:
        changes["timeout"] = _check_timeout(timeout)
    if undo is not None:
        changes["undo"] = refer_to(undo)
    if doubt is not None:
        changes["doubt"] = _check_doubt(doubt)
    if done is not None:
        changes["done"] = _check_callable("done", done)
    return options._replace(**changes) if changes else options


@lru_cache(maxsize=256)
def _encode(policy: Any) -> str | None:
    return encode_policy(policy)


def _check_uses(uses: Any) -> str:
    keys = [uses] if isinstance(uses, str) else list(uses)
    for key in keys:
        if not is_name(key):
            message = f"uses={uses!r:.120}: a step names dependencies by their keys"
            raise Refused(message)
    return ",".join(sorted(set(keys)))


def _check_timeout(timeout: Duration) -> Micros:
    limit = check_duration("timeout", timeout)
    if limit == 0:
        message = "timeout must be above 0 s"
        raise Refused(message)
    return limit


def _check_doubt(doubt: Any) -> str:
    if doubt not in {RUN_AGAIN_IN_DOUBT, PARK_IN_DOUBT}:
        message = f'doubt must be "again" or "park", not {doubt!r:.80}'
        raise Refused(message)
    return str(doubt)


def _check_callable(name: str, function: Any) -> Callable[..., Any]:
    if not callable(function):
        message = f"{name}= must be a function, not {function!r:.80}"
        raise Refused(message)
    checked: Callable[..., Any] = function
    return checked


# --- Functions that a later process must find ---

_known: dict[str, Callable[..., Any]] = {}  # by reference: functions of this process


def refer_to(function: Callable[..., Any]) -> str:
    """Return `module:name` of an undo function. Refuse one that a later process cannot import."""
    _check_callable("undo", function)
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not module or not name or "<lambda>" in name:
        message = (
            f"undo={function!r:.80}: another process must be able to import the function. "
            "Define it with def in a module of your app"
        )
        raise Refused(message)
    reference = f"{module}:{name}"
    if getattr(function, DECLARED, None) is not None:
        _known[reference] = function
    elif _import(reference) is not function:
        message = (
            f"undo={reference}: another process must be able to import the function. "
            "Define it at the top level of a module of your app, or decorate it with @app.step"
        )
        raise Refused(message)
    return reference


def find_function(reference: str) -> Callable[..., Any]:
    """Return the function of a stored reference. Raise LookupError if this app does not have it."""
    found = _known.get(reference) or _import(reference)
    if found is None:
        message = (
            f"the undo function {reference} is not in this app. Deploy a version that has it, "
            "then release the job"
        )
        raise LookupError(message)
    return found


def _import(reference: str) -> Callable[..., Any] | None:
    module_name, _, path = reference.partition(":")
    module = sys.modules.get(module_name)
    if module is None:
        try:
            module = __import__(module_name, fromlist=["_"])
        except ImportError:
            return None
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if callable(found) else None


def declare_step(function: F, name: str | None, options: StepOptions) -> F:
    """Attach what `@app.step` declares to a function, which stays as it is."""
    if not inspect.isroutine(function):
        message = f"@app.step decorates a function, not {function!r:.80}"
        raise Refused(message)
    setattr(function, DECLARED, DeclaredStep(name or function.__name__, options))
    _known[f"{function.__module__}:{function.__qualname__}"] = function
    return function
