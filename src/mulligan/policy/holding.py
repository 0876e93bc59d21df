"""What stands between a job and something it uses, in words: a hold, a recovery, a budget that is used up.

Why, until when, and what to type to end it sooner. For the short sentence of a list and for the long one of a story.
"""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import NamedTuple

from mulligan.job import SECOND, Gate, JobRow, Micros
from mulligan.policy import budget as budgets
from mulligan.policy.guard import Guard, Terms
from mulligan.policy.phrase import duration, moment, per, span

BREAKER = "breaker"  # the actor of what a breaker does by itself


class Kept(NamedTuple):
    """A dependency whose guard is at work."""

    guard: Guard
    terms: Terms


# -- held -------------------------------------------------------------------------------------------
def is_down(gate: Gate) -> bool:
    """By its breaker, which looks again by itself; all others wait for a time or a person."""
    return gate.scope == "dependency" and gate.actor == BREAKER


def ends_at(gate: Gate) -> Micros | None:
    """When it may be over, as far as anybody knows; None: when a person says so."""
    return gate.until if gate.until is not None or not is_down(gate) else gate.probe_at


def next_probe(gate: Gate, now: Micros) -> str:
    if gate.probe_at is None or gate.probe_at <= now:
        return "a probe goes as soon as a worker is free"
    return f"next probe {moment(gate.probe_at)} (in {span(now, gate.probe_at)})"


def lets_go(gate: Gate) -> str:
    return f"mulligan deps close {quote(gate.key)}"


def looks_now(gate: Gate) -> str:
    return f"mulligan deps probe {quote(gate.key)}"


# -- recovering -------------------------------------------------------------------------------------
def recovering(row: JobRow, kept: Mapping[str, Kept]) -> str:
    """Of what it uses, what comes back after an outage; empty: nothing does."""
    for key in _used(row):
        ramp = kept[key].guard.ramp if key in kept else None
        if ramp is not None:
            return (
                f"dependency {key} comes back after an outage: {per(ramp.rate)} may start now, more while all goes well"
            )
    return ""


# -- over budget ------------------------------------------------------------------------------------
def over_budget(row: JobRow, kept: Mapping[str, Kept], now: Micros) -> str:
    """Of what a retry uses, what bears no more of them now; empty: nothing stands in its way."""
    for key in _used(row) if row.failures else []:
        terms, bucket = (kept[key].terms.budget, kept[key].guard.bucket) if key in kept else (None, None)
        if terms is None or bucket is None or not budgets.low(bucket, terms) or budgets.allows(bucket, terms, now):
            continue
        at = budgets.next_token(bucket, terms, now) or now
        when = duration(max(1, round((at - now) / SECOND)))
        return f"dependency {key} bears no more retries now: {_fed(terms)}, the next in about {when}"
    return ""


def _fed(terms: budgets.Terms) -> str:
    time = f"{per(terms.rate)} may start"
    return f"{time}, one more for every {1 / terms.share:.0f} first tries that succeed" if terms.share else time


def _used(row: JobRow) -> list[str]:
    return [key for key in row.uses.split(",") if key]
