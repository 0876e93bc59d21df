"""The step in which an attempt failed, as part of its failure."""

from __future__ import annotations

from dataclasses import replace

from mulligan.core.attempt import Failure
from mulligan.failures.fingerprint import fingerprint_end

STEP_EVIDENCE = "step"  # key in the evidence


def base_name(step: str) -> str:
    """Return the name of a step without its key: failures of all its keys are one group."""
    return step.partition("[")[0] or step


def add_step(failure: Failure, step: str, kind: str) -> Failure:
    """Return the failure of an attempt that was stopped or died in a step."""
    place = (kind, "step", base_name(step), failure.fingerprint)
    fingerprint = fingerprint_end(failure.code, place)
    evidence = {**failure.evidence, STEP_EVIDENCE: step}
    return replace(failure, evidence=evidence, fingerprint=fingerprint)
