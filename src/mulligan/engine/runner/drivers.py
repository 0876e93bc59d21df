"""Databases, brokers, mail and file servers: what their drivers put into an exception, whoever the driver is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mulligan.engine.runner.bodies import as_code

Values = dict[str, Any]
_FEW = 8  # recipients that are looked at


def number_of(value: Any) -> int | None:
    """A whole number, also one of an enum; `True` is none."""
    return int(value) if isinstance(value, int) and type(value) is not bool and abs(value) < 2**31 else None


def read_driver(family: str, name: str, values: Values, args: tuple[Any, ...]) -> tuple[str, list[str]]:
    """The SQLSTATE and the provider codes of an exception of this family and name."""
    first = args[0] if args else None
    state = first if family == "pyodbc" else values.get("sqlstate", values.get("pgcode"))
    known = isinstance(state, str) and _SQLSTATE.fullmatch(state) is not None
    reader = _BY_FAMILY.get(family)
    return str(state) if known else "", reader(family, name, values, first) if reader else []


_SQLSTATE = re.compile(r"[0-9A-Z]{5}")


def _numbered(family: str, _name: str, values: Values, first: Any) -> list[str]:
    number = number_of(values.get("errno"))
    number = number_of(first) if number is None else number
    return [] if number is None or number <= 0 else [f"{family}:{number}"]


def _sqlite(_family: str, _name: str, values: Values, _first: Any) -> list[str]:
    name, number = values.get("sqlite_errorname"), values.get("sqlite_errorcode", values.get("result"))
    base = None if (whole := number_of(number)) is None else whole & 255
    plain = _SQLITE.get(base, "") if base is not None else ""
    names = [str.__str__(name)] if isinstance(name, str) else []
    names += [f"SQLITE_{plain}"] if plain else []
    return [f"sqlite:{code}" for code in (*names, *([] if base is None else [base]))]


_SQLITE = dict(
    enumerate(
        (
            "ERROR", "INTERNAL", "PERM", "ABORT", "BUSY", "LOCKED", "NOMEM", "READONLY", "INTERRUPT", "IOERR",
            "CORRUPT", "NOTFOUND", "FULL", "CANTOPEN", "PROTOCOL", "EMPTY", "SCHEMA", "TOOBIG", "CONSTRAINT",
            "MISMATCH", "MISUSE", "NOLFS", "AUTH", "FORMAT", "RANGE", "NOTADB",
        ),
        start=1,
    )
)  # fmt: skip


def _redis(_family: str, name: str, values: Values, first: Any) -> list[str]:
    """The word a server begins its error with; older clients turn it into a class and take it out of the text."""
    word = values.get("status_code") or _REDIS.get(name.rpartition(".")[2], "")
    if not word and isinstance(first, str) and (found := _REDIS_WORD.match(first)):
        word = found[0]
    return [f"redis:{word}"] if as_code(word) else []


_REDIS_WORD = re.compile(r"[A-Z]{2,20}(?= )")
_REDIS = {
    "BusyLoadingError": "LOADING", "ReadOnlyError": "READONLY", "ClusterDownError": "CLUSTERDOWN", "AskError": "ASK",
    "TryAgainError": "TRYAGAIN", "OutOfMemoryError": "OOM", "MasterDownError": "MASTERDOWN", "MovedError": "MOVED",
    "NoScriptError": "NOSCRIPT", "ExecAbortError": "EXECABORT", "NoPermissionError": "NOPERM",
    "ClusterCrossSlotError": "CROSSSLOT",
}  # fmt: skip


def _oracle(_family: str, _name: str, _values: Values, first: Any) -> list[str]:
    return [as_code(getattr(first, "full_code", None))]


def _kafka(_family: str, _name: str, _values: Values, first: Any) -> list[str]:
    name = as_code(first.name())
    return [f"kafka:{name}"] if name else []


def _mongo(_family: str, _name: str, values: Values, _first: Any) -> list[str]:
    details = values.get("details")
    return [as_code(details.get("codeName"))] if isinstance(details, dict) else []


def _ftp(_family: str, _name: str, _values: Values, first: Any) -> list[str]:
    return [f"ftp:{first[:3]}"] if isinstance(first, str) and first[:3].isdecimal() else []


def _smtp(_family: str, _name: str, values: Values, _first: Any) -> list[str]:
    """Temporary refusals first: as long as one recipient may still be reached, there is hope."""
    answers = [(values.get("smtp_code", values.get("code")), values.get("smtp_error", values.get("message")))]
    recipients = values.get("recipients")
    if isinstance(recipients, dict):
        answers += [answer for answer in list(recipients.values())[:_FEW] if isinstance(answer, tuple)]
    elif isinstance(recipients, list | tuple):
        answers += [(getattr(one, "code", None), getattr(one, "message", None)) for one in recipients[:_FEW]]
    codes: list[tuple[int, list[str]]] = []
    for code, text in answers:
        number = number_of(code)
        if number is not None and 200 <= number <= 599:
            codes.append((number, [*_enhanced(text), f"smtp:{number}"]))
    return [name for _, names in sorted(codes, key=lambda entry: entry[0] // 100) for name in names]


_ENHANCED = re.compile(r"[245]\.\d{1,3}\.\d{1,3}(?!\.?\d)")


def _enhanced(text: Any) -> list[str]:
    if isinstance(text, bytes):
        text = text[:100].decode("utf-8", "replace")
    found = _ENHANCED.match(text.lstrip()) if isinstance(text, str) else None
    return [f"smtp:{found[0]}"] if found else []


_BY_FAMILY: dict[str, Callable[[str, str, Values, Any], list[str]]] = {
    **dict.fromkeys(("mysql", "pymssql", "curl", "snowflake"), _numbered),
    "sqlite": _sqlite,
    "redis": _redis,
    "oracle": _oracle,
    "kafka": _kafka,
    "mongo": _mongo,
    "ftp": _ftp,
    "smtp": _smtp,
}
DRIVERS = frozenset({*_BY_FAMILY, "pyodbc"})
