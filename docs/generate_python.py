"""Generate the tables of docs/reference/python.md from signatures, type hints and docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Table = Callable[[Iterable[str], Iterable[Iterable[str]]], str]

# Name of the part in the page: the class whose public methods it lists.
SERVICES = {
    "app.jobs": "mulligan.jobs.service:Jobs",
    "app.alerts": "mulligan.alerts.service:Alerts",
    "app.events": "mulligan.events.service:Events",
    "app.keys": "mulligan.access.keys:Keys",
    "app.batches": "mulligan.batches.service:Batches",
    "app.queues": "mulligan.guards.gates:Queues",
    "app.dependencies": "mulligan.guards.gates:Dependencies",
    "app.releases": "mulligan.releases.service:Releases",
    "app.kinds": "mulligan.guards.gates:Kinds",
    "app.failures": "mulligan.failures.service:Failures",
    "app.operations": "mulligan.operations.service:Operations",
    "app.policy": "mulligan.retries.service:Policies",
    "app.schedules": "mulligan.schedules.service:Schedules",
    "app.subscriptions": "mulligan.notifications.subscriptions:Subscriptions",
    "app.deliveries": "mulligan.notifications.deliveries:Deliveries",
}
# Methods that other parts of Mulligan call.
INTERNAL = {
    "app.jobs": {"wait_async"},
    "app.batches": {"begin", "seal_async"},
    "app.failures": {"complete_fingerprint"},
}


def parts(table: Table) -> dict[str, Callable[[], str]]:
    """Return what prints each part of the page."""
    return {name: lambda name=name: _service(name, table) for name in SERVICES} | {  # type: ignore[misc]
        "testing": lambda: _testing(table)
    }


def _service(name: str, table: Table) -> str:
    module, _, attribute = SERVICES[name].partition(":")
    thing = getattr(importlib.import_module(module), attribute)
    rows = [
        [_signature(method, function), _sentences(function)]
        for method, function in _methods(thing)
        if method not in INTERNAL.get(name, ())
    ]
    return table(("call", "what it does"), rows)


def _methods(thing: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(thing).items():
        if not name.startswith("_") and inspect.isfunction(member):
            yield name, member


def _testing(table: Table) -> str:
    module = importlib.import_module("mulligan.testing")
    rows = []
    for name in module.__all__:
        thing = getattr(module, name)
        shown = f"`{name}`" if inspect.isclass(thing) else _signature(name, thing)
        rows.append([shown, _sentences(thing)])
    return table(("name", "what it does"), rows)


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    shown = []
    keyword_only = False
    for one in signature.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            shown.append("*")
        shown.append(_parameter(one))
    answer = _hint(signature.return_annotation)
    return f"`{name}({', '.join(shown)})`" + (f" → `{answer}`" if answer != "None" else "")


def _parameter(one: inspect.Parameter) -> str:
    star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    hint = _hint(one.annotation)
    shown = re.sub(r"datetime\.timedelta\((.*)\)", r"timedelta(\1)", repr(one.default))
    default = "" if one.default is one.empty else f"={shown.replace(chr(39), chr(34))}"
    if hint in ("str", "str|None") or hint == type(one.default).__name__:
        return f"{star}{one.name}{default}"  # python.md: how do I read a signature?
    return f"{star}{one.name}: {hint}{default}"


def _hint(annotation: Any) -> str:
    return str(annotation).rpartition("repair.")[2].replace(" | ", "|")


def _sentences(thing: Any) -> str:
    """Return the docstring on one line."""
    return " ".join((inspect.getdoc(thing) or "").split())
