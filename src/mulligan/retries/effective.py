"""Effective policies of jobs, resolved once per combination of scopes and cached."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache

from mulligan.config import RetrySection
from mulligan.core.attempt import Lease, Outcome
from mulligan.core.job import JobRow
from mulligan.failures.matcher import EMPTY_RULEBOOK, Rulebook
from mulligan.failures.rule_sources import load_rulebook
from mulligan.guards.limits import owner_share
from mulligan.manifest.specs import KindSpec, QueueSpec
from mulligan.retries.policy import EffectivePolicy, Policy, resolve_policy

log = logging.getLogger("mulligan.settle")


class EffectivePolicies:
    """Resolver of the settings, the queue, the kind and the job into one policy."""

    def __init__(
        self,
        system: RetrySection,
        kinds: Mapping[str, KindSpec],
        queues: Mapping[str, QueueSpec] | None = None,
    ) -> None:
        self._system = system
        self._kinds = kinds
        self._queues = queues or {}
        self._resolve_cached = lru_cache(maxsize=4096)(self._resolve)
        self._rulebook = lru_cache(maxsize=1024)(self._load_rulebook)

    def for_job(self, job: Lease | JobRow) -> EffectivePolicy:
        """Return the policy of a job."""
        return self._resolve_cached(job.kind, job.queue, job.policy, job.max_retries)

    def for_outcome(self, job: Lease, outcome: Outcome) -> EffectivePolicy:
        """Return the policy that decides about an outcome: of the step that failed, or the job."""
        step = outcome.step
        if step is None or step.policy is None:
            return self.for_job(job)
        return self._resolve_cached(
            job.kind, job.queue, job.policy, job.max_retries, step_policy=step.policy
        )

    def for_kind(
        self,
        kind: str,
        *,
        queue: str | None = None,
        policy: str | None = None,
        max_retries: int | None = None,
    ) -> EffectivePolicy:
        """Return the policy of a job that is enqueued with these options."""
        if not queue:
            spec = self._kinds.get(kind)
            queue = "" if spec is None else spec.queue
        return self._resolve_cached(kind, queue, policy, max_retries)

    def kind(self, name: str) -> KindSpec:
        """Return what this release declares of a kind; defaults if it has no such kind."""
        return self._kinds.get(name) or KindSpec(name)

    def shadow_for_job(self, job: Lease) -> EffectivePolicy | None:
        """Return the policy with the kind's shadow policy in place of its own, if it has one."""
        spec = self._kinds.get(job.kind)
        if spec is None or spec.shadow is None:
            return None
        return self._resolve_cached(job.kind, job.queue, job.policy, job.max_retries, shadow=True)

    def rulebooks(self, kind: str) -> list[Rulebook]:
        """Return the rules of a kind and its app, for endings that no runner classified."""
        return [self._rulebook(kind)]

    def fairness_key(self, queue: str, owner: str) -> str:
        """Return the part of a lane key that separates owners; empty if the queue is not fair."""
        spec = self._queues.get(queue)
        if spec is None or not spec.fair:
            return ""
        return owner_share(owner)

    def _load_rulebook(self, kind: str) -> Rulebook:
        spec = self._kinds.get(kind)
        return EMPTY_RULEBOOK if spec is None else load_rulebook(spec.rules)

    def _resolve(
        self,
        kind: str,
        queue: str,
        job_policy: str | None,
        max_retries: int | None,
        *,
        shadow: bool = False,
        step_policy: str | None = None,
    ) -> EffectivePolicy:
        kind_spec = self._kinds.get(kind)
        queue_spec = self._queues.get(queue)
        queue_policy = None if queue_spec is None else queue_spec.policy
        kind_policy = None
        if kind_spec is not None:
            kind_policy = kind_spec.shadow if shadow else kind_spec.policy
        return resolve_policy(
            self._system,
            queue=_parse_policy(queue_policy),
            kind=_parse_policy(kind_policy),
            job=_parse_policy(job_policy),
            job_max_retries=max_retries,
            step=_parse_policy(step_policy),
            once=kind_spec is not None and kind_spec.once,
        )


def _parse_policy(text: str | None) -> Policy | None:
    """Parse a stored policy. One that a newer version wrote and this one cannot read is unset."""
    if not text:
        return None
    try:
        return Policy.from_json(text)
    except ValueError:
        log.warning("ignored a stored policy that this version cannot read: %s", text)
        return None
