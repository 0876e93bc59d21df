"""Check the guarantees of Mulligan: compare the database with what clients and handlers recorded.

`verify(store_or_url, clients=[…], witness=[…])` returns a `VerifyReport`. `Clients`, `witness` and
`witnessed` write the files; `mulligan.doctor.verify.records` describes their format.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mulligan.doctor.verify.records import Clients, witness, witnessed

if TYPE_CHECKING:
    from mulligan.doctor.verify.checker import VerifyReport, verify

__all__ = ["Clients", "VerifyReport", "verify", "witness", "witnessed"]


def __getattr__(name: str) -> Any:
    """Load the checker on first use: handlers that only record do not need it."""
    if name in {"VerifyReport", "verify"}:
        return getattr(import_module("mulligan.doctor.verify.checker"), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
