"""One filter language: `state:dead kind:render queue:pdf owner:acme batch:… since:2h`."""

from __future__ import annotations

import difflib
import re
import shlex

from mulligan.errors import Refused
from mulligan.job import SECOND, State

FIELDS = {"state": "state", "kind": "kind", "queue": "queue", "owner": "owner", "batch": "batch_id", "since": "since"}
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


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
    if "since" in found:
        found["since"] = str(round(_since(found["since"]) * SECOND))
    return found


def _since(text: str) -> float:
    """How long ago, in seconds."""
    length = seconds(text)
    if length is None:
        message = f"filter since:{text}: no length of time; write since:30s, since:5m, since:2h or since:1d"
        raise Refused(message)
    return length


def seconds(text: str) -> float | None:
    """`30`, `30s`, `5m`, `2h`, `1d`; None: nothing of the kind."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(s|m|min|h|d|)", text.strip())
    return None if found is None else float(found[1]) * _UNITS[found[2]]
