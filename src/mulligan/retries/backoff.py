"""How long to wait before another try.

The cap bounds the nominal delay and the draw comes after it: clamping a drawn delay would put all
jobs that failed longest on the same second again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic.dataclasses import dataclass

from mulligan.core.format import duration

# A hundred years. Longer waits would leave the range of stored times.
LONGEST = 3_155_760_000.0


class Rng(Protocol):
    """What we need of `random.Random`."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float, /) -> float: ...


def finite(value: Any, info: ValidationInfo) -> Any:
    """Say the field's name: pydantic shows only a position for what was given by position."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{info.field_name} must be a finite number, not {value}")
    return value


def _seconds(value: float, info: ValidationInfo) -> float:
    if not 0 <= value <= LONGEST:
        raise ValueError(f"{info.field_name} must be between 0 s and 100 years, not {value}")
    return value


def _factor(value: float, info: ValidationInfo) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{info.field_name} must be above 0 and finite, not {value}")
    return value


def _jitter(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str) and value in {"full", "equal", "none"}:
        return value
    try:
        share = float(finite(value, info))
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(
            f"{info.field_name} must be 'full', 'equal', 'none' or a share from 0 to 1, not {value!r}"
        )
    return share


def _table(value: Sequence[float], info: ValidationInfo) -> tuple[float, ...]:
    if not value:
        raise ValueError(f"{info.field_name} must hold at least one delay")
    return tuple(value)


Seconds = Annotated[float, BeforeValidator(finite), AfterValidator(_seconds)]
Factor = Annotated[float, BeforeValidator(finite), AfterValidator(_factor)]
Jitter = Annotated[Literal["full", "equal", "none"] | float, BeforeValidator(_jitter)]
STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=STRICT)
class Table:
    """Exactly these delays; the last one repeats."""

    seconds: Annotated[Sequence[Seconds], AfterValidator(_table)]
    type: Literal["table"] = Field(default="table", kw_only=True, repr=False)


@dataclass(frozen=True, config=STRICT)
class Exponential:
    """`base × factor ** n`, at most `cap`, then spread by `jitter`."""

    base: Seconds
    factor: Factor = 2.0
    cap: Seconds = 3600.0
    jitter: Jitter = "full"
    type: Literal["exponential"] = Field(default="exponential", kw_only=True, repr=False)


@dataclass(frozen=True, config=STRICT)
class Fixed:
    """Always the same delay."""

    seconds: Seconds
    type: Literal["fixed"] = Field(default="fixed", kw_only=True, repr=False)


def _short(value: Any) -> Any:
    """As in TOML: `30`, `[60, 300, 900]`, `{base = 5, factor = 3}`."""
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        return {"type": "fixed", "seconds": value}
    if isinstance(value, list | tuple):
        return {"type": "table", "seconds": value}
    if isinstance(value, dict) and "type" not in value:
        return {"type": "exponential" if "base" in value else "table", **value}
    return value


Backoff = Annotated[
    Table | Exponential | Fixed, Field(discriminator="type"), BeforeValidator(_short)
]


def delay(backoff: Table | Exponential | Fixed, n: int, rng: Rng) -> float:
    """Seconds before retry `n`, where 0 is the first."""
    if isinstance(backoff, Exponential):
        return max(0.0, _spread(nominal(backoff, n), backoff.jitter, rng))
    return nominal(backoff, n)


def nominal(backoff: Table | Exponential | Fixed, n: int) -> float:
    """The delay before any draw: at most the cap, whatever `n` and the factor are."""
    if isinstance(backoff, Fixed):
        return backoff.seconds
    if isinstance(backoff, Table):
        return backoff.seconds[min(max(n, 0), len(backoff.seconds) - 1)]
    return min(backoff.cap, _grown(backoff.base, backoff.factor, max(n, 0)))


def bounds(backoff: Table | Exponential | Fixed, n: int) -> tuple[float, float]:
    """The shortest and the longest that `delay` may draw."""
    wait = nominal(backoff, n)
    if not isinstance(backoff, Exponential) or backoff.jitter == "none":
        return wait, wait
    if isinstance(backoff.jitter, str):
        return (0.0 if backoff.jitter == "full" else wait / 2), wait
    return wait * (1 - backoff.jitter), wait * (1 + backoff.jitter)


def _grown(base: float, factor: float, n: int) -> float:
    if base == 0:
        return 0.0
    try:
        return base * factor**n
    except OverflowError:
        return LONGEST


def _spread(wait: float, jitter: str | float, rng: Rng) -> float:
    if jitter == "full":
        return rng.uniform(0, wait)
    if jitter == "equal":
        return wait / 2 + rng.uniform(0, wait / 2)
    if isinstance(jitter, str):
        return wait
    return rng.uniform(wait * (1 - jitter), wait * (1 + jitter))


# How a wait came about, in words: what the schedule says for this retry, what was drawn, who asked for more.

AnyBackoff = Table | Exponential | Fixed

_SPELT = 4  # factors that are written out; more are a power
_SLACK = 1.0  # seconds between the decision and the moment it was written
_JITTER = {
    "full": "full jitter, which draws anything from 0 s to that,",
    "equal": "equal jitter, half to all of that,",
}


def arithmetic(backoff: AnyBackoff, n: int, drawn: float, hint: float | None = None) -> str:
    """Why retry `n` (0 is the first) waited `drawn` seconds, as far as today's policy explains it."""
    low, high = draw_bounds(backoff, n)
    said = _nominal(backoff, n)
    slack = max(_SLACK, 0.02 * high)
    if low - slack <= drawn <= high + slack:
        return f"{said}{_drew(backoff, drawn)}"
    if hint is not None and drawn + slack >= hint:
        return (
            f"{said}, but the other side asked for {duration(hint)} and a little spread was added"
        )
    return f"today's policy would say {said}; what was in force then, or a server's hint, is not stored"


