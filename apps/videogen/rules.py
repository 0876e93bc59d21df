"""Meaning of the providers' answers: the pack `videogen`, preceded by rules of one provider."""

from __future__ import annotations

from mulligan import Fixed, Rule, pack

PACK = pack("videogen")
QUARTZ = (
    Rule(  # the model is ready within seconds
        "quartz/warming-up",
        provider_code="model_warming_up",
        code="SERVICE_UNAVAILABLE",
        cls="transient",
        public="The model is being loaded.",
        max_retries=2,
        backoff=Fixed(15),
    ),
    Rule(
        "quartz/moderation",
        provider_code="content_policy",
        code="CONTENT_REFUSED",
        cls="invalid_input",
        public="The provider does not show this. Please describe something else.",
    ),
)
