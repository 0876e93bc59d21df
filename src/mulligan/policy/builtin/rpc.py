"""gRPC statuses. A job repeats the whole piece of work, so more of them may be tried again than a client dares."""

from __future__ import annotations

from mulligan.policy.builtin.http import DAILY, MONEY
from mulligan.policy.builtin.row import row

_TRANSPORT = (
    r"\b(?:RST_STREAM|GOAWAY|connection (?:reset|closed|refused|aborted)|transport is closing|stream (?:terminated|removed)|socket closed|received http2|unavailable|temporar(?:y|ily)|try again|retry)\b",
)

RULES = (
    row("grpc.per-minute", "RATE_LIMITED", grpc_status="RESOURCE_EXHAUSTED", message=r"PerMinute|PerSecond"),
    row("grpc.quota-money", "QUOTA", grpc_status="RESOURCE_EXHAUSTED", message=MONEY),
    row("grpc.quota-long", "QUOTA", grpc_status="RESOURCE_EXHAUSTED", message=DAILY),
    row(
        "grpc.message-too-large",
        "TOO_LARGE",
        grpc_status=("RESOURCE_EXHAUSTED", "OUT_OF_RANGE"),
        message=(
            r"\blarger than max\b",
            r"\bmessage (?:size )?exceeds\b",
        ),
    ),
    row(
        "grpc.not-ready",
        "NOT_READY",
        grpc_status="FAILED_PRECONDITION",
        message=(
            r"\bnot (?:yet )?(?:ready|in an active state)\b",
            r"\bbeing (?:built|created|updated|deleted)\b",
            r"\bin progress\b",
            r"\btry again\b",
        ),
    ),
    row("grpc.session", "CONNECTION", grpc_status="NOT_FOUND", message=r"\bsession not found\b"),
    row("grpc.transport", "CONNECTION", grpc_status=("INTERNAL", "UNKNOWN", "CANCELLED"), message=_TRANSPORT),
    row("grpc.unavailable", "HTTP_5XX", grpc_status="UNAVAILABLE"),
    row("grpc.aborted", "BUSY", grpc_status="ABORTED"),
    row("grpc.deadline", "TIMEOUT", grpc_status="DEADLINE_EXCEEDED"),
    row("grpc.exhausted", "RATE_LIMITED", grpc_status="RESOURCE_EXHAUSTED"),
    row("grpc.internal", "REMOTE_ERROR", grpc_status=("INTERNAL", "UNKNOWN")),
    row("grpc.cancelled", "STOPPED", grpc_status="CANCELLED"),
    row("grpc.invalid", "INVALID_INPUT", grpc_status=("INVALID_ARGUMENT", "OUT_OF_RANGE")),
    row("grpc.missing", "MISSING", grpc_status="NOT_FOUND"),
    row("grpc.exists", "ALREADY_EXISTS", grpc_status="ALREADY_EXISTS"),
    row("grpc.impossible", "MISCONFIGURED", grpc_status=("FAILED_PRECONDITION", "DATA_LOSS")),
    row("grpc.unsupported", "UNSUPPORTED", grpc_status="UNIMPLEMENTED"),
    row("grpc.auth", "AUTH", grpc_status="UNAUTHENTICATED"),
    row("grpc.denied", "ACCESS_DENIED", grpc_status="PERMISSION_DENIED"),
)
