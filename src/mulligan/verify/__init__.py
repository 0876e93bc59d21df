"""The checker: what clients were told, what the store remembers and what handlers saw, held against each other.

`verify(store_or_url, clients=[…], witness=[…])` answers with a `Report`; `Clients`, `witness` and `witnessed` write the
files that go with it (`mulligan.verify.records` is their format).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mulligan.verify.records import Clients, witness, witnessed

if TYPE_CHECKING:
    from mulligan.verify.checker import Report, verify

__all__ = ["Clients", "Report", "verify", "witness", "witnessed"]


def __getattr__(name: str) -> Any:
    """A handler that bears witness should not have to load the checker."""
    if name in {"Report", "verify"}:
        return getattr(import_module("mulligan.verify.checker"), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
