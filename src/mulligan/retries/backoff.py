"""Backoffs: how long to wait before a retry, and how to explain that wait.

A backoff is a class with the methods of `Backoff`, and a name in `BACKOFFS`.

The cap bounds the nominal delay and jitter is drawn after it. Capping the drawn delay instead would
put all jobs that reached the cap on the same second again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar, Union

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)
from pydantic.dataclasses import dataclass
from pydantic_core import to_jsonable_python

from mulligan.core.errors import InvalidPolicy
from mulligan.core.format import format_duration
from mulligan.core.setting_types import check_jitter
from mulligan.core.suggest import describe_unknown

# A hundred years. Longer waits would leave the range of stored times.
MAX_WAIT_SECONDS = 3_155_760_000.0


class Rng(Protocol):
    """Random source: the methods of `random.Random` that this package uses."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float, /) -> float: ...


# --- Validation ---


def require_finite(value: Any, info: ValidationInfo) -> Any:
    """Convert a timedelta to seconds and refuse booleans, NaN and infinity.

    The error names the field: pydantic shows only an index for a positional argument.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{info.field_name} must be a finite number, not {value}")
    return value


def _check_seconds(value: float, info: ValidationInfo) -> float:
    if not 0 <= value <= MAX_WAIT_SECONDS:
        raise ValueError(f"{info.field_name} must be between 0 s and 100 years, not {value}")
    return value


def _check_factor(value: float, info: ValidationInfo) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{info.field_name} must be above 0 and finite, not {value}")
    return value


def _parse_jitter(value: Any, info: ValidationInfo) -> Any:
    try:
        return check_jitter(value)
    except ValueError as error:
        raise ValueError(f"{info.field_name} {error}, not {value!r}") from None


def _check_table(value: Sequence[float], info: ValidationInfo) -> tuple[float, ...]:
    if not value:
        raise ValueError(f"{info.field_name} must contain at least one delay")
    return tuple(value)


Seconds = Annotated[float, BeforeValidator(require_finite), AfterValidator(_check_seconds)]
Factor = Annotated[float, BeforeValidator(require_finite), AfterValidator(_check_factor)]
Jitter = Annotated[Literal["full", "equal", "none"] | float, BeforeValidator(_parse_jitter)]
FORBID_EXTRA = ConfigDict(extra="forbid")

T = TypeVar("T")


def explain_refusal(cls: type[T]) -> type[T]:
    """Decorate a pydantic dataclass: its constructor raises InvalidPolicy with one sentence.

    pydantic's own error has four lines and a link, and suggests no name.
    """
    construct = cls.__init__

    @wraps(construct)
    def init(self: Any, *args: Any, **values: Any) -> None:
        try:
            construct(self, *args, **values)
        except ValidationError as refusal:
            faults = refusal.errors()
        else:
            return
        names = [spec.name for spec in fields(cls)]  # type: ignore[arg-type]
        sentences = dict.fromkeys(_describe_fault(cls.__name__, fault, names) for fault in faults)
        raise InvalidPolicy("; ".join(sentences))

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


def _describe_fault(name: str, fault: Any, names: Sequence[str]) -> str:
    """Return what is wrong with one argument, the value, and what would be right."""
    path = ".".join(map(str, fault["loc"]))
    if fault["type"] == "unexpected_keyword_argument":
        return describe_unknown(name, path, [one for one in names if one != "type"])
    if fault["type"] == "missing":
        return f"{name}: {path} is missing"
    problem = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error":  # our own checks name the field and the value
        return f"{name}: {problem}"
    if path.isdigit() and int(path) < len(names):
        path = names[int(path)]
    return f"{name}: {path}: {problem} (got {fault['input']!r:.80})"


# --- Backoffs ---


class Backoff(ABC):
    """Delays before retries. Retry `n` is counted from 0."""

    @abstractmethod
    def nominal(self, n: int) -> float:
        """Return the seconds before retry `n`, without jitter."""

    def bounds(self, n: int) -> tuple[float, float]:
        """Return the shortest and the longest delay that `delay` can return."""
        wait = self.nominal(n)
        return wait, wait

    def delay(self, n: int, rng: Rng) -> float:
        """Draw the seconds before retry `n`, with jitter."""
        del rng
        return self.nominal(n)

    @abstractmethod
    def describe(self) -> str:
        """Return all delays in a few words: `always 10 s`."""

    @abstractmethod
    def explain_nominal(self, n: int) -> str:
        """Return where the nominal delay of retry `n` comes from: `a fixed backoff of 10 s`."""

    def explain_jitter(self, n: int, drawn: float) -> str:
        """Return how jitter made the drawn delay of the nominal one; empty without jitter."""
        del n, drawn
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the backoff as it is written in TOML, with its type."""
        record: dict[str, Any] = to_jsonable_python(self)
        return record


@explain_refusal
@dataclass(frozen=True, config=FORBID_EXTRA)
class Table(Backoff):
    """A list of delays; the last one repeats."""

    seconds: Annotated[Sequence[Seconds], AfterValidator(_check_table)]
    type: Literal["table"] = Field(default="table", kw_only=True, repr=False)

    def nominal(self, n: int) -> float:
        index = min(max(n, 0), len(self.seconds) - 1)
        return self.seconds[index]

    def describe(self) -> str:
        return ", ".join(format_duration(wait) for wait in self.seconds)

    def explain_nominal(self, n: int) -> str:
        step = min(n + 1, len(self.seconds))
        return f"step {step} of the backoff table {self.describe()}"


