"""The checker: what clients were told, what the store remembers and what handlers saw, held against each other."""

from mulligan.verify.records import Clients, witness, witnessed

__all__ = ["Clients", "witness", "witnessed"]
