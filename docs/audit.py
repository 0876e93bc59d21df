"""Check licences, pins, hashes and known vulnerabilities of dependencies: `make audit`.

Vulnerabilities come from the advisories of PyPI, through pip-audit. If they cannot be read, the exit
code is 3. Licences and hashes need no network.
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
VENDORED_FOLDERS = (
    ROOT / "src/mulligan/http/dashboard/static/vendor",
    ROOT / "tests/browser/vendor",
    ROOT / "docs/site/vendor",
)
EXIT_FOUND = 1
EXIT_UNKNOWN = 3
# Licences that allow use in closed and open programs.
LICENCES = re.compile(
    r"MIT|BSD|Apache|PSF|ISC|MPL|Mozilla Public|any-OSI|Python Software Foundation|LGPL-3\.0-only|0BSD|Zlib",
    re.IGNORECASE,
)
EXTRAS = ("web", "postgres", "otel", "apprise")


def pinned() -> dict[str, str]:
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("==")[::2] for line in lines if line and not line.startswith("#")]
    return {normalise_name(name): version for name, version in pairs}


def normalise_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_licences() -> dict[str, str]:
    """Return the licence of every distribution installed with Mulligan and its extras."""
    found: dict[str, str] = {}
    todo = [("mulligan", EXTRAS)]
    while todo:
        name, extras = todo.pop()
        if normalise_name(name) in found:
            continue
        try:
            known = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # needed only by another system or Python
            continue
        found[normalise_name(name)] = licence_of(known)
        todo += [(one, ()) for one in _requirements(known, extras)]
    return found


def _requirements(known: metadata.Distribution, extras: tuple[str, ...]) -> Iterator[str]:
    for line in known.requires or []:
        requirement, _, marker = line.partition(";")
        marker_extras = re.findall(r"extra\s*==\s*['\"](\w+)['\"]", marker)
        if not marker_extras or set(marker_extras) & set(extras):
            yield re.split(r"[\s\[<>=!~(]", requirement.strip())[0]


def licence_of(known: metadata.Distribution) -> str:
    fields: Any = known.metadata
    classified = [
        one.rpartition("::")[2].strip()
        for one in fields.get_all("Classifier") or ()
        if one.startswith("License")
    ]
    return str(
        fields.get("License-Expression")
        or (classified or [""])[0]
        or (fields.get("License") or "")[:60]
    )


def find_problems() -> list[str]:
    """Return a sentence for each problem that can be found without a network."""
    licences = installed_licences()
    pins = pinned()
    return [
        *(
            f"{name} is not in constraints.txt"
            for name in licences
            if name not in pins and name != "mulligan"
        ),
        *(
            f"{name} has the licence {one!r}: may we use it?"
            for name, one in licences.items()
            if not LICENCES.search(one)
        ),
        *_vendored(),
    ]


def _vendored() -> Iterator[str]:
    for folder in VENDORED_FOLDERS:
        for name, entry in json.loads(
            (folder / "manifest.json").read_text(encoding="utf-8")
        ).items():
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != entry["sha256"]:
                yield f"{name} differs from its manifest"


def find_vulnerabilities(program: str) -> tuple[list[str], int, int]:
    """Return (vulnerabilities, number of pinned versions, number that could not be checked)."""
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
    licences = installed_licences()
    print(
        f"{len(licences) - 1} distributions come with Mulligan and its extras {', '.join(EXTRAS)}; licences:"
    )
    for licence in sorted(set(licences.values())):
        print(
            f"  {licence}: {', '.join(sorted(name for name, one in licences.items() if one == licence))}"
        )
    problems = find_problems()
    print(
        "\n".join(problems)
        or "All are pinned, all licences are known, vendored files match their manifests."
    )
    known, total, unchecked = find_vulnerabilities(sys.argv[1])
    print(
        "\n".join(known)
        or f"No known vulnerability in {total - unchecked} of {total} pinned versions."
    )
    if unchecked:
        print(f"{unchecked} versions were not checked: no advisories, or an unknown version.")
    if problems or known:
        return EXIT_FOUND
    return EXIT_UNKNOWN if unchecked else 0


if __name__ == "__main__":
    sys.exit(main())
