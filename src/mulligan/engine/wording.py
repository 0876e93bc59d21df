"""The private half of failures that differ in nothing but their words: what they have in common is kept once, and made
into text once.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii
from typing import Any

from mulligan.plain_json import encode

TOLD = 500  # characters of a message repeated in the trace
MESSAGE, TRACE = "message", "trace"  # what is of each failure alone


class Wording(dict[str, Any]):
    """All of it, with nothing said in the two texts that are of each failure alone. The trace has the same lines in
    each, before its words and after them.
    """

    __slots__ = ("head", "parts", "tail")

    def __init__(self, private: dict[str, Any], head: str, tail: str) -> None:
        super().__init__({**private, MESSAGE: "", TRACE: ""})
        self.head, self.tail = head, tail
        names = [*private]
        at, then = names.index(MESSAGE), names.index(TRACE)
        if then < at:
            message = "not how the texts of a failure follow each other"
            raise ValueError(message)
        said = [f"{encode(name)}:{encode(value)}" for name, value in private.items()]
        first = "{" + "".join([f"{one}," for one in said[:at]]) + f'"{MESSAGE}":"'
        between = '"' + "".join([f",{one}" for one in said[at + 1 : then]]) + f',"{TRACE}":"{inside(head)}'
        last = f'{inside(tail)}"' + "".join([f",{one}" for one in said[then + 1 :]]) + "}"
        self.parts = first, between, last  # of the text in JSON: the words stand between them, twice

    def whole(self, words: str) -> dict[str, Any]:
        return {**self, MESSAGE: words, TRACE: f"{self.head}{words[:TOLD]}{self.tail}"}

    def length(self, words: str) -> int:
        """Of the trace."""
        return len(self.head) + min(len(words), TOLD) + len(self.tail)

    def text(self, words: str) -> str:
        """The same as JSON: put together from parts, of which only the words are new."""
        first, between, last = self.parts
        said = inside(words)
        told = said if len(words) <= TOLD else inside(words[:TOLD])
        return f"{first}{said}{between}{told}{last}"


def inside(text: str) -> str:
    """What stands between the quotes of this text in JSON."""
    return encode_basestring_ascii(text)[1:-1]
