"""`make audit`: what we use, and what is known about it. Says what could not be asked.

Known vulnerabilities come from the advisories of PyPI, through pip-audit. Where they cannot be reached nothing is
claimed about them, and the exit code is 3. Licences and hashes need no network.
"""
# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
SHELVES = (ROOT / "src/mulligan/http/dashboard/static/vendor", ROOT / "tests/browser/vendor")
FOUND, UNKNOWN = 1, 3
# Of what is installed with Mulligan and its extras; all of them allow use in closed and open programs.
LICENCES = re.compile(
    r"MIT|BSD|Apache|PSF|ISC|MPL|Mozilla Public|any-OSI|Python Software Foundation|LGPL-3\.0-only|0BSD|Zlib",
    re.IGNORECASE,
)
EXTRAS = ("postgres", "otel", "apprise")


def pinned() -> dict[str, str]:
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("==")[::2] for line in lines if line and not line.startswith("#")]
    return {plain(name): version for name, version in pairs}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def shipped() -> dict[str, str]:
    """What comes along with Mulligan and its extras, by name: its licence."""
    found: dict[str, str] = {}
    todo = [("mulligan", EXTRAS)]
    while todo:
        name, extras = todo.pop()
        if plain(name) in found:
            continue
        try:
            known = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # for another system or another Python
            continue
        found[plain(name)] = licence_of(known)
        todo += [(one, ()) for one in _needed(known, extras)]
    return found


def _needed(known: metadata.Distribution, extras: tuple[str, ...]) -> Iterator[str]:
    for line in known.requires or []:
        wanted, _, marker = line.partition(";")
        asked = re.findall(r"extra\s*==\s*['\"](\w+)['\"]", marker)
        if not asked or set(asked) & set(extras):
            yield re.split(r"[\s\[<>=!~(]", wanted.strip())[0]


def licence_of(known: metadata.Distribution) -> str:
    told: Any = known.metadata
    classified = [
        one.rpartition("::")[2].strip()
        for one in told.get_all("Classifier") or ()
        if one.startswith("License")
    ]
    return str(
        told.get("License-Expression")
        or (classified or [""])[0]
        or (told.get("License") or "")[:60]
    )


def wrong() -> list[str]:
    """What needs no network, in sentences."""
    said, pins = shipped(), pinned()
    return [
        *(
            f"{name} is not in constraints.txt"
            for name in said
            if name not in pins and name != "mulligan"
        ),
        *(
            f"{name} has the licence {one!r}: may we use it?"
            for name, one in said.items()
            if not LICENCES.search(one)
        ),
        *_vendored(),
    ]


def _vendored() -> Iterator[str]:
    for shelf in SHELVES:
        for name, told in json.loads((shelf / "manifest.json").read_text(encoding="utf-8")).items():
            if hashlib.sha256((shelf / name).read_bytes()).hexdigest() != told["sha256"]:
                yield f"{name} is not what its manifest says"


def asked(program: str) -> tuple[list[str], int, int]:
    """(what is known, how many were asked for, of how many nothing could be learned)."""
    command = [
        program,
        "-r",
        str(CONSTRAINTS),
        "--no-deps",
        "--disable-pip",
        "-f",
        "json",
        "--progress-spinner",
        "off",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        rows = json.loads(answer.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(answer.stderr.strip()[-500:], file=sys.stderr)
        return [], len(pinned()), len(pinned())
    known = [
        f"{row['name']} {row['version']}: {one['id']} ({', '.join(one['fix_versions']) or 'no fix yet'})"
        for row in rows
        for one in row.get("vulns", ())
    ]
    return known, len(rows), sum("skip_reason" in row for row in rows)


def main() -> int:
    said = shipped()
    print(
        f"{len(said) - 1} distributions come with Mulligan and its extras {', '.join(EXTRAS)}; licences:"
    )
    for licence in sorted(set(said.values())):
        print(
            f"  {licence}: {', '.join(sorted(name for name, one in said.items() if one == licence))}"
        )
    troubles = wrong()
    print(
        "\n".join(troubles)
        or "all are pinned, all licences are known, vendored files are what their manifest says"
    )
    known, many, unasked = asked(sys.argv[1])
    print(
        "\n".join(known) or f"no known vulnerability in {many - unasked} of {many} pinned versions"
    )
    if unasked:
        print(
            f"of {unasked} nothing could be learned: the advisories could not be reached, or do not know the version"
        )
    if troubles or known:
        return FOUND
    return UNKNOWN if unasked else 0


if __name__ == "__main__":
    sys.exit(main())
