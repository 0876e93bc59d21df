"""What a database URL names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


def sqlite_file(url: str) -> Path | None:
    """The file behind a SQLite URL; None: not SQLite."""
    if not url.startswith("sqlite"):
        return None
    return Path(url.partition("///")[2] or "mulligan.db").absolute()


def own_library(url: str) -> str:
    """The same database through Mulligan's own SQLite library: for processes that hold none of the user's code."""
    return url.replace("sqlite+stdlib:", "sqlite:", 1)


def same_database(one: str, other: str) -> bool:
    files = sqlite_file(one), sqlite_file(other)
    if files[0] is not None and files[1] is not None:
        return files[0].resolve() == files[1].resolve()
    return _plain(one) == _plain(other)


def _plain(url: str) -> str:
    """The same server is spelled postgres://, postgresql:// and postgresql+psycopg://."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.removesuffix('+psycopg').replace('postgresql', 'postgres')}{separator}{rest}"


_PASSWORD = re.compile(r"(?i)\b((?:ssl)?password)=[^&]*")


def shown_url(url: str) -> str:
    """It without its password. However badly it is written: where it is in doubt, too much is hidden."""
    if url.startswith("sqlite"):
        return url
    scheme, colon, rest = url.partition(":")
    name = rest.lstrip("/")
    before, at, host = name.rpartition("@")
    user, has, _ = before.partition(":")
    told = f"{user}:***@{host}" if has else f"{before}{at}{host}"
    return _PASSWORD.sub(r"\1=***", f"{scheme}{colon}{rest[: len(rest) - len(name)]}{told}")


# This run of this kernel, named. Monotonic times mean nothing under another name.

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_id() -> str:
    return _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else "unknown-boot"
