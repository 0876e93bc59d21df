"""The checker: what clients were told, what the store remembers and what handlers saw, held against each other.

`verify(store_or_url, clients=[…], witness=[…])` answers with a `VerifyReport`; `Clients`, `witness` and `witnessed` write the
files that go with it (`mulligan.doctor.verify.records` is their format).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mulligan.doctor.verify.records import Clients, witness, witnessed

if TYPE_CHECKING:
    from mulligan.doctor.verify.checker import VerifyReport, verify

__all__ = ["Clients", "VerifyReport", "verify", "witness", "witnessed"]


def __getattr__(name: str) -> Any:
    """A handler that bears witness should not have to load the checker."""
    if name in {"VerifyReport", "verify"}:
        return getattr(import_module("mulligan.doctor.verify.checker"), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
