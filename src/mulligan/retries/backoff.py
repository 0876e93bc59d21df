"""Backoffs: how long to wait before a retry, and how to explain that wait.

The cap bounds the nominal delay and jitter is drawn after it. Capping the drawn delay instead would
put all jobs that reached the cap on the same second again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic.dataclasses import dataclass

from mulligan.core.format import format_duration

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
    if isinstance(value, str) and value in {"full", "equal", "none"}:
        return value
    try:
        share = float(require_finite(value, info))
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(
            f"{info.field_name} must be 'full', 'equal', 'none' or a share from 0 to 1,"
            f" not {value!r}"
        )
    return share


def _check_table(value: Sequence[float], info: ValidationInfo) -> tuple[float, ...]:
    if not value:
        raise ValueError(f"{info.field_name} must contain at least one delay")
    return tuple(value)


Seconds = Annotated[float, BeforeValidator(require_finite), AfterValidator(_check_seconds)]
Factor = Annotated[float, BeforeValidator(require_finite), AfterValidator(_check_factor)]
Jitter = Annotated[Literal["full", "equal", "none"] | float, BeforeValidator(_parse_jitter)]
FORBID_EXTRA = ConfigDict(extra="forbid")


# --- Types ---


@dataclass(frozen=True, config=FORBID_EXTRA)
class Table:
    """A list of delays; the last one repeats."""

    seconds: Annotated[Sequence[Seconds], AfterValidator(_check_table)]
    type: Literal["table"] = Field(default="table", kw_only=True, repr=False)


@dataclass(frozen=True, config=FORBID_EXTRA)
class Exponential:
    """Delay of `base × factor ** n`, at most `cap`, then spread by `jitter`."""

    base: Seconds
    factor: Factor = 2.0
    cap: Seconds = 3600.0
    jitter: Jitter = "full"
    type: Literal["exponential"] = Field(default="exponential", kw_only=True, repr=False)


@dataclass(frozen=True, config=FORBID_EXTRA)
class Fixed:
    """One delay for every retry."""

    seconds: Seconds
    type: Literal["fixed"] = Field(default="fixed", kw_only=True, repr=False)


def _expand_shorthand(value: Any) -> Any:
    """Add the `type` to the short forms of TOML: `30`, `[60, 300, 900]`, `{base = 5}`."""
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        return {"type": "fixed", "seconds": value}
    if isinstance(value, list | tuple):
        return {"type": "table", "seconds": value}
    if isinstance(value, dict) and "type" not in value:
        kind = "exponential" if "base" in value else "table"
        return {"type": kind, **value}
    return value


Backoff = Annotated[
    Table | Exponential | Fixed, Field(discriminator="type"), BeforeValidator(_expand_shorthand)
]


# --- Delays ---


def draw_delay(backoff: Backoff, n: int, rng: Rng) -> float:
    """Return the seconds before retry `n`, where 0 is the first, with jitter applied."""
    wait = nominal_delay(backoff, n)
    if isinstance(backoff, Exponential):
        return max(0.0, _apply_jitter(wait, backoff.jitter, rng))
    return wait


def nominal_delay(backoff: Backoff, n: int) -> float:
    """Return the delay before jitter: at most the cap, for any `n` and factor."""
    if isinstance(backoff, Fixed):
        return backoff.seconds
    if isinstance(backoff, Table):
        index = min(max(n, 0), len(backoff.seconds) - 1)
        return backoff.seconds[index]
    return min(backoff.cap, _multiply(backoff.base, backoff.factor, max(n, 0)))


def delay_bounds(backoff: Backoff, n: int) -> tuple[float, float]:
    """Return the shortest and the longest delay that `draw_delay` can return."""
    wait = nominal_delay(backoff, n)
    if not isinstance(backoff, Exponential) or backoff.jitter == "none":
        return wait, wait
    if backoff.jitter == "full":
        return 0.0, wait
    if backoff.jitter == "equal":
        return wait / 2, wait
    return wait * (1 - backoff.jitter), wait * (1 + backoff.jitter)


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


# --- Sentences ---

_MAX_WRITTEN_FACTORS = 4  # more factors are written as a power
_WRITE_DELAY = 1.0  # seconds that may pass between the decision and the stored time


def describe_backoff(backoff: Backoff) -> str:
    """Return `5 s × 3, at most 15 min, ± 20 %`, `1 min, 5 min, 15 min` or `always 10 s`."""
    if isinstance(backoff, Fixed):
        return f"always {format_duration(backoff.seconds)}"
    if isinstance(backoff, Table):
        return _format_table(backoff)
    base = format_duration(backoff.base)
    cap = format_duration(backoff.cap)
    return f"{base} × {backoff.factor:g}, at most {cap}, {_describe_jitter(backoff)}"


def _describe_jitter(backoff: Exponential) -> str:
    if isinstance(backoff.jitter, float):
        return f"± {backoff.jitter * 100:g} %"
    return f"{backoff.jitter} jitter"


def _format_table(backoff: Table) -> str:
    return ", ".join(format_duration(wait) for wait in backoff.seconds)


def explain_delay(backoff: Backoff, n: int, drawn: float, hint: float | None = None) -> str:
    """Explain why retry `n` (0 is the first) waited `drawn` seconds.

    `backoff` is the current one. If it cannot have drawn this delay, the sentence says so.
    """
    low, high = delay_bounds(backoff, n)
    tolerance = max(_WRITE_DELAY, 0.02 * high)
    nominal = _explain_nominal(backoff, n)
    if low - tolerance <= drawn <= high + tolerance:
        return f"{nominal}{_explain_jitter(backoff, n, drawn)}"
    if hint is not None and drawn + tolerance >= hint:
        requested = format_duration(hint)
        return f"{nominal}, but the service asked for {requested}; a small random delay was added"
    return (
        f"the current policy would give {nominal};"
        " the policy or server hint that applied then is not stored"
    )


def _explain_nominal(backoff: Backoff, n: int) -> str:
    if isinstance(backoff, Fixed):
        return f"a fixed backoff of {format_duration(backoff.seconds)}"
    if isinstance(backoff, Table):
        step = min(n + 1, len(backoff.seconds))
        return f"step {step} of the backoff table {_format_table(backoff)}"
    return f"a backoff of {_explain_product(backoff, n)}"


def _explain_product(backoff: Exponential, n: int) -> str:
    nominal = nominal_delay(backoff, n)
    wait = format_duration(nominal)
    if nominal >= backoff.cap:
        wait = f"{wait} (the cap)"
    if n <= 0 or backoff.factor == 1:
        return wait
    return f"{format_duration(backoff.base)} × {_format_factors(backoff.factor, n)} = {wait}"


def _format_factors(factor: float, n: int) -> str:
    if n <= _MAX_WRITTEN_FACTORS:
        return " × ".join([f"{factor:g}"] * n)
    return f"{factor:g}^{n}"


def _explain_jitter(backoff: Backoff, n: int, drawn: float) -> str:
    if not isinstance(backoff, Exponential) or backoff.jitter == "none":
        return ""
    low, high = delay_bounds(backoff, n)
    span = f"{format_duration(low)} to {format_duration(high)}"
    label = _describe_jitter(backoff)
    if isinstance(backoff.jitter, float):
        label = f"{label} jitter"
    return f"; {label} ({span}) drew {format_duration(max(0.0, drawn))}"
