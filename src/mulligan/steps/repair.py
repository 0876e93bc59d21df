"""Changes of steps that a person makes: set a result, forget steps, decide a doubt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.core.errors import OverrideRefused, Refused
from mulligan.core.job import JobRow
from mulligan.failures.step_evidence import STEP_EVIDENCE
from mulligan.manifest.arguments import to_json
from mulligan.retries.reasons import IT_HAPPENED, RUN_AGAIN
from mulligan.steps.queries import StepQueries
from mulligan.storage.base import Transaction

STEP_IN_DOUBT = "STEP_IN_DOUBT"
MAX_RESULTS = 100


class StepChanges(NamedTuple):
    """Steps to change with a move of their job."""

    from_step: str = ""  # forget this step and those that ended after it
    results: Mapping[str, str] = {}  # JSON by name: results to set
    value: str | None = None  # JSON: the result of the step in doubt, if it happened


NO_STEP_CHANGES = StepChanges()


def check_step_changes(from_step: Any, results: Any) -> StepChanges:
    """Check what a manual retry says about steps, regardless of the job."""
    if from_step is not None and (not isinstance(from_step, str) or not from_step):
        raise OverrideRefused(f"from_step must be the name of a step, not {from_step!r:.80}")
    found = {} if results is None else results
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise OverrideRefused(f"override steps must map names to results, not {found!r:.80}")
    if len(found) > MAX_RESULTS:
        raise OverrideRefused(
            f"override steps has {len(found)} results; the limit is {MAX_RESULTS}"
        )
    texts = {name: to_json(value, f"the result of step {name!r}") for name, value in found.items()}
    return StepChanges(from_step or "", texts)


def apply_step_changes(tx: Transaction, row: JobRow, changes: StepChanges, actor: str) -> None:
    """Change the steps of a job in the transaction that moves it."""
    queries = StepQueries(tx)
    if changes.from_step and not queries.forget_from(row.id, changes.from_step, actor):
        names = [step.name for step in queries.list_steps(row.id)]
        known = ", ".join(names[:20]) or "none"
        raise OverrideRefused(
            f"job {row.id} has no recorded step {changes.from_step!r:.200}. Recorded: {known}"
        )
    for name, text in changes.results.items():
        queries.set_result(row.id, name, text, row.token, actor)


def resolve_doubt(
    tx: Transaction, row: JobRow, choice: str | None, value: str | None, actor: str
) -> None:
    """Record what a person found out about the step in doubt of a parked job.

    The next attempt finds the result, or calls the step again.
    """
    step = find_doubt(tx, row) if choice in {IT_HAPPENED, RUN_AGAIN} else None
    if value is not None and (step is None or choice != IT_HAPPENED):
        raise Refused(
            f'a value is the result of a step in doubt: pass it with the choice "{IT_HAPPENED}"'
        )
    if step is None:
        return
    queries = StepQueries(tx)
    if choice == IT_HAPPENED:
        queries.set_result(row.id, step, value or "null", row.token, actor)
    else:
        queries.clear_mark(row.id, step, actor)


def find_doubt(tx: Transaction, row: JobRow) -> str | None:
    """Return the name of the step in doubt for which a job is parked; None if it is not."""
    if row.state != "parked":
        return None
    found = StepQueries(tx).find_parked_evidence(row.id, row.token, STEP_IN_DOUBT)
    step = json.loads(found or "{}").get(STEP_EVIDENCE)
    return step if isinstance(step, str) else None
