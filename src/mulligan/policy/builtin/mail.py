"""SMTP: the enhanced status says more than the reply code, and 4xx means later."""

from __future__ import annotations

from mulligan.policy.builtin.http import DAILY
from mulligan.policy.builtin.row import row, words

_MANY = (
    r"\btoo many\b(?!.{0,60}\b(?:today|daily|per day)\b)",
    r"\brate\b.{0,20}\b(?:limit|exceeded)",
    r"\bthrottl(?!.{0,60}\b(?:daily|per day)\b)",
    r"\bslow down\b",
)
_BOTH = ("smtp:4*", "smtp:5*")

RULES = (
    row("smtp.quota", "QUOTA", provider_code=("smtp:5.4.5", "smtp:4.7.28")),
    row("smtp.daily", "QUOTA", provider_code=_BOTH, message=DAILY),
    row("smtp.full-mailbox", "MAIL_DEFERRED", provider_code="smtp:5.2.2"),
    row("smtp.rate", "RATE_LIMITED", provider_code="smtp:4*", message=_MANY),
    row(
        "smtp.for-now",
        "MAIL_DEFERRED",
        provider_code="smtp:5*",
        message=(r"\bgrey-?list", r"\b(?:try|come back|resend) (?:again )?later\b", r"\btemporar(?:y|ily) \w+"),
    ),
    row(
        "smtp.many-logins",
        "RATE_LIMITED",
        provider_code="smtp:5*",
        message=r"\btoo many (?:login|failed|connections|concurrent)\b",
    ),
    row(
        "smtp.auth",
        "AUTH",
        provider_code=words(
            """
            smtp:5.7.8 smtp:5.7.9 smtp:5.7.14 smtp:5.7.3 smtp:535 smtp:530 smtp:534 smtp:538 smtp:5.7.57 smtp:5.7.139
            """
        ),
    ),
    row(
        "smtp.address",
        "BAD_ADDRESS",
        provider_code=words("smtp:5.1.* smtp:5.2.1 smtp:5.4.4 smtp:5.4.1 smtp:553 smtp:5.0.1"),
    ),
    row("smtp.size", "TOO_LARGE", provider_code=words("smtp:5.3.4 smtp:5.2.3 smtp:552")),
    row(
        "smtp.refused",
        "MAIL_REFUSED",
        provider_code=words(
            """
            smtp:5.* smtp:550 smtp:551 smtp:554 smtp:555 smtp:500 smtp:501 smtp:502 smtp:503 smtp:504 smtp:521
            smtp:541 smtp:556
            """
        ),
    ),
    row(
        "smtp.later",
        "MAIL_DEFERRED",
        provider_code=words("smtp:4.* smtp:421 smtp:450 smtp:451 smtp:452 smtp:454 smtp:432 smtp:447 smtp:471"),
    ),
    row("smtp.type-unsupported", "MISCONFIGURED", type=("smtplib.SMTPNotSupportedError", "SMTPNotSupported")),
    row("smtp.type-gone", "CONNECTION", type=("smtplib.SMTPServerDisconnected", "smtplib.SMTPConnectError")),
)
