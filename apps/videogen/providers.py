"""The providers: models, prices and retry settings."""

from __future__ import annotations

from dataclasses import dataclass

from mulligan import Rule
from mulligan.apps.videogen.rules import PACK, QUARTZ
from mulligan.apps.videogen.settings import Retries, read_retries


@dataclass(frozen=True)
class Provider:
    """A service that makes videos."""

    name: str
    models: tuple[str, ...]
    price: float  # per second of a started video
    retries: Retries
    rules: tuple[Rule, ...] = ()

    @property
    def kind(self) -> str:
        return f"video.{self.name}"

    @property
    def all_rules(self) -> list[Rule]:
        return [*self.rules, *PACK.rules]


PROVIDERS = (
    Provider("nimbus", ("nimbus-1", "nimbus-1-fast"), 0.10, read_retries("nimbus", Retries())),
    # Its outages last minutes, so it is retried late and rarely.
    Provider(
        "quartz",
        ("quartz-2",),
        0.25,
        read_retries("quartz", Retries(2, base_delay=120, budget="10/m")),
        QUARTZ,
    ),
)
BY_MODEL = {model: provider for provider in PROVIDERS for model in provider.models}
BY_KIND = {provider.kind: provider for provider in PROVIDERS}
