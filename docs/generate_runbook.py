"""Generate docs/operate/runbook.md: an entry per class, code and alert, from runbook.toml."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mulligan.core.attempt import Cls
from mulligan.failures import codes

ENTRIES: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "runbook.toml").read_text(encoding="utf-8")
)
ACTIONS = {
    "reduce": "reduces the concurrency until the alert ends",
    "open": "holds the dependency until the alert ends",
    "pause": "pauses the queue for a while",
}
HEAD = """\
# Runbook

Messages link to the entry of a failure code or an alert. Publish this page, or your own with the same headings,
and set `notify.runbook_url` to its URL.

What Mulligan does automatically is said once per class, and in the entry of a code only where it differs.
An alert sends one message, and another when it ends.
**Once the cause is fixed, retry the jobs that died of it**, in steps (one, then ten, then the rest):

```text
mulligan failures list 'code:HTTP_5XX'
mulligan failures show GROUP
mulligan failures retry GROUP --reason "gateway is back"
```

If a code is not listed, your own app defined it: read the entry of its class."""


def page(notice: str) -> str:
    _check_complete()
    return (
        "\n\n".join([notice, HEAD, "## Classes", *_classes(), "## Codes", *_codes(), *_alerts()])
        + "\n"
    )


def _classes() -> Iterator[str]:
    for cls in Cls:
        yield _entry(f"Class {cls}", "", ENTRIES["automatic"][cls], ENTRIES["classes"][cls])


def _codes() -> Iterator[str]:
    for code in codes.CODES.values():
        means = f"{code.public.removesuffix('.')} ([`{code.cls}`](#class-{code.cls}))."
        advice = ENTRIES["codes"][code.name]
        yield _entry(code.name, means, advice.get("automatic", ""), advice)


def _alerts() -> Iterator[str]:
    """Yield an entry per built-in alert rule."""
    rules = _rules()
    if rules:
        yield "## Alerts"
    for rule in rules:
        means = rule.summary.replace("{}", "…")
        automatic = ACTIONS.get(rule.action, "")
        yield _entry(
            f"Alert {rule.name}",
            f"{means[:1].upper()}{means[1:]}.",
            automatic,
            ENTRIES["alerts"][rule.name],
        )


def _rules() -> tuple[Any, ...]:
    try:
        return tuple(importlib.import_module("mulligan.alerts.builtin").BUILTIN)
    except ModuleNotFoundError:
        return ()


def _entry(title: str, means: str, automatic: str, advice: dict[str, str]) -> str:
    steps = (("Automatic", automatic), ("Check", advice["look"]), ("Do", advice["do"]))
    rows = "\n".join(f"- **{label}:** {_sentence(text)}" for label, text in steps if text)
    return "\n\n".join(part for part in (f"### {title}", means, rows) if part)


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def _check_complete() -> None:
    alerts = {rule.name for rule in _rules()} or set(ENTRIES["alerts"])
    wanted = {"classes": set(map(str, Cls)), "codes": set(codes.CODES), "alerts": alerts}
    wrong = {
        part: sorted(names ^ set(ENTRIES[part]))
        for part, names in wanted.items()
        if names != set(ENTRIES[part])
    }
    if wrong:
        message = f"docs/runbook.toml: missing or unknown entries: {wrong}"
        raise LookupError(message)
