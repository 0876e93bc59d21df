"""Render a Helm chart, as far as the templates of deploy/helm use the template language.

Known: `.Values`, `.Release.Name`, `if`, `if not`, `quote`, and `toYaml … | nindent N`. Everything
else is refused, so that a template cannot be rendered wrongly without a failing test.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

TAG = re.compile(r"(\n[ \t]*)?\{\{(-?) (.+?) \}\}")


def render_chart(folder: Path, release: str = "jobs", **changes: Any) -> list[dict[str, Any]]:
    """Return the manifests of a chart. `changes` are merged into its values."""
    values = _merge(yaml.safe_load((folder / "values.yaml").read_text()), changes)
    manifests: list[dict[str, Any]] = []
    for template in sorted((folder / "templates").glob("*.yaml")):
        text = _render(template.read_text(), {"Values": values, "Release": {"Name": release}})
        manifests += [one for one in yaml.safe_load_all(text) if one]
    return manifests


def _merge(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for name, value in changes.items():
        if name not in values:
            message = f"the chart has no value {name}"
            raise KeyError(message)
        merged[name] = _merge(values[name], value) if isinstance(value, dict) else value
    return merged


def _render(text: str, scope: dict[str, Any]) -> str:
    parts: list[str] = []
    conditions: list[bool] = []
    end = 0
    for tag in TAG.finditer("\n" + text):
        before = ("\n" + text)[end : tag.start()]
        space, trims, expression = tag[1] or "", tag[2], tag[3]
        if all(conditions):
            parts.append(before if trims else before + space)
        end = tag.end()
        if expression == "end":
            conditions.pop()
        elif expression.startswith("if "):
            conditions.append(_holds(expression[3:], scope))
        elif all(conditions):
            parts.append(_evaluate(expression, scope))
    assert not conditions, "an if has no end"
    return "".join([*parts, ("\n" + text)[end:]])


def _holds(condition: str, scope: dict[str, Any]) -> bool:
    if condition.startswith("not "):
        return not _holds(condition[4:], scope)
    return bool(_look_up(condition, scope))


def _evaluate(expression: str, scope: dict[str, Any]) -> str:
    source, _, function = expression.partition(" | ")
    if source.startswith("toYaml "):
        value = yaml.safe_dump(_look_up(source[7:], scope)).rstrip()
        indent = " " * int(function.removeprefix("nindent "))
        return "\n" + "\n".join(indent + line for line in value.splitlines())
    value = _look_up(source, scope)
    if function == "quote":
        return json.dumps(str(value))
    assert not function, f"unknown function {function}"
    return str(value)


def _look_up(path: str, scope: dict[str, Any]) -> Any:
    assert re.fullmatch(r"(\.\w+)+", path), f"unknown expression {path}"
    found: Any = scope
    for name in path[1:].split("."):
        found = found[name]
    return found
