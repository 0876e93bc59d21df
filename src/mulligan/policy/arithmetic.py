"""How a wait came about, in words: what the schedule says for this retry, what was drawn, who asked for more."""

from __future__ import annotations

from mulligan.policy.backoff import Exponential, Fixed, Table, nominal
from mulligan.policy.phrase import duration

AnyBackoff = Table | Exponential | Fixed

_SPELT = 4  # factors that are written out; more are a power
_SLACK = 1.0  # seconds between the decision and the moment it was written
_JITTER = {"full": "full jitter, which draws anything from 0 s to that,", "equal": "equal jitter, half to all of that,"}


def arithmetic(backoff: AnyBackoff, n: int, drawn: float, hint: float | None = None) -> str:
    """Why retry `n` (0 is the first) waited `drawn` seconds, as far as today's policy explains it."""
    low, high = bounds(backoff, n)
    said = _nominal(backoff, n)
    slack = max(_SLACK, 0.02 * high)
    if low - slack <= drawn <= high + slack:
        return f"{said}{_drew(backoff, drawn)}"
    if hint is not None and drawn + slack >= hint:
        return f"{said}, but the other side asked for {duration(hint)} and a little spread was added"
    return f"today's policy would say {said}; what was in force then, or a server's hint, is not stored"


def bounds(backoff: AnyBackoff, n: int) -> tuple[float, float]:
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
    factors = " × ".join([f"{backoff.factor:g}"] * n) if n <= _SPELT else f"{backoff.factor:g} to the power of {n}"
    return f"{base} × {factors} = {duration(wait)}{_capped(backoff, n)}"


def _capped(backoff: Exponential, n: int) -> str:
    return " (its upper limit)" if nominal(backoff, n) >= backoff.cap else ""


def _drew(backoff: AnyBackoff, drawn: float) -> str:
    if not isinstance(backoff, Exponential) or backoff.jitter == "none":
        return ""
    how = _JITTER.get(str(backoff.jitter), f"jitter of ± {backoff.jitter!s:.6} of it")
    return f", and {how} drew {duration(max(0.0, drawn))}"
