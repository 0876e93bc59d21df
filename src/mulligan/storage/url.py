"""Database URLs: which database they name, and how to show them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_PASSWORD = re.compile(r"(?i)\b((?:ssl)?password)=[^&]*")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite URL. None: another database."""
    if not url.startswith("sqlite"):
        return None
    return Path(url.partition("///")[2] or "mulligan.db").absolute()


def use_apsw(url: str) -> str:
    """Return the URL for Mulligan's own SQLite library, for processes without user code."""
    return url.replace("sqlite+stdlib:", "sqlite:", 1)


def same_database(one: str, other: str) -> bool:
    """True if two URLs name the same database."""
    one_file = sqlite_path(one)
    other_file = sqlite_path(other)
    if one_file is not None and other_file is not None:
        return one_file.resolve() == other_file.resolve()
    return _normalise(one) == _normalise(other)


def _normalise(url: str) -> str:
    """Unify postgres://, postgresql:// and postgresql+psycopg://."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.removesuffix('+psycopg').replace('postgresql', 'postgres')}{separator}{rest}"


def mask_password(url: str) -> str:
    """Replace the password by `***`. In a malformed URL, rather mask too much than too little."""
    if url.startswith("sqlite"):
        return url
    scheme, colon, rest = url.partition(":")
    name = rest.lstrip("/")
    slashes = rest[: len(rest) - len(name)]
    credentials, at, host = name.rpartition("@")
    user, has_password, _ = credentials.partition(":")
    masked = f"{user}:***@{host}" if has_password else f"{credentials}{at}{host}"
    return _PASSWORD.sub(r"\1=***", f"{scheme}{colon}{slashes}{masked}")


@cache
def boot_id() -> str:
    """Return the id of this boot of the host. Monotonic times of other boots mean nothing."""
    return _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else "unknown-boot"
