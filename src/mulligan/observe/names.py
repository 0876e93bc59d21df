"""Labels that come from outside: of each sort only so many, and none too long."""

from __future__ import annotations

from collections.abc import Mapping

MOST = {"kind": 200, "queue": 100, "code": 200, "dependency": 200}
LONGEST = 100
OTHER = "other"


def printable(name: str) -> str:
    """Nothing that could break a line or could not be written at all."""
    return "".join(sign if sign.isprintable() else "?" for sign in name[:LONGEST])


class Names:
    """The first so many keep their names for good; whatever comes after them is counted together."""

    def __init__(self, known: Mapping[str, list[str]]) -> None:
        self.known = {sort: list(known.get(sort, ())) for sort in MOST}
        self._sets = {sort: set(names) for sort, names in self.known.items()}

    def keep(self, sort: str, name: str) -> str:
        name = printable(name)
        if not name or name in self._sets[sort]:
            return name
        if len(self._sets[sort]) >= MOST[sort]:
            return OTHER
        self._sets[sort].add(name)
        self.known[sort].append(name)
        return name
