"""One filter language: `state:dead kind:render queue:pdf owner:acme batch:…`."""

from __future__ import annotations

import difflib
import shlex

from mulligan.errors import Refused
from mulligan.job import State

FIELDS = {"state": "state", "kind": "kind", "queue": "queue", "owner": "owner", "batch": "batch_id"}


def parse_filter(text: str) -> dict[str, str]:
    """What `Unit.list` understands; anything else is refused with the nearest right word."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        message = f"filter {text!r}: {error}"
        raise Refused(message) from None
    if not text.isprintable():
        message = f"filter {text!r} holds characters that cannot be printed"
        raise Refused(message)
    found: dict[str, str] = {}
    for word in words:
        name, colon, value = word.partition(":")
        if not colon or name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"; did you mean {near[0]}:?" if near else f"; fields: {', '.join(FIELDS)}"
            message = f"filter {word!r} is not field:value{hint}"
            raise Refused(message)
        found[FIELDS[name]] = value
    if "state" in found and found["state"] not in list(State):
        message = f"filter state:{found['state']}: no such state; one of {', '.join(State)}"
        raise Refused(message)
    return found
