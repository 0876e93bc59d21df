"""Types of settings: which values they accept, and how texts become numbers."""

from __future__ import annotations

import difflib
import math
from datetime import timedelta
from ipaddress import ip_network
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from mulligan.core.attempt import RETRYABLE, Cls
from mulligan.core.durations import parse_seconds
from mulligan.core.format import parse_size

DAY = 86_400.0
RETRYABLE_CLASSES = tuple(str(cls) for cls in Cls if cls in RETRYABLE)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        message = "must be a finite number"
        raise ValueError(message)
    return value


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        message = "must be a number, not true or false"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports ValueErrors
    return value


def _to_seconds(value: Any) -> Any:
    """Convert a timedelta, or a text such as `90d`. Other values are left to the next check."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _parse_seconds(value)
    return _no_bool(value)


def _parse_seconds(text: str) -> float:
    seconds = parse_seconds(text)
    try:
        return float(text) if seconds is None else seconds
    except ValueError:
        message = "must be seconds, or a text such as 30s, 5m, 2h or 90d"
        raise ValueError(message) from None


def _to_bytes(value: Any) -> Any:
    """Convert a text such as `500MB` or `2GiB` to bytes."""
    if not isinstance(value, str):
        return _no_bool(value)
    size = parse_size(value)
    if size is None:
        message = "must be bytes, or a text such as 500MB or 2GiB"
        raise ValueError(message)
    return size


def check_jitter(value: Any) -> Any:
    """Return a jitter: a name or a share. One message covers both."""
    if isinstance(value, str) and value in {"full", "equal", "none"}:
        return value
    try:
        share = float(_no_bool(value))
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share <= 1:
        message = "must be full, equal, none or a share from 0 to 1"
        raise ValueError(message)
    return share


def _classes(value: Any) -> Any:
    """Check a list of failure classes, or a text with commas between them."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        message = "must be a list of classes, or a text with commas between them"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports ValueErrors
    names = tuple(str(name).strip() for name in items)
    if not any(names):
        message = "names no class. To retry nothing at all, set retry.enabled to false."
        raise ValueError(message)
    for name in names:
        if name not in RETRYABLE_CLASSES:
            raise ValueError(_class_problem(name))
    return names


def _class_problem(name: str) -> str:
    """Explain why a class cannot be retried, or suggest a similar one."""
    if name in list(Cls):
        return f"class {name} is never retried"
    similar = difflib.get_close_matches(name, RETRYABLE_CLASSES, n=1, cutoff=0.5)
    if similar:
        return f"unknown class {name!r}; did you mean {similar[0]!r}?"
    return f"unknown class {name!r}; classes that may be retried: {', '.join(RETRYABLE_CLASSES)}"


def _networks(value: Any) -> Any:
    """Check a list of networks, or a text with commas: `127.0.0.0/8, fd00::/8`."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        message = "must be a list of networks, or a text with commas between them"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports ValueErrors
    try:
        names = [str(item).strip() for item in items]
        return tuple(str(ip_network(name)) for name in names if name)
    except ValueError as error:
        message = f"{error}. Use a network such as 127.0.0.0/8 or fd00::/8."
        raise ValueError(message) from None


def _public_url(value: str) -> str:
    """Check the URL of a page, to which paths are appended. Strips the slash at its end."""
    parts = urlsplit(value)
    valid = parts.scheme in {"http", "https"} and parts.hostname and value.isprintable()
    if value and not valid:
        message = "must be a URL like https://jobs.example.com"
        raise ValueError(message)
    if parts.username is not None or any(char in value for char in " <>\"'"):
        message = (
            "must not contain a user name, a password, spaces or quotes, "
            "because it is sent in messages"
        )
        raise ValueError(message)
    return value.rstrip("/")


Integer = Annotated[int, BeforeValidator(_no_bool)]
Number = Annotated[float, BeforeValidator(_no_bool), AfterValidator(_finite)]
# Durations: seconds, a timedelta, or a text such as `30s`, `5m`, `2h` and `90d`.
Seconds = Annotated[float, BeforeValidator(_to_seconds), AfterValidator(_finite)]
Positive = Annotated[Seconds, Field(gt=0, le=10 * 365 * DAY)]
NotNegative = Annotated[Seconds, Field(ge=0, le=10 * 365 * DAY)]
Count = Annotated[Integer, Field(ge=0, le=1_000_000)]
SmallCount = Annotated[Integer, Field(ge=0, le=200)]
Size = Annotated[int, BeforeValidator(_to_bytes), Field(ge=0, le=2**50)]
Growth = Annotated[Number, Field(ge=1, le=100)]
Jitter = Annotated[
    Literal["full", "equal", "none"] | Annotated[float, Field(ge=0, le=1)],
    BeforeValidator(check_jitter),
]
RetryClasses = Annotated[tuple[str, ...], BeforeValidator(_classes)]
Networks = Annotated[tuple[str, ...], BeforeValidator(_networks)]
PublicUrl = Annotated[str, AfterValidator(_public_url)]
