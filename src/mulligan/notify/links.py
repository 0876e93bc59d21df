"""Where a message leads: to the page of what it tells of, and to the runbook."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from mulligan.config import Settings
from mulligan.core.attempt import Cls
from mulligan.event import Event
from mulligan.policy.codes import CODES

ROOM = 200  # characters of a filter


def of_event(event: Event, settings: Settings) -> str:
    if event.job_id:
        return _at(settings, f"/jobs/{quote(event.job_id, safe='')}")
    return _at(settings, _filter(f"batch:{event.batch_id}") if event.batch_id else "/")


def of_incident(group: str, batch_id: str, settings: Settings) -> str:
    if batch_id:
        return _at(settings, _filter(f"batch:{batch_id} state:dead"))
    return _at(settings, _filter(f"group:{group}") if group else "/")


def overview(settings: Settings) -> str:
    return _at(settings, "/")


def of_alert(rule: Any, settings: Settings) -> str:
    base = settings.notify.runbook_url
    return f"{base}#alert-{quote(rule[:ROOM], safe='', errors='replace')}" if base and isinstance(rule, str) else ""


def runbook(code: Any, cls: Any, settings: Settings) -> str:
    """A code of ours has an entry there, one of an app's own is read under its class."""
    base = settings.notify.runbook_url
    if not base or not isinstance(code, str) or not code:
        return ""
    if code in CODES:
        return f"{base}#{anchor(code)}"
    return f"{base}#class-{cls}" if cls in list(Cls) else base


def anchor(code: str) -> str:
    """As sites that show Markdown make it of a heading."""
    return code.lower()


def _filter(words: str) -> str:
    return f"/?filter={quote(words[:ROOM], safe='', errors='replace')}"


def _at(settings: Settings, path: str) -> str:
    base = settings.web.public_url
    return f"{base}{path}" if base else ""