@explain_refusal
@dataclass(frozen=True, config=FORBID_EXTRA)
class Fixed(Backoff):
    """One delay for every retry."""

    seconds: Seconds
    type: Literal["fixed"] = Field(default="fixed", kw_only=True, repr=False)

    def nominal(self, n: int) -> float:
        del n
        return self.seconds

    def describe(self) -> str:
        return f"always {format_duration(self.seconds)}"

    def explain_nominal(self, n: int) -> str:
        del n
        return f"a fixed backoff of {format_duration(self.seconds)}"


_MAX_WRITTEN_FACTORS = 4  # more factors are written as a power


@explain_refusal
@dataclass(frozen=True, config=FORBID_EXTRA)
class Exponential(Backoff):
    """Delay of `base × factor ** n`, at most `cap`, then spread by `jitter`."""

    base: Seconds
    factor: Factor = 2.0
    cap: Seconds = 3600.0
    jitter: Jitter = "full"
    type: Literal["exponential"] = Field(default="exponential", kw_only=True, repr=False)

    def nominal(self, n: int) -> float:
        return min(self.cap, _multiply(self.base, self.factor, max(n, 0)))

    def bounds(self, n: int) -> tuple[float, float]:
        wait = self.nominal(n)
        if self.jitter == "none":
            return wait, wait
        if self.jitter == "full":
            return 0.0, wait
        if self.jitter == "equal":
            return wait / 2, wait
        return wait * (1 - self.jitter), wait * (1 + self.jitter)

    def delay(self, n: int, rng: Rng) -> float:
        return max(0.0, _apply_jitter(self.nominal(n), self.jitter, rng))

    def describe(self) -> str:
        base = format_duration(self.base)
        cap = format_duration(self.cap)
        return f"{base}, then × {self.factor:g}, at most {cap}, {self._describe_jitter()}"

    def _describe_jitter(self) -> str:
        if isinstance(self.jitter, float):
            return f"± {self.jitter * 100:g} %"
        if self.jitter == "none":
            return "no jitter"
        return f"{self.jitter} jitter"

    def explain_nominal(self, n: int) -> str:
        nominal = self.nominal(n)
        wait = format_duration(nominal)
        if nominal >= self.cap:
            wait = f"{wait} (the cap)"
        if n <= 0 or self.factor == 1:
            return f"a backoff of {wait}"
        factors = _format_factors(self.factor, n)
        return f"a backoff of {format_duration(self.base)} × {factors} = {wait}"

    def explain_jitter(self, n: int, drawn: float) -> str:
        if self.jitter == "none":
            return ""
        low, high = self.bounds(n)
        span = f"{format_duration(low)} to {format_duration(high)}"
        label = self._describe_jitter()
        if isinstance(self.jitter, float):
            label = f"{label} jitter"
        return f"; {label} ({span}) drew {format_duration(max(0.0, drawn))}"


def _multiply(base: float, factor: float, n: int) -> float:
    if base == 0:
        return 0.0
    try:
        return base * factor**n
    except OverflowError:
        return MAX_WAIT_SECONDS


def _apply_jitter(wait: float, jitter: str | float, rng: Rng) -> float:
    if jitter == "full":
        return rng.uniform(0, wait)
    if jitter == "equal":
        return wait / 2 + rng.uniform(0, wait / 2)
    if isinstance(jitter, str):
        return wait
    return rng.uniform(wait * (1 - jitter), wait * (1 + jitter))


def _format_factors(factor: float, n: int) -> str:
    if n <= _MAX_WRITTEN_FACTORS:
        return " × ".join([f"{factor:g}"] * n)
    return f"{factor:g}^{n}"


# --- Registry ---

BACKOFFS = (Table, Exponential, Fixed)
_NOT_A_BACKOFF = "backoff must be Table(...), Exponential(...) or Fixed(...)"


def _expand_shorthand(value: Any) -> Any:
    """Add the `type` to the short forms of TOML: `30`, `[60, 300, 900]`, `{base = 5}`."""
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        return {"type": "fixed", "seconds": value}
    if isinstance(value, list | tuple):
        return {"type": "table", "seconds": value}
    if isinstance(value, dict) and "type" not in value:
        kind = "exponential" if "base" in value else "table"
        return {"type": kind, **value}
    if not isinstance(value, Backoff | dict):
        raise ValueError(f"{_NOT_A_BACKOFF}, not {value!r:.80}")  # noqa: TRY004 - for pydantic
    return value


if TYPE_CHECKING:
    BackoffField = Backoff  # the type of a pydantic field that holds any backoff
else:
    BackoffField = Annotated[
        Union[BACKOFFS],  # noqa: UP007 - its members are computed
        Field(discriminator="type"),
        BeforeValidator(_expand_shorthand),
    ]


def check_backoff(value: Any) -> Backoff:
    """Return the value if it is a backoff, else raise a TypeError that names all backoffs."""
    if not isinstance(value, Backoff):
        raise TypeError(_NOT_A_BACKOFF)
    return value


# --- Sentences ---

_WRITE_DELAY = 1.0  # seconds that may pass between the decision and the stored time


def explain_delay(backoff: Backoff, n: int, drawn: float, hint: float | None = None) -> str:
    """Explain why retry `n` (0 is the first) waited `drawn` seconds.

    `backoff` is the current one. If it cannot have drawn this delay, the sentence says so.
    """
    low, high = backoff.bounds(n)
    tolerance = max(_WRITE_DELAY, 0.02 * high)
    nominal = backoff.explain_nominal(n)
    if low - tolerance <= drawn <= high + tolerance:
        return f"{nominal}{backoff.explain_jitter(n, drawn)}"
    if hint is not None and drawn + tolerance >= hint:
        requested = format_duration(hint)
        return f"{nominal}, but the service asked for {requested}; a small random delay was added"
    return (
        f"the current policy would give {nominal};"
        " the policy or server hint that applied then is not stored"
    )
