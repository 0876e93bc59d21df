"""How often a job has failed in this generation, by class and by code. Stored beside it as JSON; None: never."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.core.attempt import Cls, Failure
from mulligan.job import Micros
from mulligan.plain_json import encode

# A handler may make up codes as it goes. Beyond this many only those a rule has terms for are counted: rules are few.
MOST_CODES = 100


_TEXT = {cls: cls.value for cls in Cls}  # until Python 3.12 `value` is a function's work


class Counts(NamedTuple):
    classes: Mapping[str, int]
    codes: Mapping[str, int]
    spared: int = 0  # failures that were charged to a dependency that was down
    waited: Micros = 0  # while it was due and did not run: held, or without a place

    def plus(self, failure: Failure) -> Counts:
        """With one failure more."""
        cls, code = failure.cls, failure.code
        classes = {**self.classes, _TEXT[cls]: self.of_class(cls) + 1}
        if code not in self.codes and len(self.codes) >= MOST_CODES and not failure.terms:
            return Counts(classes, self.codes, self.spared, self.waited)
        return Counts(classes, {**self.codes, code: self.codes.get(code, 0) + 1}, self.spared, self.waited)

    def of_class(self, cls: Cls) -> int:
        return self.classes.get(cls, 0)

    def of_code(self, code: str) -> int:
        return self.codes.get(code, 0)

    def to_json(self) -> str | None:
        if self == NONE:
            return None
        said: dict[str, Any] = {"classes": self.classes, "codes": self.codes}
        if self.spared:
            said["spared"] = self.spared
        if self.waited:
            said["waited"] = self.waited
        return encode(said)


NONE = Counts({}, {})


def read_counts(text: str | None) -> Counts:
    """What cannot be read counts as nothing: the total, which has a column of its own, still holds."""
    if not text:
        return NONE
    try:
        said = json.loads(text)
        more = _numbers({name: said.get(name) for name in ("spared", "waited")})
        return Counts(_numbers(said.get("classes")), _numbers(said.get("codes")), **more)
    except (AttributeError, ValueError):
        return NONE


def _numbers(value: Any) -> dict[str, int]:
    return {str(name): count for name, count in (value or {}).items() if type(count) is int and count > 0}
