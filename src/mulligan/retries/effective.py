"""The effective policy of any job, layered once and remembered."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property, lru_cache

from mulligan.config import RetrySection
from mulligan.core.attempt import Lease
from mulligan.core.job import JobRow
from mulligan.failures.matcher import EMPTY, Rulebook
from mulligan.failures.rule_sources import book_of
from mulligan.guards.limits import share_of
from mulligan.manifest.specs import KindSpec, QueueSpec
from mulligan.retries.policy import EffectivePolicy, Policy, RetrySettings, layer

log = logging.getLogger("mulligan.settle")


class EffectivePolicies:
    """What the settings, the queue, the kind and the job say, as one."""

    def __init__(
        self,
        system: RetrySection,
        kinds: Mapping[str, KindSpec],
        queues: Mapping[str, QueueSpec] | None = None,
    ) -> None:
        self._settings = system
        self._kinds = kinds
        self._queues = queues or {}
        self._layered = lru_cache(maxsize=4096)(self._layer)
        self._book = lru_cache(maxsize=1024)(self._compiled)

    @cached_property
    def _system(self) -> RetrySettings:
        """Not before the first end that is no success: a runner may never see one."""
        return RetrySettings(**self._settings.model_dump())

    def of(self, job: Lease | JobRow) -> EffectivePolicy:
        return self._layered(job.kind, job.queue, job.policy, job.max_retries)

    def for_kind(
        self,
        kind: str,
        *,
        queue: str | None = None,
        policy: str | None = None,
        max_retries: int | None = None,
    ) -> EffectivePolicy:
        """As for a job that is enqueued with these options."""
        spec = self._kinds.get(kind)
        return self._layered(
            kind, queue or ("" if spec is None else spec.queue), policy, max_retries
        )

    def books(self, kind: str) -> list[Rulebook]:
        """The rules of a kind and of its app, for ends that no runner has judged."""
        return [self._book(kind)]

    def _compiled(self, kind: str) -> Rulebook:
        spec = self._kinds.get(kind)
        return EMPTY if spec is None else book_of(spec.rules)

    def shadow(self, job: Lease) -> EffectivePolicy | None:
        """With the policy that the kind runs in shadow instead of its own; None: it runs none."""
        spec = self._kinds.get(job.kind)
        if spec is None or spec.shadow is None:
            return None
        return self._layered(job.kind, job.queue, job.policy, job.max_retries, shadow=True)

    def share(self, queue: str, owner: str) -> str:
        """Part of a lane's key where owners take turns."""
        spec = self._queues.get(queue)
        return share_of(owner) if spec is not None and spec.fair else ""

    def _layer(
        self,
        kind: str,
        queue: str,
        job: str | None,
        max_retries: int | None,
        *,
        shadow: bool = False,
    ) -> EffectivePolicy:
        spec = self._kinds.get(kind)
        return layer(
            self._system,
            queue=_policy(_said(self._queues.get(queue))),
            kind=_policy(spec.shadow if shadow and spec is not None else _said(spec)),
            job=_policy(job),
            job_max_retries=max_retries,
        )


def _said(spec: KindSpec | QueueSpec | None) -> str | None:
    return None if spec is None else spec.policy


def _policy(text: str | None) -> Policy | None:
    """A stored policy; one that a newer version wrote and we cannot read counts as unset."""
    try:
        return Policy.from_json(text) if text else None
    except ValueError:
        log.warning("a stored policy cannot be read and is left aside: %s", text)
        return None
