"""Undo functions at the top level of a module, as apps define them, and the calls they record."""

from __future__ import annotations

from dataclasses import dataclass

calls: list[str] = []
failures: dict[str, int] = {}  # how often an undo fails


@dataclass
class Charge:
    """Result of a step."""

    order: int
    cents: int


def charge(order: int) -> Charge:
    calls.append("charge")
    return Charge(order, 4200)


def give_back(charge: Charge) -> None:
    _undo(f"give back {charge.order} {charge.cents}")


def reserve(order: int) -> str:
    calls.append("reserve")
    return f"parcel {order}"


def put_back(parcel: str) -> None:
    _undo(f"put back {parcel}")


async def put_back_async(parcel: str) -> None:
    _undo(f"put back async {parcel}")


def _undo(text: str) -> None:
    calls.append(text)
    if failures.get(text, 0) > 0:
        failures[text] -= 1
        raise ConnectionResetError(text)