def draw_bounds(backoff: AnyBackoff, n: int) -> tuple[float, float]:
    """Between which two waits a draw for retry `n` lies."""
    wait = nominal(backoff, n)
    if not isinstance(backoff, Exponential) or backoff.jitter == "none":
        return wait, wait
    if backoff.jitter == "full":
        return 0.0, wait
    if backoff.jitter == "equal":
        return wait / 2, wait
    share = float(backoff.jitter)
    return wait * (1 - share), wait * (1 + share)


def _nominal(backoff: AnyBackoff, n: int) -> str:
    if isinstance(backoff, Fixed):
        return f"the schedule is always {duration(backoff.seconds)}"
    if isinstance(backoff, Table):
        steps = ", ".join(duration(step) for step in backoff.seconds)
        return f"step {min(n + 1, len(backoff.seconds))} of the schedule {steps}"
    return f"the schedule says {_product(backoff, n)}"


def _product(backoff: Exponential, n: int) -> str:
    base, wait = duration(backoff.base), nominal(backoff, n)
    if n <= 0 or backoff.factor == 1:
        return f"{duration(wait)}{_capped(backoff, n)}"
    factors = (
        " × ".join([f"{backoff.factor:g}"] * n)
        if n <= _SPELT
        else f"{backoff.factor:g} to the power of {n}"
    )
    return f"{base} × {factors} = {duration(wait)}{_capped(backoff, n)}"


def _capped(backoff: Exponential, n: int) -> str:
    return " (its upper limit)" if nominal(backoff, n) >= backoff.cap else ""


def _drew(backoff: AnyBackoff, drawn: float) -> str:
    if not isinstance(backoff, Exponential) or backoff.jitter == "none":
        return ""
    how = _JITTER.get(str(backoff.jitter), f"jitter of ± {backoff.jitter!s:.6} of it")
    return f", and {how} drew {duration(max(0.0, drawn))}"
